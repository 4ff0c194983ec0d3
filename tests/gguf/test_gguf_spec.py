"""ModelSpec and tensors from metadata: what each architecture is, and what is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from arch_models import architecture_model
from emberd.errors import ModelFileError
from emberd.gguf.dequant import QUANT_TYPES, dequantize
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import LayerSpec, describe, load_spec, open_model
from emberd.gguf.tensors import load_tensors
from tiny_gguf import byte_vocab, random_model, random_rows


def refusal(path: Path, architecture: Any = "llama", **options: Any) -> str:
    random_model(path, architecture, **options)
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    assert str(caught.value).startswith(f"{path.name}: ")
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.gguf"


def test_llama(path: Path) -> None:
    model = open_model(random_model(path, width=128, heads=4, kv_heads=2, head_dim=32))
    spec = model.spec
    assert (spec.architecture, spec.rope_pairing, spec.activation) == ("llama", "adjacent", "silu")
    assert (spec.num_layers, spec.hidden_size, spec.ffn_size) == (2, 128, 512)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.rope_dim) == (4, 2, 32, 32)
    assert (spec.vocab_size, spec.context_length) == (512, 4096)
    assert spec.norm_eps == pytest.approx(1e-6)
    assert spec.embedding_scale == 1.0
    assert spec.attention_scale == pytest.approx(1 / math.sqrt(32))
    assert spec.layers == (LayerSpec(10000.0, 1.0, 0),) * 2
    assert model.tensors.layers[1].k.shape == (64, 128)
    assert model.tensors.layers[0].q_bias is None and model.tensors.layers[0].q_norm is None
    assert model.tensors.rope_factors is None
    model.close()


def test_qwen2_has_biases(path: Path) -> None:
    model = open_model(random_model(path, "qwen2"))
    assert model.spec.rope_pairing == "halves"
    bias = model.tensors.layers[0].k_bias
    assert bias is not None and bias.shape == (128,)
    assert "'blk.1.attn_v.bias' is missing" in refusal(
        path, "qwen2", tensors={"blk.1.attn_v.bias": None}
    )


def test_llama_may_have_biases(path: Path) -> None:
    bias = np.ones(256, np.float32)
    model = open_model(random_model(path, tensors={"blk.0.attn_q.bias": bias}))
    assert model.tensors.layers[0].q_bias is not None
    assert model.tensors.layers[1].q_bias is None


def test_qwen3_has_head_norms(path: Path) -> None:
    model = open_model(random_model(path, "qwen3", head_dim=128))
    norm = model.tensors.layers[0].q_norm
    assert norm is not None and norm.shape == (128,)
    assert model.spec.head_dim == 128


def test_gemma2_has_caps_and_a_window_where_its_keys_are_missing(path: Path) -> None:
    """As llama.cpp reads it: soft caps of 50 and 30, every second layer with a window of 4096."""
    options = {"layers": 3, "width": 64, "ffn": 64, "heads": 1, "kv_heads": 1, "tied": True}
    norms = {
        f"blk.{layer}.{name}.weight": np.ones(64, np.float32)
        for layer in range(3)
        for name in ("post_attention_norm", "post_ffw_norm")
    }
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")
    for given, (scores, logits, window) in (
        ((None, None, None), (50.0, 30.0, 4096)),
        ((20.0, 0.0, 16), (20.0, 0.0, 16)),
        ((0.0, 10.0, 0), (0.0, 10.0, 0)),
    ):
        metadata = {f"gemma2.{key}": value for key, value in zip(keys, given, strict=True)}
        path.unlink(missing_ok=True)
        model = open_model(
            random_model(path, "gemma2", metadata=metadata, tensors=norms, **options)
        )  # type: ignore[arg-type]
        model.close()
        assert (model.spec.attention_cap, model.spec.logit_cap) == (scores, logits)
        assert [layer.window for layer in model.spec.layers] == [window, 0, window]


def test_gemma3_slides_in_five_layers_of_six(path: Path) -> None:
    base, factor = "gemma3.rope.freq_base", "gemma3.rope.scaling.factor"
    options = {"layers": 7, "width": 64, "ffn": 64, "sliding_window": 16}
    metadata = {base: 1e6, factor: 8.0, "gemma3.rope.scaling.type": "linear"}
    model = open_model(random_model(path, "gemma3", metadata=metadata, **options))
    spec = model.spec
    assert (spec.activation, spec.rope_pairing) == ("gelu", "halves")
    assert spec.embedding_scale == 8.0
    sliding, everywhere = LayerSpec(10000.0, 1.0, 16), LayerSpec(1e6, 8.0, 0)
    assert spec.layers == (*[sliding] * 5, everywhere, sliding)
    layer = model.tensors.layers[0]
    assert layer.post_attention_norm is not None and layer.post_ffn_norm is not None

    metadata["gemma3.rope.freq_base_swa"] = 5000.0
    options["sliding_window_pattern"] = 2
    spec = open_model(random_model(path, "gemma3", metadata=metadata, **options)).spec
    assert [layer.window for layer in spec.layers] == [16, 0, 16, 0, 16, 0, 16]
    assert spec.layers[0].rope_base == 5000.0

    flags = {
        "gemma3.attention.sliding_window_pattern": [True, False, False, True, True, True, True]
    }
    options["sliding_window_pattern"] = None
    spec = open_model(random_model(path, "gemma3", metadata=flags, **options)).spec
    assert [layer.window for layer in spec.layers] == [16, 0, 0, 16, 16, 16, 16]
    assert "7 entries for 2 layers" in refusal(
        path, "gemma3", metadata=flags, sliding_window=16, layers=2
    )


def test_gemma3_without_a_window_sees_everything(path: Path) -> None:
    spec = open_model(random_model(path, "gemma3")).spec
    assert spec.layers == (LayerSpec(10000.0, 1.0, 0),) * 2


def test_gemma3_27b_scales_attention_by_hidden_size(path: Path) -> None:
    options = {"width": 64, "ffn": 32, "heads": 2, "kv_heads": 1, "head_dim": 16}
    spec = open_model(random_model(path, "gemma3", layers=62, **options)).spec
    assert spec.attention_scale == pytest.approx(1 / math.sqrt(64 / 2))
    spec = open_model(random_model(path, "gemma3", layers=26, **options)).spec
    assert spec.attention_scale == pytest.approx(1 / math.sqrt(16))


def test_output_is_the_embedding_where_the_file_ties_them(path: Path) -> None:
    """K25."""
    tied = open_model(random_model(path, tied=True))
    assert tied.tensors.output is tied.tensors.token_embedding
    untied = open_model(random_model(path, tied=False))
    assert untied.tensors.output.name == "output.weight"
    assert describe(untied).num_parameters - describe(tied).num_parameters == 512 * 256


@pytest.mark.parametrize(
    "name",
    ["output_norm.weight", "token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_norm.weight"],
)
def test_missing_tensor_is_named(name: str, path: Path) -> None:
    """K25."""
    assert f"tensor '{name}' is missing" in refusal(path, tensors={name: None})


def test_wrong_shape_names_both(path: Path) -> None:
    wrong = np.zeros((256, 512), np.float32)
    message = refusal(path, tensors={"blk.0.ffn_up.weight": wrong})
    assert "'blk.0.ffn_up.weight' has shape [256, 512]" in message
    assert "asks for [512, 256]" in message


def test_dimensions_of_one_in_front_may_be_there_or_not(path: Path) -> None:
    """llama.cpp leaves them out when it writes a file, and takes both."""
    norm = np.full((1, 1, 256), 0.5, np.float32)
    model = open_model(random_model(path, tensors={"blk.0.attn_norm.weight": norm}))
    found = model.tensors.layers[0].attention_norm
    assert found is not None and found.shape == (256,)
    (row,) = dequantize(model.file.rows(found), found.type)
    assert (row == 0.5).all()
    one_head = {"heads": 1, "kv_heads": 1, "head_dim": 2, "ffn": 32}
    up = np.ones((1, 32, 256), np.float32)
    model = open_model(random_model(path, **one_head, tensors={"blk.0.ffn_up.weight": up}))
    assert model.tensors.layers[0].up.shape == (32, 256)
    wrong = np.ones((32, 1, 256), np.float32)
    assert "[32, 1, 256]" in refusal(path, **one_head, tensors={"blk.0.ffn_up.weight": wrong})


def test_type_without_a_decoder_names_tensor_and_supported_types(path: Path) -> None:
    raw = np.zeros((256, 320), np.uint8)
    message = refusal(path, tensors={"blk.0.attn_q.weight": (GGMLQuantizationType.Q8_1, raw)})
    assert "'blk.0.attn_q.weight'" in message and "Q8_1 is not supported" in message
    assert "Q4_K, Q5_K, Q6_K" in message


def test_tensor_without_a_place_is_refused(path: Path) -> None:
    """A bias that is left out would give wrong text."""
    bias = np.ones(256, np.float32)
    assert "'blk.0.attn_output.bias'" in refusal(path, tensors={"blk.0.attn_output.bias": bias})
    table = np.ones(32, np.float32)
    open_model(random_model(path, tensors={"blk.0.attn.rot_embd.inv_freq": table})).close()


@pytest.mark.parametrize("lacking", ["short", "long"])
def test_one_set_of_long_rope_factors_alone_is_refused(lacking: str, path: Path) -> None:
    architecture_model(path, "phi3, long rope of half a head")
    with GGUFFile(path) as file:
        spec = load_spec(file)
        del file.tensors[f"rope_factors_{lacking}.weight"]
        with pytest.raises(ModelFileError, match=f"'rope_factors_{lacking}.weight' is missing"):
            load_tensors(file, spec)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q5_1])
def test_a_packed_bias_of_q_k_and_v_is_parted_where_its_packs_end(
    kind: GGMLQuantizationType, path: Path, rng: np.random.Generator
) -> None:
    packed = random_rows(rng, 1, 256, kind).reshape(-1)
    architecture_model(path, "gpt2", replaced={"blk.1.attn_qkv.bias": (kind, packed)})
    with open_model(path).file as file:
        layer = load_tensors(file, load_spec(file)).layers[1]
        parts = [layer.q_bias, layer.k_bias, layer.v_bias]
        values = [dequantize(file.rows(part), kind).reshape(-1) for part in parts if part]
    assert np.array_equal(np.concatenate(values), dequantize(packed[None], kind).reshape(-1))


def test_a_bias_whose_packs_hold_both_k_and_v_is_refused(
    path: Path, rng: np.random.Generator
) -> None:
    kind = GGMLQuantizationType.Q4_K
    packed = {"blk.1.attn_qkv.bias": (kind, random_rows(rng, 1, 256, kind).reshape(-1))}
    architecture_model(path, "gpt2", replaced=packed)
    with pytest.raises(
        ModelFileError, match=r"^small\.gguf: tensor 'blk\.1\.attn_qkv\.bias' \(Q4_K\)"
    ):
        open_model(path)


def test_rope_factors_are_found_and_checked(path: Path) -> None:
    """K26."""
    factors = np.linspace(1, 32, 32).astype(np.float32)
    model = open_model(random_model(path, tensors={"rope_freqs.weight": factors}))
    info = model.tensors.rope_factors
    assert info is not None
    np.testing.assert_array_equal(dequantize(model.file.rows(info), info.type)[0], factors)
    assert "'rope_freqs.weight' has shape [31]" in refusal(
        path, tensors={"rope_freqs.weight": factors[1:]}
    )
    factors[3] = 0
    assert "must be above 0" in refusal(path, tensors={"rope_freqs.weight": factors})


def test_rope_of_part_of_a_head_and_scaled_positions(path: Path) -> None:
    metadata = {"llama.rope.dimension_count": 32, "llama.rope.scaling.factor": 4.0}
    spec = open_model(random_model(path, metadata=metadata)).spec
    assert (spec.head_dim, spec.rope_dim) == (64, 32)
    assert spec.layers[0].rope_scale == 4.0
    metadata["llama.rope.scaling.type"] = "none"
    assert open_model(random_model(path, metadata=metadata)).spec.layers[0].rope_scale == 1.0
    old = {"llama.rope.scale_linear": 2.0}
    assert open_model(random_model(path, metadata=old)).spec.layers[0].rope_scale == 2.0


def test_sizes_that_may_be_left_out(path: Path) -> None:
    names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    metadata: dict[str, Any] = {f"llama.{name}": None for name in names}
    metadata |= {"llama.rope.freq_base": None, "llama.attention.head_count_kv": None}
    spec = open_model(random_model(path, kv_heads=4, metadata=metadata)).spec
    assert (spec.head_dim, spec.rope_dim, spec.num_kv_heads) == (64, 64, 4)
    assert spec.layers[0].rope_base == 10000.0


def test_sizes_given_a_layer_are_taken_when_equal(path: Path) -> None:
    same = {"llama.feed_forward_length": [512, 512]}
    assert open_model(random_model(path, metadata=same)).spec.ffn_size == 512
    message = refusal(path, metadata={"llama.feed_forward_length": [512, 256]})
    assert "'llama.feed_forward_length' holds different values" in message


BAD_METADATA = {
    "block_count": (None, "missing"),
    "embedding_length": (0, "is 0"),
    "feed_forward_length": (2**31, "is 2147483648"),
    "context_length": (None, "missing"),
    "attention.head_count": (0, "is 0"),
    "attention.head_count_kv": (3, "not a multiple of 3"),
    "attention.key_length": (63, "value_length"),
    "attention.value_length": (32, "must agree"),
    "attention.layer_norm_rms_epsilon": (None, "missing"),
    "rope.dimension_count": (33, "must be even"),
    "rope.freq_base": (1.0, "must be above 1"),
    "rope.scaling.type": ("mrope", "'mrope'; supported are 'none', 'linear', 'yarn' and"),
    "rope.scaling.factor": (float("nan"), "above 0"),
    "rope.scaling.attn_factor": (-1.2, "above 0"),
    "expert_count": (8, "expert_used_count' is missing"),
    "attention.causal": (False, "not supported"),
    "final_logit_softcapping": (30.0, "not supported"),
}


def test_a_scale_that_leaves_nothing_of_positions_is_refused(path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1e-30}
    assert "'llama.rope.scaling.factor' is 1e-30" in refusal(path, metadata=metadata)
    metadata["llama.rope.scaling.factor"] = 0.5
    assert open_model(random_model(path, metadata=metadata)).spec.layers[0].rope_scale == 0.5


@pytest.mark.parametrize("key", ["residual_scale", "embedding_scale", "logit_scale"])
def test_a_multiplier_that_leaves_nothing_is_refused(
    key: str, path: Path, rng: np.random.Generator
) -> None:
    value = 10.0 ** -rng.uniform(6.1, 37)
    assert f"granite.{key}" in refusal(path, "granite", metadata={f"granite.{key}": value})


def test_queries_grow_beyond_the_trained_context_where_no_other_is_told(path: Path) -> None:
    metadata = {
        "mistral3.attention.temperature_scale": 0.1,
        "mistral3.context_length": 96,
        "mistral3.rope.scaling.original_context_length": None,
    }
    temperature = open_model(random_model(path, "mistral3", metadata=metadata)).spec.temperature
    assert temperature is not None and temperature.length == 96


def test_dense_architectures_refuse_experts(path: Path) -> None:
    message = refusal(path, "qwen3", metadata={"qwen3.expert_count": 8})
    assert "'qwen3.expert_count' is 8; mixtures of experts are not supported" in message


def test_a_router_of_another_kind_is_refused(path: Path) -> None:
    keys = {"expert_count": 4, "expert_used_count": 2, "expert_gating_func": 2}
    message = refusal(path, metadata={f"llama.{key}": value for key, value in keys.items()})
    assert "'llama.expert_gating_func' must be 1" in message


@pytest.mark.parametrize("key", BAD_METADATA)
def test_bad_metadata_is_named(key: str, path: Path) -> None:
    value, words = BAD_METADATA[key]
    message = refusal(path, metadata={f"llama.{key}": value})
    assert "'llama." in message and words in message


@pytest.mark.parametrize("key", [*BAD_METADATA, "attention.sliding_window"])
@pytest.mark.parametrize("value", ["text", [1, 2], ["a", "b"], [[1], [2]], True], ids=str)
def test_metadata_of_a_wrong_type_is_refused_or_ignored(key: str, value: Any, path: Path) -> None:
    random_model(path, metadata={f"llama.{key}": value}, width=64, heads=1, kv_heads=1)
    try:
        open_model(path).close()
    except ModelFileError as error:
        assert f"'llama.{key}'" in str(error) or "'llama.attention." in str(error)


def test_head_dim_must_be_even(path: Path) -> None:
    message = refusal(path, head_dim=63, metadata={"llama.rope.dimension_count": None})
    assert "'llama.attention.key_length' is 63" in message


def test_heads_must_divide_the_width_where_no_length_is_given(path: Path) -> None:
    metadata = {"llama.attention.key_length": None, "llama.attention.head_count": 6}
    assert "does not divide the embedding length 256" in refusal(path, metadata=metadata)


def test_other_architectures_are_refused_with_the_supported_ones(path: Path) -> None:
    message = refusal(path, metadata={"general.architecture": "mamba"})
    assert "'mamba' is not supported; supported are llama, " in message
    assert "gemma3" in message and "bert" in message


def test_more_tokens_than_rows_are_refused_and_fewer_are_not(path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": byte_vocab(size=600).tokens}
    assert "600 tokens, but 'token_embd.weight' has 512 rows" in refusal(path, metadata=tokens)
    tokens = {"tokenizer.ggml.tokens": byte_vocab(size=500).tokens}
    assert open_model(random_model(path, metadata=tokens)).spec.vocab_size == 512


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)
def test_description_tells_the_commonest_type_or_the_file_s_own_word(
    kind: GGMLQuantizationType, path: Path
) -> None:
    assert describe(open_model(random_model(path, quant=kind.name))).quantization == kind.name
    metadata = {"general.file_type": 15}
    model = open_model(random_model(path, quant=kind.name, metadata=metadata))
    assert describe(model).quantization == "Q4_K_M"


def test_name_falls_back_to_the_file_s(path: Path) -> None:
    assert open_model(random_model(path)).spec.name == "random"
    assert open_model(random_model(path, metadata={"general.name": None})).spec.name == "small"
