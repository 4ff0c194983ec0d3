"""A small BERT encoder that tests write for themselves, and the same encoder in float64, straight from its arrays.

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
from gguf import GGMLQuantizationType, TokenType
from numpy.typing import NDArray

from tiny_gguf import Tensor, random_rows, write_gguf

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *(f"\u2581{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789.,!?-'中"),
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    *("\u2581the", "\u2581hello", "\u2581world", "\u2581un", "able", "ing", "\u2581ing"),
)
TOKENS = [*SPECIAL, *PIECES]
CLS, SEP = TOKENS.index("[CLS]"), TOKENS.index("[SEP]")
EPS = 1e-12

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class TinyEncoder:
    """`arrays` are what the file holds, decoded."""

    path: Path
    arrays: dict[str, F64]
    num_layers: int
    num_heads: int

    def states(self, ids: Sequence[int]) -> F64:
        """States (T, width) of one text alone."""
        a = self.arrays
        x = a["token_embd.weight"][list(ids)] + a["token_types.weight"][0]
        x = _norm(x + a["position_embd.weight"][: len(ids)], a, "token_embd_norm")
        for layer in range(self.num_layers):
            p = f"blk.{layer}."
            q, k, v = (_linear(x, a, f"{p}attn_{name}") for name in "qkv")
            heads = []
            for h in np.split(np.arange(x.shape[1]), self.num_heads):
                scores = q[:, h] @ k[:, h].T / math.sqrt(len(h))
                weights = np.exp(scores - scores.max(1, keepdims=True))
                heads.append(weights / weights.sum(1, keepdims=True) @ v[:, h])
            y = _linear(np.concatenate(heads, 1), a, f"{p}attn_output")
            x = _norm(x + y, a, f"{p}attn_output_norm")
            up = _linear(x, a, f"{p}ffn_up")
            erf = np.vectorize(math.erf)(up / math.sqrt(2))
            x = _norm(
                x + _linear(up * (1 + erf) / 2, a, f"{p}ffn_down"), a, f"{p}layer_output_norm"
            )
        return x


def _linear(x: F64, arrays: Mapping[str, F64], name: str) -> F64:
    y: F64 = x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]
    return y


def _norm(x: F64, arrays: Mapping[str, F64], name: str) -> F64:
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPS)
    y: F64 = scaled * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]
    return y


def encoder_model(
    path: Path,
    *,
    quant: str = "F32",
    layers: int = 2,
    width: int = 64,
    ffn: int = 96,
    heads: int = 2,
    context_length: int = 64,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor | None] | None = None,
) -> TinyEncoder:
    """Random weights, the same for the same arguments. `metadata` and `tensors` replace entries, or drop them."""
    rng = np.random.default_rng(seed)
    kind = GGMLQuantizationType[quant]

    def matrix(rows: int, cols: int, gain: float = 1.0) -> Tensor:
        return kind, random_rows(rng, rows, cols, kind, std=gain / math.sqrt(cols))

    def vector(size: int, mean: float) -> Tensor:
        return rng.normal(mean, 0.1, size).astype(np.float32)

    made: dict[str, Tensor | None] = {
        "token_embd.weight": matrix(len(TOKENS), width),
        "position_embd.weight": rng.normal(0, 0.1, (context_length, width)).astype(np.float32),
        "token_types.weight": rng.normal(0, 0.1, (2, width)).astype(np.float32),
    }

    def norm(name: str) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = vector(width, 1.0), vector(width, 0.0)

    def linear(name: str, rows: int, cols: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = matrix(rows, cols, 2.0), vector(rows, 0.0)

    norm("token_embd_norm")
    for layer in range(layers):
        p = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            linear(p + name, width, width)
        linear(f"{p}ffn_up", ffn, width)
        linear(f"{p}ffn_down", width, ffn)
        norm(f"{p}attn_output_norm")
        norm(f"{p}layer_output_norm")
    sizes: dict[str, Any] = {
        "general.architecture": "bert",
        "general.name": "tiny encoder",
        "bert.block_count": layers,
        "bert.context_length": context_length,
        "bert.embedding_length": width,
        "bert.feed_forward_length": ffn,
        "bert.attention.head_count": heads,
        "bert.attention.layer_norm_epsilon": EPS,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [
            int(TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL) for token in TOKENS
        ],
        "tokenizer.ggml.unknown_token_id": TOKENS.index("[UNK]"),
        "tokenizer.ggml.bos_token_id": CLS,
        "tokenizer.ggml.seperator_token_id": SEP,
    }
    made |= dict(tensors or {})
    kept = {name: tensor for name, tensor in made.items() if tensor is not None}
    write_gguf(path, sizes | dict(metadata or {}), kept)
    arrays = {name: _decoded(tensor) for name, tensor in kept.items()}
    return TinyEncoder(path, arrays, layers, heads)


def _decoded(tensor: Tensor) -> F64:
    if isinstance(tensor, tuple):
        return gguf.quants.dequantize(tensor[1], tensor[0]).astype(np.float64)
    return tensor.astype(np.float64)
