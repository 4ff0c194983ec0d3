"""How many KV blocks a load gets, of which type, and how many tokens one sequence may then hold."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..errors import ModelLoadError
from ..gguf.spec import ModelSpec
from ..hardware import DEFAULTS, DEVICE_SHARE, gpu_tier
from ..protocol import WorkerOptions
from .device import AdapterInfo
from .footprint import Footprint
from .kv_cache import (
    BLOCK_SIZE,
    KV_TYPES,
    KVType,
    bytes_per_block,
    max_blocks_per_binding,
    q8_refusal,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVSize:
    kind: KVType
    num_blocks: int
    context_length: int  # tokens one sequence may hold


def kv_types(spec: ModelSpec) -> tuple[KVType, ...]:
    """Those that the model's cache can have."""
    return tuple(kind for kind in KV_TYPES if kind != "q8_0" or not q8_refusal(spec.head_dim))


def default_context(
    adapter: AdapterInfo, memory: int | None, spec: ModelSpec, options: WorkerOptions
) -> int:
    """Tokens wanted where none are asked for: no more than a KV cache of the settings' or the default's bytes holds."""
    defaults = DEFAULTS[gpu_tier(adapter.kind, memory)]
    kind = first_kind(spec, options)
    budget = int((options.kv_memory or defaults.kv_memory) * options.kv_share)
    blocks = budget // bytes_per_block(spec, kind)
    return min(spec.context_length, defaults.context, max(1, blocks) * BLOCK_SIZE)


def first_kind(spec: ModelSpec, options: WorkerOptions) -> KVType:
    """The type that the settings ask for; of `auto`, the one that is tried first. Raises ModelLoadError."""
    if options.kv_type != "q8_0":
        return "f16"
    if refusal := q8_refusal(spec.head_dim):
        raise ModelLoadError(f"{refusal}; use --kv-type f16")
    return "q8_0"


def size_kv(
    adapter: AdapterInfo,
    max_binding_bytes: int,
    memory: int | None,
    spec: ModelSpec,
    footprint: Footprint,
    options: WorkerOptions,
) -> KVSize:
    """What the settings, the device's memory (None: it does not tell), its bindings and the context allow.

    Of `auto` it is q8_0 where the wanted context fits in that only. Raises ModelLoadError when a context that was
    asked for does not fit, or none does.
    """
    kind = first_kind(spec, options)
    asked = options.context_length or default_context(adapter, memory, spec, options)
    wanted = min(asked, spec.context_length)
    if wanted < asked:
        logger.warning("context lowered from %d to the model's trained %d tokens", asked, wanted)
    fixed = footprint.fixed(wanted)
    limit = options.kv_limit
    if limit is None and memory is not None:
        limit = int(memory * DEVICE_SHARE) - fixed - options.beside
    budget = options.kv_memory or DEFAULTS[gpu_tier(adapter.kind, memory)].kv_memory
    budget = int(budget * options.kv_share)
    if limit is not None:
        limit = int(limit * options.kv_share)
        budget = min(budget, limit)

    def blocks_of(kind: KVType) -> int:
        most = max_blocks_per_binding(max_binding_bytes, spec, kind)
        sequences = options.max_sequences * -(-wanted // BLOCK_SIZE)
        return min(budget // bytes_per_block(spec, kind), most, sequences)

    blocks = blocks_of(kind)
    if options.kv_type == "auto" and blocks * BLOCK_SIZE < wanted and "q8_0" in kv_types(spec):
        kind, blocks = "q8_0", blocks_of("q8_0")
        logger.info("the KV cache is kept in q8_0: %d tokens do not fit in f16", wanted)
    block_bytes = bytes_per_block(spec, kind)
    if limit is not None and limit < block_bytes:
        raise ModelLoadError(
            f"weights and activations take {fixed} bytes, which leaves {max(0, limit)} for a KV cache on "
            f"{adapter.name}; use a smaller model, or more --memory"
        )
    context = min(wanted, blocks * BLOCK_SIZE)
    if blocks < 1 or (options.context_length and context < wanted):
        need = -(-wanted // BLOCK_SIZE) * block_bytes
        most = max_blocks_per_binding(max_binding_bytes, spec, kind) * BLOCK_SIZE
        packs = "q8_0" in kv_types(spec) and blocks_of("q8_0") * BLOCK_SIZE >= wanted
        raise ModelLoadError(
            f"a context of {wanted} tokens needs {need} bytes of KV cache in {kind}; {budget} bytes are allowed "
            f"(--kv-memory, --memory) and one binding of {adapter.name} holds {most} tokens"
            f"{'; --kv-type q8_0 holds the context' if packs else ''}"
        )
    if context < wanted:
        logger.info("context lowered to %d tokens, which is what %d bytes hold", context, budget)
    return KVSize(kind, blocks, context)
