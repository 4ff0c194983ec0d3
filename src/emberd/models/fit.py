"""Fit: whether a model fits a device, with which context, and what each part of it takes.

The figures are a worker's estimate, counted by the loader's own code, or what a loaded worker measured. Starts and
ends no worker of its own.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import Config
from ..estimate import MemoryEstimate, MemoryQuestion
from ..gguf.extend import scaling_words
from ..hardware import MAIN_MEMORY
from ..protocol import WorkerInfo, WorkerOptions
from .memory import gib

Estimate = Callable[[MemoryQuestion], Awaitable[MemoryEstimate]]
Verdict = Literal[
    "fits", "fits with q8_0 KV", "fits with a smaller context", "does not fit", "not known"
]
Source = Literal["measured", "estimated"]

KV_UNIT = 1024
"""Tokens whose KV cache is told."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`wanted` is the context that was asked for, or the default; sizes are bytes, contexts tokens."""

    estimate: MemoryEstimate
    wanted: int
    verdict: Verdict
    reason: str
    largest: Mapping[str, int]  # context that fits, by KV type
    measured: WorkerInfo | None = None  # of the worker that serves the model now

    def description(self) -> dict[str, Any]:
        """For JSON; each figure of memory says whether it was measured."""
        made, info = self.estimate, self.measured
        served = made.context_length if info is None else info.context_length
        sized = served or min(self.wanted, made.max_context)  # refused: what it would need
        kv_type = made.kv_type if info is None else info.kv_type
        kv_unit = made.kv_token_bytes.get(kv_type, 0) * KV_UNIT
        slots = info.num_blocks * info.block_size if info else 0
        memory = {
            "weights": _figure(made.weight_bytes, info.weight_bytes if info else None),
            "kv": _figure(
                made.kv_bytes or sized * kv_unit // KV_UNIT, info.kv_bytes if info else None
            ),
            f"kv_per_{KV_UNIT}_tokens": _figure(
                kv_unit, info.kv_bytes * KV_UNIT // slots if info and slots else None
            ),
            "scratch": _figure(made.scratch(sized), (info.scratch_bytes or None) if info else None),
            "optional": _figure(made.optional(sized), None),
        }
        if made.kv_ram:
            memory["kv_ram"] = _figure(made.kv_ram, None)
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "device": {
                "name": made.device,
                "kind": made.device_kind,
                "tier": made.tier,
                "memory": made.device_memory,
                "usable": made.memory,
                "max_binding": made.max_binding_bytes,
            },
            "context": {
                "trained": made.trained_context,
                "longest": made.max_context,
                "default": made.default_context,
                "wanted": self.wanted,
                "served": served,
                "largest": dict(self.largest),
            },
            "step": {"tokens": made.step_tokens, "sequences": made.sequences},
            "kv_type": kv_type,
            "memory": memory,
            "largest_matrix": {
                "name": made.largest.name,
                "bytes": made.largest.nbytes,
                "parts": made.largest.num_parts,
            },
        }


def worker_options(
    config: Config, path: Path, kv_limit: int | None = None, draft: Path | None = None
) -> WorkerOptions:
    """What a worker is told of the settings. `kv_limit`: bytes that other models leave for the KV cache, the draft's
    included."""
    return WorkerOptions(
        model_path=str(path),
        device=config.device,
        context_length=config.ctx,
        rope_scaling=config.rope_scaling,
        kv_memory=config.kv_memory,
        kv_limit=kv_limit,
        kv_type=config.kv_type,
        max_sequences=config.max_sequences,
        max_batch_tokens=config.max_batch_tokens,
        prompt_share=config.prompt_share,
        cache_dir=str(config.cache_dir),
        kv_ram=config.kv_ram,
        kv_disk=config.kv_disk,
        speculate=config.speculate,
        draft_path=None if draft is None else str(draft),
        verify=config.verify,
    )


def question_of(config: Config, path: Path, draft: Path | None = None) -> MemoryQuestion:
    """The model alone, or with its draft, with all memory that models may take."""
    return MemoryQuestion(worker_options(config, path, draft=draft), config.memory)


def judge(made: MemoryEstimate, config: Config, measured: WorkerInfo | None = None) -> Fit:
    """`measured`: of the worker that serves the model now."""
    wanted = config.ctx or made.default_context
    largest = {kind: _largest(made, kind, config.kv_memory) for kind in made.kv_token_bytes}
    verdict, reason = _verdict(made, wanted, largest)
    if config.rope_scaling and wanted > made.trained_context:
        served = min(wanted, made.max_context)
        reason += f"; {scaling_words(made.trained_context, served, config.rope_scaling)}"
    if made.lowered and not made.refusal:
        reason += f"; {made.lowered}"
    if made.kv_ram:
        whose = "that is in it" if made.tier in MAIN_MEMORY else "of main memory beside it"
        reason += f"; up to {gib(made.kv_ram)} (--kv-ram) {whose}"
    return Fit(made, wanted, verdict, reason, largest, measured)


def _verdict(made: MemoryEstimate, wanted: int, largest: Mapping[str, int]) -> tuple[Verdict, str]:
    fixed = made.fixed(wanted)
    if not made.kv_token_bytes:
        return _encoder_verdict(made, fixed)
    room = f"{gib(fixed)} without its KV cache"
    if made.memory is None and not made.refusal:
        return "not known", f"{made.device} does not tell its memory; say --memory. It takes {room}"
    if not made.refusal and made.context_length >= wanted:
        total = fixed + made.kv_bytes
        return "fits", f"{gib(total)} of {gib(made.memory or 0)} with {wanted} tokens of context"
    smaller = "q8_0"
    if largest.get(smaller, 0) >= wanted and made.kv_type != smaller:
        return "fits with q8_0 KV", f"{wanted} tokens need --kv-type q8_0"
    most = made.context_length or largest.get(made.kv_type, 0)
    if most > 0 and not made.context_length:
        return (
            "fits with a smaller context",
            f"{wanted} tokens are refused; --ctx {most} is served; {room}",
        )
    if most > 0:
        return "fits with a smaller context", f"{most} tokens of the {wanted} wanted; {room}"
    return "does not fit", made.refusal


def _encoder_verdict(made: MemoryEstimate, fixed: int) -> tuple[Verdict, str]:
    if made.refusal:
        return "does not fit", made.refusal
    if made.memory is None:
        return "not known", f"{made.device} does not tell its memory; it takes {gib(fixed)}"
    if fixed > made.memory:
        return "does not fit", f"it takes {gib(fixed)}, and {gib(made.memory)} may be used"
    return "fits", f"{gib(fixed)} of {gib(made.memory)}; it keeps no KV cache"


def _largest(made: MemoryEstimate, kind: str, kv_memory: int | None) -> int:
    """Tokens of the largest context whose KV cache of that type fits, in whole blocks or as trained."""
    limits = [made.kv_binding_tokens.get(kind, made.max_context)]
    token = made.kv_token_bytes[kind]
    if made.memory is not None:
        grown = token + made.scratch_token_bytes + made.optional_token_bytes
        limits.append(math.floor((made.memory - made.fixed(0)) / grown))
    if kv_memory is not None:
        limits.append(kv_memory // token)
    tokens = min(limits)
    if tokens >= made.max_context:
        return made.max_context
    return max(0, tokens - tokens % made.block_size)


def _figure(estimated: int, measured: int | None) -> dict[str, Any]:
    source: Source = "estimated" if measured is None else "measured"
    return {"bytes": estimated if measured is None else measured, "source": source}
