"""SamplingParams from what a caller chose, what the model recommends, and a protocol's defaults.

In that order, the caller first. Knows no protocol's names beyond its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..protocol import SamplingParams

_WHOLE = ("top_k", "penalty_window", "seed", "max_tokens")
MAX_PENALTY_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a caller said of sampling; None: nothing. Values are checked already."""

    temperature: float | None = None
    top_k: int | None = None  # 0 or less: off
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_window: int | None = None  # 0: penalties off, -1: all tokens
    seed: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    num_logprobs: int | None = None
    max_drafted: int | None = None  # 0: nothing is guessed


def filled(chosen: Sampling, others: Sampling) -> Sampling:
    """`chosen`, and where it is silent what `others` says."""
    values = {name: getattr(chosen, name) for name in Sampling.__slots__}
    return Sampling(**{n: getattr(others, n) if v is None else v for n, v in values.items()})


def sampling_params(
    chosen: Sampling,
    hints: Mapping[str, float],
    defaults: Mapping[str, Any],
    stop_token_ids: tuple[int, ...],
) -> SamplingParams:
    values = dict(defaults)
    for name, value in hints.items():
        values[name] = int(value) if name in _WHOLE else float(value)
    given = {name: getattr(chosen, name) for name in Sampling.__slots__}
    values |= {name: value for name, value in given.items() if value is not None}
    if values.get("penalty_window") == 0:
        values |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        values["penalty_window"] = -1
    values["top_k"] = max(0, values.get("top_k", 0))
    seed = values.get("seed")
    values["seed"] = secrets.randbits(32) if seed is None else fold_seed(seed)
    return SamplingParams(stop_token_ids=stop_token_ids, **values)


def fold_seed(seed: int) -> int:
    """32 bits from a seed of up to 64 signed ones; those from 0 to 2^32 - 1 stay as they are."""
    bits = seed & 0xFFFF_FFFF_FFFF_FFFF
    return (bits ^ (bits >> 32)) & 0xFFFF_FFFF
