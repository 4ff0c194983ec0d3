"""The NumPy sampler: K16, thresholds against sorted lists, the hash in plain integers, penalties by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from emberd.protocol import SamplingParams
from emberd.reference import sampling
from emberd.reference.sampling import (
    SamplerState,
    apply_bias,
    apply_mask,
    logprobs,
    sample,
    sample_row,
)

VOCAB = 512
FIRST, SECOND, THIRD = 7, 3, 400


@pytest.fixture
def three_successors() -> sampling.F32:
    """K16's logits: 2, 1, 0, all else -30."""
    logits = np.full(VOCAB, -30, dtype=np.float32)
    logits[[FIRST, SECOND, THIRD]] = [2, 1, 0]
    return logits


def one(logits: sampling.F32, params: SamplingParams, position: int = 5) -> int:
    return sample_row(logits, SamplerState.start(params, [], len(logits)), position)


def frequencies(logits: sampling.F32, params: SamplingParams, count: int) -> Counter[int]:
    return Counter(one(logits, params, position) for position in range(count))


@pytest.mark.parametrize("top_k", [0, 1])
@pytest.mark.parametrize("top_p", [0.0, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 1.0])
def test_temperature_zero_is_greedy_whatever_the_filters(
    three_successors: sampling.F32, top_k: int, top_p: float, min_p: float
) -> None:
    """K16."""
    params = SamplingParams(temperature=0.0, top_k=top_k, top_p=top_p, min_p=min_p)
    assert one(three_successors, params) == FIRST


@pytest.mark.slow
def test_temperature_one_draws_from_the_softmax(
    three_successors: sampling.F32, rng: np.random.Generator
) -> None:
    """K16: near 66.5, 24.5, 9.0 percent (6 standard deviations of 10,000 draws)."""
    seed = int(rng.integers(1 << 62))
    counts = frequencies(three_successors, SamplingParams(seed=seed), 10_000)
    for token, share in [(FIRST, 0.665), (SECOND, 0.245), (THIRD, 0.090)]:
        assert counts[token] / 10_000 == pytest.approx(share, abs=6 * (share / 10_000) ** 0.5)


def test_seeds_do_not_change_the_temperature(three_successors: sampling.F32) -> None:
    """K16: seeds 1 to 20 do not all agree."""
    assert len({one(three_successors, SamplingParams(seed=seed)) for seed in range(1, 21)}) > 1


def test_top_p_zero_keeps_one_token(three_successors: sampling.F32) -> None:
    """K16."""
    assert set(frequencies(three_successors, SamplingParams(top_p=0.0), 200)) == {FIRST}


@pytest.mark.slow
def test_temperature_scales_the_odds(
    three_successors: sampling.F32, rng: np.random.Generator
) -> None:
    params = SamplingParams(temperature=0.5, seed=int(rng.integers(1 << 62)))
    counts = frequencies(three_successors, params, 5_000)
    share = 1 / (1 + math.exp(-2) + math.exp(-4))
    assert counts[FIRST] / 5_000 == pytest.approx(share, abs=6 * (0.12 / 5_000) ** 0.5)


def test_tiny_temperatures_are_greedy_and_finite(rng: np.random.Generator) -> None:
    logits = rng.standard_normal(VOCAB, dtype=np.float32) * 1000
    assert one(logits, SamplingParams(temperature=1e-30)) == int(np.argmax(logits))


@pytest.mark.slow
def test_equal_logits_are_drawn_equally(rng: np.random.Generator) -> None:
    logits = np.zeros(8, dtype=np.float32)
    counts = frequencies(logits, SamplingParams(seed=int(rng.integers(1 << 62))), 8_000)
    assert all(abs(counts[token] - 1000) < 6 * 30 for token in range(8))


def test_the_lowest_id_wins_ties() -> None:
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[9, 300]] = 4
    assert one(logits, SamplingParams(temperature=0.0)) == 9


def test_a_row_does_not_depend_on_its_neighbours(rng: np.random.Generator) -> None:
    """K12: seed and position alone decide."""
    logits = rng.standard_normal((9, VOCAB), dtype=np.float32)
    params = [SamplingParams(seed=int(seed)) for seed in rng.integers(1 << 62, size=9)]
    positions = rng.integers(0, 5000, 9).astype(np.int32)
    alone = [one(logits[i], params[i], int(positions[i])) for i in range(9)]
    order = rng.permutation(9)
    states = [SamplerState.start(params[i], [], VOCAB) for i in order]
    assert sample(logits[order], states, positions[order]).tolist() == [alone[i] for i in order]


@pytest.mark.parametrize("change", [1, 1 << 31, 1 << 32, 1 << 63])
def test_every_part_of_the_seed_counts(change: int) -> None:
    ids = np.arange(1000, dtype=np.uint32)
    one_draw = sampling.exponentials(12345, 9, ids)
    other = sampling.exponentials(12345 ^ change, 9, ids)
    assert (one_draw != other).mean() > 0.99
    assert (one_draw != sampling.exponentials(12345, 10, ids)).mean() > 0.99


def test_a_negative_seed_is_its_twos_complement() -> None:
    ids = np.arange(10, dtype=np.uint32)
    same = sampling.exponentials((1 << 64) - 5, 1, ids)
    np.testing.assert_array_equal(sampling.exponentials(-5, 1, ids), same)


def test_draws_follow_the_definition_in_plain_integers(rng: np.random.Generator) -> None:
    """The hash and the exponential as a GPU computes them, against Python's own integers and log."""
    mask = 0xFFFFFFFF

    def pcg(x: int) -> int:
        s = (x * 747796405 + 2891336453) & mask
        w = (((s >> ((s >> 28) + 4)) ^ s) * 277803737) & mask
        return (w >> 22) ^ w

    seed, position = int(rng.integers(1 << 63)), int(rng.integers(1 << 20))
    ids = rng.integers(0, 262_144, 2000).astype(np.uint32)
    draws = sampling.exponentials(seed, position, ids)
    key = pcg(pcg(pcg(seed & mask) ^ (seed >> 32)) ^ position)
    for token, draw in zip(ids.tolist(), draws.tolist(), strict=True):
        u = min((pcg(key ^ pcg(token)) + 0.5) / 2**32, 1 - 2**-24)
        exact = -math.log1p(-u)
        # 1 - u is off by up to 2^-24 in f32: that matters only to large draws, which never win.
        assert abs(draw - exact) <= 3e-6 * exact + 1e-7 * math.exp(exact)


def test_draws_are_exponential(rng: np.random.Generator) -> None:
    draws = np.sort(
        sampling.exponentials(int(rng.integers(1 << 62)), 3, np.arange(100_000, dtype=np.uint32))
    )
    distribution = 1 - np.exp(-draws.astype(np.float64))
    steps = np.arange(1, 100_001) / 100_000
    assert np.abs(distribution - steps).max() < 3 / 100_000**0.5  # Kolmogorov: p about 3e-8
    assert draws[0] > 0 and np.isfinite(draws[-1])


def kept(logits: sampling.F32, params: SamplingParams) -> set[int]:
    z = sampling.scale(logits, params.temperature)
    return set(np.flatnonzero(z >= np.float32(sampling.threshold(z, params))).tolist())


@pytest.mark.parametrize("top_k", [1, 2, 40, VOCAB - 1, VOCAB, VOCAB + 1, 0])
def test_top_k_keeps_the_largest(rng: np.random.Generator, top_k: int) -> None:
    logits = rng.permutation(VOCAB).astype(np.float32)
    size = top_k if 0 < top_k < VOCAB else VOCAB
    assert kept(logits, SamplingParams(top_k=top_k)) == set(np.argsort(-logits)[:size].tolist())


def test_top_k_keeps_ties_at_its_border() -> None:
    logits = np.array([0, 5, 3, 3, 3, 1], dtype=np.float32)
    assert kept(logits, SamplingParams(top_k=2)) == {1, 2, 3, 4}


@pytest.mark.parametrize("top_p", [0.0, 1e-6, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [0, 20])
def test_top_p_keeps_the_smallest_set_that_reaches_it(
    rng: np.random.Generator, top_p: float, top_k: int
) -> None:
    logits = rng.standard_normal(VOCAB, dtype=np.float32) * 3
    order = np.argsort(-logits)[: top_k or VOCAB]
    mass = np.exp(logits[order].astype(np.float64) - logits.max())
    cumulated = np.cumsum(mass) / mass.sum()
    size = 1 + int(np.count_nonzero(cumulated < top_p))
    params = SamplingParams(top_p=top_p, top_k=top_k)
    assert kept(logits, params) == set(order[:size].tolist())


def test_top_p_keeps_ties_at_its_border() -> None:
    logits = np.log(np.array([0.4, 0.2, 0.2, 0.2], dtype=np.float32))
    assert kept(logits, SamplingParams(top_p=0.5)) == {0, 1, 2, 3}
    assert kept(logits, SamplingParams(top_p=0.3)) == {0}


def test_min_p_is_relative_to_the_likeliest(rng: np.random.Generator) -> None:
    logits = rng.standard_normal(VOCAB, dtype=np.float32) * 2
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    for min_p in (0.05, 0.5):
        wanted = set(np.flatnonzero(probabilities >= min_p).tolist())
        assert kept(logits, SamplingParams(min_p=min_p)) == wanted
    assert kept(logits, SamplingParams(min_p=1.0)) == {int(np.argmax(logits))}


def test_the_strictest_filter_holds(rng: np.random.Generator) -> None:
    logits = rng.standard_normal(VOCAB, dtype=np.float32) * 2
    every = SamplingParams(top_k=50, top_p=0.8, min_p=0.02, temperature=0.7)
    after_k = replace(every, min_p=0.0)
    only_min = replace(every, top_k=0, top_p=1.0)
    assert kept(logits, every) == kept(logits, after_k) & kept(logits, only_min)


def test_only_kept_tokens_are_drawn(rng: np.random.Generator) -> None:
    logits = rng.standard_normal(VOCAB, dtype=np.float32)
    params = SamplingParams(top_k=5, seed=int(rng.integers(1 << 62)))
    assert set(frequencies(logits, params, 500)) == kept(logits, params)


def test_penalties_by_hand() -> None:
    logits = np.array([2, -2, 2, -2], dtype=np.float32)
    counts = np.array([3, 1, 0, 0], dtype=np.int32)
    out = sampling.apply_penalties(logits, counts, 2.0, 0.5, 0.25)
    np.testing.assert_allclose(out, [1 - 0.5 - 0.75, -4 - 0.5 - 0.25, 2, -2], rtol=1e-6)


@pytest.mark.parametrize("window", [-1, 0, 1, 4, 1000])
def test_penalties_count_the_last_tokens(rng: np.random.Generator, window: int) -> None:
    prompt = rng.integers(0, 20, 30).tolist()
    params = SamplingParams(temperature=0.0, presence_penalty=1.0, penalty_window=window)
    state = SamplerState.start(params, prompt, 20)
    history = list(prompt)
    for position in range(30, 60):
        logits = rng.standard_normal(20, dtype=np.float32)
        recent = history if window < 0 else history[-window:] if window else []
        expected = logits - np.isin(np.arange(20), recent)
        token = sample_row(logits, state, position)
        assert token == int(np.argmax(expected))
        history.append(token)


def test_penalties_come_before_the_draw(three_successors: sampling.F32) -> None:
    params = SamplingParams(frequency_penalty=2.0)
    state = SamplerState.start(params, [FIRST] * 20, VOCAB)
    first = sample_row(three_successors, state, 21)
    assert first in {SECOND, THIRD}
    assert state.counts is not None and state.counts[first] == 1


def test_no_counts_are_kept_without_penalties() -> None:
    assert SamplerState.start(SamplingParams(), [1, 2, 3], VOCAB).counts is None


def test_logprobs_are_those_of_a_softmax_oc13(rng: np.random.Generator) -> None:
    logits = rng.normal(0, 5, (6, 700)).astype(np.float32)
    logits[3] += 1000
    token_ids = rng.integers(0, 700, 6).astype(np.int32)
    found = logprobs(logits, token_ids)
    for row, token_id in enumerate(token_ids):
        exact = logits[row].astype(np.float64)
        exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
        assert np.allclose(found.chosen[row], exact[token_id], atol=1e-4)
        assert found.top_ids[row].tolist() == np.argsort(-exact, kind="stable")[:20].tolist()
        assert np.allclose(found.top[row], np.sort(exact)[::-1][:20], atol=1e-4)


def test_equally_likely_tokens_are_told_lowest_first() -> None:
    logits = np.zeros((1, 300), np.float32)
    logits[0, [70, 250]] = 1
    found = logprobs(logits, np.array([5], np.int32))
    assert found.top_ids[0].tolist() == [70, 250, *range(18)]
    few = logprobs(np.array([[0, 1, 2]], np.float32), np.array([1], np.int32))
    assert few.top_ids.tolist() == [[2, 1, 0]] and few.top.shape == (1, 3)


def test_three_successors_have_the_logprobs_of_k18() -> None:
    logits = np.full((1, 50), -30, np.float32)
    logits[0, [4, 5, 6]] = 2, 1, 0
    found = logprobs(logits, np.array([4], np.int32))
    assert np.allclose(found.top[0, :3], [-0.40761, -1.40761, -2.40761], atol=1e-4)


def test_bias_is_added_behind_penalties_k17() -> None:
    """A bias of +100 wins whatever a penalty does to it, one of -100 never; others stay."""
    logits = np.array([3, 2, 1, 0], np.float32)

    def drawn(bias: tuple[tuple[int, float], ...], **chosen: float) -> set[int]:
        found = set()
        for seed in range(200):
            params = SamplingParams(seed=seed, logit_bias=bias, **chosen)  # type: ignore[arg-type]
            found.add(sample_row(logits, SamplerState.start(params, [0, 1], 4), 1))
        return found

    assert drawn(((0, -100),)) == {1, 2, 3}
    assert drawn(((3, 100),)) == {3}
    assert drawn(((1, 100),), repetition_penalty=3.0) == {1}
    assert drawn(((0, -100), (0, 0)), temperature=0) == {0}, "the last of two counts"
    assert apply_bias(logits, ((2, 0.5),)).tolist() == [3, 2, 1.5, 0]


def test_a_mask_forbids_in_every_mode_k08(rng: np.random.Generator) -> None:
    for chosen in ({"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.3}):
        for _ in range(20):
            logits = rng.normal(0, 3, 100).astype(np.float32)
            allowed = rng.random(100) < 0.1
            allowed[rng.integers(100)] = True
            mask = np.packbits(np.pad(allowed, (0, 28)), bitorder="little").view(np.uint32)
            params = SamplingParams(seed=int(rng.integers(1000)), **chosen)  # type: ignore[arg-type]
            token_id = sample_row(logits, SamplerState.start(params, [], 100), 3, mask)
            assert allowed[token_id]
            if not params.temperature:
                assert logits[token_id] == logits[allowed].max()
    short = np.array([0xFFFFFFFF], np.uint32)
    assert np.isneginf(apply_mask(np.zeros(40, np.float32), short)[32:]).all()
