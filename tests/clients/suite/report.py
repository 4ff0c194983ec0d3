"""Results kept as JSON beside this file, and the table that docs/clients.md shows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .clients import CLIENTS

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent.parent.parent / "docs" / "clients.md"
BEGIN, END = "<!-- begin: written by scripts/test-clients -->", "<!-- end -->"
MAX_CALLS = 12  # that a row shows
Result = dict[str, Any]


def read() -> dict[str, Result]:
    results: dict[str, Result] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def keep(name: str, result: Result) -> None:
    """One client's newest result; the others' stay as they are."""
    results = {**read(), name: result}
    order = [client.name for client in CLIENTS if client.name in results]
    RESULTS.write_text(json.dumps({one: results[one] for one in order}, indent=1) + "\n")


def write_page() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(read())}\n\n{END}{after}")


def table(results: dict[str, Result]) -> str:
    lines = [
        "| client | version | verdict | what was done | calls | date |",
        "|---|---|---|---|---|---|",
    ]
    for client in CLIENTS:
        result = results.get(client.name)
        if result is None:
            lines.append(f"| {client.name} | | not run | | | |")
            continue
        cells = [client.name, result["version"], _verdict(result), _steps(result)]
        cells += [_calls(result["calls"]), result["date"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    good = sum(one["passed"] for one in results.values())
    return "\n".join([*lines, "", f"{good} of {len(CLIENTS)} pass."])


def _verdict(result: Result) -> str:
    return "passes" if result["passed"] else "**fails**"


def _steps(result: Result) -> str:
    good = ", ".join(step["name"] for step in result["steps"] if step["ok"])
    bad = [f"**{step['name']}**: {step['told']}" for step in result["steps"] if not step["ok"]]
    return "; ".join([*([good] if good else []), *bad])


def _calls(calls: dict[str, int]) -> str:
    """Routes with their counts, the first of many; a status other than 200 is told."""
    told = [
        f"`{call.removesuffix(' 200')}`" + (f" ×{count}" if count > 1 else "")
        for call, count in calls.items()
    ]
    more = [f"and {len(told) - MAX_CALLS} other kinds"] if len(told) > MAX_CALLS else []
    return ", ".join(told[:MAX_CALLS] + more)
