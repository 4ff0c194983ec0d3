"""The kernels of a mixture of experts against NumPy, each alone."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import dequantize
from emberd.reference import ops as reference
from emberd.runtime import experts, linear
from emberd.runtime.device import Device
from emberd.runtime.kernel import run_once
from emberd.runtime.weights import upload_matrix
from emberd.verify.bench import Workbench
from tiny_gguf import random_rows

pytestmark = pytest.mark.device


@pytest.fixture
def bench(device: Device) -> Workbench:
    return Workbench(device)


def grouped(bench: Workbench, ids: np.ndarray, count: int, num_experts: int):
    words = experts.group_words(ids.size, num_experts)
    groups = bench.device.upload(np.full(words, 77, np.uint32), "u32")
    step = experts.group_experts(
        bench.kernels,
        bench.device.upload(ids.astype(np.uint32), "u32"),
        bench.count(count),
        groups,
        experts=num_experts,
    )
    return step, groups


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("num_experts", "used"), [(6, 2), (60, 4), (128, 8), (3, 3)])
def test_top_experts(bench: Workbench, num_experts: int, used: int, normalized: bool) -> None:
    logits = bench.normal(9, num_experts) * np.float32(3)
    logits[2] = 1.0  # all alike: the first ones
    ids = bench.device.upload(np.zeros((9, used), np.uint32), "u32")
    weights = bench.poisoned(9, used)
    step = experts.top_experts(
        bench.kernels,
        bench.put(logits),
        bench.count(8),
        ids,
        weights,
        rows=9,
        normalized=normalized,
        scale=2.5,
    )
    found_weights, found_ids = bench.run(step, weights, ids)
    expected_ids, expected = reference.top_experts(logits, used, normalized, 2.5)
    np.testing.assert_array_equal(found_ids[:8], expected_ids[:8])
    np.testing.assert_allclose(found_weights[:8], expected[:8], rtol=1e-4)
    assert not found_ids[8].any()


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (5, 4), (20, 20), (40, 33)])
def test_group_experts_gives_every_live_pair_to_its_expert(
    bench: Workbench, rows: int, count: int
) -> None:
    num_experts, used = 7, 3
    ids = np.argsort(bench.normal(rows, num_experts), axis=1)[:, :used]
    step, groups = grouped(bench, ids, count, num_experts)
    size = experts.group_size(ids.size, num_experts)
    (found,) = bench.run(step, groups)
    none = np.uint32(0xFFFFFFFF)
    pairs: list[int] = []
    for expert, *members in found.reshape(-1, 1 + size).tolist():
        if expert != none:
            members = [pair for pair in members if pair != none]
            assert members and all(ids.flat[pair] == expert for pair in members)
            pairs += members
    assert sorted(pairs) == list(range(count * used))


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.Q8_0, GGMLType.Q4_K])
@pytest.mark.parametrize(("rows", "fine"), [(1, False), (6, True), (30, False)])
def test_expert_products(bench: Workbench, kind: GGMLType, rows: int, fine: bool) -> None:
    num_experts, used, expert_rows, cols = 5, 2, 24, 256
    raw = random_rows(bench.rng, 2 * num_experts * expert_rows, cols, kind)
    matrix = upload_matrix(bench.device, [(raw, kind)])
    weight = dequantize(raw, kind)[num_experts * expert_rows :].reshape(
        num_experts, expert_rows, -1
    )
    x = bench.normal(rows, cols)
    ids = np.argsort(bench.normal(rows, num_experts), axis=1)[:, :used]
    step, groups = grouped(bench, ids, rows, num_experts)
    given = bench.put(x)
    if matrix.is_quantized:
        bench.fine = fine
        given = bench.activations(rows, cols)
        quantize = linear.quantize_q8(bench.kernels, bench.put(x), given, rows=rows, width=cols)
        run_once(bench.device, [quantize])
        x = bench.rounded(x)
    bias = bench.normal(matrix.rows) if rows > 1 else None
    y = bench.poisoned(rows * used, expert_rows + 3)
    steps = experts.expert_matvec(
        bench.kernels,
        matrix,
        given,
        groups,
        y,
        pairs=rows * used,
        experts=num_experts,
        expert_rows=expert_rows,
        pairs_a_row=used,
        base=num_experts * expert_rows,
        column=3,
        bias=None if bias is None else bench.put(bias),
    )
    (found,) = bench.run([step, *steps], y)
    expected = np.einsum("tsrc,tc->tsr", weight[ids].astype(np.float64), x)
    if bias is not None:
        expected += bias[num_experts * expert_rows :].reshape(num_experts, -1)[ids]
    error = found[:, 3:] - expected.reshape(rows * used, -1)
    assert np.abs(error).max() < 2e-4 * np.abs(expected).max()


@pytest.mark.parametrize("with_shared", [True, False])
def test_add_experts(bench: Workbench, with_shared: bool) -> None:
    rows, used, width = 5, 3, 70
    y, weights = bench.normal(rows * used, width), bench.normal(rows, used)
    before, shared, gates = (
        bench.normal(rows, width),
        bench.normal(rows, width),
        bench.normal(rows, 1),
    )
    residual = bench.put(before)
    step = experts.add_experts(
        bench.kernels,
        bench.put(y),
        bench.put(weights),
        (bench.put(shared), bench.put(gates)) if with_shared else None,
        bench.count(rows - 1),
        residual,
    )
    (found,) = bench.run(step, residual)
    expected = before + (weights[..., None] * y.reshape(rows, used, width)).sum(axis=1)
    if with_shared:
        expected += shared * reference.sigmoid(gates)
    expected[-1] = before[-1]
    np.testing.assert_allclose(found, expected, atol=1e-5)
