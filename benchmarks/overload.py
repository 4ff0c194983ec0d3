"""A daemon of this machine under more load than it can serve: what is served, what is refused, how soon each is told.

    emberd serve --model MODEL --queue-limit 16
    python benchmarks/overload.py http://127.0.0.1:11434 --clients 8

First a closed loop of so many clients, behind one that warms up: that is the capacity. Then open loops at given
multiples of it: requests come at random times whatever the daemon does. Goodput is the tokens of answers that ended
well over the time from the first request to the last answer. Nothing is sent to another machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import common
from http_load import Load, Trace, percentile, run_traces
from serve import first_model


@dataclass(frozen=True, slots=True)
class Row:
    """One load. `refused`: answered by 429 or 503; `broken`: every other failure."""

    load: float  # of the capacity; 0: the closed loop that measures it
    rate: float  # requests a second
    requests: int
    done: int
    refused: int
    broken: int
    goodput_tok_s: float
    goodput_ratio: float  # to the capacity
    ttft_p50_ms: float  # of those that were done, from when they were due
    ttft_p95_ms: float
    refusal_p95_ms: float  # until a refusal was told
    first_error: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        load = Load(
            url=options.url,
            model=options.model or first_model(options.url),
            prompt_tokens=options.prompt_tokens,
            new_tokens=options.new_tokens,
            vocab_size=options.vocab_size,
            requests=options.requests,
            timeout=options.timeout,
        )
        rows = measure(load, options.clients, options.loads)
    except (OSError, ValueError) as error:
        print(f"overload: {error}", file=sys.stderr)
        return 1
    facts = common.conditions(
        device=options.device or "server",
        driver="http",
        repeats=1,
        commit=options.commit,
        model=load.model,
        clients=options.clients,
        prompt_tokens=load.prompt_tokens,
        new_tokens=load.new_tokens,
        queue_limit=options.queue_limit,
    )
    common.print_conditions(facts)
    _print(rows)
    common.finish("overload", facts, rows, options.out)
    return 1 if any(row.broken for row in rows) else 0


def measure(load: Load, clients: int, loads: Sequence[float]) -> list[Row]:
    """The closed loop, then the open ones. A short loop before them is not counted: first requests load and compile."""
    run_traces(replace(load, clients=clients, requests=2 * clients))
    row_of_capacity = _row(0.0, 0.0, run_traces(replace(load, clients=clients)), None)
    capacity = row_of_capacity.goodput_tok_s
    if not capacity:
        raise ValueError(f"nothing was served: {row_of_capacity.first_error or 'all were refused'}")
    rows = [row_of_capacity]
    for multiple in loads:
        rate = multiple * capacity / load.new_tokens
        rows.append(_row(multiple, rate, run_traces(replace(load, rate=rate)), capacity))
    return rows


def _row(multiple: float, rate: float, traces: Sequence[Trace], capacity: float | None) -> Row:
    done = [one for one in traces if one.error is None]
    refused = [one for one in traces if one.error and _is_refusal(one.error)]
    broken = [one for one in traces if one.error and not _is_refusal(one.error)]
    seconds = max((t.end for t in done), default=0.0) - min(t.due for t in traces)
    goodput = sum(one.completion_tokens for one in done) / seconds if done else 0.0
    firsts = [1e3 * (one.arrivals[0] - one.due) for one in done if one.arrivals]
    return Row(
        load=multiple,
        rate=rate,
        requests=len(traces),
        done=len(done),
        refused=len(refused),
        broken=len(broken),
        goodput_tok_s=goodput,
        goodput_ratio=1.0 if capacity is None else goodput / capacity,
        ttft_p50_ms=percentile(firsts, 50),
        ttft_p95_ms=percentile(firsts, 95),
        refusal_p95_ms=percentile([1e3 * (one.end - one.due) for one in refused], 95),
        first_error=broken[0].error if broken else None,
    )


def _is_refusal(error: str) -> bool:
    return " 429 " in error or " 503 " in error


def _print(rows: Sequence[Row]) -> None:
    common.print_table(
        (
            "LOAD",
            "REQ/s",
            "SENT",
            "DONE",
            "REFUSED",
            "BROKEN",
            "GOODPUT tok/s",
            "RATIO",
            "TTFT p50 ms",
            "p95",
            "REFUSAL p95 ms",
        ),
        [
            (
                row.load or "capacity",
                row.rate or None,
                row.requests,
                row.done,
                row.refused,
                row.broken,
                row.goodput_tok_s,
                row.goodput_ratio,
                row.ttft_p50_ms,
                row.ttft_p95_ms,
                row.refusal_p95_ms,
            )
            for row in rows
        ],
    )


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("A daemon of this machine under more load than it can serve", 1)
    parser.add_argument("url", help="as http://127.0.0.1:11434")
    parser.add_argument("--model", help="a name that the server knows; default: its first")
    parser.add_argument("--clients", type=common.positive, default=8, help="of the closed loop")
    parser.add_argument(
        "--loads", type=_multiples, default=(1.0, 2.0), help="of the capacity, as 1,2"
    )
    parser.add_argument("--requests", type=common.positive, default=64, help="of each load")
    parser.add_argument("--prompt-tokens", type=common.positive, default=128)
    parser.add_argument("--new-tokens", type=common.positive, default=64)
    parser.add_argument("--vocab-size", type=common.positive, default=20000)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of one request")
    parser.add_argument("--device", help="what the server runs on, for the result's name")
    parser.add_argument("--queue-limit", type=int, help="what the daemon has, for the result")
    return parser


def _multiples(text: str) -> tuple[float, ...]:
    values = tuple(float(word) for word in text.split(","))
    if not all(value > 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: loads are above 0")
    return values


if __name__ == "__main__":
    sys.exit(main())
