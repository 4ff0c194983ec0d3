"""What stands for a device, files and threads under the tiers, for tests: in memory, and done when it is told to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from emberd.engine.disk_tier import DiskTier
from emberd.engine.prefix import Key
from emberd.engine.rates import Rates
from emberd.engine.tiers import Tiers
from emberd.protocol import Bytes

SIZE = 2  # tokens of a block
WIDTH = 16  # bytes of a block: the number of its tokens, then all tokens up to its end


@dataclass
class Copied:
    data: Bytes

    def take(self) -> Bytes:
        return self.data


class PoolRunner:
    """As much of a runner as tiers need: blocks of bytes."""

    block_size, block_bytes, steps_in_flight = SIZE, WIDTH, 1

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.pool = np.zeros((num_blocks, WIDTH), np.uint8)

    def read_blocks(self, blocks: Sequence[int]) -> Copied:
        return Copied(self.pool[list(blocks)])

    def write_blocks(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        assert len(set(blocks)) == len(blocks)
        self.pool[list(blocks)] = data


class Files:
    """Stands for BlockFiles, in memory."""

    folder = "memory"

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.content: dict[Key, Bytes] = {}

    def listing(self) -> list[Any]:
        return []

    others = listing

    def write(self, key: Key, parent: Key | None, data: Bytes) -> None:
        self.content[key] = data.copy()

    def read(self, key: Key, parent: Key | None) -> Bytes | None:
        return self.content.get(key)

    def remove(self, key: Key, parent: Key | None) -> None:
        self.content.pop(key, None)


class Jobs(Executor):
    """Runs a job when it is told to, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any], str]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        keys = [arg.hex() for arg in args if isinstance(arg, bytes)]
        name = " ".join([fn.__name__, *keys[:1]])
        self.waiting.append((future, lambda: fn(*args, **kwargs), name))
        return future

    def run_one(self) -> None:
        future, job, _ = self.waiting.popleft()
        future.set_result(job())


class Disk(DiskTier):
    def wait(self, seconds: float) -> None:
        """Nothing is done meanwhile."""


def memory_tiers(runner: Any, ram_blocks: int, disk_blocks: int, jobs: Jobs) -> Tiers:
    """Tiers of so many blocks over any runner, whose disk works when `jobs` does; beside replies one block comes up
    in a step."""
    rates, size = Rates(runner.block_size, runner.block_bytes), runner.block_bytes
    disk = None
    if disk_blocks:
        disk = Disk(Files(size), disk_blocks * size, rates.fetch, jobs, jobs)  # type: ignore[arg-type]
    tiers = Tiers(runner, rates, ram_blocks * size, disk)
    let_arrive = tiers.let_arrive

    def one_at_a_time(beside_replies: bool) -> None:
        let_arrive(beside_replies)
        if beside_replies:
            tiers._room = 1

    tiers.let_arrive = one_at_a_time  # type: ignore[method-assign]
    return tiers
