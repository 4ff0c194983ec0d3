"""EncoderSpec: what a BERT-family encoder is, read from GGUF metadata; which files are encoders of any kind, and how
their states are pooled.

The second place that knows GGUF's key and tensor names. Knows nothing of how an encoder is run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ..errors import ModelFileError
from .architectures import ARCHITECTURES
from .checked import Keys, Tensors
from .reader import GGUFFile, TensorInfo

MAX_LAYERS = 1024
MAX_SIZE = 1 << 20  # of the hidden state, the feed-forward state, heads
MAX_CONTEXT = 1 << 20
MAX_TOKEN_TYPES = 256

ENCODER_ARCHITECTURES = ("bert",)
"""Those with BERT's block. Others are decoders whose attention looks both ways (`architectures.py`)."""

Pooling = Literal["mean", "cls", "last"]
_POOLINGS: dict[object, Pooling] = {1: "mean", 2: "cls", 3: "last"}
"""By the file's number. 0 (states of every token) and 4 (a ranking head) give no vector of a text."""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Sizes of one encoder: every token sees every other, and norms come after the residual sums."""

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    head_dim: int
    vocab_size: int
    context_length: int  # rows of the position table
    norm_eps: float


@dataclass(frozen=True, slots=True)
class NormTensors:
    weight: TensorInfo  # (hidden,)
    bias: TensorInfo


@dataclass(frozen=True, slots=True)
class LinearTensors:
    weight: TensorInfo  # (rows, cols)
    bias: TensorInfo  # (rows,)


@dataclass(frozen=True, slots=True)
class EncoderLayerTensors:
    q: LinearTensors  # (hidden, hidden), and k, v, o
    k: LinearTensors
    v: LinearTensors
    o: LinearTensors
    attention_norm: NormTensors  # behind the residual sum
    up: LinearTensors  # (ffn, hidden)
    down: LinearTensors  # (hidden, ffn)
    ffn_norm: NormTensors


@dataclass(frozen=True, slots=True)
class EncoderTensors:
    token_embedding: TensorInfo  # (vocab, hidden)
    position_embedding: TensorInfo  # (context, hidden)
    token_types: TensorInfo  # (types, hidden); a text alone is type 0
    embedding_norm: NormTensors
    layers: tuple[EncoderLayerTensors, ...]


@dataclass(frozen=True, slots=True)
class EncoderFile:
    """An open encoder: the file, what it is, and where its tensors lie."""

    file: GGUFFile
    spec: EncoderSpec
    tensors: EncoderTensors

    def close(self) -> None:
        self.file.close()


def is_encoder(file: GGUFFile) -> bool:
    """Whether it makes embeddings only."""
    name = file.metadata.get("general.architecture")
    if isinstance(name, str) and name in ARCHITECTURES:
        return not ARCHITECTURES[name].causal
    return has_bert_block(file)


def has_bert_block(file: GGUFFile) -> bool:
    """Whether it is an `EncoderFile`."""
    name = file.metadata.get("general.architecture")
    return isinstance(name, str) and name in ENCODER_ARCHITECTURES


def pooling_of(file: GGUFFile) -> Pooling | None:
    """How the file says that its states become one vector; None where it does not say, or by other means.

    Encoders that say nothing take the mean, as most of them were trained.
    """
    architecture = file.metadata.get("general.architecture")
    value = file.metadata.get(f"{architecture}.pooling_type", 1 if is_encoder(file) else None)
    return _POOLINGS.get(value) if isinstance(value, int) else None


def open_encoder(path: str | os.PathLike[str]) -> EncoderFile:
    """Open, check and describe an encoder's file; raises `ModelFileError` naming file and fault."""
    file = GGUFFile(path)
    try:
        spec = load_encoder_spec(file)
        return EncoderFile(file, spec, load_encoder_tensors(file, spec))
    except BaseException:
        file.close()
        raise


def load_encoder_spec(file: GGUFFile) -> EncoderSpec:
    """What the metadata says the encoder is, every size checked against sane limits."""
    assert has_bert_block(file), f"{file.name} is no such encoder"
    name = str(file.metadata["general.architecture"])
    keys = Keys(file, name)
    keys.off("attention.causal", False, "encoders whose attention is causal are")
    hidden_size = keys.count("embedding_length", most=MAX_SIZE)
    num_heads = keys.count("attention.head_count", most=MAX_SIZE)
    if hidden_size % num_heads:
        raise keys.refuse(
            "attention.head_count",
            f"is {num_heads}, which does not divide the embedding length {hidden_size}",
        )
    title = file.metadata.get("general.name")
    return EncoderSpec(
        architecture=name,
        name=title if isinstance(title, str) and title else file.path.stem,
        num_layers=keys.count("block_count", most=MAX_LAYERS),
        hidden_size=hidden_size,
        ffn_size=keys.count("feed_forward_length", most=MAX_SIZE),
        num_heads=num_heads,
        head_dim=hidden_size // num_heads,
        vocab_size=_rows_of(file, "token_embd.weight", MAX_SIZE * 16),
        context_length=keys.count("context_length", most=MAX_CONTEXT),
        norm_eps=keys.number("attention.layer_norm_epsilon", most=1.0),
    )


def load_encoder_tensors(file: GGUFFile, spec: EncoderSpec) -> EncoderTensors:
    """The encoder's tensors by place. Missing ones, wrong shapes and tensors without a place are errors."""
    take = Tensors(file)
    hidden = spec.hidden_size
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or len(tokens) > spec.vocab_size:
        raise ModelFileError(
            f"{file.name}: 'tokenizer.ggml.tokens' is no list of at most {spec.vocab_size} tokens, "
            "which is how many rows 'token_embd.weight' has"
        )
    num_types = _rows_of(file, "token_types.weight", MAX_TOKEN_TYPES)

    def norm(name: str) -> NormTensors:
        return NormTensors(
            take.required(f"{name}.weight", hidden), take.required(f"{name}.bias", hidden)
        )

    def linear(name: str, rows: int, cols: int) -> LinearTensors:
        return LinearTensors(
            take.required(f"{name}.weight", rows, cols), take.required(f"{name}.bias", rows)
        )

    def layer(prefix: str) -> EncoderLayerTensors:
        return EncoderLayerTensors(
            q=linear(f"{prefix}.attn_q", hidden, hidden),
            k=linear(f"{prefix}.attn_k", hidden, hidden),
            v=linear(f"{prefix}.attn_v", hidden, hidden),
            o=linear(f"{prefix}.attn_output", hidden, hidden),
            attention_norm=norm(f"{prefix}.attn_output_norm"),
            up=linear(f"{prefix}.ffn_up", spec.ffn_size, hidden),
            down=linear(f"{prefix}.ffn_down", hidden, spec.ffn_size),
            ffn_norm=norm(f"{prefix}.layer_output_norm"),
        )

    tensors = EncoderTensors(
        token_embedding=take.required("token_embd.weight", spec.vocab_size, hidden),
        position_embedding=take.required("position_embd.weight", spec.context_length, hidden),
        token_types=take.required("token_types.weight", num_types, hidden),
        embedding_norm=norm("token_embd_norm"),
        layers=tuple(layer(f"blk.{index}") for index in range(spec.num_layers)),
    )
    take.check_all_taken(spec.architecture)
    return tensors


def _rows_of(file: GGUFFile, name: str, most: int) -> int:
    info = file.tensors.get(name)
    if info is None:
        raise ModelFileError(f"{file.name}: tensor '{name}' is missing")
    shape = info.shape if len(info.shape) > 1 else (1, *info.shape)
    if len(shape) != 2 or shape[0] > most:
        raise ModelFileError(
            f"{file.name}: tensor '{name}' has shape {list(info.shape)}; a matrix of at most {most} "
            "rows is wanted"
        )
    return shape[0]
