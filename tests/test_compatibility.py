"""docs/compatibility.md has one row for each rule of the wire, with tests that are there: nothing is silent."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
IDS = {
    "HT": [*range(1, 17), *range(20, 25), *range(30, 34)],  # all APIs
    "OC": [*range(1, 15), *range(20, 33), 40, 41],  # OpenAI: chat
    "OK": range(1, 4),  # completions
    "OE": range(1, 4),  # embeddings
    "OM": range(1, 3),  # models
    "OR": range(1, 10),  # responses
    "OL": [*range(1, 13), *range(20, 29), *range(30, 42)],  # Ollama
    "AN": [*range(1, 11), *range(20, 27)],  # Anthropic
    "CL": range(1, 19),  # clients
}
WANTED = [f"{kind}-{number:02}" for kind, numbers in IDS.items() for number in numbers]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [A-Z]{2}-\d", line)
]


def test_every_id_has_one_row() -> None:
    counts = Counter(row[0] for row in ROWS)
    assert {name: counts[name] for name in WANTED} == dict.fromkeys(WANTED, 1)
    assert set(counts) == set(WANTED)


def test_the_ids_are_those_of_the_handed_list() -> None:
    wire = Path(os.environ.get("EMBERD_CASES", "missing")).parent / "anchors" / "wire.md"
    if not wire.exists():
        pytest.skip("the list of rules is not beside the case files")
    text = wire.read_text(encoding="utf-8")
    assert re.findall(r"^(?:- |\| )([A-Z]{2}-\d\d) ", text, re.MULTILINE) == WANTED


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_says_what_is_served_and_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4, "id, rule, what is served, tests"
    _, rule, state, tests = row
    assert rule and state
    names = re.findall(r"`(test_\w+)`", tests)
    assert names, "a rule without a test is a promise"
    assert set(names) <= _tests(), set(names) - _tests()


def _tests() -> set[str]:
    if not _found:
        for path in (ROOT / "tests").rglob("test_*.py"):
            text = path.read_text(encoding="utf-8")
            _found.update(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))
    return _found


_found: set[str] = set()
