"""KV blocks read to the host and written back, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY, Row, make_batch
from emberd.protocol import Runner, WorkerOptions
from tiny_gguf import random_model

CONTEXT = 256


@pytest.fixture(
    scope="module",
    params=["cpu", pytest.param("gpu", marks=[pytest.mark.device, pytest.mark.slow])],
)
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    path: Path = tmp_path_factory.mktemp("copies") / "m.gguf"
    random_model(path, "llama", seed=int(np.random.default_rng().integers(1 << 30)))
    options = WorkerOptions(
        str(path), request.param, CONTEXT, kv_memory=8 << 20, max_sequences=2, max_batch_tokens=64
    )
    if request.param == "cpu":
        from emberd.reference.runner import CpuRunner as Made
    else:
        from emberd.runtime.runner import GpuRunner as Made
    made = Made.load(options)
    yield made
    made.close()


def test_what_is_written_is_read_back(runner: Runner, rng: np.random.Generator) -> None:
    blocks = rng.permutation(runner.num_blocks)[:7].tolist()
    data = rng.integers(0, 256, (7, runner.block_bytes)).astype(np.uint8)
    runner.write_blocks(blocks, data)
    assert np.array_equal(runner.read_blocks(blocks).take(), data)
    order = rng.permutation(7)
    again = runner.read_blocks([blocks[place] for place in order]).take()
    assert np.array_equal(again, data[order])
    runner.write_blocks(blocks[2:4], data[[4, 5]])
    expected = data[[0, 1, 4, 5, 4, 5, 6]]
    assert np.array_equal(runner.read_blocks(blocks).take(), expected), "others are as they were"


def test_neighbours_are_copied_in_one_piece(runner: Runner, rng: np.random.Generator) -> None:
    blocks = [3, 4, 5, 9, 1, 2]
    data = rng.integers(0, 256, (6, runner.block_bytes)).astype(np.uint8)
    runner.write_blocks(blocks, data)
    assert np.array_equal(runner.read_blocks(list(range(1, 6))).take(), data[[4, 5, 0, 1, 2]])


def test_many_blocks_go_through_several_buffers(
    runner: Runner, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (copies := getattr(runner, "_copies", None)) is not None:
        monkeypatch.setattr(copies, "_at_once", 3)
    blocks = rng.permutation(runner.num_blocks)[:8].tolist()
    data = rng.integers(0, 256, (8, runner.block_bytes)).astype(np.uint8)
    runner.write_blocks(blocks, data)
    assert np.array_equal(runner.read_blocks(blocks).take(), data)


def test_copies_keep_their_place_among_steps(runner: Runner, rng: np.random.Generator) -> None:
    """A sequence moves to other blocks between two steps that nobody has waited for."""
    size = runner.block_size
    ids = rng.integers(0, 256, 50).tolist()
    count = -(-51 // size)
    here, there = list(range(count)), list(range(count + 2, 2 * count + 2))
    other = rng.integers(0, 256, 50).tolist()

    def submit(ids: list[int], start: int, table: list[int], logits: bool) -> None:
        admit = GREEDY if start == 0 else None
        row = Row(0, ids, start, table, False, admit)
        runner.submit(make_batch([row], size, [len(ids) - 1] if logits else None))

    last = [int(rng.integers(0, 256))]
    submit(ids, 0, here, False)
    runner.collect()
    submit(last, 50, here, True)
    expected = runner.collect().logits

    collected = runner.steps_in_flight == 1  # a CPU has no steps that wait
    submit(ids, 0, here, False)
    if collected:
        runner.collect()
    copy = runner.read_blocks(here)
    submit(other, 0, here, False)  # writes over what is being copied
    if collected:
        runner.collect()
    runner.write_blocks(there, copy.take())
    if not collected:
        runner.collect()
        runner.collect()
    submit(last, 50, there, True)
    moved = runner.collect().logits
    assert expected is not None and moved is not None
    assert np.array_equal(moved, expected)
