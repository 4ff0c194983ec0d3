"""An engine with tiers over the scripted runner, for tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from emberd.engine import Engine
from emberd.engine.block_files import BlockFiles
from emberd.engine.disk_tier import DiskTier
from emberd.engine.rates import Rates
from emberd.engine.tiers import Tiers
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import ScriptedRunner, lone_run

IDENTITY = bytes(range(32))


class TierSite:
    """Tiers of so many blocks; answers are held against lone runs, and every step leaves all in order."""

    def __init__(
        self,
        ram: int = 0,
        disk: int = 0,
        folder: Path | None = None,
        identity: bytes = IDENTITY,
        **runner: int,
    ) -> None:
        self.runner = ScriptedRunner(**runner)  # type: ignore[arg-type]
        size = self.runner.block_bytes
        self.rates = Rates(self.runner.block_size, size)
        tier = None
        if disk:
            assert folder is not None
            files = BlockFiles(folder, identity, size)
            tier = DiskTier(files, disk * files.file_bytes, self.rates.fetch)
        self.tiers = Tiers(self.runner, self.rates, ram * size, tier)
        self.engine = Engine(self.runner, self.tiers)
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self.cached: dict[str, int] = {}

    def step(self) -> None:
        message = self.engine.step()
        self.engine.check_integrity()
        assert message.tiers is not None
        for update in message.updates:
            assert update.error is None
            self.token_ids[update.request_id] += update.token_ids
            self.cached[update.request_id] = update.num_cached_tokens

    def run(self, *requests: GenerateRequest) -> list[int]:
        """Run them to their end and the tiers to rest; the tokens that each found."""
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            self.step()
        for request in requests:
            expected = lone_run(request, context_length=self.engine.context_length)[0]
            assert tuple(self.token_ids[request.request_id]) == expected
        return [self.cached[request.request_id] for request in requests]

    @property
    def num_computed(self) -> int:
        return sum(batch.num_tokens for batch in self.runner.batches)


def a_request(
    name: str, rng: np.random.Generator, length: int, max_tokens: int = 3, salt: str | None = ""
) -> GenerateRequest:
    token_ids = tuple(rng.integers(0, 900, length).tolist())
    return GenerateRequest(name, token_ids, SamplingParams(max_tokens=max_tokens), None, salt)


def again(request: GenerateRequest, name: str) -> GenerateRequest:
    return GenerateRequest(name, request.token_ids, request.params, None, request.cache_salt)
