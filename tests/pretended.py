"""Which kernels serve a model and which of them the check at load runs, told without a device that computes.

A pretended device has no memory and compiles nothing: plans and cases are made on it as on a real one, and what they
dispatch is written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emberd.gguf.encoder import open_encoder
from emberd.gguf.spec import open_bidirectional, open_model
from emberd.runtime import kv_cache, plan
from emberd.runtime.activations import padded
from emberd.runtime.bidirectional import allocate_bidirectional
from emberd.runtime.buffers import allocate
from emberd.runtime.counting import CountingDevice
from emberd.runtime.device import AdapterInfo
from emberd.runtime.encoder import allocate_encoder
from emberd.runtime.kernel import Dispatch, KernelKey, Kernels
from emberd.runtime.linear import LinearTable, Tile, candidates, default_table
from emberd.runtime.model import load_weights
from emberd.runtime.plan_key import PlanKey
from emberd.runtime.products import Product
from emberd.runtime.sampler import Mode
from emberd.runtime.scratch import bucket
from emberd.runtime.text_runner import MIN_TOKENS
from emberd.runtime.tune import jobs_of
from emberd.verify import loading, tiles
from emberd.verify.bench import Workbench

LIMITS = {
    "max-storage-buffer-binding-size": 1 << 31,
    "max-buffer-size": 1 << 40,
    "max-compute-invocations-per-workgroup": 1024,
    "max-compute-workgroup-storage-size": 49152,
    "max-compute-workgroups-per-dimension": 65535,
    "max-storage-buffers-per-shader-stage": 32,
    "min-storage-buffer-offset-alignment": 32,
    "min-uniform-buffer-offset-alignment": 64,
}
"""Of a large GPU."""


class PretendedDevice(CountingDevice):
    """`subgroup_size`: None where it has no fixed one."""

    def __init__(self, kind: str, subgroup_size: int | None) -> None:
        super().__init__(AdapterInfo(0, f"pretended {kind}", kind, "Vulkan", "", (), LIMITS))
        self.subgroup_size = subgroup_size


def text_of(key: KernelKey) -> KernelKey:
    """Params that are in a kernel's text differ by the rows of a check: whether they are there is what counts."""
    return replace(key, params=(0,) if key.params else ())


class RanError(AssertionError):
    """Ends a case when its dispatches are known."""


@contextmanager
def nothing_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[set[KernelKey], set[KernelKey]]]:
    """While it lasts kernels have no pipelines; gives those that plans dispatch, and those that cases do."""
    served: set[KernelKey] = set()
    checked: set[KernelKey] = set()

    def recorded(_: Any, steps: Sequence[Dispatch], *__: Any, **___: Any) -> Any:
        served.update(text_of(step.kernel.key) for step in steps)
        return SimpleNamespace(dispatches=tuple(steps))

    def ran(bench: Workbench, steps: Dispatch | Sequence[Dispatch], *_: Any) -> Any:
        checked.update(text_of(step.kernel.key) for step in bench.dispatched(steps))
        raise RanError

    with monkeypatch.context() as patch:
        patch.setattr(plan, "record", recorded)
        patch.setattr(Workbench, "run", ran)
        for module in (loading, tiles):
            patch.setattr(module, "compile_ahead", lambda *_: None)
        yield served, checked


def make_plans(
    device: PretendedDevice,
    path: Path,
    table: LinearTable,
    *,
    max_tokens: int,
    max_rows: int,
    kv_type: Any = "f16",
) -> None:
    """Every plan that a step may take, in every mode where one token runs, with the weights' sizes alone."""
    model = open_model(path)
    spec = model.spec
    weights = load_weights(device, model, spec.context_length)
    cache = kv_cache.allocate(device, spec, 8, kv_type)
    buffers = allocate(
        Kernels(device),
        weights,
        cache,
        table,
        max_tokens=max_tokens,
        max_rows=max_rows,
        context_length=spec.context_length,
    )
    plans, buckets = buffers.plans, buffers.plans._buckets
    keys: set[PlanKey] = {*buckets.first(spec.context_length), *buckets.likely()}
    for key in tuple(keys):
        for context in (1, 1024, 1 << 20):
            if key.decode_rows:
                context = min(context, spec.context_length)
                splits = buffers.transformer.decode_splits(key.decode_rows, context)
                near = not key.prefill and buckets.decode_near(
                    rows=key.decode_rows, context=context
                )
                keys.add(key._replace(splits=splits, near=near))
    for key in keys:
        plans.get(key)
    for mode in range(16):
        for rows in (1, max_rows):
            plans.get(PlanKey(rows, rows, rows, False, Mode(mode)))
    # What the runner runs outside of plans: logits of any places, for scores, and states, for embeddings.
    transformer, places = buffers.transformer, device.empty((max_rows,), "i32")
    steps = transformer.head(places, device.empty((1,), "u32"), max_rows)
    steps.append(
        transformer.output_norm(places, device.empty((max_rows, padded(spec.hidden_size))))
    )
    plan.record(device, steps, places)
    weights.uploads.drop()
    model.close()


def make_calls(device: PretendedDevice, path: Path, max_tokens: int) -> None:
    """Every pass that an encoder may record."""
    model = open_encoder(path)
    parts = allocate_encoder(device, model, max_tokens)
    for rows in {bucket(tokens, MIN_TOKENS) for tokens in range(1, max_tokens)} | {max_tokens}:
        plan.record(device, parts.call(rows).steps, parts.output)
    parts.weights.uploads.drop()
    model.close()


def make_whole_text_calls(device: PretendedDevice, path: Path, max_tokens: int) -> None:
    """Every pass that a decoder whose attention looks both ways may record."""
    model = open_bidirectional(path)
    parts = allocate_bidirectional(device, model, model.spec.context_length, max_tokens)
    for rows in {bucket(tokens, MIN_TOKENS) for tokens in range(1, max_tokens)} | {max_tokens}:
        plan.record(device, parts.call(rows).steps, parts.output)
    parts.weights.uploads.drop()
    model.close()


def random_tiles(
    device: PretendedDevice, path: Path, rng: np.random.Generator, **most: int
) -> LinearTable:
    """As measuring might leave it: any tile for each product that is measured."""
    model, rules = open_model(path), default_table(device)
    weights = load_weights(device, model, 64)
    tiles: dict[Product, Tile] = {}
    for job in jobs_of(weights, rules, **most):
        chosen = candidates(device, job.product)
        tiles[job.product] = chosen[int(rng.integers(len(chosen)))]
    weights.uploads.drop()
    model.close()
    return rules.with_tiles(tiles)
