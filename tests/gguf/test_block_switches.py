"""What the names of architectures with LayerNorms and parallel parts mean, and which of their keys are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arch_models import CASES, architecture_model
from emberd.errors import ModelFileError
from emberd.gguf.spec import LayerSpec, ModelFile, open_model


def opened(tmp_path: Path, name: str) -> ModelFile:
    return open_model(architecture_model(tmp_path / "m.gguf", name))


def test_layer_norms_without_biases_have_zeros(tmp_path: Path) -> None:
    model = opened(tmp_path, "command-r")
    spec, layer = model.spec, model.tensors.layers[1]
    assert spec.parallel and spec.gated and layer.ffn_norm is None and layer.ffn_norm_bias is None
    for bias in (layer.attention_norm_bias, model.tensors.output_norm_bias):
        assert bias is not None and bias.shape == (spec.hidden_size,)
        assert not model.file.rows(bias).view(np.float32).any()
    model.close()


def test_some_multiply_logits_and_some_divide_them(tmp_path: Path) -> None:
    for name in ("command-r", "granite"):
        model = opened(tmp_path, name)
        told = CASES[name]["logit_scale"]
        assert model.spec.logit_scale == pytest.approx(told if name == "command-r" else 1 / told)
        model.close()


def test_other_multipliers_of_granite_are_not_command_r_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"embedding_scale": 5.0, "attention.scale": 3.0, "rope.scaling.finetuned": False}
    plain = opened(tmp_path, "command-r")
    monkeypatch.setitem(CASES, "command-r", CASES["command-r"] | more)
    other = opened(tmp_path, "command-r")
    assert other.spec == plain.spec and other.spec.layers[0].rope_base
    for model in (plain, other):
        model.close()


@pytest.mark.parametrize("name", ["cohere2", "exaone4, windows (32B)"])
def test_layers_without_a_window_do_not_rotate_beside_others(name: str, tmp_path: Path) -> None:
    model = opened(tmp_path, name)
    three, last = model.spec.layers[:3], model.spec.layers[3]
    model.close()
    assert three == (LayerSpec(10000.0, 1.0, 16),) * 3 and last == LayerSpec(0.0, 1.0, 0)


@pytest.mark.parametrize(
    ("window", "said"), [(None, "is missing"), (0, "is 0; it must be a whole number from 1")]
)
def test_which_layers_rotate_is_not_guessed_where_the_window_is_missing(
    window: int | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llama.cpp refuses such a file."""
    case = {key: value for key, value in CASES["cohere2"].items() if "window" not in key}
    given = {} if window is None else {"attention.sliding_window": window}
    monkeypatch.setitem(CASES, "cohere2", case | given)
    with pytest.raises(ModelFileError, match=f"'cohere2.attention.sliding_window' {said}"):
        opened(tmp_path, "cohere2")


def test_all_layers_rotate_where_none_has_a_window(tmp_path: Path) -> None:
    model = opened(tmp_path, "exaone4")
    assert model.spec.layers == (LayerSpec(10000.0, 1.0, 0),) * 4
    model.close()


def test_a_file_tells_whether_its_parts_are_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, parallel in (("gptneox", True), ("gptneox, one after the other", False)):
        model = opened(tmp_path, name)
        assert model.spec.parallel is parallel and model.tensors.layers[0].ffn_norm is not None
        model.close()
    for told in (None, 1, "yes"):
        case = {"use_parallel_residual": told, "attention.layer_norm_epsilon": 1e-5}
        monkeypatch.setitem(CASES, "gptneox", case)
        with pytest.raises(ModelFileError, match=r"'gptneox\.use_parallel_residual' is .*true or"):
            opened(tmp_path, "gptneox")


@pytest.mark.parametrize(("name", "norm"), [("command-r", "q"), ("stablelm", "k")])
def test_layer_norms_of_heads_have_no_place(
    name: str, norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Command R+ and StableLM 2 12B have them."""
    key = f"blk.0.attn_{norm}_norm.weight"
    monkeypatch.setitem(CASES, name, CASES[name] | {key: 32})
    with pytest.raises(ModelFileError, match=f"no place.*{key}"):
        opened(tmp_path, name)
