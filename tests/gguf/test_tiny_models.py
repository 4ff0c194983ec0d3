"""The models that other tests write: their vocabulary, and that a chain's weights hold its logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emberd.gguf.dequant import dequantize
from emberd.gguf.spec import ModelFile, open_model
from tiny_gguf import (
    BOS,
    EOS,
    EOT,
    NEVER,
    SURE,
    byte_spelling,
    byte_vocab,
    chain_model,
    random_model,
    script_model,
)


def logits_after(model: ModelFile, last: int) -> np.ndarray:
    """(vocab,) what a chain model gives: both sublayers add nothing, so only norm and output are left."""
    tensors = model.tensors

    def decode(info):
        return dequantize(model.file.rows(info), info.type)

    assert not decode(tensors.layers[0].o).any() and not decode(tensors.layers[0].down).any()
    x = decode(tensors.token_embedding)[last]
    x = x / np.sqrt((x * x).mean() + model.spec.norm_eps) * decode(tensors.output_norm)[0]
    return decode(tensors.output) @ x


def test_chain_gives_the_logits_asked_for(tmp_path: Path) -> None:
    path = chain_model(tmp_path / "chain.gguf", {63: {1: 2.0, 2: 1.0, 3: 0.0}})
    model = open_model(path)
    logits = logits_after(model, 63)
    np.testing.assert_allclose(logits[1:4], [2, 1, 0], atol=1e-4)
    assert np.allclose(np.delete(logits, [1, 2, 3]), NEVER, atol=1e-3)
    assert logits_after(model, 5).argmax() == EOS
    model.close()


def test_script_is_written_piece_by_piece_and_ends(tmp_path: Path) -> None:
    scripts = {"?": ["A B", b"\xf0\x9f", " C", EOT], "l": ["round ", "and "]}
    model = open_model(script_model(tmp_path / "script.gguf", scripts, endless="l"))
    tokens = model.file.metadata["tokenizer.ggml.tokens"]

    def follow(last: int, count: int) -> list[int]:
        path = []
        for _ in range(count):
            last = int(logits_after(model, last).argmax())
            path.append(last)
        return path

    ids = follow(ord("?"), 5)
    assert [tokens[id] for id in ids[:3]] == ["AĠB", byte_spelling(b"\xf0\x9f"), "ĠC"]
    assert ids[3:] == [EOT, EOS]
    assert logits_after(model, ord("?")).max() == pytest.approx(SURE, abs=1e-3)
    assert [tokens[id] for id in follow(ord("l"), 3)] == ["roundĠ", "andĠ", "roundĠ"]


def test_script_that_needs_a_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two different tokens"):
        script_model(tmp_path / "no.gguf", {"?": ["a1", "b1", "a1", "c1"]})


def test_byte_vocab() -> None:
    vocab = byte_vocab([" hi", b"ab"], ["<|tag|>"])
    assert len(vocab.tokens) == len(set(vocab.tokens)) == len(vocab.types) == 512
    assert vocab.tokens[ord("a")] == "a" and vocab.tokens[0x20] == "Ġ" and vocab.tokens[0] == "Ā"
    assert vocab.ids == {" hi": 256, b"ab": 257, "<|tag|>": 258}
    assert vocab.types[258] == 3
    assert vocab.tokens[BOS:] == ["<|bos|>", "<|eos|>", "<|eot|>"]
    spm = byte_vocab([" hi"], style="spm")
    assert spm.tokens[10] == "<0x0A>" and spm.tokens[256] == "▁hi"
    assert spm.tokens[BOS - 1] == "<unk>"


def test_random_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one = random_model(tmp_path / "one.gguf", quant="Q4_K", seed=7).read_bytes()
    assert random_model(tmp_path / "two.gguf", quant="Q4_K", seed=7).read_bytes() == one
    assert random_model(tmp_path / "three.gguf", quant="Q4_K", seed=8).read_bytes() != one
