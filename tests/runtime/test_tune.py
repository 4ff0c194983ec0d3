"""Tuning: what is picked, what is kept, and what must never be picked, by a clock that says what the test wants."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from batches import Row, make_batch
from emberd.errors import DeviceError
from emberd.gguf.spec import open_model
from emberd.protocol import WorkerOptions
from emberd.runtime import trial, tune
from emberd.runtime.clock import TimestampClock, WallClock, make_clock
from emberd.runtime.device import Device
from emberd.runtime.kernel import Dispatch, Kernels
from emberd.runtime.linear import LinearTable, default_table, quantize_q8
from emberd.runtime.linear import activations as new_activations
from emberd.runtime.matmul import MatmulTile, Tiled, matmul_tiles
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.model import ModelWeights, load_weights
from emberd.runtime.products import Product
from emberd.runtime.replay import Recording, record
from emberd.runtime.runner import GpuRunner
from emberd.runtime.tune import tuned_table
from emberd.runtime.tuned_file import device_key, tuned_path
from emberd.runtime.weights import WeightMatrix
from tiny_gguf import random_model

pytestmark = pytest.mark.device

RULE, OTHER = MatvecTile(1, 4, 8), MatvecTile(1, 2, 8)
"""For plain products of a software device: the rules' choice, and another that is tested."""


class FakeClock:
    """Seconds by the rows of a lane and the workgroup, of matmul also its runs; counts how often it is asked."""

    least_seconds = 1e-6

    def __init__(self, seconds: dict[tuple[int, ...], float]) -> None:
        self._seconds, self.calls = seconds, 0

    def __call__(self, recordings: Sequence[Recording], times: int) -> list[float]:
        self.calls += 1
        return [self._of(recording.dispatches[0]) for recording in recordings]

    def _of(self, dispatch: Dispatch) -> float:
        constants = dict(dispatch.kernel.key.constants)
        names = ("ROWS", "WG") if "ROWS" in constants else ("TILE_ROWS", "WG", "RUNS")
        return self._seconds.get(tuple(int(constants.get(name, 0)) for name in names), 1.0)


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_TUNE", "1")


@pytest.fixture(scope="module")
def as_software(device: Device) -> Device:
    """A real GPU too takes the tiles of a software device here, which the fake clocks speak of."""
    other = copy.copy(device)
    other.info = dataclasses.replace(device.info, kind="CPU")
    return other


@pytest.fixture(scope="module")
def tuned_kernels(as_software: Device) -> Kernels:
    return Kernels(as_software)


@pytest.fixture(scope="module")
def weights(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelWeights]:
    model = open_model(
        random_model(tmp_path_factory.mktemp("m") / "m.gguf", quant="Q8_0", embedding_quant="Q4_0")
    )
    made = load_weights(device, model, 64)
    made.uploads.wait()
    yield made
    model.close()


def tuned(
    kernels: Kernels, weights: ModelWeights, clock: FakeClock, folder: Path | None, **options: Any
) -> LinearTable:
    return tuned_table(
        kernels,
        weights,
        cache_dir=folder,
        clock=clock,
        **{"max_tokens": 1, "max_rows": 1, "budget": 1e9, **options},
    )


def qkv_of(weights: ModelWeights) -> WeightMatrix:
    return weights.layers[0].qkv.matrices[0]


def test_the_fastest_tile_is_taken(
    tuned_kernels: Kernels, weights: ModelWeights, tmp_path: Path
) -> None:
    table = tuned(tuned_kernels, weights, FakeClock({(2, 8): 0.5, (4, 16): 0.7}), tmp_path)
    matrix = qkv_of(weights)
    assert table.matvec.tile_for("rows", matrix, 1) == OTHER
    assert table.matvec.tile_for("rows", matrix, 100) == RULE  # not measured: by rule
    # The fused forms have no tile of two rows: of theirs, the others take as long or longer.
    assert {product.form for product in table.matvec.tuned} <= {"rows", "output"}
    assert table.matvec.tile_for("output", weights.layers[0].o.matrices[0], 1).workgroup == 16
    assert table.num_tuned == len(table.matvec.tuned) > 1


@pytest.mark.parametrize(("seconds", "expected"), [(0.98, RULE), (0.96, OTHER), (1.5, RULE)])
def test_less_than_three_per_cent_is_noise(
    tuned_kernels: Kernels, weights: ModelWeights, seconds: float, expected: MatvecTile
) -> None:
    table = tuned(tuned_kernels, weights, FakeClock({(2, 8): seconds}), None)
    assert table.matvec.tile_for("rows", qkv_of(weights), 1) == expected


def test_the_median_of_the_rounds_counts(tuned_kernels: Kernels, weights: ModelWeights) -> None:
    """A tile that is fast once, as when the device was busy for the others, is not taken."""

    class LuckyClock(FakeClock):
        def __call__(self, recordings: Sequence[Recording], times: int) -> list[float]:
            found = super().__call__(recordings, times)
            return [0.1 if place == 1 else one for place, one in enumerate(found)]

    table = tuned(tuned_kernels, weights, LuckyClock({}), None)
    assert table.num_tuned == 0


def test_a_clock_that_shows_nothing_keeps_the_rules(
    tuned_kernels: Kernels, weights: ModelWeights
) -> None:
    stopped = FakeClock({tile: 0.0 for tile in [(4, 8), (4, 16), (4, 32), (2, 8)]})
    assert tuned(tuned_kernels, weights, stopped, None).num_tuned == 0


def test_what_was_measured_is_kept(
    tuned_kernels: Kernels, weights: ModelWeights, tmp_path: Path
) -> None:
    clock = FakeClock({(2, 8): 0.5})
    first = tuned(tuned_kernels, weights, clock, tmp_path)
    asked = clock.calls
    assert asked > 0
    again = tuned(tuned_kernels, weights, clock, tmp_path)
    assert again == first and clock.calls == asked
    more = tuned(tuned_kernels, weights, clock, tmp_path, max_tokens=8)
    assert clock.calls > asked  # of eight tokens nothing was known
    assert dict(first.matvec.tuned).items() <= dict(more.matvec.tuned).items()


def test_a_device_or_version_has_a_file_of_its_own(as_software: Device, tmp_path: Path) -> None:
    key = device_key(as_software)
    assert set(key) >= {"adapter", "driver", "wgpu", "kernels"}
    for name in key:
        assert tuned_path(tmp_path, {**key, name: "other"}) != tuned_path(tmp_path, key)


def test_other_shaders_make_another_key(
    as_software: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matvec.wgsl").write_text("// one")
    monkeypatch.setattr("emberd.runtime.tuned_file.shader_dir", lambda: tmp_path)
    before = device_key(as_software)
    (tmp_path / "matvec.wgsl").write_text("// two")
    assert device_key(as_software) != before


@pytest.mark.parametrize("fault", ["text", "shape", "entry", "key", "untested tile"])
def test_a_broken_or_foreign_file_is_measured_again(
    tuned_kernels: Kernels,
    weights: ModelWeights,
    tmp_path: Path,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock({(2, 8): 0.5})
    first = tuned(tuned_kernels, weights, clock, tmp_path)
    (path,) = (tmp_path / "tiles").iterdir()
    values = json.loads(path.read_text())
    if fault == "shape":
        values = [1, 2]
    elif fault == "entry":
        values["products"][0] = 3
    elif fault == "key":
        values["key"]["driver"] = "another"
    elif fault == "untested tile":
        chosen = next(entry for entry in values["products"] if entry["tile"])
        chosen["tile"]["workgroup"] = 24
    path.write_text("{" if fault == "text" else json.dumps(values))
    asked = clock.calls
    assert tuned(tuned_kernels, weights, clock, tmp_path) == first
    assert clock.calls > asked and "are not used" in caplog.text
    assert json.loads(path.read_text())["products"]


def test_a_folder_that_cannot_be_written_costs_only_time(
    tuned_kernels: Kernels, weights: ModelWeights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    table = tuned(tuned_kernels, weights, FakeClock({(2, 8): 0.5}), tmp_path / "file")
    assert table.num_tuned and "cannot be kept" in caplog.text


def test_the_next_load_goes_on_where_the_time_was_up(
    tuned_kernels: Kernels, weights: ModelWeights, tmp_path: Path
) -> None:
    clock = FakeClock({(2, 8): 0.5})
    assert tuned(tuned_kernels, weights, clock, tmp_path, budget=0).num_tuned == 0
    assert clock.calls == 0
    assert tuned(tuned_kernels, weights, clock, tmp_path).num_tuned > 0


def test_a_tile_with_another_result_is_left_out(
    tuned_kernels: Kernels,
    weights: ModelWeights,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = trial.Trial.result

    def result(self: trial.Trial, dispatches: list[Dispatch]) -> Any:
        out = right(self, dispatches)
        is_other = dict(dispatches[0].kernel.key.constants)["ROWS"] == 2
        return out * np.float32(1.001) if is_other else out

    monkeypatch.setattr(trial.Trial, "result", result)
    table = tuned(tuned_kernels, weights, FakeClock({(2, 8): 0.1, (4, 16): 0.5}), None)
    assert table.matvec.tile_for("rows", qkv_of(weights), 1) == MatvecTile(1, 4, 16)
    assert "is left out" in caplog.text and "off by 1.0e-03" in caplog.text


def test_a_tile_that_the_device_refuses_is_left_out(
    tuned_kernels: Kernels, weights: ModelWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = trial.Trial.dispatches

    def refuse(self: trial.Trial, tile: Any) -> Any:
        if tile == OTHER:
            raise DeviceError("too many registers")
        return right(self, tile)

    monkeypatch.setattr(trial.Trial, "dispatches", refuse)
    table = tuned(tuned_kernels, weights, FakeClock({(2, 8): 0.1, (4, 16): 0.5}), None)
    assert table.matvec.tile_for("rows", qkv_of(weights), 1) == MatvecTile(1, 4, 16)


def test_a_device_without_room_for_the_trial_keeps_the_rules(
    tuned_kernels: Kernels, weights: ModelWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise DeviceError("no memory")

    monkeypatch.setattr(tune, "Trial", full)
    assert tuned(tuned_kernels, weights, FakeClock({}), None).num_tuned == 0


@pytest.mark.parametrize(("setting", "kept"), [("0", True), ("", True), ("1", False)])
def test_when_nothing_is_measured(
    tuned_kernels: Kernels,
    weights: ModelWeights,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    kept: bool,
) -> None:
    """On a software device only where it is asked for."""
    monkeypatch.setenv("EMBERD_TUNE", setting)
    clock = FakeClock({(2, 8): 0.5})
    table = tuned(tuned_kernels, weights, clock, tmp_path)
    assert (clock.calls == 0) == kept == (table == default_table(tuned_kernels.device))


@pytest.mark.parametrize(("setting", "wanted"), [("0", False), ("", True), ("1", True)])
def test_a_real_gpu_is_measured_unless_told_not_to(
    device: Device, monkeypatch: pytest.MonkeyPatch, setting: str, wanted: bool
) -> None:
    monkeypatch.setenv("EMBERD_TUNE", setting)
    assert tune.is_wanted(dataclasses.replace(device.info, kind="DiscreteGPU")) == wanted


@pytest.mark.parametrize("form", ["matmul", "gate_up"])
def test_tiles_of_matmul_are_measured_too(
    tuned_kernels: Kernels, weights: ModelWeights, monkeypatch: pytest.MonkeyPatch, form: Tiled
) -> None:
    """With rules that leave more than eight tokens to it, as a GPU's; two tiles, since compiling takes long."""
    usual = default_table(tuned_kernels.device)
    rules = dataclasses.replace(usual, matvec=dataclasses.replace(usual.matvec, tokens=8))
    job = next(
        job
        for job in tune.jobs_of(weights, rules, 32, 1)
        if job.product.form == form and job.product.tokens == 32
    )
    rule = rules.matmul.tile_for(job.matrices[0], 32, form)
    assert rule in matmul_tiles(tuned_kernels.device, form)
    wanted = next(
        tile
        for tile in matmul_tiles(tuned_kernels.device, form)
        if tile != rule and tile.tokens == 32
    )
    monkeypatch.setattr(tune, "candidates", lambda *_: (rule, wanted))
    seconds: dict[tuple[int, ...], float] = {(wanted.rows, wanted.workgroup, wanted.runs): 0.5}
    tile = tune.Tuner(tuned_kernels, weights, rules, FakeClock(seconds)).fastest(job)
    assert isinstance(tile, MatmulTile) and tile == wanted
    table = rules.with_tiles({job.product: tile})
    matrix = job.matrices[0]
    assert table.matmul.tile_for(matrix, 32, form) is tile
    assert table.tile_for(form, matrix, 32) is tile
    assert table.matmul.tile_for(matrix, 512, form) == rules.matmul.tile_for(matrix, 512, form)


def test_every_product_of_a_step_is_measured_once(
    tuned_kernels: Kernels, weights: ModelWeights
) -> None:
    rules = default_table(tuned_kernels.device)
    jobs = tune.jobs_of(weights, rules, max_tokens=512, max_rows=8)
    products = [job.product for job in jobs]
    assert len(set(products)) == len(products)
    assert {product.tokens for product in products} == {1, 8, 16, 32, 64, 512}
    assert products[0].tokens == 1
    vocab = weights.output.matrices[0]
    assert Product.of("rows", vocab, 8) in products
    assert Product.of("rows", vocab, 16) not in products  # a step has logits of eight rows at most
    of_qkv = next(job for job in jobs if job.product == Product.of("rows", qkv_of(weights), 1))
    assert len(of_qkv.matrices) == len(weights.layers)


def test_the_nearest_number_of_tokens_stands_for_others() -> None:
    matrix = WeightMatrix(GGMLType.Q4_K, 64, 256, ())
    near = {tokens: Product.of("rows", matrix, tokens).tokens for tokens in (1, 2, 3, 4, 12, 24)}
    assert near == {1: 1, 2: 1, 3: 8, 4: 8, 12: 16, 24: 32}
    assert [Product.of("rows", matrix, n).tokens for n in (128, 256, 4096)] == [64, 512, 512]


@pytest.mark.parametrize("kind", ["best", "wall"])
def test_clocks_time_each_recording(device: Device, kernels: Kernels, kind: str) -> None:
    clock = make_clock(device) if kind == "best" else WallClock(device)
    assert isinstance(clock, WallClock) or device.tick_seconds is not None
    assert isinstance(clock, WallClock | TimestampClock)
    x, out = device.empty((4, 64)), new_activations(device, 4, 64)
    made = [record(device, [quantize_q8(kernels, x, out, rows=n, width=64)], out.q) for n in (1, 4)]
    seconds = clock(made, times=3)
    assert len(seconds) == 2 and all(0 <= one < 60 for one in seconds)


def test_a_runner_with_measured_tiles_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured by the device's own clock, kept, and used; logits agree but for float noise."""
    path = random_model(tmp_path / "m.gguf", quant="Q4_K", width=256)
    monkeypatch.setattr(tune, "LEAST_GAIN", -1.0)  # so that the fastest is taken, gain or not
    logits = []
    for setting in ("0", "1"):
        monkeypatch.setenv("EMBERD_TUNE", setting)
        options = WorkerOptions(
            str(path),
            "gpu",
            context_length=64,
            kv_memory=4 << 20,
            max_sequences=1,
            max_batch_tokens=2,
            cache_dir=str(tmp_path / "cache"),
        )
        runner = GpuRunner.load(options)
        assert (runner.info().tuned_products > 0) == (setting == "1")
        found = []
        for place, token in enumerate([5, 9, 3]):
            row = Row(0, [token], place, [0], sample=False)
            runner.submit(make_batch([row], runner.block_size, [0]))
            out = runner.collect().logits
            assert out is not None
            found.append(out)
        runner.close()
        logits.append(np.concatenate(found))
    assert list((tmp_path / "cache" / "tiles").iterdir())
    difference = np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[0])
    assert difference < 1e-2
