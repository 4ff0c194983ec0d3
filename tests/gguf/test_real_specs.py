"""ModelSpec of real models' files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from emberd.gguf.spec import LayerSpec, describe, open_model

pytestmark = pytest.mark.model


def test_smollm2(smollm2_path: Path) -> None:
    model = open_model(smollm2_path)
    spec = model.spec
    assert (spec.architecture, spec.num_layers, spec.hidden_size) == ("llama", 30, 576)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (9, 3, 64)
    assert (spec.vocab_size, spec.context_length) == (49152, 8192)
    assert spec.layers[0] == LayerSpec(100000.0, 1.0, 0)
    assert model.tensors.output is model.tensors.token_embedding
    assert describe(model).num_parameters == 134515008
    assert describe(model).quantization == "Q4_1"


def test_gemma3(gemma3_path: Path) -> None:
    model = open_model(gemma3_path)
    spec = model.spec
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size) == (18, 640, 262144)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 1, 256)
    assert [i for i, layer in enumerate(spec.layers) if not layer.window] == [5, 11, 17]
    assert spec.layers[0] == LayerSpec(10000.0, 1.0, 512)
    assert spec.layers[5] == LayerSpec(1000000.0, 1.0, 0)
    assert spec.embedding_scale == pytest.approx(math.sqrt(640))
    assert spec.attention_scale == pytest.approx(1 / 16)
    assert describe(model).quantization == "Q4_K_M"


def test_qwen2_5_coder(qwen_path: Path) -> None:
    model = open_model(qwen_path)
    spec = model.spec
    assert (spec.architecture, spec.num_layers, spec.hidden_size) == ("qwen2", 24, 896)
    assert (spec.num_heads, spec.num_kv_heads, spec.vocab_size) == (14, 2, 151936)
    assert spec.layers[0].rope_base == 1000000.0
    assert model.tensors.output.name == "output.weight"
    assert model.tensors.layers[23].v_bias is not None
