"""CpuRunner's masks, log-probabilities and scores against the plain forward pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from random_weights import VOCAB, random_weights

from batches import GREEDY, Row, make_batch
from emberd.protocol import SamplingParams, WorkerOptions
from emberd.reference.runner import LOGIT_ROWS, CpuRunner
from emberd.reference.sampling import logprobs
from emberd.reference.transformer import forward

OPTIONS = WorkerOptions("unused", context_length=256, max_sequences=6, max_batch_tokens=128)


@pytest.fixture
def runner(rng: np.random.Generator) -> Iterator[CpuRunner]:
    runner = CpuRunner(random_weights(rng), OPTIONS)
    yield runner
    runner.close()


def masks_of(*allowed: list[int]) -> np.ndarray:
    bits = np.zeros((len(allowed), -(-VOCAB // 32) * 32), np.bool_)
    for row, ids in zip(bits, allowed, strict=True):
        row[ids] = True
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


def prompts(rng: np.random.Generator, *lengths: int) -> list[list[int]]:
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def test_masked_and_other_rows_share_a_step_k08(
    runner: CpuRunner, rng: np.random.Generator
) -> None:
    texts = prompts(rng, 1, 4, 9)
    rows = [Row(index, text, 0, [index], admit=GREEDY) for index, text in enumerate(texts)]
    batch = make_batch(rows, runner.block_size)
    batch.masked = np.array([True, False, True])
    expected = [forward(runner.weights, np.array(text))[-1] for text in texts]
    ids = [rng.permutation(VOCAB)[:5].tolist() for _ in range(2)]
    runner.submit(batch)
    with pytest.raises(AssertionError, match="waits for its masks"):
        runner.submit(batch)
    runner.sample(masks_of(*ids))
    sampled = runner.collect().token_ids.tolist()
    assert sampled[0] == max(ids[0], key=lambda i: expected[0][i])
    assert sampled[1] == expected[1].argmax()
    assert sampled[2] == max(ids[1], key=lambda i: expected[2][i])


@pytest.mark.parametrize("length", [1, LOGIT_ROWS, LOGIT_ROWS + 1, 60])
def test_prompts_are_scored_by_the_plain_forward_pass(
    runner: CpuRunner, rng: np.random.Generator, length: int
) -> None:
    text = prompts(rng, length + 1)[0]
    batch = make_batch([Row(0, text, 0, range(8), sample=False)], runner.block_size)
    batch.scored_at = np.arange(length, dtype=np.int32)
    batch.scored_ids = np.array(text[1:], np.int32)
    runner.submit(batch)
    scores = runner.collect().scores
    assert scores is not None
    expected = logprobs(forward(runner.weights, np.array(text))[:-1], batch.scored_ids)
    assert np.allclose(scores.chosen, expected.chosen, atol=1e-4)
    assert np.allclose(scores.top, expected.top, atol=1e-4)
    assert scores.top_ids.shape == expected.top_ids.shape


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, num_logprobs=3),
        SamplingParams(seed=3, num_logprobs=0, repetition_penalty=1.5, top_k=9),
        SamplingParams(seed=3, num_logprobs=20, logit_bias=((5, 100.0), (6, -50.0))),
    ],
)
def test_logprobs_are_of_raw_logits_at_the_tokens_row(
    runner: CpuRunner, rng: np.random.Generator, params: SamplingParams
) -> None:
    """K17, K18: neither bias, penalties nor a mask show, and a row between has none to tell."""
    texts = prompts(rng, 1, 1, 7)
    rows = [
        Row(0, texts[0], 0, [0], admit=params),
        Row(1, texts[1], 0, [1], sample=False, admit=GREEDY),
        Row(2, texts[2], 0, [2], admit=params),
    ]
    batch = make_batch(rows, runner.block_size)
    batch.masked = np.array([False, False, True])
    runner.submit(batch)
    runner.sample(masks_of(list(range(5, 15))))
    output = runner.collect()
    assert output.logprobs is not None
    for row in (0, 2):
        raw = forward(runner.weights, np.array(texts[row]))[-1:]
        expected = logprobs(raw, output.token_ids[row : row + 1])
        assert np.allclose(output.logprobs.chosen[row], expected.chosen[0], atol=1e-4)
        assert np.allclose(output.logprobs.top[row], expected.top[0], atol=1e-4)
    if params.logit_bias:
        assert output.token_ids[[0, 2]].tolist() == [5, 5]
