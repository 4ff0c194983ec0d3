"""The CPU device against llama.cpp's runs of real models; all cases: scripts/check-reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberd.protocol import Runner
from reference_cases import (
    FLOAT,
    check_decode,
    check_prompt,
    check_scored,
    load_cases,
    open_runner,
)

pytestmark = [pytest.mark.model, pytest.mark.cases]

SHORT, LONG = 0, 9
"""A prompt of a few tokens, and one of some 300."""


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path", "qwen_path"])
def loaded(request: pytest.FixtureRequest, cases_dir: Path) -> Iterator[tuple[Runner, Any]]:
    path: Path = request.getfixturevalue(request.param)
    runner = open_runner(path, "cpu")
    yield runner, load_cases(cases_dir / "reference", path)
    runner.close()


@pytest.mark.parametrize("number", [SHORT, LONG])
def test_prompts_fed_with_the_f32_run(loaded: tuple[Runner, Any], number: int) -> None:
    runner, cases = loaded
    assert not (outcome := check_prompt(runner, cases["cases"][number], FLOAT)).faults, outcome


def test_greedy_decode(loaded: tuple[Runner, Any]) -> None:
    runner, cases = loaded
    assert not (outcome := check_decode(runner, cases["cases"][SHORT], FLOAT)).faults, outcome


def test_scored_text(loaded: tuple[Runner, Any]) -> None:
    runner, cases = loaded
    assert not (outcome := check_scored(runner, 0, cases["scored"][0], FLOAT)).faults, outcome
