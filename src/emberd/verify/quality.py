"""How far one run of a model is from another over a text: KL divergence, the same likeliest token, perplexity.

The text is cut into windows, each a sequence of its own; both runners go through it side by side, a few tokens at a
time, so that no more than those tokens' logits are held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BadRequestError, ModelFileError
from ..gguf.spec import open_model
from ..protocol import Runner, WorkerOptions
from ..reference.runner import CpuRunner
from ..runtime.runner import GpuRunner
from ..text.tokenizer import Tokenizer
from .model import batch_of, log_softmax, logits_of

STEP = 32
"""Tokens of a step: their logits over a large vocabulary are some tens of megabytes."""

Logprobs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quality:
    """Of the places whose next token the text tells."""

    num_tokens: int
    mean_kl: float  # nats: Σ p · ln(p / q), p of the reference
    max_kl: float
    top1: float  # share of places whose likeliest token is the same
    perplexity: float
    reference_perplexity: float


class Measure:
    """Sums over places. `add` takes log-probabilities (N, vocab) and the tokens (N,) that follow."""

    def __init__(self) -> None:
        self._kl: list[float] = []
        self._same = 0
        self._loss = self._reference_loss = 0.0

    def add(self, found: Logprobs, reference: Logprobs, following: Sequence[int]) -> None:
        chances = np.exp(reference)
        # A token that the reference rules out (-inf) adds nothing, whatever the other says.
        with np.errstate(invalid="ignore"):
            terms = np.where(chances > 0, chances * (reference - found), 0.0)
        self._kl += terms.sum(axis=1).tolist()
        self._same += int((found.argmax(axis=1) == reference.argmax(axis=1)).sum())
        places = np.arange(len(following))
        self._loss -= float(found[places, following].sum())
        self._reference_loss -= float(reference[places, following].sum())

    def result(self) -> Quality:
        count = len(self._kl)
        return Quality(
            count,
            float(np.mean(self._kl)),
            float(np.max(self._kl)),
            self._same / count,
            math.exp(self._loss / count),
            math.exp(self._reference_loss / count),
        )


def compare_over_text(
    path: Path, reference: Path | None, device: str, text: str, window: int
) -> Quality:
    """The model on `device` against `reference` on it too, or, without one, against itself in NumPy.

    `window`: tokens of a sequence; never more than either model's context. Raises BadRequestError where the
    vocabularies differ or the text is too short, ModelFileError also for logits that are not finite, DeviceError,
    ModelLoadError.
    """
    ids, size, trained = _tokens(path, text)
    window = min(window, trained)
    if reference is not None:
        other_ids, other_size, other_trained = _tokens(reference, text)
        window = min(window, other_trained)
        if other_size != size or other_ids != ids:
            raise BadRequestError(
                f"{path.name} and {reference.name} do not have the same vocabulary, so their tokens cannot be compared"
            )
    windows = [ids[at : at + window] for at in range(0, len(ids), window)]
    windows = [part for part in windows if len(part) > 1]
    if not windows:
        raise BadRequestError(f"the text has {len(ids)} tokens, and at least two are needed")
    found = _load(path, device, window)
    try:
        other = _load(reference or path, "cpu" if reference is None else device, window)
        try:
            names = (f"{path.name} on {device}", f"{path.name} in NumPy")
            if reference is not None:
                names = path.name, reference.name
            return _measured((found, other), names, windows)
        finally:
            other.close()
    finally:
        found.close()


def _tokens(path: Path, text: str) -> tuple[list[int], int, int]:
    """Ids of the text, size of the vocabulary, trained context."""
    model = open_model(path)
    try:
        tokenizer = Tokenizer.from_metadata(model.file.metadata)
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        return ids, model.spec.vocab_size, model.spec.context_length
    finally:
        model.close()


def _load(path: Path, device: str, window: int) -> Runner:
    options = WorkerOptions(str(path), device, window, max_sequences=STEP, max_batch_tokens=STEP)
    return CpuRunner.load(options) if device == "cpu" else GpuRunner.load(options)


def _measured(
    runners: tuple[Runner, Runner], names: tuple[str, str], windows: Sequence[Sequence[int]]
) -> Quality:
    measure = Measure()
    for ids in windows:
        for start, part in _steps(ids[:-1]):
            rows = []
            for runner, name in zip(runners, names, strict=True):
                runner.submit(batch_of(runner, part, start))
                rows.append(log_softmax(logits_of(runner)))
                if np.isnan(rows[-1]).any():
                    raise ModelFileError(
                        f"{name}: its logits are not finite (NaN or infinity), so there is nothing to compare"
                    )
            measure.add(rows[0], rows[1], ids[start + 1 : start + len(part) + 1])
    return measure.result()


def _steps(ids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    for start in range(0, len(ids), STEP):
        yield start, ids[start : start + STEP]
