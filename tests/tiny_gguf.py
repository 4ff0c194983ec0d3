"""Small GGUF files that tests write for themselves: the chain model, the random model, and their parts.

Both models are those of the handed `bug_kinds.md`. Nothing here knows emberd: files are written with the
public `gguf` package, so that a mistake in our reader is not repeated in what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType
from numpy.typing import NDArray

from random_quants import random_rows as random_rows

VOCAB_SIZE = 512
BOS, EOS, EOT = VOCAB_SIZE - 3, VOCAB_SIZE - 2, VOCAB_SIZE - 1
NEVER = -30.0  # the logit of a token that is ruled out
SURE = 20.0  # the logit of a token that is certain beside those
CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

Tensor = NDArray[np.float32] | tuple[GGMLQuantizationType, NDArray[np.uint8]]
Style = Literal["bpe", "spm"]


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a file; float arrays become F32, (type, rows × bytes) goes in as it is.

    Integers are written as uint32 and floats as float32; an entry of None is left out.
    """
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key == "general.architecture" or value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[1], raw_dtype=tensor[0])
        elif tensor is not None:
            writer.add_tensor(name, np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Vocabulary


def byte_spelling(text: str | bytes) -> str:
    """How byte-level vocabularies spell bytes: printable ones as themselves, others from U+0100 on."""
    raw = text.encode() if isinstance(text, str) else text
    return "".join(_BYTE_CHARACTERS[byte] for byte in raw)


def _byte_characters() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    spelled = {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [spelled.get(byte, chr(byte)) for byte in range(256)]


_BYTE_CHARACTERS = _byte_characters()


@dataclass(frozen=True)
class Vocab:
    """Tokens 0-255 are the single bytes; then come `pieces`, `control`, fillers, a spare, BOS, EOS, EOT."""

    tokens: list[str]
    types: list[int]
    ids: dict[str | bytes, int]  # of pieces and control tokens, as they were given
    style: Style

    def metadata(self) -> dict[str, Any]:
        size = len(self.tokens)
        shared = {
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": self.types,
            "tokenizer.ggml.bos_token_id": size - 3,
            "tokenizer.ggml.eos_token_id": size - 2,
            "tokenizer.ggml.eot_token_id": size - 1,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.add_space_prefix": False,
            "tokenizer.chat_template": CHAT_TEMPLATE,
        }
        if self.style == "bpe":
            return shared | {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.merges": [f"{self.tokens[0xFE]} {self.tokens[0xFF]}"],
            }
        return shared | {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [-float(index) for index in range(size)],
            "tokenizer.ggml.unknown_token_id": size - 4,
        }


def byte_vocab(
    pieces: Iterable[str | bytes] = (),
    control: Iterable[str] = (),
    *,
    size: int = VOCAB_SIZE,
    style: Style = "bpe",
) -> Vocab:
    """A vocabulary in which ("bpe") typed text becomes single bytes, and pieces only come out.

    "spm" spells bytes <0xNN> and spaces U+2581; there, typed text may become a piece.
    """
    tokens = [
        character if style == "bpe" else f"<0x{byte:02X}>"
        for byte, character in enumerate(_BYTE_CHARACTERS)
    ]
    types = [TokenType.NORMAL if style == "bpe" else TokenType.BYTE] * 256
    ids: dict[str | bytes, int] = {}
    for piece in pieces:
        ids[piece] = len(tokens)
        tokens.append(byte_spelling(piece) if style == "bpe" else str(piece).replace(" ", "\u2581"))
        types.append(TokenType.NORMAL)
    for name in control:
        ids[name] = len(tokens)
        tokens.append(name)
        types.append(TokenType.CONTROL)
    # A byte-level vocabulary has at least one merge; no UTF-8 text holds the bytes of this one.
    first = "<unk>" if style == "spm" else byte_spelling(b"\xfe\xff")
    last = [first, "<|bos|>", "<|eos|>", "<|eot|>"]
    fillers = size - len(last) - len(tokens)
    if fillers < 0 or len(set(tokens)) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens do not fit, or one appears twice: {tokens[256:]}")
    tokens += [f"filler{index}" for index in range(fillers)] + last
    types += [TokenType.NORMAL] * fillers
    types.append(TokenType.UNKNOWN if style == "spm" else TokenType.NORMAL)
    types += [TokenType.CONTROL] * 3
    return Vocab(tokens, [int(kind) for kind in types], ids, style)


# Chain model

# What is multiplied by zero in the end; it only must not be special.
_NOISE = np.random.default_rng(0).normal(0, 0.02, (VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)


def chain_model(
    path: Path,
    transitions: Mapping[int, Mapping[int, float]],
    *,
    pieces: Iterable[str | bytes] = (),
    control: Iterable[str] = (),
    style: Style = "bpe",
    context_length: int = 4096,
    ffn: int = VOCAB_SIZE,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A model whose next token depends on the last one alone.

    `transitions[last][next]` is a logit; tokens not named get `NEVER`, and after a token without a row
    comes EOS. Pieces take the ids from 256 on in their order, control tokens the ids behind them.
    `metadata` replaces keys, or drops them with None; a large `ffn` makes it slow.
    """
    vocab = byte_vocab(pieces, control, style=style)
    width, root = VOCAB_SIZE, math.sqrt(VOCAB_SIZE)
    logits = np.full((width, width), NEVER, dtype=np.float32)
    for last in range(width):
        for following, logit in transitions.get(last, {EOS: SURE}).items():
            logits[following, last] = logit
    zeros, ones = np.zeros((width, width), np.float32), np.ones(width, np.float32)
    tensors: dict[str, Tensor] = {
        "token_embd.weight": np.eye(width, dtype=np.float32) * np.float32(root),
        "output_norm.weight": ones,
        "output.weight": logits / np.float32(root),
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        "blk.0.attn_output.weight": zeros,
        "blk.0.ffn_down.weight": np.zeros((width, ffn), np.float32),
    }
    for name in ("attn_q", "attn_k", "attn_v"):
        tensors[f"blk.0.{name}.weight"] = _NOISE
    for name in ("ffn_gate", "ffn_up"):
        tensors[f"blk.0.{name}.weight"] = np.resize(_NOISE, (ffn, width))
    sizes = _sizes("llama", "chain", 1, width, ffn, 8, 8, 64, context_length)
    return write_gguf(path, sizes | vocab.metadata() | dict(metadata or {}), tensors)


def script_model(
    path: Path,
    scripts: Mapping[str, Sequence[str | bytes | int]],
    *,
    endless: Iterable[str] = (),
    **options: Any,
) -> Path:
    """A chain model that writes `scripts[trigger]` when the last character typed is `trigger`.

    Items are pieces of text, each one token; one byte, or an id such as `EOT`, is that token. A script
    ends in EOS, or begins again where its trigger is in `endless`. No token may be followed by two
    different ones, so a piece cannot come twice. `options` are those of `chain_model`.
    """
    transitions, pieces = _scripts(scripts, set(endless))
    return chain_model(path, transitions, pieces=pieces, **options)


def _scripts(
    scripts: Mapping[str, Sequence[str | bytes | int]], endless: set[str]
) -> tuple[dict[int, dict[int, float]], list[str | bytes]]:
    pieces: list[str | bytes] = []

    def token_id(item: str | bytes | int) -> int:
        if isinstance(item, int):
            return item
        raw = item.encode() if isinstance(item, str) else item
        if len(raw) == 1:
            return raw[0]
        if item not in pieces:
            pieces.append(item)
        return 256 + pieces.index(item)

    transitions: dict[int, dict[int, float]] = {}
    for trigger, items in scripts.items():
        ids = [token_id(item) for item in items]
        path = [trigger.encode()[-1], *ids, ids[0] if trigger in endless else EOS]
        for last, following in pairwise(path):
            row = transitions.setdefault(last, {following: SURE})
            if following not in row:
                raise ValueError(f"token {last} would be followed by two different tokens")
    return transitions, pieces


# Random model


def random_model(
    path: Path,
    architecture: Literal["llama", "qwen2", "qwen3", "gemma3"] = "llama",
    *,
    quant: str = "F32",
    embedding_quant: str | None = None,
    layers: int = 2,
    width: int = 256,
    ffn: int = 512,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    seed: int = 0,
    context_length: int = 4096,
    sliding_window: int | None = None,
    sliding_window_pattern: int | None = None,
    tied: bool = False,
    vocab: Vocab | None = None,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor | None] | None = None,
) -> Path:
    """Random weights in a real architecture's shape, the same for the same arguments.

    Matrices are `quant` (see `random_rows`), norms and biases F32. `metadata` and `tensors` replace
    entries, or drop them with None.
    """
    vocab = vocab or byte_vocab()
    shape = (layers, width, ffn, heads, kv_heads, head_dim)
    quants = (quant, embedding_quant or quant)
    weights = _random_weights(architecture, quants, shape, len(vocab.tokens), tied, seed)
    sizes = _sizes(architecture, "random", *shape, context_length)
    sizes[f"{architecture}.attention.sliding_window"] = sliding_window
    sizes[f"{architecture}.attention.sliding_window_pattern"] = sliding_window_pattern
    made = {**weights, **(tensors or {})}
    return write_gguf(
        path,
        sizes | vocab.metadata() | dict(metadata or {}),
        {name: tensor for name, tensor in made.items() if tensor is not None},
    )


@lru_cache(maxsize=8)  # drawing them takes longer than all that many a test does with them
def _random_weights(
    architecture: str,
    quants: tuple[str, str],
    shape: tuple[int, int, int, int, int, int],
    vocab_size: int,
    tied: bool,
    seed: int,
) -> Mapping[str, Tensor]:
    layers, width, ffn, heads, kv_heads, head_dim = shape
    rng = np.random.default_rng(seed)
    kind, embedding_kind = (GGMLQuantizationType[name] for name in quants)
    q_size, kv_size = heads * head_dim, kv_heads * head_dim

    def matrix(rows: int, cols: int, kind: GGMLQuantizationType, gain: float = 1.0) -> Tensor:
        return kind, random_rows(rng, rows, cols, kind, std=gain / math.sqrt(cols))

    def vector(size: int, mean: float = 1.0) -> Tensor:
        return rng.normal(mean, 0.1, size).astype(np.float32)

    made: dict[str, Tensor] = {
        "token_embd.weight": matrix(vocab_size, width, embedding_kind, gain=2.0),
        "output_norm.weight": vector(width),
    }
    if not tied:
        made["output.weight"] = matrix(vocab_size, width, embedding_kind, gain=2.0)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        made |= {
            f"{prefix}attn_norm.weight": vector(width),
            f"{prefix}attn_q.weight": matrix(q_size, width, kind),
            f"{prefix}attn_k.weight": matrix(kv_size, width, kind),
            f"{prefix}attn_v.weight": matrix(kv_size, width, kind),
            f"{prefix}attn_output.weight": matrix(width, q_size, kind),
            f"{prefix}ffn_norm.weight": vector(width),
            f"{prefix}ffn_gate.weight": matrix(ffn, width, kind),
            f"{prefix}ffn_up.weight": matrix(ffn, width, kind),
            f"{prefix}ffn_down.weight": matrix(width, ffn, kind),
        }
        if architecture == "qwen2":
            for name, size in (("attn_q", q_size), ("attn_k", kv_size), ("attn_v", kv_size)):
                made[f"{prefix}{name}.bias"] = vector(size, mean=0.0)
        if architecture in ("qwen3", "gemma3"):
            made[f"{prefix}attn_q_norm.weight"] = vector(head_dim)
            made[f"{prefix}attn_k_norm.weight"] = vector(head_dim)
        if architecture == "gemma3":
            made[f"{prefix}post_attention_norm.weight"] = vector(width)
            made[f"{prefix}post_ffw_norm.weight"] = vector(width)
    return made


def odd_feed_forward(path: Path, rng: np.random.Generator, ffn: int = 300) -> Path:
    """A model in Q8_0 but for what reads its feed-forwards' states: rows of no whole quant blocks, which are F16."""
    layers, width, q8 = 2, 256, GGMLQuantizationType.Q8_0
    given: dict[str, Tensor | None] = {}
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
            rows = {"attn_q": 256, "attn_k": 128, "attn_v": 128}.get(name, ffn)
            raw = random_rows(rng, rows, width, q8, std=1 / math.sqrt(width))
            given[f"blk.{layer}.{name}.weight"] = (q8, raw)
    return random_model(path, quant="F16", layers=layers, width=width, ffn=ffn, tensors=given)


def _sizes(
    architecture: str,
    name: str,
    layers: int,
    width: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context_length: int,
) -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        "general.name": name,
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": context_length,
        f"{architecture}.embedding_length": width,
        f"{architecture}.feed_forward_length": ffn,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.key_length": head_dim,
        f"{architecture}.attention.value_length": head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.rope.dimension_count": head_dim,
        f"{architecture}.rope.freq_base": 10000.0,
    }


def split_gguf(path: Path, max_tensors: int) -> list[Path]:
    """Split a written file as llama.cpp's tool does; the whole file is removed. Gives the parts in order."""
    reader = gguf.GGUFReader(path)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    writer = gguf.GGUFWriter(
        path, fields["general.architecture"].contents(), split_max_tensors=max_tensors
    )
    for key, field in fields.items():
        if key != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.unlink()
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))
