"""The checks of what only models with LayerNorms use: they pass, and fail where the reference says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch_models import architecture_model
from emberd.gguf.spec import open_model
from emberd.reference import ops as reference
from emberd.runtime.device import Device
from emberd.verify.bench import Workbench
from emberd.verify.layer_norm import check_layer_norm, check_positions

pytestmark = pytest.mark.device


def test_layer_norms_and_positions_are_checked(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Workbench(device)
    model = open_model(architecture_model(tmp_path / "m.gguf", "gpt2"))
    checks = [*check_layer_norm(bench, model), *check_positions(bench, model)]
    assert [check.kernel for check in checks] == ["layer_norm", "layer_norm", "add_positions"]
    assert all(check.passed for check in checks), checks
    monkeypatch.setattr(reference, "layer_norm", lambda x, w, b, eps: reference.rms_norm(x, w, eps))
    assert not any(check.passed for check in check_layer_norm(bench, model))
    model.close()


def test_models_without_them_have_no_such_checks(device: Device, tmp_path: Path) -> None:
    bench = Workbench(device)
    model = open_model(architecture_model(tmp_path / "m.gguf", "llama"))
    assert [*check_layer_norm(bench, model), *check_positions(bench, model)] == []
    model.close()
