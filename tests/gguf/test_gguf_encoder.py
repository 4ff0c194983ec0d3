"""Encoder files: what is read, and that every fault is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberd.errors import ModelFileError
from emberd.gguf.encoder import open_encoder, pooling_of
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import describe, open_model
from tiny_encoder import TOKENS, encoder_model
from tiny_gguf import random_model


def test_an_encoder_is_described(tmp_path: Path) -> None:
    path = encoder_model(tmp_path / "tiny.gguf", quant="Q8_0").path
    model = open_encoder(path)
    spec = model.spec
    assert (spec.architecture, spec.name, spec.num_layers) == ("bert", "tiny encoder", 2)
    assert (spec.hidden_size, spec.ffn_size, spec.num_heads, spec.head_dim) == (64, 96, 2, 32)
    assert (spec.vocab_size, spec.context_length) == (len(TOKENS), 64)
    assert spec.norm_eps == pytest.approx(1e-12)
    assert describe(model).quantization == "Q8_0"
    model.close()


def test_a_matrix_of_one_row_may_be_stored_as_a_vector(tmp_path: Path) -> None:
    types = np.full(64, 0.5, np.float32)
    path = encoder_model(tmp_path / "tiny.gguf", tensors={"token_types.weight": types}).path
    model = open_encoder(path)
    assert model.tensors.token_types.shape == (1, 64)
    model.close()


@pytest.mark.parametrize(
    ("value", "pooling"),
    [(0, None), (1, "mean"), (2, "cls"), (3, "last"), (4, None), (None, "mean"), ("1", None)],
)
def test_pooling_of_encoders(tmp_path: Path, value: Any, pooling: str | None) -> None:
    metadata = {"bert.pooling_type": value}
    path = encoder_model(tmp_path / "tiny.gguf", metadata=metadata).path
    with GGUFFile(path) as file:
        assert pooling_of(file) == pooling


@pytest.mark.parametrize(("value", "pooling"), [(None, None), (3, "last"), (1, "mean")])
def test_pooling_of_generative_models(tmp_path: Path, value: Any, pooling: str | None) -> None:
    """OE-03: a file that does not speak of pooling is not for embeddings."""
    path = random_model(
        tmp_path / "tiny.gguf", "qwen3", width=64, metadata={"qwen3.pooling_type": value}
    )
    with GGUFFile(path) as file:
        assert pooling_of(file) == pooling


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"bert.attention.causal": True}, "bert.attention.causal"),
        ({"bert.attention.head_count": 5}, "does not divide the embedding length 64"),
        ({"bert.block_count": None}, "'bert.block_count' is missing"),
        ({"bert.block_count": 3}, "'blk.2.attn_q.weight' is missing"),
        ({"bert.context_length": 65}, "'position_embd.weight' has shape [64, 64]"),
        ({"bert.feed_forward_length": 128}, "'blk.0.ffn_up.weight' has shape [96, 64]"),
        ({"bert.attention.layer_norm_epsilon": None}, "layer_norm_epsilon"),
        ({"tokenizer.ggml.tokens": [*TOKENS, "more"]}, "tokenizer.ggml.tokens"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    path = encoder_model(tmp_path / "tiny.gguf", metadata=metadata).path
    with pytest.raises(ModelFileError) as caught:
        open_encoder(path)
    assert words in str(caught.value) and "tiny.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("token_embd.weight", None, "'token_embd.weight' is missing"),
        ("token_types.weight", None, "'token_types.weight' is missing"),
        ("blk.1.ffn_down.bias", None, "'blk.1.ffn_down.bias' is missing"),
        ("token_embd_norm.bias", np.zeros(63, np.float32), "has shape [63]"),
        ("token_types.weight", np.zeros((1, 2, 64), np.float32), "has shape [1, 2, 64]"),
        ("cls.weight", np.zeros((64, 64), np.float32), "'cls.weight'"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path: Path, name: str, tensor: Any, words: str) -> None:
    path = encoder_model(tmp_path / "tiny.gguf", tensors={name: tensor}).path
    with pytest.raises(ModelFileError) as caught:
        open_encoder(path)
    assert words in str(caught.value)


def test_an_encoder_is_no_model_that_generates(tmp_path: Path) -> None:
    path = encoder_model(tmp_path / "tiny.gguf").path
    with pytest.raises(ModelFileError, match=r"is an encoder \(bert\).*cannot generate"):
        open_model(path)
