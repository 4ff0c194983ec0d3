"""logprobs_split and logprobs_merge against NumPy: log-probabilities, the likeliest tokens, their order."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.protocol import Logprobs
from emberd.reference.sampling import logprobs
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.logprobs import COLUMNS, LogprobKernels
from tolerance import check

pytestmark = pytest.mark.device

F32 = np.ndarray


def on_device(
    device: Device, kernels: Kernels, logits: F32, token_ids: F32, index: list[int] | None = None
) -> tuple[Logprobs, F32]:
    """What the kernels give, and their output as it is: poison where nothing was written."""
    rows, vocab_size = logits.shape
    made = LogprobKernels(device, kernels, rows, vocab_size)
    out = device.upload(np.full((rows, COLUMNS), 7, np.float32))
    order = np.array(index if index is not None else range(rows), np.int32)
    count = device.upload(np.array([rows], np.uint32))
    tokens = device.upload(token_ids.astype(np.uint32))
    steps = made.dispatches(
        device.upload(logits), device.upload(order), count, tokens, out, rows=rows
    )
    run_once(device, steps)
    raw = device.read(out)
    return made.read(raw), raw


@pytest.mark.parametrize("vocab_size", [3, 20, 31, 4095, 4097, 20011])
def test_logprobs_equal_numpy_oc13(
    device: Device, kernels: Kernels, rng: np.random.Generator, vocab_size: int
) -> None:
    logits = (rng.standard_normal((5, vocab_size)) * 4).astype(np.float32)
    logits[1] += 500
    logits[2] -= 500
    token_ids = rng.integers(0, vocab_size, 5).astype(np.int32)
    found, _ = on_device(device, kernels, logits, token_ids)
    expected = logprobs(logits, token_ids)
    assert np.array_equal(found.top_ids, expected.top_ids)
    rows = [0, 3, 4]
    check(found.chosen[rows], expected.chosen[rows], "float")
    check(found.top[rows], expected.top[rows], "float")
    # Far from zero an f32 logit itself is no nearer than this.
    assert np.allclose(found.top, expected.top, atol=2e-4)


def test_ties_are_told_lowest_id_first(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Within a lane's tokens, a slice's and over slices."""
    logits = rng.integers(-3, 3, (4, 9000)).astype(np.float32)
    logits[1] = 0
    logits[2, rng.integers(0, 9000, 7)] = 5
    logits[3, [0, 128, 4096, 8999]] = 9
    token_ids = np.zeros(4, np.int32)
    found, _ = on_device(device, kernels, logits, token_ids)
    assert np.array_equal(found.top_ids, logprobs(logits, token_ids).top_ids)
    assert found.top_ids[1].tolist() == list(range(20))


def test_three_successors_k18(device: Device, kernels: Kernels) -> None:
    logits = np.full((1, 600), -30, np.float32)
    logits[0, [400, 3, 7]] = 2, 1, 0
    found, _ = on_device(device, kernels, logits, np.array([400]))
    assert found.top_ids[0, :3].tolist() == [400, 3, 7]
    assert np.allclose(found.top[0, :3], [-0.40761, -1.40761, -2.40761], atol=1e-4)
    assert np.allclose(found.chosen, [-0.40761], atol=1e-4)


def test_rows_take_their_own_token_and_some_are_left_out(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    logits = rng.standard_normal((4, 700), np.float32)
    token_ids = rng.integers(0, 700, 9).astype(np.int32)
    found, raw = on_device(device, kernels, logits, token_ids, [8, -1, 2, -1])
    expected = logprobs(logits[[0, 2]], token_ids[[8, 2]])
    check(found.chosen[[0, 2]], expected.chosen, "float")
    assert (raw[[1, 3]] == 7).all()
