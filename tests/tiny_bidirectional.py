"""A small EmbeddingGemma that tests write for themselves, and the same model in float64, straight from its arrays.

Nothing here knows emberd: a mistake in our reader or forward pass is not repeated in what they are held against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from tiny_gguf import Tensor, byte_vocab, random_model, random_rows

ARCHITECTURE = "gemma-embedding"
WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, INNER = 64, 96, 4, 2, 32, 4, 160
WINDOW, PERIOD, CONTEXT = 9, 2, 128
BASE, LOCAL_BASE, EPS = 1e6, 1e4, 1e-6
SIZES = {
    "dense_2_feat_in": WIDTH,
    "dense_2_feat_out": INNER,
    "dense_3_feat_in": INNER,
    "dense_3_feat_out": WIDTH,
}

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class TinyBidirectional:
    """`arrays` are what the file holds, decoded."""

    path: Path
    arrays: dict[str, F64]
    window: int

    def states(self, ids: Sequence[int]) -> F64:
        """States (T, width) of one text alone, behind the last norm."""
        a = self.arrays
        x = a["token_embd.weight"][list(ids)]
        x = x * math.sqrt(x.shape[1])
        distance = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
        for layer in range(LAYERS):
            p = f"blk.{layer}."
            slides = layer % PERIOD < PERIOD - 1
            seen = distance <= self.window // 2 if slides else distance >= 0
            base = LOCAL_BASE if slides else BASE
            y = _norm(x, a[f"{p}attn_norm.weight"])
            q, k, v = (
                (y @ a[f"{p}attn_{name}.weight"].T).reshape(len(ids), -1, HEAD_DIM)
                for name in "qkv"
            )
            q = _rotated(_norm(q, a[f"{p}attn_q_norm.weight"]), base)
            k = _rotated(_norm(k, a[f"{p}attn_k_norm.weight"]), base)
            heads = []
            for head in range(HEADS):
                of = head // (HEADS // KV_HEADS)
                scores = q[:, head] @ k[:, of].T / math.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max()) * seen
                heads.append(weights / weights.sum(1, keepdims=True) @ v[:, of])
            y = np.concatenate(heads, 1) @ a[f"{p}attn_output.weight"].T
            x = x + _norm(y, a[f"{p}post_attention_norm.weight"])
            y = _norm(x, a[f"{p}ffn_norm.weight"])
            gate, up = y @ a[f"{p}ffn_gate.weight"].T, y @ a[f"{p}ffn_up.weight"].T
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            y = gate * (1 + np.tanh(inner)) / 2 * up @ a[f"{p}ffn_down.weight"].T
            x = x + _norm(y, a[f"{p}post_ffw_norm.weight"])
        return _norm(x, a["output_norm.weight"])

    def vector(self, ids: Sequence[int]) -> F64:
        """The embedding of one text, not normalised."""
        found: F64 = self.states(ids).mean(0)
        for name in ("dense_2.weight", "dense_3.weight"):
            if name in self.arrays:
                found = self.arrays[name] @ found
        return found


def _norm(x: F64, weight: F64) -> F64:
    y: F64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight
    return y


def _rotated(x: F64, base: float) -> F64:
    """Heads (T, H, head_dim), dim i paired with dim i + head_dim / 2."""
    half = HEAD_DIM // 2
    angle = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
    )


def bidirectional_model(
    path: Path,
    *,
    quant: str = "F32",
    dense: bool = True,
    window: int = WINDOW,
    width: int = WIDTH,
    ffn: int = FFN,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor | None] | None = None,
) -> TinyBidirectional:
    """Random weights, the same for the same arguments. `metadata` (below the architecture) and `tensors` replace
    entries, or drop them. Text becomes single bytes between BOS and EOS."""
    rng = np.random.default_rng(seed + 1)
    kind = GGMLQuantizationType[quant]

    def vector(size: int) -> Tensor:
        return rng.normal(1, 0.1, size).astype(np.float32)

    made: dict[str, Tensor | None] = {}
    for layer in range(LAYERS):
        for name, size in (
            ("attn_q_norm", HEAD_DIM),
            ("attn_k_norm", HEAD_DIM),
            ("post_attention_norm", width),
            ("post_ffw_norm", width),
        ):
            made[f"blk.{layer}.{name}.weight"] = vector(size)
    own: dict[str, Any] = {
        "rope.freq_base": BASE,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": PERIOD,
        "pooling_type": 1,
    }
    if dense:
        own |= SIZES | {"dense_2_feat_in": width, "dense_3_feat_out": width}
        for name, rows, cols in (("dense_2", INNER, width), ("dense_3", width, INNER)):
            made[f"{name}.weight"] = (kind, random_rows(rng, rows, cols, kind, std=cols**-0.5))
    made |= dict(tensors or {})
    own |= dict(metadata or {})
    random_model(
        path,
        ARCHITECTURE,  # type: ignore[arg-type]
        quant=quant,
        layers=LAYERS,
        width=width,
        ffn=ffn,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        context_length=CONTEXT,
        seed=seed,
        tied=True,
        vocab=byte_vocab(style="spm"),
        metadata={f"{ARCHITECTURE}.{key}": value for key, value in own.items()}
        | {
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_eos_token": True,
            "tokenizer.chat_template": None,
        },
        tensors=made,
    )
    reader = gguf.GGUFReader(path)
    arrays = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in reader.tensors
    }
    return TinyBidirectional(path, arrays, window)
