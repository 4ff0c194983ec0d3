"""The NumPy sampler: logits to token ids. The GPU sampler gives the same tokens from the same logits.

It knows logits, parameters and counts; no model, no batch. Order: penalties, bias, mask, temperature, top-k,
top-p, min-p, draw. Every filter is a threshold and the draw an argmax: a GPU needs no sort.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emberd.protocol import MAX_LOGPROBS, Logprobs, MaskArray, SamplingParams

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U32 = NDArray[np.uint32]

NO_TOKEN = -1
"""What is sampled from logits of which none is the largest."""

MIN_TEMPERATURE = 1e-5
"""A temperature between 0 and this counts as this, so that scaled logits stay finite."""


def pcg(x: U32) -> U32:
    """The 32-bit PCG mix RXS-M-XS (O'Neill 2014), modulo 2^32.

    s = x · 747796405 + 2891336453; w = ((s >> ((s >> 28) + 4)) ^ s) · 277803737;
    the result is (w >> 22) ^ w.
    """
    s: U32 = x * np.uint32(747796405) + np.uint32(2891336453)
    w: U32 = ((s >> ((s >> np.uint32(28)) + np.uint32(4))) ^ s) * np.uint32(277803737)
    return (w >> np.uint32(22)) ^ w


def row_key(seed: int, position: int) -> U32:
    """The part of the hash that a row's tokens share, as an array of one u32.

    pcg(pcg(pcg(seed & 0xffffffff) ^ (seed >> 32 & 0xffffffff)) ^ position); a negative seed counts
    as its two's complement. `position` is the sampled token's own: one more than that of the
    row's last input token.
    """
    low = np.array([seed & 0xFFFFFFFF], dtype=np.uint32)
    high = np.uint32(seed >> 32 & 0xFFFFFFFF)
    return pcg(pcg(pcg(low) ^ high) ^ np.uint32(position))


def exponentials(seed: int, position: int, token_ids: U32) -> F32:
    """One draw from the exponential distribution for each token id, in f32.

    x = pcg(row_key ^ pcg(token_id)); u = min((f32(x) + 0.5) · 2^-32, 1 - 2^-24);
    e = u · (1 + u · (1/2 + u · (1/3 + u · 1/4))) where u < 1/32, else -log(1 - u).
    The series is there since WGSL's log is good to only 2^-21 near 1, and small e win the draw.
    """
    x = pcg(row_key(seed, position) ^ pcg(token_ids))
    u = (x.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    u = np.minimum(u, np.float32(1.0 - 2.0**-24))
    third, quarter = np.float32(1.0 / 3.0), np.float32(0.25)
    series = u * (1 + u * (np.float32(0.5) + u * (third + u * quarter)))
    draws: F32 = np.where(u < np.float32(1.0 / 32.0), series, -np.log(1 - u))
    return draws


def apply_penalties(
    logits: F32, counts: I32, repetition: float, presence: float, frequency: float
) -> F32:
    """Logits (V,) after penalties; `counts` (V,) is how often each token stands in the window.

    For tokens with count > 0: positive logits are divided by `repetition`, the others multiplied
    by it; then presence + frequency · count is subtracted. Other logits stay.
    """
    scaled = np.where(logits > 0, logits / np.float32(repetition), logits * np.float32(repetition))
    reduced = scaled - (np.float32(presence) + np.float32(frequency) * counts.astype(np.float32))
    return np.where(counts > 0, reduced, logits)


def apply_bias(logits: F32, bias: Sequence[tuple[int, float]]) -> F32:
    """Logits (V,) with each pair's value added to its token's; the last pair counts for a token named twice."""
    biased = logits.copy()
    for token_id, value in dict(bias).items():
        biased[token_id] += np.float32(value)
    return biased


def apply_mask(logits: F32, mask: MaskArray) -> F32:
    """Logits (V,), -inf where the bit of `mask` (words,) is not set; tokens beyond its words are forbidden."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[: len(logits)]
    allowed = np.zeros(len(logits), np.bool_)
    allowed[: len(bits)] = bits
    return np.where(allowed, logits, np.float32(-np.inf))


def logprobs(logits: F32, token_ids: I32) -> Logprobs:
    """What rows of raw logits (N, V) say of their tokens (N,) and of the likeliest ones. All of a row is NaN where
    its logits hold NaN or have no finite maximum."""
    most = logits.max(axis=1, keepdims=True)
    sound = np.isfinite(most)
    if not sound.all():
        found = logprobs(np.where(sound, logits, np.float32(0)), token_ids)
        found.chosen[~sound[:, 0]] = np.nan
        found.top[~sound[:, 0]] = np.nan
        return found
    total = np.exp(logits - most).sum(axis=1, dtype=np.float64, keepdims=True)
    found = (logits - most - np.log(total)).astype(np.float32)
    top_ids = np.stack([_likeliest(row) for row in logits])
    return Logprobs(
        np.take_along_axis(found, token_ids[:, None], axis=1)[:, 0],
        top_ids.astype(np.int32),
        np.take_along_axis(found, top_ids, axis=1),
    )


def _likeliest(logits: F32) -> NDArray[np.int64]:
    """Ids of the MAX_LOGPROBS largest logits, the lowest id first among equals."""
    count = min(MAX_LOGPROBS, len(logits))
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= least)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def scale(logits: F32, temperature: float) -> F32:
    """z = (logits - max logit) / max(temperature, MIN_TEMPERATURE): at most 0, and 0 at the top."""
    z: F32 = (logits - logits.max()) / np.float32(max(temperature, MIN_TEMPERATURE))
    return z


def threshold(z: F32, params: SamplingParams) -> float:
    """The lowest z (from `scale`) that may be drawn: token i is kept where z[i] >= it.

    - top-k (0 < k < V): the k-th largest z. Ties with it are kept, so more than k can stay.
    - top-p (p < 1), over what top-k kept, with mass exp(z) / their sum: the largest threshold at
      which the mass of the kept tokens is >= p. That is the smallest set of likeliest tokens that
      reaches p, with the ties at its border; p = 0 keeps the likeliest token (and its ties).
    - min-p (> 0): log(min_p), which is probability >= min_p · the largest probability.

    The highest of the three holds, and never above 0: the likeliest token always stays.
    """
    lowest = -np.inf
    kept = z
    if 0 < params.top_k < len(z):
        lowest = float(np.partition(z, len(z) - params.top_k)[len(z) - params.top_k])
        kept = z[z >= lowest]
    if params.top_p < 1.0:
        descending = np.sort(kept)[::-1]
        mass = np.cumsum(np.exp(descending), dtype=np.float64)
        reached = int(np.searchsorted(mass, params.top_p * mass[-1]))
        lowest = float(descending[reached])
    if params.min_p > 0.0:
        lowest = max(lowest, float(np.log(np.float32(params.min_p))))
    return min(lowest, 0.0)


def draw(z: F32, lowest: float, seed: int, position: int) -> int:
    """One token from softmax(z) over z >= lowest: argmax of z - log(e), lowest id among equals.

    e from `exponentials` (the Gumbel-max trick): seed, position and z alone decide the draw.
    """
    ids = np.flatnonzero(z >= np.float32(lowest))
    e = exponentials(seed, position, ids.astype(np.uint32))
    return int(ids[np.argmax(z[ids] - np.log(e))])


@dataclass(slots=True)
class SamplerState:
    """What the sampler keeps of one sequence: its parameters and, for penalties, its window."""

    params: SamplingParams
    counts: I32 | None = None  # (V,) how often each token stands in the window
    window: deque[int] = field(default_factory=deque)  # oldest first; unused where there is no end

    @classmethod
    def start(
        cls, params: SamplingParams, token_ids: Sequence[int], vocab_size: int
    ) -> SamplerState:
        """A sequence with the history `token_ids`: prompt, and output after a preemption."""
        if not params.has_penalties:
            return cls(params)
        state = cls(params, np.zeros(vocab_size, dtype=np.int32))
        for token_id in token_ids:
            state.push(token_id)
        return state

    def push(self, token_id: int) -> None:
        """Count a token; the oldest leaves a full window."""
        if self.counts is None:
            return
        self.counts[token_id] += 1
        if self.params.penalty_window > 0:
            self.window.append(token_id)
            if len(self.window) > self.params.penalty_window:
                self.counts[self.window.popleft()] -= 1


def sample_row(
    logits: F32, state: SamplerState, position: int, mask: MaskArray | None = None
) -> int:
    """The next token id for logits (V,), counted in `state`. `position` is its own.

    Temperature 0 is the argmax behind the mask, lowest id first; no filter, no draw. NO_TOKEN where no logit is the
    largest, or it is not finite: with NaN among them.
    """
    params = state.params
    if state.counts is not None:
        logits = apply_penalties(
            logits,
            state.counts,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
    if params.logit_bias:
        logits = apply_bias(logits, params.logit_bias)
    if mask is not None:
        logits = apply_mask(logits, mask)
    token_id = int(np.argmax(logits))  # of a NaN where there is one
    if not np.isfinite(logits[token_id]):
        return NO_TOKEN
    if params.temperature > 0.0:
        z = scale(logits, params.temperature)
        token_id = draw(z, threshold(z, params), params.seed, position)
    state.push(token_id)
    return token_id


def sample(
    logits: F32,
    states: Sequence[SamplerState],
    positions: I32,
    masks: Sequence[MaskArray | None] | None = None,
) -> I32:
    """Token ids (R,) for logits (R, V): one state, one sampled position and maybe one mask a row."""
    each = masks or [None] * len(states)
    rows = zip(logits, states, positions.tolist(), each, strict=True)
    return np.array([sample_row(*row) for row in rows], dtype=np.int32)
