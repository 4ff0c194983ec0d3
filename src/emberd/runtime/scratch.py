"""The forward pass's activations on the GPU, and views of their first rows.

Knows a model's sizes; no kernel and no order of steps.
"""

from __future__ import annotations

import math

from ..gguf.model import ModelSpec
from . import decode_attention
from .activations import FLOAT_UNIT, activations, is_fine, padded
from .device import Device, Tensor
from .experts import group_words
from .model import ModelWeights


class Scratch:
    """Activations, allocated once for the largest step; plans take views of their first rows.

    Rows are a multiple of 8 values. What lies behind a model's own is zero from the start, and written as zero only.
    """

    def __init__(
        self, device: Device, weights: ModelWeights, max_tokens: int, max_rows: int
    ) -> None:
        spec = weights.spec
        width, heads = padded(spec.hidden_size), spec.num_heads * spec.head_dim
        kv = spec.num_kv_heads * spec.head_dim
        fine = is_fine(spec.hidden_size)
        self.hidden = device.empty((max_tokens, width), label="hidden")
        self.normed = device.empty((max_tokens, width), label="normed")
        self.normed_q8 = activations(device, max_tokens, width, fine=fine)
        self.next_input = activations(device, max_tokens, width, spec.norm_eps, fine=fine)
        self.qkv = device.empty((max_tokens, heads + 2 * kv), label="qkv")
        # v of its own type goes to its own buffer: dispatches that write one buffer wait for each other.
        self.v = device.empty((max_tokens, kv), label="v")
        self.q = device.empty((max_tokens, spec.num_heads, spec.head_dim), label="q")
        self.attended = device.empty(self.q.shape, label="attended")
        self.attended_wide = wide_attended(device, max_tokens, heads)
        self.attended_q8 = activations(device, max_tokens, heads, fine=fine)
        self.partial = device.empty((partial_elements(device, spec, max_rows),), label="partial")
        dense, parts = _dense_width(spec), 2 if spec.gated else 1
        self.gate_up = device.empty((max_tokens, parts * dense), label="gate_up")
        self.activated = device.empty((max_tokens, dense), label="activated")
        self.activated_q8 = activations(device, max_tokens, dense, fine=fine)
        self.experts = None if spec.experts is None else ExpertScratch(device, spec, max_tokens)
        self.projected = device.empty((max_tokens, width), label="projected")
        self.last_normed = device.empty((max_rows, width), label="last normed")
        self.last_normed_q8 = activations(device, max_rows, width, fine=fine)
        self.logits = device.empty((max_rows, spec.vocab_size), label="logits")


def widest_row(spec: ModelSpec) -> int:
    """Values that one token takes in the largest buffer of a step."""
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, dense = padded(spec.hidden_size), _dense_width(spec)
    widths = [hidden, padded(heads), heads + 2 * kv, dense * (1 + spec.gated)]
    if spec.experts is not None:
        pair = max(2 * padded(spec.ffn_size), hidden)
        widths += [spec.experts.count, spec.experts.used * pair]
    return max(widths)


def _dense_width(spec: ModelSpec) -> int:
    """Of the feed-forward that every token takes; some, where there is none."""
    return padded(spec.ffn_size if spec.experts is None else spec.experts.shared_ffn_size or 32)


class ExpertScratch:
    """Activations of a mixture of experts; a pair is a token and one of its experts."""

    def __init__(self, device: Device, spec: ModelSpec, max_tokens: int) -> None:
        assert spec.experts is not None
        count, used = spec.experts.count, spec.experts.used
        pairs, ffn, hidden = max_tokens * used, padded(spec.ffn_size), padded(spec.hidden_size)
        words = max(group_words(n * used, count) for n in range(1, max_tokens + 1))
        self.logits = device.empty((max_tokens, count), label="router logits")
        self.ids = device.empty((max_tokens, used), "u32", "experts")
        self.weights = device.empty((max_tokens, used), label="expert weights")
        self.groups = device.empty((words,), "u32", "expert groups")
        self.gate_up = device.empty((pairs, 2 * ffn), label="experts' gate_up")
        self.activated = device.empty((pairs, ffn), label="experts' activated")
        self.activated_q8 = activations(device, pairs, ffn, fine=is_fine(spec.hidden_size))
        self.out = device.empty((pairs, hidden), label="experts' output")
        self.shared_gates = device.empty((max_tokens, 1), label="shared expert's gates")


def partial_elements(device: Device, spec: ModelSpec, max_rows: int) -> int:
    """Elements that decode attention's partial results take in the most demanding bucket; the largest may be of any
    number of rows."""
    sizes = []
    for rows in [*(1 << i for i in range(max_rows.bit_length())), max_rows]:
        splits = decode_attention.decode_splits(
            device, rows=rows, num_kv_heads=spec.num_kv_heads, context=spec.context_length
        )
        shape = decode_attention.decode_partial_shape(
            rows=rows, num_heads=spec.num_heads, head_dim=spec.head_dim, splits=splits
        )
        sizes.append(math.prod(shape))
    return max(sizes)


def wide_attended(device: Device, max_tokens: int, width: int) -> Tensor | None:
    """Attention's results in whole units for the product behind it; None: all heads together are whole units."""
    if width % FLOAT_UNIT == 0:
        return None
    return device.empty((max_tokens, padded(width)), label="attended, wide")


def bucket(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least `count` and `least`; 0 for 0."""
    return 0 if count == 0 else max(least, 1 << (count - 1).bit_length())


def flat(tensor: Tensor) -> Tensor:
    """(T, H, hd) seen as (T, H · hd)."""
    shape = (tensor.shape[0], math.prod(tensor.shape[1:]))
    return Tensor(tensor.buffer, shape, tensor.dtype, tensor.offset)


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """The tensor's first `rows` rows."""
    return Tensor(tensor.buffer, (rows, *tensor.shape[1:]), tensor.dtype, tensor.offset)
