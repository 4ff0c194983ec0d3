"""Load on a running OpenAI-compatible server: time to first token, gaps between events, throughput.

    python benchmarks/serve.py http://127.0.0.1:11434 --model smollm2 --clients 1,8,32
    python benchmarks/serve.py http://127.0.0.1:11434 --model smollm2 --rate 2 --rate 4

Closed loop (--clients): each client sends again when its answer has ended. Open loop (--rate): requests come at
random times whatever the server does, and TTFT counts from when a request was due. Prompts are random token
ids. Nothing is sent to another machine.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace

import common
from common import Spread
from http_load import Load, Outcome, run_load


@dataclass(frozen=True, slots=True)
class Row:
    """The repeats of one load. Milliseconds and rates are spreads over the repeats."""

    clients: int
    rate: float
    requests: int
    failed: int
    tok_s: Spread
    ttft_p50_ms: Spread
    ttft_p95_ms: Spread
    gap_p50_ms: Spread
    gap_p95_ms: Spread
    first_error: str | None

    @classmethod
    def of(cls, runs: Sequence[Outcome]) -> Row:
        return cls(
            clients=runs[0].clients,
            rate=runs[0].rate,
            requests=sum(run.requests for run in runs),
            failed=sum(run.failed for run in runs),
            tok_s=Spread.of(run.tok_s for run in runs),
            ttft_p50_ms=Spread.of(run.ttft_p50_ms for run in runs),
            ttft_p95_ms=Spread.of(run.ttft_p95_ms for run in runs),
            gap_p50_ms=Spread.of(run.gap_p50_ms for run in runs),
            gap_p95_ms=Spread.of(run.gap_p95_ms for run in runs),
            first_error=next((run.first_error for run in runs if run.first_error), None),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        model = options.model or first_model(options.url)
        loads = list(_loads(options, model))
        facts = common.conditions(
            device=options.device or "server",
            driver="http",
            repeats=options.repeats,
            commit=options.commit,
            url=options.url,
            model=model,
            prompt_tokens=options.prompt_tokens,
            new_tokens=options.new_tokens,
            client_processes=options.processes,
        )
        common.print_conditions(facts)
        rows = [_measure(load, options.repeats) for load in loads]
    except (OSError, ValueError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    print_rows(rows)
    common.finish("serve", facts, rows, options.out)
    for row in rows:
        if row.failed:
            print(f"{row.failed} of {row.requests} failed: {row.first_error}", file=sys.stderr)
    return 1 if any(row.failed for row in rows) else 0


def first_model(url: str) -> str:
    """The first model that the server lists. OSError when it does not answer."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["id"])


def print_rows(rows: Sequence[Row]) -> None:
    columns = ("CLIENTS", "RATE/s", "REQUESTS", "FAILED", "tok/s", "TTFT p50 ms", "p95")
    common.print_table(
        (*columns, "GAP p50 ms", "p95"),
        [
            (
                row.clients or None,
                row.rate or None,
                row.requests,
                row.failed,
                str(row.tok_s),
                row.ttft_p50_ms.median,
                row.ttft_p95_ms.median,
                row.gap_p50_ms.median,
                row.gap_p95_ms.median,
            )
            for row in rows
        ],
    )


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("Load on a running OpenAI-compatible server of this machine", 3)
    parser.add_argument("url", help="as http://127.0.0.1:11434")
    parser.add_argument("--model", help="a name that the server knows; default: its first")
    parser.add_argument("--clients", type=common.numbers, default=(1, 8, 32), help="closed loop")
    parser.add_argument("--rate", type=float, action="append", help="open loop; instead of clients")
    parser.add_argument(
        "--requests", type=common.positive, help="a load's; default 2 a client, or 64"
    )
    parser.add_argument("--prompt-tokens", type=common.positive, default=128)
    parser.add_argument("--new-tokens", type=common.positive, default=128)
    parser.add_argument(
        "--vocab-size", type=common.positive, default=20000, help="ids are below it"
    )
    parser.add_argument("--processes", type=common.positive, default=1, help="that send")
    parser.add_argument("--device", help="what the server runs on, for the result's name")
    return parser


def _loads(options: argparse.Namespace, model: str) -> Sequence[Load]:
    shared = Load(
        url=options.url,
        model=model,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        vocab_size=options.vocab_size,
        requests=options.requests or 64,
        processes=options.processes,
    )
    if options.rate:
        return [replace(shared, rate=rate) for rate in options.rate]
    return [
        replace(shared, clients=clients, requests=options.requests or 2 * clients)
        for clients in options.clients
    ]


def _measure(load: Load, repeats: int) -> Row:
    """The load once to warm up, then `repeats` times, each with prompts of its own."""
    seeds = [secrets.randbits(30) for _ in range(1 + repeats)]
    return Row.of([run_load(replace(load, seed=seed)) for seed in seeds][1:])


if __name__ == "__main__":
    sys.exit(main())
