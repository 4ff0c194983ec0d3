"""KL divergence, likeliest tokens and perplexity over a text, against NumPy from whole sequences' logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emberd.errors import BadRequestError, ModelFileError
from emberd.gguf.spec import open_model
from emberd.reference.transformer import forward
from emberd.reference.weights import load_weights
from emberd.verify.quality import Measure, compare_over_text
from tiny_gguf import byte_vocab, random_model

WINDOW = 48


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return (
        x
        - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
        - x.max(1, keepdims=True)
    )


def whole(path: Path, windows: list[list[int]]) -> list[np.ndarray]:
    """Log-probabilities of each window by the forward pass without a cache."""
    model = open_model(path)
    try:
        weights = load_weights(model)
        return [log_softmax(forward(weights, np.array(ids))) for ids in windows]
    finally:
        model.close()


@pytest.fixture
def text(rng: np.random.Generator) -> str:
    return "".join(map(chr, rng.integers(97, 123, 110)))


def test_figures_are_those_of_whole_sequences(tmp_path: Path, text: str) -> None:
    path = random_model(tmp_path / "q.gguf", quant="Q4_0", layers=1)
    other = random_model(tmp_path / "f.gguf", quant="F32", layers=1)
    found = compare_over_text(path, other, "cpu", text, WINDOW)
    ids = list(text.encode())
    windows = [ids[:48], ids[48:96], ids[96:]]
    kls, same, losses = [], [], []
    for q, p, part in zip(whole(path, windows), whole(other, windows), windows, strict=True):
        q, p = q[:-1], p[:-1]
        kls += (np.exp(p) * (p - q)).sum(1).tolist()
        same += (q.argmax(1) == p.argmax(1)).tolist()
        losses += [(-q[i, t], -p[i, t]) for i, t in enumerate(part[1:])]
    assert found.num_tokens == len(kls) == 107
    assert found.mean_kl == pytest.approx(np.mean(kls), rel=1e-3) and found.mean_kl > 1e-4
    assert found.max_kl == pytest.approx(np.max(kls), rel=1e-3)
    assert found.top1 == pytest.approx(np.mean(same), abs=0.02)
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses, 0)[0]), rel=1e-4)
    assert found.reference_perplexity == pytest.approx(np.exp(np.mean(losses, 0)[1]), rel=1e-4)


@pytest.mark.slow
def test_a_model_is_as_itself(tmp_path: Path, text: str) -> None:
    path = random_model(tmp_path / "f.gguf", quant="F32", layers=1)
    found = compare_over_text(path, path, "cpu", text, WINDOW)
    assert found.mean_kl == 0 and found.max_kl == 0 and found.top1 == 1
    assert found.perplexity == found.reference_perplexity


def test_tokens_that_the_reference_rules_out_add_nothing() -> None:
    measure = Measure()
    reference = np.log([[0.5, 0.5, 1e-300]])
    reference[0, 2] = -np.inf
    measure.add(np.log([[0.25, 0.5, 0.25]]), reference, [1])
    result = measure.result()
    assert result.mean_kl == pytest.approx(0.5 * np.log(2))
    assert result.perplexity == pytest.approx(2)


@pytest.mark.device
@pytest.mark.usefixtures("device")
@pytest.mark.slow
def test_the_device_is_near_numpy(tmp_path: Path, text: str) -> None:
    path = random_model(tmp_path / "f.gguf", quant="F32", layers=1)
    found = compare_over_text(path, None, "gpu", text, WINDOW)
    assert 0 <= found.mean_kl < 1e-5 and found.top1 > 0.95


@pytest.mark.slow
def test_the_smaller_context_bounds_the_window(tmp_path: Path, text: str) -> None:
    path = random_model(tmp_path / "long.gguf", layers=1)
    other = random_model(tmp_path / "short.gguf", layers=1, context_length=32)
    for pair in ((path, other), (other, path)):
        found = compare_over_text(*pair, "cpu", text, WINDOW)
        assert found.num_tokens == 110 - 4 and found.mean_kl == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is what is tested
@pytest.mark.parametrize("value", [np.nan, 3e38])
def test_what_is_not_finite_proves_nothing(tmp_path: Path, text: str, value: float) -> None:
    path = random_model(tmp_path / "f.gguf", layers=1)
    damage = {"output_norm.weight": np.full(256, value, np.float32)}
    bad = random_model(tmp_path / "bad.gguf", layers=1, tensors=damage)
    for pair in ((path, bad), (bad, path), (bad, bad)):
        with pytest.raises(ModelFileError, match=r"^bad\.gguf: its logits are not finite"):
            compare_over_text(*pair, "cpu", text, WINDOW)


def test_vocabularies_must_be_the_same(tmp_path: Path, text: str) -> None:
    path = random_model(tmp_path / "a.gguf", layers=1)
    other = random_model(tmp_path / "b.gguf", layers=1, vocab=byte_vocab(size=600))
    with pytest.raises(BadRequestError, match="same vocabulary"):
        compare_over_text(path, other, "cpu", text, WINDOW)
    with pytest.raises(BadRequestError, match="at least two"):
        compare_over_text(path, path, "cpu", "a", WINDOW)
