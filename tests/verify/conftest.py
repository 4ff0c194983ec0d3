"""Tiny models take the forms of usual ones here, one int8 an activation; tests that want two say so."""

from __future__ import annotations

import pytest

from emberd.runtime import activations


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "NARROW", 0)


@pytest.fixture
def narrow(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of this test are narrow ones."""
    monkeypatch.setattr(activations, "NARROW", 1 << 30)
