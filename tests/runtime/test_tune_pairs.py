"""Tuning of products of two weight types in one dispatch: measured as they run, with a tile of their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.spec import open_model
from emberd.runtime import tune
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels
from emberd.runtime.linear import default_table
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.model import load_weights
from emberd.runtime.pair import WeightPair
from emberd.runtime.replay import Recording
from emberd.runtime.tune import jobs_of, tuned_table
from tiny_gguf import random_model, random_rows

pytestmark = pytest.mark.device


class OtherIsFaster:
    """By this clock, tiles with two rows a lane take half of the time."""

    least_seconds = 1e-6

    def __init__(self) -> None:
        self.pairs = 0

    def __call__(self, recordings: Sequence[Recording], times: int) -> list[float]:
        keys = [recording.dispatches[0].kernel.key for recording in recordings]
        self.pairs += sum(key.second is not None for key in keys)
        return [0.5 if dict(key.constants)["ROWS"] == 2 else 1.0 for key in keys]


def test_a_pair_is_measured_as_one_product(
    device: Device, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERD_TUNE", "1")
    q8 = GGMLType.Q8_0
    mixed = {"blk.0.attn_v.weight": (q8, random_rows(rng, 128, 256, q8))}
    model = open_model(random_model(tmp_path / "m.gguf", quant="Q4_0", layers=2, tensors=mixed))
    software = copy.copy(device)
    software.info = replace(device.info, kind="CPU")  # whose tiles the clock speaks of
    weights, rules = load_weights(software, model, 64), default_table(software)
    weights.uploads.wait()
    apart = {str(job.product) for job in jobs_of(weights, rules, 32, 0)}
    rules = replace(rules, paired=True)
    together = [*jobs_of(weights, rules, 32, 0)]
    names = {str(job.product) for job in together}
    assert {"rows Q4_0 384×256, 1 tokens", "rows Q8_0 128×256, 1 tokens"} <= apart
    assert names - apart == {
        f"rows Q4_0+Q8_0 512×256, {n} tokens" for n in tune.MEASURED_TOKENS if n <= 32
    }
    assert {job.nbytes for job in together if "+" in str(job.product)} == {
        sum(matrix.nbytes for matrix in weights.layers[0].qkv.matrices)
    }

    ours = [job for job in together if "+" in job.product.type]
    monkeypatch.setattr(tune, "jobs_of", lambda *_: ours[:1])
    clock, sizes = OtherIsFaster(), {"max_tokens": 1, "max_rows": 1}
    kernels = Kernels(software)
    table = tuned_table(kernels, weights, cache_dir=tmp_path, rules=rules, clock=clock, **sizes)
    model.close()
    pair = WeightPair(*weights.layers[0].qkv.matrices)
    assert table.paired and clock.pairs > 0
    assert table.tile_for("rows", pair, 1) == MatvecTile(1, 2, 8)
    assert table.tile_for("rows", pair.first, 1) == rules.tile_for("rows", pair.first, 1)
    again = tuned_table(kernels, weights, cache_dir=tmp_path, rules=rules, clock=clock, **sizes)
    assert again == table  # as it was kept
