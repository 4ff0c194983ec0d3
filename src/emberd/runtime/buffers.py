"""What a loaded decoder keeps on the device beside its weights and its KV cache, allocated in one place.

The runner keeps it; an estimate (`footprint.py`) counts it on a device that allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from .inputs import BlockTables
from .kernel import Kernels
from .kv_cache import BLOCK_SIZE, KVCache
from .linear import LinearTable
from .logprobs import LogprobKernels
from .model import ModelWeights
from .plan import Plans
from .sampler import Sampler
from .scratch import Scratch
from .transformer import Transformer


@dataclass(frozen=True, slots=True)
class Buffers:
    sampler: Sampler
    tables: BlockTables
    transformer: Transformer
    logprobs: LogprobKernels
    plans: Plans

    def allocate_optional(self) -> None:
        """Also what waits for the first request with penalties, biases, masks or log-probabilities."""
        self.sampler.allocate_optional()
        self.logprobs.allocate()


def allocate(
    kernels: Kernels,
    weights: ModelWeights,
    cache: KVCache,
    table: LinearTable,
    *,
    max_tokens: int,
    max_rows: int,
    context_length: int,
) -> Buffers:
    """Raises DeviceError where one binding cannot hold what is needed."""
    device, spec = kernels.device, weights.spec
    sampler = Sampler(device, kernels, max_rows, spec.vocab_size, context_length=context_length)
    tables = BlockTables(device, max_rows, -(-context_length // BLOCK_SIZE))
    transformer = Transformer(
        kernels,
        weights,
        cache,
        Scratch(device, weights, max_tokens, max_rows),
        tables.tensor,
        sampler.last_tokens,
        table,
    )
    logprobs = LogprobKernels(device, kernels, max_rows, spec.vocab_size)
    plans = Plans(device, transformer, sampler, logprobs, max_tokens, max_rows)
    return Buffers(sampler, tables, transformer, logprobs, plans)
