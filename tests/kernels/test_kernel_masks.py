"""Masks and biases in the GPU sampler against the NumPy sampler, over fresh random ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from emberd.protocol import MaskArray, SamplingParams
from emberd.reference import sampling as reference
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels
from emberd.runtime.sampler import Mode
from test_kernel_sampler import FILTERS, ROWS, Bench, _seed

pytestmark = pytest.mark.device

F32 = np.ndarray


def random_masks(rng: np.random.Generator, count: int, vocab_size: int, share: float) -> MaskArray:
    """Each with a token at least."""
    allowed = rng.random((count, -(-vocab_size // 32) * 32)) < share
    allowed[:, vocab_size:] = False
    allowed[np.arange(count), rng.integers(0, vocab_size, count)] = True
    return np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)


def check(
    bench: Bench,
    logits: F32,
    places: Sequence[int],
    positions: Sequence[int],
    mode: Mode,
    masks: Sequence[MaskArray | None],
) -> list[int]:
    """The GPU's tokens, which are NumPy's, where no two scores are nearer than rounding."""
    if Mode.MASKS in mode:
        masked = np.array([mask is not None for mask in masks])
        some = np.stack([mask for mask in masks if mask is not None])
        bench.device.write(bench.sampler.masks, bench.sampler.mask_words(some, masked))
    tokens = bench.sample(logits, places, positions, mode)
    for row, token in enumerate(tokens.tolist()):
        state, mask = bench.states[places[row]], masks[row]
        shown = logits[row].copy()
        wanted = reference.sample_row(shown, state, positions[row], mask)
        if token != wanted:
            # Another token of the kept ones may win by rounding alone: as near as that it must be.
            nudged = shown.copy()
            nudged[token] += 1e-4
            again = reference.SamplerState.start(state.params, (), bench.vocab_size)
            assert state.counts is None, (row, token, wanted, state.params)
            assert reference.sample_row(nudged, again, positions[row], mask) == token, state.params
    return tokens.tolist()


@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 1.0])
def test_masks_forbid_in_every_mode_k08(
    device: Device, kernels: Kernels, rng: np.random.Generator, share: float
) -> None:
    """One token allowed, a few (fewer than top-k), many, all: rows without a mask between them."""
    for vocab_size in (40, 4097, 20011):
        bench = Bench(device, kernels, vocab_size)
        places = rng.permutation(ROWS)[: len(FILTERS)].tolist()
        for place, chosen in zip(places, FILTERS, strict=True):
            bench.admit(place, SamplingParams(seed=_seed(rng), **chosen))  # type: ignore[arg-type]
        for _ in range(2):
            logits = (rng.standard_normal((len(places), vocab_size)) * 3).astype(np.float32)
            some = random_masks(rng, len(places), vocab_size, share)
            masks = [mask if rng.random() < 0.7 else None for mask in some]
            masks[0] = some[0]
            positions = rng.integers(1, 5000, len(places)).tolist()
            tokens = check(bench, logits, places, positions, Mode.MASKS, masks)
            for token, mask in zip(tokens, masks, strict=True):
                assert mask is None or mask[token // 32] >> np.uint32(token % 32) & 1


def test_a_mask_of_fewer_words_forbids_what_lies_beyond(device: Device, kernels: Kernels) -> None:
    """A model whose head has more rows than its vocabulary has tokens; and the other way round."""
    bench = Bench(device, kernels, 1000)
    bench.admit(0, SamplingParams(temperature=0.0))
    logits = np.arange(1000, dtype=np.float32)[None]
    full = np.full(2, 0xFFFFFFFF, np.uint32)
    assert check(bench, logits, [0], [1], Mode.MASKS, [full]) == [63]
    assert check(bench, logits, [0], [1], Mode.MASKS, [np.tile(full, 40)]) == [999]


def test_biases_are_added_behind_penalties_k17(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Sampled and greedy, with penalties and without, with a mask too; neighbours have none."""
    vocab_size = 5000
    bench = Bench(device, kernels, vocab_size)
    for place in range(ROWS):
        pairs = zip(
            rng.integers(0, vocab_size, 300).tolist(),
            rng.uniform(-100, 10, 300).tolist(),
            strict=True,
        )
        penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4} if place % 3 == 1 else {}
        params = SamplingParams(
            seed=_seed(rng),
            temperature=float(rng.choice([0.0, 0.8])),
            logit_bias=tuple(pairs) if place % 2 else (),
            **penalties,
        )
        bench.admit(place, params, rng.integers(0, vocab_size, 50).tolist())
    for step in range(3):
        logits = (rng.standard_normal((ROWS, vocab_size)) * 2).astype(np.float32)
        mode = Mode.BIAS | Mode.PENALTIES | (Mode.MASKS if step else Mode.PLAIN)
        masks = list(random_masks(rng, ROWS, vocab_size, 0.2)) if step else [None] * ROWS
        check(bench, logits, range(ROWS), [step] * ROWS, mode, masks)


def test_a_bias_forces_and_forbids_k17(device: Device, kernels: Kernels) -> None:
    """Three successors with logits 2, 1, 0: -100 on the first is never drawn, +100 on the second always."""
    logits = np.full((ROWS, 512), -30, np.float32)
    logits[:, 100:103] = 2, 1, 0
    bench = Bench(device, kernels, 512)
    drawn: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for start in range(0, 200, ROWS):
        for place in range(ROWS):
            bias = ((), ((100, -100.0),), ((101, 100.0),))[place % 3]
            bench.admit(place, SamplingParams(seed=start + place, logit_bias=bias))
        tokens = bench.sample(logits, range(ROWS), [9] * ROWS, Mode.BIAS)
        for place, token in enumerate(tokens.tolist()):
            drawn[place % 3].add(token)
    assert drawn == {0: {100, 101, 102}, 1: {101, 102}, 2: {101}}


def test_a_row_is_what_it_is_alone_whatever_its_neighbours_need_k12(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Masks, biases and penalties beside it, in any place, do not change a row's token."""
    bench = Bench(device, kernels, 3000)
    logits = rng.standard_normal((8, 3000), np.float32)
    bench.admit(0, SamplingParams(seed=42, temperature=0.8, top_p=0.9))
    alone = [bench.sample(logits[:1], [0], [step], Mode.PLAIN)[0] for step in range(12)]
    for place in range(1, 8):
        bias = ((5, 50.0),) if place % 2 else ()
        bench.admit(place, SamplingParams(seed=place, presence_penalty=0.3, logit_bias=bias))
    beside = []
    for step in range(12):
        order = rng.permutation(8)
        masked = (order != 0) & (order % 3 != 1)
        words = bench.sampler.mask_words(random_masks(rng, masked.sum(), 3000, 0.1), masked)
        device.write(bench.sampler.masks, words)
        mode = Mode.PENALTIES | Mode.BIAS | Mode.MASKS
        positions = [step if place == 0 else 77 for place in order]
        tokens = bench.sample(logits[order], order.tolist(), positions, mode)
        beside.append(tokens[int(np.flatnonzero(order == 0)[0])])
    assert alone == beside
