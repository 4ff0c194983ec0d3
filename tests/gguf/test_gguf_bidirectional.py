"""Files of EmbeddingGemma: what is read, and that every fault is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberd.errors import ModelFileError
from emberd.gguf.encoder import is_encoder, pooling_of
from emberd.gguf.model import ModelFile
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import open_any, open_bidirectional, open_model
from emberd.gguf.tensors import dense_matrix
from tiny_bidirectional import BASE, INNER, LOCAL_BASE, SIZES, WIDTH, bidirectional_model
from tiny_encoder import encoder_model
from tiny_gguf import random_model


def test_it_is_described(tmp_path: Path) -> None:
    tiny = bidirectional_model(tmp_path / "tiny.gguf", quant="Q8_0")
    model = open_bidirectional(tiny.path)
    spec, tensors = model.spec, model.tensors
    assert (spec.architecture, spec.causal, spec.window) == ("gemma-embedding", False, 0)
    seen = [(layer.window, layer.ahead, layer.rope_base) for layer in spec.layers]
    # A window of 9 is four tokens on either side.
    assert seen[::2] == [(5, 4, LOCAL_BASE)] * 2
    assert [(window, base) for window, _, base in seen[1::2]] == [(0, BASE)] * 2
    assert all(ahead >= spec.context_length for _, ahead, _ in seen[1::2])
    assert tensors.dense is not None and tensors.output is tensors.token_embedding
    found = dense_matrix(model)
    expected = tiny.arrays["dense_3.weight"] @ tiny.arrays["dense_2.weight"]
    assert found is not None and found.shape == (WIDTH, WIDTH)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert is_encoder(model.file) and pooling_of(model.file) == "mean"
    model.close()


def test_a_file_without_dense_layers_is_whole(tmp_path: Path) -> None:
    path = bidirectional_model(
        tmp_path / "tiny.gguf", dense=False, metadata={"pooling_type": None}
    ).path
    model = open_any(path)
    assert isinstance(model, ModelFile) and dense_matrix(model) is None
    assert pooling_of(model.file) == "mean"
    model.close()


@pytest.mark.parametrize(("window", "each_side"), [(2, 1), (8, 4), (9, 4), (512, 256)])
def test_half_a_window_lies_on_either_side(tmp_path: Path, window: int, each_side: int) -> None:
    path = bidirectional_model(tmp_path / "tiny.gguf", window=window).path
    model = open_bidirectional(path)
    assert (model.spec.layers[0].window, model.spec.layers[0].ahead) == (each_side + 1, each_side)
    model.close()


def test_one_layer_in_six_sees_all_where_the_file_does_not_say(tmp_path: Path) -> None:
    metadata = {"attention.sliding_window_pattern": None}
    model = open_bidirectional(bidirectional_model(tmp_path / "t.gguf", metadata=metadata).path)
    assert all(layer.window for layer in model.spec.layers) and not model.spec.causal  # of four
    model.close()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"attention.causal": True}, "attention that is causal is not supported"),
        ({"attention.sliding_window": None}, "attention.sliding_window' is missing"),
        ({"attention.sliding_window": 1}, "would see itself alone"),
        ({"attention.sliding_window": 0}, "attention.sliding_window' is 0"),
        ({"dense_2_feat_out": INNER + 1}, f"{WIDTH} values to {INNER + 1} and {INNER} to {WIDTH}"),
        ({"dense_2_feat_in": 32}, f"map 32 values to {INNER}"),
        ({"dense_3_feat_in": None}, "dense_3_feat_in' is missing"),
        (
            {"dense_2_feat_out": 96, "dense_3_feat_in": 96},
            f"'dense_2.weight' has shape [{INNER}, {WIDTH}]; the metadata asks for [96, {WIDTH}]",
        ),
        (dict.fromkeys(SIZES), "dense_2_feat_in' is missing"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    path = bidirectional_model(tmp_path / "tiny.gguf", metadata=metadata).path
    with pytest.raises(ModelFileError) as caught:
        open_any(path)
    assert words in str(caught.value) and "tiny.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("dense_2.weight", None, "'dense_2.weight' is missing"),
        ("dense_3.weight", None, "'dense_3.weight' is missing"),
        ("dense_3.weight", np.zeros((INNER, WIDTH), np.float32), f"has shape [{INNER}, {WIDTH}]"),
        ("dense_2.bias", np.zeros(INNER, np.float32), "'dense_2.bias'"),
        ("blk.1.attn_q_norm.weight", None, "'blk.1.attn_q_norm.weight' is missing"),
        ("blk.1.post_ffw_norm.weight", None, "'blk.1.post_ffw_norm.weight' is missing"),
        ("output_norm.weight", None, "'output_norm.weight' is missing"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path: Path, name: str, tensor: Any, words: str) -> None:
    path = bidirectional_model(tmp_path / "tiny.gguf", tensors={name: tensor}).path
    with pytest.raises(ModelFileError) as caught:
        open_any(path)
    assert words in str(caught.value)


def test_only_generating_models_open_as_those(tmp_path: Path) -> None:
    tiny = bidirectional_model(tmp_path / "tiny.gguf").path
    with pytest.raises(ModelFileError, match=r"an encoder \(gemma-embedding\).*cannot generate"):
        open_model(tiny)
    others = [encoder_model(tmp_path / "bert.gguf").path, random_model(tmp_path / "llama.gguf")]
    for path, encodes in zip([tiny, *others], [True, True, False], strict=True):
        model = open_any(path)
        assert is_encoder(model.file) == encodes
        model.close()
    with GGUFFile(others[1]) as file:
        assert pooling_of(file) is None
