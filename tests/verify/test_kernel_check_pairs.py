"""Products of two weight types in one kernel are checked before a model serves, and left out where they are wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.model import ModelFile
from emberd.gguf.spec import open_model
from emberd.runtime import kernel, linear
from emberd.runtime.device import Device
from emberd.runtime.kernel import KernelKey
from emberd.runtime.pair_text import paired_text
from emberd.verify import pairs
from emberd.verify.load_bench import Kept, LoadBench, WatchedKernels, features_of, to_leave_out
from emberd.verify.steps import Steps
from tiny_gguf import random_model, random_rows

pytestmark = pytest.mark.device

Q4_0, Q8_0 = GGMLType.Q4_0, GGMLType.Q8_0


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> Iterator[ModelFile]:
    """v of one type and q and k of another, in one layer of two."""
    mixed = {"blk.0.attn_v.weight": (Q8_0, random_rows(rng, 128, 256, Q8_0))}
    opened = open_model(random_model(tmp_path / "m.gguf", quant="Q4_0", tensors=mixed))
    yield opened
    opened.close()


@pytest.fixture
def bench(device: Device, monkeypatch: pytest.MonkeyPatch) -> LoadBench:
    """A device that pairs, whatever it is."""
    rules = linear.default_table

    def paired(device: Device) -> linear.LinearTable:
        return replace(rules(device), paired="paired" not in device.left_out)

    monkeypatch.setattr(linear, "default_table", paired)
    return LoadBench(WatchedKernels(copy.copy(device)), Kept(None, {}, {}))


def test_the_pairs_of_a_model_are_checked(bench: LoadBench, model: ModelFile) -> None:
    checks = list(pairs.check_pairs(bench, model, Steps(1, 1)))
    assert len(checks) >= 2 and all(check.passed for check in checks), (
        checks
    )  # with a norm, without
    assert {check.type for check in checks} == {"Q4_0+Q8_0"}
    assert all({"paired", "matvec", "Q4_0"} <= {*check.features} for check in checks)


def test_pairs_that_are_wrong_are_left_out(
    bench: LoadBench, model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their second half makes its rows in the wrong place."""

    def broken(first: str, second: str, entry: str, shared: tuple[str, ...]) -> str:
        text = paired_text(first, second, entry, shared)
        assert "group - vec3<u32>(params.first_groups, " in text
        return text.replace("group - vec3<u32>(params.first_groups, ", "group - vec3<u32>(1u, ")

    monkeypatch.setattr(kernel, "paired_text", broken)
    (check, *_) = list(pairs.check_pairs(bench, model, Steps(1, 1)))
    assert not check.passed
    assert to_leave_out(check, [check], {"Q4_0", "Q8_0"}) == "paired"
    bench.device.leave_out({"paired"})
    assert list(pairs.check_pairs(bench, model, Steps(1, 1))) == []


def test_features_of_a_pair() -> None:
    first, second = (
        KernelKey("matvec", includes=(("weight", weight),)) for weight in ("q4_k", "q6_k")
    )
    pair = KernelKey("matvec", includes=first.includes, second=second, shared=("x",))
    assert features_of(pair) == {"paired", "matvec", "Q4_K", "Q6_K"}
    assert str(pair) == "matvec_q4_k_beside_q6_k"
