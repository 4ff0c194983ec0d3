"""What a load would take: the question to a worker process, and its answer.

A leaf beside protocol.py. The answer is counted by the loader's own code; what follows from it is models/fit.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .hardware import MAIN_MEMORY, Tier
from .protocol import WorkerOptions


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """To a worker in place of WorkerOptions. It answers with a MemoryEstimate or a LoadFailure, and ends."""

    options: WorkerOptions
    memory: int | None = None  # bytes that the model may take; None: a share of the device's


@dataclass(frozen=True, slots=True)
class LargestMatrix:
    """The weights that take most in one matrix: what one binding of a device may be too small for."""

    name: str  # of its first tensor
    nbytes: int
    num_parts: int  # bindings that it is split into


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What loading a model takes on a device. Sizes are bytes, contexts tokens."""

    device: str
    device_kind: Literal["gpu", "cpu"]
    tier: Tier
    device_memory: int | None  # None: the device does not tell
    memory: int | None  # what the model may take; None: not known
    max_binding_bytes: int | None  # None: there is no such limit
    largest: LargestMatrix
    weight_bytes: int
    scratch_bytes: int = 0  # from the load on, without what grows with the context
    scratch_token_bytes: float = 0  # more for each token of the context
    # The same of what the first penalties, biases, masks and log-probabilities add:
    optional_bytes: int = 0
    optional_token_bytes: float = 0
    # By KV type that the model can have; empty: an encoder, for bindings: no limit.
    kv_token_bytes: Mapping[str, int] = field(default_factory=dict)
    kv_binding_tokens: Mapping[str, int] = field(default_factory=dict)  # that bindings hold
    trained_context: int = 0
    max_context: int = 0  # longer than the trained one with a rope scaling of the settings
    default_context: int = 0  # wanted where no context is asked for
    block_size: int = 0  # 0: an encoder
    kv_type: str = ""  # what a load would serve ...
    context_length: int = 0
    kv_bytes: int = 0
    kv_ram: int = 0  # of main memory, for blocks that left the pool (--kv-ram)
    refusal: str = ""  # ... and why it would be refused; empty: it would not
    step_tokens: int = 0  # that a step takes at most
    sequences: int = 0  # that run at a time at most
    lowered: str = ""  # why these are fewer than the settings say; empty: they are not

    def with_draft(self, draft: MemoryEstimate, kv_bytes: int) -> MemoryEstimate:
        """Of a model together with its draft, of which each token of the context takes a place too; `kv_bytes`: of the
        draft. What the draft is refused for, both are."""
        kinds = {kind: draft.kv_token_bytes.get(kind) for kind in self.kv_token_bytes}
        bindings = {
            kind: tokens
            for kind, tokens in draft.kv_binding_tokens.items()
            if tokens < draft.max_context
        }
        refused = bool(draft.refusal) and not self.refusal
        told = [self.lowered, f"of the draft, {draft.lowered}" if draft.lowered else ""]
        return replace(
            self,
            largest=max(self.largest, draft.largest, key=lambda matrix: matrix.nbytes),
            weight_bytes=self.weight_bytes + draft.weight_bytes,
            scratch_bytes=self.scratch_bytes + draft.scratch_bytes,
            scratch_token_bytes=self.scratch_token_bytes + draft.scratch_token_bytes,
            optional_bytes=self.optional_bytes + draft.optional_bytes,
            optional_token_bytes=self.optional_token_bytes + draft.optional_token_bytes,
            kv_token_bytes={
                kind: self.kv_token_bytes[kind] + size for kind, size in kinds.items() if size
            },
            kv_binding_tokens={
                kind: min(self.kv_binding_tokens.get(kind, self.max_context), tokens)
                for kind, tokens in (dict(self.kv_binding_tokens) | bindings).items()
            },
            kv_bytes=0 if refused else self.kv_bytes + kv_bytes,
            context_length=0 if refused else self.context_length,
            refusal=f"--draft: {draft.refusal}" if refused else self.refusal,
            lowered="; ".join(filter(None, told)),
        )

    def scratch(self, context_length: int) -> int:
        return self.scratch_bytes + round(self.scratch_token_bytes * context_length)

    def optional(self, context_length: int) -> int:
        return self.optional_bytes + round(self.optional_token_bytes * context_length)

    def fixed(self, context_length: int) -> int:
        """All that is taken of the device's memory beside the KV cache where a sequence may hold so many tokens."""
        scratch = self.scratch(context_length) + self.optional(context_length)
        return self.weight_bytes + scratch + (self.kv_ram if self.tier in MAIN_MEMORY else 0)
