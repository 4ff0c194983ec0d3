"""How many KV blocks a load gets, and how many tokens one sequence may then hold."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..errors import ModelLoadError
from ..gguf.spec import ModelSpec
from ..hardware import DEFAULTS, DEVICE_SHARE, gpu_tier
from ..protocol import WorkerOptions
from .device import AdapterInfo
from .footprint import Footprint
from .kv_cache import BLOCK_SIZE, bytes_per_block, max_blocks_per_binding

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVSize:
    num_blocks: int
    context_length: int  # tokens one sequence may hold


def default_context(
    adapter: AdapterInfo, memory: int | None, spec: ModelSpec, kv_memory: int | None
) -> int:
    """Tokens wanted where none are asked for: no more than a KV cache of `kv_memory` bytes, or the default's, holds."""
    defaults = DEFAULTS[gpu_tier(adapter.kind, memory)]
    blocks = (kv_memory or defaults.kv_memory) // bytes_per_block(spec)
    return min(spec.context_length, defaults.context, max(1, blocks) * BLOCK_SIZE)


def size_kv(
    adapter: AdapterInfo,
    max_binding_bytes: int,
    memory: int | None,
    spec: ModelSpec,
    footprint: Footprint,
    options: WorkerOptions,
) -> KVSize:
    """What the settings, the device's memory (None: it does not tell), its bindings and the context allow.

    Raises ModelLoadError when a context that was asked for does not fit, or none does.
    """
    wanted = options.context_length or default_context(adapter, memory, spec, options.kv_memory)
    fixed = footprint.fixed(wanted)
    limit = options.kv_limit
    if limit is None and memory is not None:
        limit = int(memory * DEVICE_SHARE) - fixed
    if limit is not None and limit < bytes_per_block(spec):
        raise ModelLoadError(
            f"weights and activations take {fixed} bytes, which leaves {max(0, limit)} for a KV cache on "
            f"{adapter.name}; use a smaller model, or more --memory"
        )
    budget = options.kv_memory or DEFAULTS[gpu_tier(adapter.kind, memory)].kv_memory
    if limit is not None:
        budget = min(budget, limit)
    most = max_blocks_per_binding(max_binding_bytes, spec)
    blocks = min(
        budget // bytes_per_block(spec), most, options.max_sequences * -(-wanted // BLOCK_SIZE)
    )
    context = min(wanted, blocks * BLOCK_SIZE)
    if blocks < 1 or (options.context_length and context < wanted):
        need = -(-wanted // BLOCK_SIZE) * bytes_per_block(spec)
        raise ModelLoadError(
            f"a context of {wanted} tokens needs {need} bytes of KV cache; {budget} bytes are allowed "
            f"(--kv-memory, --memory) and one binding of {adapter.name} holds {most * BLOCK_SIZE} tokens"
        )
    if context < wanted:
        logger.info("context lowered to %d tokens, which is what %d bytes hold", context, budget)
    return KVSize(blocks, context)
