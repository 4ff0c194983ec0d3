"""Command batch: what the running daemon has in its batches, live."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..config import Config
from .client import Daemon, running_daemon
from .output import JsonOption, console, print_json
from .settings import with_settings

_COLUMNS = (
    "REQUEST",
    "STATE",
    "CLASS",
    "PROMPT",
    "CACHED",
    "TOKENS",
    "GUESSED",
    "BLOCKS",
    "PREEMPTED",
)
Json = dict[str, Any]


@with_settings("host", "port", "socket")
def batch(
    config: Config,
    once: Annotated[bool, typer.Option("--once", help="Print once and leave.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two looks.")
    ] = 0.5,
    json: JsonOption = False,
) -> None:
    """Show what each loaded model has in its batch: sequences, KV blocks, prefixes, step times.

    Live until Ctrl-C, in a terminal; elsewhere, and with --json, once.
    """
    out = console()
    with running_daemon(config) as daemon:
        if json:
            print_json(_look(daemon))
        elif once or not out.is_terminal:
            out.print(view(_look(daemon)))
        else:
            with Live(view(_look(daemon)), console=out, auto_refresh=False) as live:
                try:
                    while True:
                        time.sleep(every)
                        live.update(view(_look(daemon)), refresh=True)
                except KeyboardInterrupt:
                    pass


def _look(daemon: Daemon) -> list[Json]:
    models: list[Json] = daemon.get("/api/batch/status")["models"]
    return models


def view(models: Iterable[Json]) -> Group:
    """For each model a few lines about its blocks and steps, and a table of its sequences."""
    parts = [part for model in models for part in _of_model(model)]
    return Group(*parts) if parts else Group(Text("no model is loaded"))


def _of_model(model: Json) -> list[Text | Table]:
    blocks, prefixes, running = model["blocks"], model["prefixes"], model["running"]
    head = f"{model['model']}  {len(running)} of {model['max_sequences']} run, {len(model['waiting'])} wait"
    lines: list[Text | Table] = [Text(head, style="bold")]
    if blocks["total"]:
        lines.append(
            Text(
                f"blocks of {blocks['tokens']} tokens: {blocks['held']} held ({blocks['shared']} shared), "
                f"{blocks['idle']} idle, {blocks['free']} free of {blocks['total']}; prefixes: "
                f"{prefixes['beginnings']} beginnings, {prefixes['ends']} ends, deepest {prefixes['deepest']}"
            )
        )
    if draft := model["draft_blocks"]:
        told = (
            f"{draft['held']} held, {draft['idle']} idle, {draft['free']} free of {draft['total']}"
        )
        lines.append(Text(f"blocks of the draft model: {told}"))
    for kind, times in model["steps"].items():
        told = f"p50 {times['p50_ms']:.1f} ms, p95 {times['p95_ms']:.1f} ms"
        lines.append(Text(f"steps of {kind}: {told} (last {times['count']})"))
    if sequences := [*running, *model["waiting"]]:
        lines.append(_table(sequences))
    return lines


def _table(sequences: Iterable[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _COLUMNS[:3] else "right")
    for one in sequences:
        read = min(one["num_computed_tokens"], one["num_prompt_tokens"])
        guessed = f"{one['num_accepted_tokens']}/{one['num_drafted_tokens']}"
        table.add_row(
            one["id"] if one["sequence"] in ("", "0") else f"{one['id']} #{one['sequence']}",
            one["state"] if one["position"] is None else f"waits, {one['position']} before",
            one["priority"],
            f"{read}/{one['num_prompt_tokens']}",
            *(str(one[name]) for name in ("num_cached_tokens", "num_completion_tokens")),
            guessed,
            *(str(one[name]) for name in ("num_blocks", "num_preemptions")),
        )
    return table
