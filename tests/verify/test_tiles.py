"""Measured tiles: one that is wrong in a kernel that tuning does not look at is not taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from emberd.gguf.spec import open_model
from emberd.protocol import WorkerOptions
from emberd.runtime import runner as runners
from emberd.runtime.device import Device, open_device
from emberd.runtime.kernel import Kernels
from emberd.runtime.linear import LinearTable, default_table
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.products import Product
from emberd.verify.load_bench import WatchedKernels
from emberd.verify.tiles import check_tiles
from emberd.worker.process import load_runner
from tiny_gguf import random_model

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("device")]

WRONG, RIGHT = MatvecTile(1, 2, 8), MatvecTile(1, 4, 16)
QKV = Product("rows", "Q8_0", 512, 256, 8)
DOWN = Product("rows", "Q8_0", 256, 256, 1)
MOST = {"max_tokens": 16, "max_rows": 1}


@pytest.fixture
def opened() -> Iterator[Device]:
    device = open_device("gpu")
    yield device
    device.close()


@pytest.fixture
def norms_of_two_rows_are_wrong(broken_shaders: Path) -> None:
    """Plain products by the same tile are right."""
    file, old = broken_shaders / "include/norm_ahead.wgsl", "return inverseSqrt("
    text = file.read_text()
    assert old in text, "norm_ahead.wgsl has changed: choose another fault"
    file.write_text(text.replace(old, "return select(1.0, 1.01, ROWS == 2u) * inverseSqrt("))


def test_a_tile_that_is_wrong_with_a_norm_is_not_taken(
    opened: Device,
    tmp_path: Path,
    norms_of_two_rows_are_wrong: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor by another product that shares its kernel."""
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1, ffn=256)
    tiles = {QKV: WRONG, replace(QKV, tokens=16): WRONG, DOWN: RIGHT}
    table = default_table(opened).with_tiles(tiles)
    model = open_model(path)
    found = check_tiles(WatchedKernels(opened), model, table, cache_dir=tmp_path, **MOST)
    model.close()
    assert dict(found.matvec.tuned) == {DOWN: RIGHT}
    assert f"by the tile measured for {QKV}: the rules' tile is taken" in caplog.text


def test_right_tiles_are_checked_once(
    opened: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "emberd.verify.tiles")
    model = open_model(random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1))
    table = default_table(opened).with_tiles({QKV: RIGHT})
    runs = []
    for _ in range(2):
        caplog.clear()
        assert (
            check_tiles(WatchedKernels(opened), model, table, cache_dir=tmp_path, **MOST) == table
        )
        told = re.search(r"1 measured tiles .*: \d+ checks \((\d+) run now,", caplog.text)
        runs.append(told and int(told[1]))
    assert runs[0] and runs[1] == 0
    model.close()


def test_a_load_tells_of_tiles_that_are_left_out(
    tmp_path: Path, norms_of_two_rows_are_wrong: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(kernels: Kernels, *_: object, **__: object) -> LinearTable:
        return default_table(kernels.device).with_tiles({QKV: WRONG})

    monkeypatch.setattr(runners, "tuned_table", measured)
    monkeypatch.setattr("emberd.verify.loading._checks", lambda *_: ())
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1)
    options = WorkerOptions(str(path), "gpu", 64, max_sequences=1, max_batch_tokens=16, verify=True)
    runner = load_runner(options, lambda _: None)
    assert isinstance(runner, runners.GpuRunner)
    assert runner.info().verification.endswith("; 1 measured tiles are wrong and not taken")
    assert runner.info().tuned_products == 0
    runner.close()
