"""How many steps are in flight: tests that must hold at any depth run at all of them, the quick group at two."""

from __future__ import annotations

import pytest

depths = pytest.mark.parametrize("steps_in_flight", [1, pytest.param(2, marks=pytest.mark.slow), 3])
