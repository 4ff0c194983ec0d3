"""What loading a model takes, told from its header, and what loaded models take.

Estimates are for deciding what may be loaded beside what; a worker measures what it took.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..config import Config
from ..hardware import CPU_SCORES, CPU_STEP_TOKENS, DEFAULTS, MAIN_MEMORY, Tier, blas_bytes
from ..protocol import WorkerInfo
from .facts import ModelFacts
from .loaded import LoadedModel

LEAST_CONTEXT = 2048
"""Tokens below which a model is of little use: it then waits for room, unless a smaller context was asked for."""

_OPTIONAL = (
    2  # float32 values a token of the vocabulary that penalties and biases take, once asked for
)

_CPU_COUNTS = 1  # the same of penalties on the CPU device


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes. With less than `least` a model is not loaded, beyond `most` it takes nothing."""

    fixed: int  # weights, activations, and what is kept of the device's memory for blocks that left the KV cache
    kv_least: int
    kv_wanted: int  # one sequence of the whole context
    kv_most: int

    @property
    def least(self) -> int:
        return self.fixed + self.kv_least

    @property
    def wanted(self) -> int:
        return self.fixed + self.kv_wanted

    @property
    def most(self) -> int:
        return self.fixed + self.kv_most


def need_of(facts: ModelFacts, config: Config, tier: Tier, draft: ModelFacts | None = None) -> Need:
    """What the model takes on such a device, with its draft. The CPU device holds everything as float32."""
    defaults, is_cpu = DEFAULTS[tier], tier == "cpu"
    rows = config.max_sequences
    context = min(config.ctx or defaults.context, longest_context(facts, config))
    fixed = _fixed(facts, config, context, is_cpu)
    fixed += 0 if facts.is_encoder else kept_ram(config, tier)
    plain, packed = _token_bytes(facts, is_cpu)
    if draft is not None:
        fixed += _fixed(draft, config, context, is_cpu)
        sizes = _token_bytes(draft, is_cpu)
        plain, packed = plain + sizes[0], packed + sizes[1]
    # What is asked for to the letter needs no more than `auto` would make of it.
    least_token = plain if config.kv_type == "f16" else packed
    token = packed if config.kv_type == "q8_0" else plain
    whole = context * token
    if config.kv_memory is not None:
        given = min(config.kv_memory, rows * whole)
        return Need(fixed, given, given, given)
    wanted = whole if config.ctx else min(whole, defaults.kv_memory)
    least = context * least_token if config.ctx else min(wanted, LEAST_CONTEXT * least_token)
    most = max(wanted, min(rows * whole, defaults.kv_memory))
    return Need(fixed, least, wanted, most)


def _fixed(facts: ModelFacts, config: Config, context: int, is_cpu: bool) -> int:
    """Weights and activations."""
    if is_cpu:
        return 4 * facts.num_parameters + cpu_step_bytes(facts, config, context)
    logits = 0 if facts.is_encoder else (1 + _OPTIONAL) * config.max_sequences * facts.vocab_size
    places = context * facts.position_values
    tokens = max(config.max_batch_tokens, context if facts.is_encoder else 0)  # texts are not cut
    return facts.weight_bytes + 4 * (tokens * facts.step_values + places + logits)


def cpu_step_bytes(facts: ModelFacts, config: Config, context: int) -> int:
    """What the arrays of the largest step take on the CPU device, which holds them while it runs."""
    if facts.is_encoder:
        tokens = max(config.max_batch_tokens, context)
        places = context * facts.cpu_position_values
        return 4 * (tokens * facts.cpu_step_values + places) + blas_bytes()
    tokens = min(config.max_batch_tokens, max(CPU_STEP_TOKENS, config.max_sequences))
    rows = (2 + _CPU_COUNTS) * config.max_sequences * facts.vocab_size
    places = context * facts.cpu_position_values
    return 4 * (tokens * facts.cpu_step_values + 3 * CPU_SCORES + rows + places) + blas_bytes()


def longest_context(facts: ModelFacts, config: Config) -> int:
    """Tokens that a sequence may hold at most: as trained, or as the settings lengthen it."""
    trained = facts.context_length
    if config.rope_scaling is None or config.ctx is None or config.ctx <= trained:
        return trained
    factor = config.rope_scaling[1]
    return config.ctx if factor is None else int(trained * factor)


def _token_bytes(facts: ModelFacts, is_cpu: bool) -> tuple[int, int]:
    """Of a token's keys and values: in f16 (float32 on the CPU device), and in q8_0 where heads allow it."""
    plain = facts.kv_values * (4 if is_cpu else 2)
    if facts.head_dim == 0 or facts.head_dim % 32:
        return plain, plain
    scales = facts.head_dim // 16 if is_cpu else 4 * -(-facts.head_dim // 64)
    return plain, facts.kv_values // facts.head_dim * (facts.head_dim + scales)


def taken(info: WorkerInfo) -> int:
    """Bytes that a loaded model takes, as its worker measured them."""
    return info.weight_bytes + info.kv_bytes + info.scratch_bytes


def kept_ram(config: Config, tier: Tier) -> int:
    """Of a device's memory, for a model's blocks that left the KV cache; 0 where main memory is another."""
    return config.kv_ram if tier in MAIN_MEMORY else 0


def next_to_leave(groups: Collection[Sequence[LoadedModel]]) -> Sequence[LoadedModel] | None:
    """Of models, each with those that share its worker: the least recently used, those kept for ever last."""

    def order(models: Sequence[LoadedModel]) -> tuple[bool, object]:
        stays = any(math.isinf(model.keep_alive) for model in models)
        return stays, max(model.last_used for model in models)

    return min(groups, key=order, default=None)


def gib(nbytes: int) -> str:
    """ "1.5 GiB"; small sizes in MiB or KiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB")):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.1f} {unit}"
    return f"{nbytes / 1024:.1f} KiB"
