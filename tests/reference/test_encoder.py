"""The encoder in NumPy against float64 written apart from it, and against sentence-transformers."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path

import numpy as np
import pytest

from emberd.errors import ModelLoadError
from emberd.gguf.reader import GGUFFile
from emberd.protocol import WorkerOptions
from emberd.reference import encoder_ops as ops
from emberd.reference import weights
from emberd.reference.encoder import CpuEncoder
from emberd.text.tokenizer import Tokenizer
from tiny_encoder import encoder_model
from tolerance import check

ORACLE = Path(__file__).parent / "minilm_oracle.json"


def test_gelu_is_the_exact_form(rng: np.random.Generator) -> None:
    x = (rng.standard_normal(1000) * 4).astype(np.float32)
    expected = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x.astype(np.float64)]
    check(ops.gelu(x), np.array(expected), "float")
    assert ops.gelu(np.array([0, 40, -40], np.float32)).tolist() == [0, 40, 0]


def test_layer_norm_add_has_mean_and_spread_of_the_weights(rng: np.random.Generator) -> None:
    x, residual = rng.standard_normal((2, 5, 300)).astype(np.float32) + 100
    ones, zeros = np.ones(300, np.float32), np.zeros(300, np.float32)
    y = ops.layer_norm_add(x, residual, ones, zeros, 1e-12)
    assert np.allclose(y.mean(1), 0, atol=1e-4) and np.allclose(y.std(1), 1, atol=1e-4)
    weight, bias = rng.standard_normal((2, 300)).astype(np.float32)
    check(ops.layer_norm_add(x, residual, weight, bias, 1e-12), y * weight + bias, "float")


def test_attention_of_long_texts_is_that_of_one_piece(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    qkv = rng.standard_normal((90, 3 * 4 * 8)).astype(np.float32)
    starts = np.array([0, 50, 51, 90], np.int32)
    whole = ops.attention_encoder(qkv, starts, 4, 0.3)
    monkeypatch.setattr(ops, "MAX_SCORES", 4 * 50 * 7)
    check(ops.attention_encoder(qkv, starts, 4, 0.3), whole, "float")


@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0"])
def test_states_are_those_of_float64_alone_and_in_company(
    tmp_path: Path, rng: np.random.Generator, quant: str
) -> None:
    tiny = encoder_model(tmp_path / "tiny.gguf", quant=quant, seed=int(rng.integers(1 << 30)))
    encoder = CpuEncoder.load(WorkerOptions(str(tiny.path)))
    info = encoder.info()
    assert (info.context_length, info.num_blocks, info.kv_bytes) == (64, 0, 0)
    lengths = [1, 64, 17, 3]
    texts = [rng.integers(0, 40, n) for n in lengths]
    together = encoder.hidden_states(
        np.concatenate(texts).astype(np.int32), np.cumsum([0, *lengths]).astype(np.int32)
    )
    for ids, states in zip(texts, np.split(together, np.cumsum(lengths)[:-1]), strict=True):
        check(states, tiny.states(ids.tolist()), "float")
        alone = encoder.hidden_states(ids.astype(np.int32), np.array([0, len(ids)], np.int32))
        check(states, alone, "float")
    encoder.close()


def test_context_is_lowered_on_wish_and_batches_hold_a_whole_text(tmp_path: Path) -> None:
    path = str(encoder_model(tmp_path / "tiny.gguf").path)
    for asked, served in ((10, 10), (1000, 64), (None, 64)):
        encoder = CpuEncoder.load(WorkerOptions(path, context_length=asked, max_batch_tokens=4))
        assert encoder.info().context_length == encoder.max_batch_tokens == served


def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(encoder_model(tmp_path / "tiny.gguf").path)

    class Memory:
        available = 1000

    monkeypatch.setattr(weights.psutil, "virtual_memory", Memory)
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf needs .* GiB"):
        CpuEncoder.load(WorkerOptions(path))


@pytest.mark.model
def test_minilm_is_sentence_transformers(minilm_path: Path) -> None:
    """The oracle says how it was made; its vectors are rounded to 16 bits."""
    oracle = json.loads(ORACLE.read_text(encoding="utf-8"))
    with GGUFFile(minilm_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    encoder = CpuEncoder.load(WorkerOptions(str(minilm_path)))
    for text, ids, vector in zip(oracle["texts"], oracle["ids"], oracle["vectors"], strict=True):
        assert tokenizer.encode(text, add_special=True, parse_special=True) == ids
        expected = np.frombuffer(base64.b64decode(vector), "<f2").astype(np.float64)
        states = encoder.hidden_states(np.array(ids, np.int32), np.array([0, len(ids)], np.int32))
        found = states.mean(0)
        cosine = found @ expected / np.linalg.norm(found) / np.linalg.norm(expected)
        assert cosine > 0.99999, text
    encoder.close()
