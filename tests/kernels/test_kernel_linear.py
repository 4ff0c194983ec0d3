"""matmul of every weight type, by matvec and by tiles, against NumPy; and its options."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import dequantize
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.weights import FLOAT_TYPES, upload_matrix
from linear_cases import (
    ALL_TYPES,
    NARROW,
    check_product,
    limited,
    random_weights,
    with_rows_tile,
    with_subgroups,
)
from tiny_gguf import random_rows

pytestmark = pytest.mark.device

by_type = pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
one_of_each = pytest.mark.parametrize(
    "kind", [GGMLType.Q4_K, GGMLType.Q5_0, GGMLType.F16], ids=lambda kind: kind.name
)
"""A type with minima and split halves, one with planes, one of floats."""


@by_type
def test_matvec_of_one_to_eight_tokens(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    raw, floats = random_weights(rng, 37, kind)
    weight = upload_matrix(device, [(raw, kind)])
    for tokens in (1, 2, 4, 8):
        names = check_product(kernels, rng, weight, floats, tokens=tokens, table=NARROW)
        assert names == ["matvec"]


@by_type
def test_matmul_of_ragged_tiles(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    raw, floats = random_weights(rng, 37, kind)
    weight = upload_matrix(device, [(raw, kind)])
    names = check_product(kernels, rng, weight, floats, tokens=21, live=18, table=NARROW)
    assert names == ["matmul"]


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("cols", [1, 37, 100])
def test_float_rows_that_are_no_whole_units(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType, cols: int
) -> None:
    """Zeros stand behind them, also in parts of the matrix; whatever the activations hold there counts for nothing."""
    raw = random_rows(rng, 19, cols, kind)
    row_bytes = raw.shape[1] // cols * -(-cols // 8) * 8
    weight = upload_matrix(limited(device, max_binding_bytes=8 * row_bytes), [(raw, kind)])
    assert (weight.cols % 8, len(weight.parts)) == (0, 3)
    floats = np.zeros((19, weight.cols), np.float32)
    floats[:, :cols] = dequantize(raw, kind)
    for tokens in (1, 6, 20):
        check_product(kernels, rng, weight, floats, tokens=tokens, table=NARROW)


@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize("accumulate", [False, True])
def test_bias_and_accumulate(
    device: Device, kernels: Kernels, rng: np.random.Generator, tokens: int, accumulate: bool
) -> None:
    raw, floats = random_weights(rng, 19, GGMLType.Q8_0)
    weight = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    check_product(
        kernels,
        rng,
        weight,
        floats,
        tokens=tokens,
        live=tokens - 1,
        bias=True,
        accumulate=accumulate,
        table=NARROW,
    )


@pytest.mark.parametrize("tokens", [1, 6, 20])
def test_nothing_is_written_when_no_row_is_live(
    device: Device, kernels: Kernels, rng: np.random.Generator, tokens: int
) -> None:
    raw, floats = random_weights(rng, 19, GGMLType.Q8_0)
    weight = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    check_product(kernels, rng, weight, floats, tokens=tokens, live=0, table=NARROW)


@one_of_each
def test_stacked_matrices_split_into_parts(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    kind: GGMLType,
) -> None:
    """K29: a matrix over the binding limit gives what it gives without the limit."""
    monkeypatch.setattr("emberd.runtime.weights.CHUNK_BYTES", 1000)
    made = [random_weights(rng, rows, kind) for rows in (11, 5, 7)]
    row_bytes = made[0][0].shape[1]
    weight = upload_matrix(
        limited(device, max_binding_bytes=9 * row_bytes), [(raw, kind) for raw, _ in made]
    )
    assert len(weight.parts) > 1 and weight.rows == 23
    assert weight.nbytes - 23 * row_bytes in range(12)  # GGUF's bits and padding to words
    floats = np.concatenate([part for _, part in made])
    for tokens in (2, 20):
        check_product(kernels, rng, weight, floats, tokens=tokens, bias=True, table=NARROW)


def test_more_rows_than_the_grid_allows_are_folded(
    device: Device, rng: np.random.Generator
) -> None:
    """K29: 7 workgroups a side stand for the 65535 of a real device."""
    kernels = Kernels(limited(device, max_grid=7))
    raw, floats = random_weights(rng, 325, GGMLType.Q8_0)
    weight = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    for tokens in (1, 18):
        check_product(kernels, rng, weight, floats, tokens=tokens, table=NARROW)


def test_wide_groups_of_rows_and_tokens(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Four weight rows and eight tokens at a time, over all lanes of a workgroup."""
    raw, floats = random_weights(rng, 70, GGMLType.Q8_0)
    weight = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    table = with_rows_tile(MatvecTile(64, 4, 64), tokens=32)
    check_product(kernels, rng, weight, floats, tokens=19, live=17, table=table)


def test_rows_shared_by_the_lanes_of_a_subgroup(device: Device, rng: np.random.Generator) -> None:
    kernels = Kernels(with_subgroups(device))
    lanes = kernels.device.subgroup_size or 0
    raw, floats = random_weights(rng, 37, GGMLType.Q8_0)
    weight = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    table = with_rows_tile(MatvecTile(lanes, 2, 2 * lanes))
    check_product(kernels, rng, weight, floats, tokens=2, table=table)
    assert any("lanes_subgroup" in kernel.label for kernel in kernels.all())


def test_the_table_takes_the_last_entry_whose_minima_are_met() -> None:
    small, wide, many = (MatvecTile(1, n, 8) for n in (1, 2, 4))
    rows = ((1, 1, small), (1, 100, wide), (4, 50, many))
    table = dataclasses.replace(NARROW.matvec, rows=rows)
    assert table.rows_tile(1, 99) is small
    assert table.rows_tile(1, 100) is wide
    assert table.rows_tile(4, 49) is small
    assert table.rows_tile(5, 100) is many
