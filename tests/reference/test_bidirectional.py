"""EmbeddingGemma on the CPU device: against llama.cpp, and against the same model in float64."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberd.gguf.reader import GGUFFile
from emberd.protocol import WorkerOptions
from emberd.reference.bidirectional import CpuBidirectional, load_encoder
from emberd.reference.encoder import CpuEncoder
from emberd.text.tokenizer import Tokenizer
from oracle import expected_vectors
from tiny_bidirectional import CONTEXT, bidirectional_model
from tiny_encoder import encoder_model
from tolerance import check, relative_error

LENGTHS = (1, 2, 5, 17, 90)
LLAMA_ERROR = 2e-3
"""llama.cpp's GELU is a table in f16. A window that is one token wider gives 0.05 and more."""

FILES: dict[str, dict[str, Any]] = {
    "with dense layers": {},
    "without": {"dense": False},
    "an even window": {"window": 8},
    "one layer in three sees all": {"metadata": {"attention.sliding_window_pattern": 3}},
    "a base of its own for windows": {"metadata": {"rope.freq_base_swa": 500.0}},
    "linear rope": {"metadata": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
}


def load(path: Path, **options: Any) -> CpuBidirectional:
    return CpuBidirectional.load(WorkerOptions(str(path), "cpu", **options))


def vectors(runner: CpuBidirectional, texts: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    states = runner.hidden_states(np.concatenate(texts).astype(np.int32), starts)
    found = [states[start:end].mean(0) for start, end in pairwise(starts)]
    return found if runner.dense is None else [runner.dense @ vector for vector in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_vectors_equal_llama_cpp_s(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    path = bidirectional_model(
        tmp_path / "m.gguf", seed=int(rng.integers(1 << 30)), **FILES[name]
    ).path
    texts = [rng.integers(0, 500, length).tolist() for length in LENGTHS]
    runner = load(path)
    for found, expected in zip(vectors(runner, texts), expected_vectors(path, texts), strict=True):
        assert relative_error(found, expected) < LLAMA_ERROR
    runner.close()


def test_a_text_is_read_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    """BOS and EOS included, which the file asks for."""
    path = bidirectional_model(tmp_path / "m.gguf").path
    texts = ["hello", "a", "two  words, and ünïcode"]
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    read = [tokenizer.encode(text, add_special=True, parse_special=False) for text in texts]
    assert read[1][0] == tokenizer.bos_id and read[1][-1] == 510 and len(read[1]) == 3
    runner = load(path)
    for found, expected in zip(vectors(runner, read), expected_vectors(path, texts), strict=True):
        assert relative_error(found, expected) < LLAMA_ERROR
    runner.close()


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_states_of_texts_side_by_side(
    tmp_path: Path, rng: np.random.Generator, quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their scores are made in parts."""
    tiny = bidirectional_model(tmp_path / "m.gguf", quant=quant)
    runner = load(tiny.path, max_batch_tokens=200)
    assert (runner.context_length, runner.max_batch_tokens) == (CONTEXT, 200)
    starts = np.cumsum([0, 1, 90, 7, 30]).astype(np.int32)
    ids = rng.integers(0, 500, starts[-1]).astype(np.int32)
    whole = runner.hidden_states(ids, starts)
    monkeypatch.setattr("emberd.reference.ops.MAX_SCORES", 1000)
    for found in (whole, runner.hidden_states(ids, starts)):
        for start, end in pairwise(starts):
            check(found[start:end], tiny.states(ids[start:end].tolist()), "float")
    runner.close()


@pytest.mark.slow
def test_the_file_says_which_runner_it_takes(tmp_path: Path) -> None:
    files = [
        bidirectional_model(tmp_path / "a.gguf").path,
        encoder_model(tmp_path / "b.gguf").path,
    ]
    for path, kind in zip(files, (CpuBidirectional, CpuEncoder), strict=True):
        runner = load_encoder(WorkerOptions(str(path), "cpu", context_length=32))
        assert type(runner) is kind and runner.info().context_length == 32
        assert runner.info().num_blocks == 0 and (runner.dense is None) == (kind is CpuEncoder)
        runner.close()
