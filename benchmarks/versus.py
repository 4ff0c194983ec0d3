"""emberd and llama-server on one device in one run, in turns: engine figures, HTTP figures, ratios.

    python benchmarks/versus.py MODEL.gguf --peer-dir vk --streams 1,8,32

Engine figures are emberd's without HTTP, and what llama-server says of its own (its `timings`); TOTAL and HTTP
rates are generated tokens over the whole run, by one clock for both. Both models stay loaded, and the order turns
from round to round. The first round warms up and is left out.
"""

from __future__ import annotations

import argparse
import logging
import random
import secrets
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import common
from common import Spread
from emberd.bench import Workload, measure
from emberd.errors import EmberdError
from emberd.gguf.spec import open_model
from emberd.protocol import Runner, WorkerOptions
from emberd.worker.process import load_runner
from http_load import Load, Outcome, run_load
from peer import PeerSpeed, Server, emberd_server, llama_server, peer_speed, tried

SHORT_REPEATS = 5
"""Measurements of one prompt or one stream in a round, of which the median counts: each takes milliseconds, in which
other programs of the host are felt."""

WARM_SECONDS = 0.5
"""What each side works before its figures of a round: an H200 that rested takes 0.1 to 0.2 s to raise its clock."""

Figures = dict[str, float]
"""What one side gave in one round, by the name of the figure."""

Side = Callable[[], Figures]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure over the rounds; `ratio` is emberd's over the peer's, of the same round."""

    figure: str
    emberd: Spread
    peer: Spread
    ratio: Spread


@dataclass(frozen=True, slots=True)
class Sizes:
    """What both sides are given."""

    vocab_size: int
    streams: tuple[int, ...]
    prefill: int
    prompt_tokens: int
    new_tokens: int

    @property
    def tokens(self) -> int:
        """Context that a stream needs, with room for tokens a server adds."""
        return max(self.prefill, self.prompt_tokens + self.new_tokens) + 64

    def prompts(self, streams: int, length: int) -> list[list[int]]:
        low = min(300, self.vocab_size // 2)
        return [
            [random.randrange(low, self.vocab_size) for _ in range(length)] for _ in range(streams)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    try:
        return _run(options)
    except (EmberdError, RuntimeError, OSError) as error:
        print(f"versus: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    model = common.model_facts(options.model)
    opened = open_model(options.model)
    vocab_size = opened.spec.vocab_size
    opened.close()
    sizes = Sizes(
        vocab_size, options.streams, options.prefill, options.prompt_tokens, options.new_tokens
    )
    most = max(sizes.streams)
    rows: list[Row] = []
    with llama_server(
        options.peer_dir, options.model, most, sizes.tokens, options.peer_arg
    ) as peer:
        worker_options = WorkerOptions(
            model_path=str(options.model),
            device=options.device,
            context_length=sizes.tokens,
            max_sequences=most,
            cache_dir=common.cache_dir(),
        )
        common.measure_tiles(worker_options)
        runner = load_runner(worker_options, lambda _: None)
        facts = common.conditions(
            device=runner.info().device,
            driver=common.driver(runner),
            repeats=options.repeats,
            commit=options.commit,
            **model,
            peer="llama-server " + " ".join(options.peer_arg),
            prompt_tokens=sizes.prompt_tokens,
            new_tokens=sizes.new_tokens,
        )
        common.print_conditions(facts)
        if not options.no_engine:
            print("engine", flush=True)
            sides = (lambda: _engine(runner, sizes), lambda: _peer_engine(peer, sizes))
            rows += _rounds(*sides, options.repeats)
        runner.close()
        if not options.no_http:
            print("http", flush=True)
            with emberd_server(options.model, options.device, most, sizes.tokens) as ours:
                sides = (
                    lambda: _http(ours, options, sizes),
                    lambda: _http(peer, options, sizes),
                )
                rows += _rounds(*sides, options.repeats)
    _print(rows)
    shares = _http_shares(rows, sizes.streams)
    for streams, share in shares.items():
        print(f"emberd over HTTP reaches {share:.2f} of its engine at {streams} streams")
    results = {"rows": rows, "http_share_of_engine": shares}
    common.finish("versus", facts, results, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("emberd and llama-server in one run", 3)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--peer-dir", type=Path, required=True, help="holds llama-server")
    parser.add_argument("--peer-arg", action="append", default=[], help="more for llama-server")
    parser.add_argument("--device", default="auto", help="emberd's: auto, gpu, cpu, part of a name")
    parser.add_argument("--streams", type=common.numbers, default=(1, 8, 32), help="as 1,8,32")
    parser.add_argument("--prefill", type=common.positive, default=512, help="prompt of prefill")
    parser.add_argument("--prompt-tokens", type=common.positive, default=128)
    parser.add_argument("--new-tokens", type=common.positive, default=128)
    parser.add_argument("--processes", type=common.positive, default=1, help="that send over HTTP")
    parser.add_argument("--no-engine", action="store_true")
    parser.add_argument("--no-http", action="store_true")
    return parser


def _rounds(ours: Side, theirs: Side, repeats: int) -> list[Row]:
    """One round to warm up, then `repeats` that count; who goes first changes each time."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(1 + repeats):
        if number % 2:
            a, b = ours(), theirs()
        else:
            b, a = theirs(), ours()
        print(f"  round {number}{' (warm-up)' if number == 0 else ''}", flush=True)
        for name in a:
            print(f"    {name}: emberd {a[name]:,.4g}, peer {b[name]:,.4g}", flush=True)
        if number:
            for name in a:
                found[name].append((a[name], b[name]))
    return [
        Row(
            figure=name,
            emberd=Spread.of(a for a, _ in pairs),
            peer=Spread.of(b for _, b in pairs),
            ratio=Spread.of(a / b for a, b in pairs),
        )
        for name, pairs in found.items()
    ]


def _warm(run: Callable[[], object]) -> None:
    """A side's turn begins with untimed runs, since the card lowers its clock between two turns."""
    end = time.monotonic() + WARM_SECONDS
    while time.monotonic() < end:
        run()


def _engine(runner: Runner, sizes: Sizes) -> Figures:
    seed = secrets.randbits(30)
    found = {}
    workload = Workload((1,), sizes.prefill, 2)
    _warm(lambda: list(measure(runner, sizes.vocab_size, workload, seed, 1)))
    speeds = measure(runner, sizes.vocab_size, workload, seed, SHORT_REPEATS)
    found[_prefill_name(sizes)] = median(speed.prefill_tok_s for speed in speeds)
    for streams in sizes.streams:
        workload = Workload((streams,), sizes.prompt_tokens, sizes.new_tokens)
        several = list(measure(runner, sizes.vocab_size, workload, seed, _repeats(streams)))
        found[f"decode, {streams} streams"] = median(speed.decode_tok_s for speed in several)
        found[f"total, {streams} streams"] = median(speed.total_tok_s for speed in several)
    return found


def _peer_engine(peer: Server, sizes: Sizes) -> Figures:
    def ask(streams: int, length: int, new_tokens: int) -> PeerSpeed:
        return tried(lambda: peer_speed(peer, sizes.prompts(streams, length), new_tokens))

    _warm(lambda: ask(1, sizes.prefill, 2))
    prefills = [ask(1, sizes.prefill, 2).prefill_tok_s for _ in range(SHORT_REPEATS)]
    found = {_prefill_name(sizes): median(prefills)}
    for streams in sizes.streams:
        ask(streams, sizes.prompt_tokens, min(8, sizes.new_tokens))
        several = [
            ask(streams, sizes.prompt_tokens, sizes.new_tokens) for _ in range(_repeats(streams))
        ]
        found[f"decode, {streams} streams"] = median(speed.decode_tok_s for speed in several)
        found[f"total, {streams} streams"] = median(speed.total_tok_s for speed in several)
    return found


def _repeats(streams: int) -> int:
    return SHORT_REPEATS if streams == 1 else 1


def _prefill_name(sizes: Sizes) -> str:
    return f"prefill, {sizes.prefill} tokens"


def _http(server: Server, options: argparse.Namespace, sizes: Sizes) -> Figures:
    found = {}
    for streams in sizes.streams:
        load = Load(
            url=server.url,
            model=options.model.stem,
            prompt_tokens=sizes.prompt_tokens,
            new_tokens=sizes.new_tokens,
            vocab_size=sizes.vocab_size,
            requests=2 * streams,
            clients=streams,
            processes=min(options.processes, streams),
        )
        outcome = tried(partial(_loaded, server, load))
        found[f"http tok/s, {streams} clients"] = outcome.tok_s
        found[f"http TTFT p50 ms, {streams} clients"] = outcome.ttft_p50_ms
        found[f"http TTFT p95 ms, {streams} clients"] = outcome.ttft_p95_ms
        found[f"http gap p50 ms, {streams} clients"] = outcome.gap_p50_ms
        found[f"http gap p95 ms, {streams} clients"] = outcome.gap_p95_ms
    return found


def _loaded(server: Server, load: Load) -> Outcome:
    """The load with fresh prompts. RuntimeError when a request fails."""
    outcome = run_load(replace(load, seed=secrets.randbits(30)))
    if outcome.failed:
        raise RuntimeError(
            f"{server.name}: {outcome.failed} of {outcome.requests} requests failed: "
            f"{outcome.first_error}"
        )
    return outcome


def _http_shares(rows: Sequence[Row], streams: Sequence[int]) -> dict[str, float]:
    """emberd's rate over HTTP as a share of its engine's, by number of streams, where both were measured."""
    medians = {row.figure: row.emberd.median for row in rows}
    pairs = {n: (f"http tok/s, {n} clients", f"total, {n} streams") for n in streams}
    return {
        str(n): medians[http] / medians[engine]
        for n, (http, engine) in pairs.items()
        if http in medians and engine in medians
    }


def _print(rows: Sequence[Row]) -> None:
    common.print_table(
        ("FIGURE (tok/s unless said)", "EMBERD", "LLAMA-SERVER", "RATIO"),
        [(row.figure, str(row.emberd), str(row.peer), str(row.ratio)) for row in rows],
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
