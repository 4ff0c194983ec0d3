"""What models with LayerNorms use beside the other kernels: the norm itself, and learned positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.reader import TensorInfo
from ..gguf.spec import ModelFile
from ..reference import ops as reference
from ..runtime import ops
from ..runtime.activations import padded
from .bench import F32, Workbench
from .check import Check

TOKENS = 5

Pair = tuple[NDArray[Any], NDArray[Any]]


def check_layer_norm(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """The output norm with the model's own weights, of all rows and of chosen ones; none where it is an RMS norm."""
    info = model.tensors.output_norm_bias
    if info is None:
        return
    weight, bias = _rows(model, model.tensors.output_norm)[0], _rows(model, info)[0]
    eps, width = model.spec.norm_eps, model.spec.hidden_size
    x = bench.normal(TOKENS + 2, width) * np.float32(3) + np.float32(1)

    def run(picked: NDArray[np.int32] | None) -> Pair:
        rows = x[:TOKENS] if picked is None else x[picked]
        y = bench.poisoned(TOKENS, padded(width))
        step = ops.layer_norm(
            bench.kernels,
            bench.put(bench.wide(x)),
            bench.put(bench.wide(weight)),
            bench.put(bench.wide(bias)),
            y,
            None if picked is None else bench.ints(picked),
            rows=TOKENS,
            width=padded(width),
            count=width,
            eps=eps,
        )
        return bench.run(step, y)[0], bench.wide(reference.layer_norm(rows, weight, bias, eps))

    chosen = bench.rng.integers(0, len(x), TOKENS).astype(np.int32)
    yield bench.compare(
        "layer_norm", "F32", f"{TOKENS}×{width} all rows", "float", lambda: run(None)
    )
    yield bench.compare(
        "layer_norm", "F32", f"{TOKENS}×{width} chosen rows", "float", lambda: run(chosen)
    )


def check_positions(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """Learned positions added to the embedding; none where the model rotates."""
    if model.tensors.positions is None:
        return
    table = _rows(model, model.tensors.positions)
    width = table.shape[1]

    def run() -> Pair:
        x = bench.normal(TOKENS, width)
        places = bench.rng.integers(0, len(table), TOKENS).astype(np.int32)
        y = bench.put(x)
        step = ops.add_positions(
            bench.kernels, bench.put(table), bench.ints(places), bench.count(TOKENS), y, rows=TOKENS
        )
        return bench.run(step, y)[0], x + table[places]

    yield bench.compare("add_positions", "F32", f"{TOKENS}×{width}", "float", run)


def _rows(model: ModelFile, info: TensorInfo) -> F32:
    return dequantize(model.file.rows(info), info.type)
