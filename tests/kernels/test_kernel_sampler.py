"""The GPU sampler against the NumPy sampler, token for token, over fresh random logits."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from emberd.protocol import Admission, SamplingParams
from emberd.reference import sampling as reference
from emberd.runtime import sampler as gpu
from emberd.runtime.compose import shader_dir
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.sampler import Mode, Sampler

pytestmark = pytest.mark.device

ROWS = 32
"""Places of every sampler here, so that all share one pair of kernels."""

F32 = NDArray[np.float32]
History = Sequence[int]


class Bench:
    """A GPU sampler beside NumPy states, fed the same admissions, logits and positions."""

    def __init__(self, device: Device, kernels: Kernels, vocab_size: int) -> None:
        self.device, self.vocab_size = device, vocab_size
        self.sampler = Sampler(device, kernels, ROWS, vocab_size)
        self.states: dict[int, reference.SamplerState] = {}

    def admit(self, index: int, params: SamplingParams, history: History = ()) -> None:
        self.sampler.admit(Admission(index, params, tuple(history), len(history)))
        self.states[index] = reference.SamplerState.start(params, history, self.vocab_size)

    def sample(
        self, logits: F32, places: Sequence[int], positions: Sequence[int], mode: Mode
    ) -> NDArray[np.int32]:
        """The GPU's tokens; poison stands in the outputs before."""
        upload = self.device.upload
        out = upload(np.full(len(places), -7, np.int32))
        dispatches = self.sampler.dispatches(
            upload(logits),
            upload(np.array(places, np.int32)),
            upload(np.array(positions, np.int32)),
            out,
            upload(np.array([len(places)], np.uint32)),
            rows=len(places),
            mode=mode,
        )
        run_once(self.device, dispatches)
        tokens: NDArray[np.int32] = self.device.read(out)
        return tokens

    def check(self, logits: F32, places: Sequence[int], positions: Sequence[int]) -> None:
        """Both samplers agree on every row, then count the token."""
        penalized = any(self.states[place].counts is not None for place in places)
        tokens = self.sample(logits, places, positions, Mode.PENALTIES if penalized else Mode.PLAIN)
        states = [self.states[place] for place in places]
        scores = [
            _scores(row, state, position)
            for row, state, position in zip(logits, states, positions, strict=True)
        ]
        expected = reference.sample(logits, states, np.array(positions, np.int32))
        for row, (token, wanted) in enumerate(zip(tokens, expected, strict=True)):
            if token != wanted:
                margin = scores[row][wanted] - scores[row][token]
                assert 0 <= margin < 2e-5, (row, token, wanted, margin, states[row].params)
        last = self.device.read(self.sampler.last_tokens)
        assert np.array_equal(last[list(places)], tokens.astype(np.uint32))


def _scores(logits: F32, state: reference.SamplerState, position: int) -> F32:
    """What the draw maximizes, -inf for tokens that are not kept."""
    params = state.params
    if state.counts is not None:
        penalties = (
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        logits = reference.apply_penalties(logits, state.counts, *penalties)
    if params.temperature == 0:
        return logits
    z = reference.scale(logits, params.temperature)
    ids = np.arange(len(z), dtype=np.uint32)
    score = z - np.log(reference.exponentials(params.seed, position, ids))
    return np.where(z >= reference.threshold(z, params), score, np.float32(-np.inf))


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(-(2**63), 2**63))


@pytest.fixture(scope="module")
def vocab_sizes() -> list[int]:
    """One, around a slice's lanes, around a slice, and several slices."""
    return [1, 127, 1000, 4095, 4097, 20011]


FILTERS: list[dict[str, float]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 1e-4, "top_k": 100, "top_p": 0.9},
    {"temperature": 1e-9},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 40},
    {"top_k": 900},
    {"top_k": 100000},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"top_p": 0.999, "temperature": 3.0},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 2000, "top_p": 0.8, "temperature": 2.0},
    {"top_k": 50, "min_p": 0.1},
    {"top_p": 0.9, "min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.1, "min_p": 0.9},
]


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_filters_draw_the_numpy_samplers_tokens(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    vocab_sizes: list[int],
    spread: float,
) -> None:
    """Flat logits (thousands are kept: scanned in place) and peaked ones (few: gathered)."""
    for vocab_size in vocab_sizes:
        bench = Bench(device, kernels, vocab_size)
        places = rng.permutation(ROWS)[: len(FILTERS)].tolist()
        for place, chosen in zip(places, FILTERS, strict=True):
            bench.admit(place, SamplingParams(seed=_seed(rng), **chosen))  # type: ignore[arg-type]
        for _ in range(4):
            logits = (rng.standard_normal((len(places), vocab_size)) * spread).astype(np.float32)
            bench.check(logits, places, rng.integers(1, 5000, len(places)).tolist())


@pytest.mark.parametrize("vocab_size", [100, 4097])
def test_logits_without_a_largest_give_no_token(
    device: Device, kernels: Kernels, rng: np.random.Generator, vocab_size: int
) -> None:
    """NaN, infinity among others, and all below what floats hold; a sound row beside them."""
    bench = Bench(device, kernels, vocab_size)
    for bad in (np.nan, np.inf, -np.inf):
        for place, chosen in enumerate(FILTERS):
            bench.admit(place, SamplingParams(seed=_seed(rng), **chosen))  # type: ignore[arg-type]
        logits = rng.standard_normal((len(FILTERS), vocab_size)).astype(np.float32)
        logits[1:] = bad
        if bad == np.inf:
            logits[1:, rng.permutation(vocab_size)[1:]] = 1.0
        tokens = bench.sample(logits, range(len(FILTERS)), [5] * len(FILTERS), Mode.PLAIN)
        expected = reference.sample(logits, list(bench.states.values()), np.full(len(FILTERS), 5))
        assert (tokens[1:] == -1).all() and (expected[1:] == -1).all(), (bad, tokens)
        assert 0 <= tokens[0] < vocab_size and 0 <= expected[0] < vocab_size
        last = device.read(bench.sampler.last_tokens)[: len(FILTERS)]
        assert (last < vocab_size).all()  # the next step may take them in flight


def test_thousands_of_draws_agree(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    bench = Bench(device, kernels, 300)
    for place in range(ROWS):
        chosen = FILTERS[place % len(FILTERS)]
        bench.admit(place, SamplingParams(seed=_seed(rng), **chosen))  # type: ignore[arg-type]
    for step in range(100):
        logits = (rng.standard_normal((ROWS, 300)) * 2).astype(np.float32)
        bench.check(logits, range(ROWS), [step * 3 + place for place in range(ROWS)])


def test_ties_are_kept_and_the_lowest_id_wins(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Logits of few different values: k-th places, nuclei and maxima are all tied."""
    bench = Bench(device, kernels, 5000)
    for place, chosen in enumerate(FILTERS):
        bench.admit(place, SamplingParams(seed=_seed(rng), **chosen))  # type: ignore[arg-type]
    logits = rng.integers(-6, 6, (len(FILTERS), 5000)).astype(np.float32)
    logits[:, rng.integers(0, 5000, 30)] = 9.0
    bench.check(logits, range(len(FILTERS)), list(range(len(FILTERS))))


def test_penalties_count_what_is_sampled_within_the_window(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Windows shorter than, as long as and longer than the history and the context; all; none; a row without."""
    vocab_size = 150
    bench = Bench(device, kernels, vocab_size)
    penalties = [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7},
        {"frequency_penalty": 0.4},
        {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 1.1},
    ]
    places = 0
    for window in (-1, 0, 3, 20, 64, 1 << 30):
        for chosen in penalties:
            params = SamplingParams(
                temperature=float(rng.choice([0.0, 0.7])),
                top_k=int(rng.choice([0, 20])),
                penalty_window=window,
                seed=_seed(rng),
                **chosen,  # type: ignore[arg-type]
            )
            bench.admit(places, params, rng.integers(0, vocab_size, 20).tolist())
            places += 1
    bench.admit(places, SamplingParams(seed=_seed(rng)), [1, 2, 3])
    places += 1
    for step in range(70):
        # Few likely tokens, so that they come again and leave windows.
        logits = (rng.standard_normal((places, vocab_size))).astype(np.float32)
        logits[:, :12] += 4
        bench.check(logits, range(places), [step] * places)


def test_a_place_forgets_its_last_sequence(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    bench = Bench(device, kernels, 64)
    logits = rng.standard_normal((1, 64), np.float32)
    strong = SamplingParams(temperature=0.0, presence_penalty=50.0, penalty_window=8)
    bench.admit(3, strong, [int(logits.argmax())])
    bench.check(logits, [3], [1])
    bench.admit(3, strong, [])
    assert bench.sample(logits, [3], [1], Mode.PENALTIES)[0] == logits.argmax()


def test_mode_follows_the_sampled_rows(device: Device, kernels: Kernels) -> None:
    from batches import Row, make_batch

    bench = Bench(device, kernels, 64)
    bench.admit(0, SamplingParams())
    bench.admit(1, SamplingParams(frequency_penalty=0.5))
    bench.admit(2, SamplingParams(frequency_penalty=0.5, penalty_window=0))

    def mode(*indices: int, sample: bool = True) -> Mode:
        rows = [Row(index, [1], 0, [index], sample) for index in indices]
        return bench.sampler.mode_for(make_batch(rows, 16))

    assert mode(0, 2) == Mode.PLAIN
    assert mode(0, 1) == Mode.PENALTIES
    assert mode(1, sample=False) == Mode.PLAIN
    bench.admit(2, SamplingParams(num_logprobs=0, logit_bias=((1, 2.0),)))
    assert mode(0, 1, 2) == Mode.PENALTIES | Mode.BIAS | Mode.LOGPROBS


def test_rows_that_do_not_sample_are_marked_and_change_nothing(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    bench = Bench(device, kernels, 500)
    bench.admit(5, SamplingParams(seed=1))
    bench.admit(6, SamplingParams(seed=2))
    poison = np.full(ROWS, 99, np.uint32)
    device.write(bench.sampler.last_tokens, poison)
    logits = rng.standard_normal((4, 500), np.float32)
    out = device.upload(np.full(4, -7, np.int32))
    dispatches = bench.sampler.dispatches(
        device.upload(logits),
        device.upload(np.array([5, -1, 6, 7], np.int32)),
        device.upload(np.array([10, 11, 12, 13], np.int32)),
        out,
        device.upload(np.array([3], np.uint32)),
        rows=4,
        mode=Mode.PLAIN,
    )
    run_once(device, dispatches)
    tokens = device.read(out)
    assert tokens[1] == tokens[3] == -1
    states = [reference.SamplerState(SamplingParams(seed=seed)) for seed in (1, 2)]
    expected = reference.sample(logits[[0, 2]], states, np.array([10, 12])).tolist()
    assert tokens[[0, 2]].tolist() == expected
    last = device.read(bench.sampler.last_tokens)
    assert last[[5, 6]].tolist() == expected
    assert (np.delete(last, [5, 6]) == 99).all()


def test_zero_means_greedy_or_off(device: Device, kernels: Kernels) -> None:
    """K16: three successors with logits 2, 1, 0, all else -30."""
    logits = np.full(512, -30, np.float32)
    logits[[100, 101, 102]] = 2, 1, 0
    bench = Bench(device, kernels, 512)

    def counts(draws: int, **chosen: float) -> list[int]:
        found = np.zeros(512, int)
        for start in range(0, draws, ROWS):
            for place in range(ROWS):
                params = SamplingParams(seed=start + place + 1, **chosen)  # type: ignore[arg-type]
                bench.admit(place, params)
            rows = np.tile(logits, (ROWS, 1))
            tokens = bench.sample(rows, range(ROWS), [9] * ROWS, Mode.PLAIN)
            np.add.at(found, tokens, 1)
        return found[[100, 101, 102]].tolist()

    for top_k in (0, -1, 1):
        for top_p in (0.0, 1.0):
            for min_p in (0.0, 1.0):
                greedy = counts(ROWS, temperature=0.0, top_k=top_k, top_p=top_p, min_p=min_p)
                assert greedy == [ROWS, 0, 0]
    assert counts(ROWS, top_p=0.0) == [ROWS, 0, 0]
    for top_k in (0, -1):
        share = np.array(counts(3200, top_k=top_k)) / 3200
        assert np.allclose(share, [0.665, 0.245, 0.09], atol=0.035), share


def test_a_rows_token_depends_on_seed_and_position_alone(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """K12: the same row alone, and beside seven others in any place."""
    bench = Bench(device, kernels, 3000)
    logits = rng.standard_normal((8, 3000), np.float32)
    mine = SamplingParams(seed=42, temperature=0.8, top_p=0.9)
    bench.admit(0, mine)
    alone = [bench.sample(logits[:1], [0], [position], Mode.PLAIN)[0] for position in range(20)]
    for place in range(1, 8):
        bench.admit(place, SamplingParams(seed=place))
    beside = []
    for position in range(20):
        order = rng.permutation(8)
        positions = [position if place == 0 else 77 for place in order]
        tokens = bench.sample(logits[order], order.tolist(), positions, Mode.PLAIN)
        beside.append(tokens[int(np.flatnonzero(order == 0)[0])])
    assert alone == beside
    assert len(set(alone)) > 10


def test_the_hash_is_the_reference_samplers_bit_for_bit(device: Device, kernels: Kernels) -> None:
    """With equal logits the token is the one with the smallest exponential draw."""
    vocab_size = 100000
    bench = Bench(device, kernels, vocab_size)
    seeds = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63)]
    for place, seed in enumerate(seeds):
        bench.admit(place, SamplingParams(seed=seed))
    logits = np.zeros((len(seeds), vocab_size), np.float32)
    tokens: Tensor | NDArray[np.int32] = bench.sample(
        logits, range(len(seeds)), [2**31 - 1] * len(seeds), Mode.PLAIN
    )
    ids = np.arange(vocab_size, dtype=np.uint32)
    expected = [int(np.argmin(reference.exponentials(seed, 2**31 - 1, ids))) for seed in seeds]
    assert tokens.tolist() == expected


def test_settings_are_packed_as_the_shader_declares_them() -> None:
    text = (shader_dir() / "include" / "sampling.wgsl").read_text(encoding="utf-8")
    body = text.split("struct Settings {")[1].split("}")[0]
    declared = re.findall(r"(\w+): (f32|u32|i32),", body)
    kinds = {"<f4": "f32", "<u4": "u32", "<i4": "i32"}
    packed = [(name, kinds[gpu._SETTINGS[name].str]) for name in gpu._SETTINGS.names or ()]
    assert packed == declared
