"""Gaps between the tokens of replies while a long prompt is read in the background, through the engine, without HTTP.

    python benchmarks/fairness.py MODEL.gguf                           a prompt of 32,768 tokens
    python benchmarks/fairness.py MODEL.gguf --device cpu --prompt-tokens 2048 --new-tokens 150

Replies alone, prompts alone, then both: with no pace (`--prompt-share 1`), with the default, and with
the replies interactive and the prompts batch. Background prompts follow one another until the replies have ended. A gap
is from one step's tokens to the next one's, as a client would see them.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import common
from common import Spread
from emberd.engine import Engine
from emberd.engine.pace import GPU_PROMPT_SHARE
from emberd.errors import EmberdError
from emberd.gguf.spec import open_model
from emberd.protocol import NORMAL, GenerateRequest, Runner, SamplingParams, WorkerOptions
from emberd.worker.process import load_runner
from http_load import percentile

INTERACTIVE, BATCH = 0, 2
PLAIN_SHARE, DEFAULT_SHARE = 1.0, GPU_PROMPT_SHARE


@dataclass(frozen=True, slots=True)
class Case:
    what: str
    replies: int
    prompts: bool
    share: float = DEFAULT_SHARE
    reply_class: int = NORMAL
    prompt_class: int = NORMAL


@dataclass(frozen=True, slots=True)
class Run:
    gap_p50_ms: float
    gap_p95_ms: float
    gap_max_ms: float
    prompt_tok_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """Ratios are to the replies alone, and to the prompts alone."""

    what: str
    gap_p50_ms: Spread
    gap_p95_ms: Spread
    gap_max_ms: Spread
    gap_p95_ratio: float
    prompt_tok_s: Spread
    prompt_ratio: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except EmberdError as error:
        print(f"fairness: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    model = common.model_facts(options.model)
    opened = open_model(options.model)
    vocab_size = opened.spec.vocab_size
    opened.close()
    length = max(options.prompt_tokens + 1, options.reply_prompt_tokens + options.new_tokens)
    worker_options = WorkerOptions(
        str(options.model),
        device=options.device,
        context_length=length,
        kv_memory=options.kv_memory,
        max_sequences=options.replies + 1,
        max_batch_tokens=options.max_batch_tokens,
        cache_dir=common.cache_dir(),
    )
    common.measure_tiles(worker_options)
    runner = load_runner(worker_options, lambda _: None)
    try:
        while runner.prepare():
            pass
        info = runner.info()
        facts = common.conditions(
            device=info.device,
            driver=common.driver(runner),
            repeats=options.repeats,
            commit=options.commit,
            replies=options.replies,
            prompt_tokens=options.prompt_tokens,
            new_tokens=options.new_tokens,
            max_batch_tokens=runner.max_batch_tokens,
            **model,
        )
        common.print_conditions(facts)
        bench = _Bench(runner, options, vocab_size)
        rows = _rows(bench, options)
    finally:
        runner.close()
    _print(rows)
    common.finish("fairness", facts, rows, options.out)
    return 0


class _Bench:
    """Runs cases on one runner; each run has an engine, and so a prefix cache, of its own."""

    def __init__(self, runner: Runner, options: argparse.Namespace, vocab_size: int) -> None:
        self._runner, self._options, self._vocab_size = runner, options, vocab_size

    def run(self, case: Case) -> Run:
        engine = Engine(self._runner, prompt_share=case.share)
        options = self._options
        arrivals: dict[str, list[float]] = {}
        for number in range(case.replies):
            name = f"reply {number}"
            engine.add(
                self._request(
                    name, options.reply_prompt_tokens, options.new_tokens, case.reply_class
                )
            )
            arrivals[name] = []
        running, num_prompts, read = set(arrivals), 0, 0
        warm = False  # the replies have begun
        started = ended = time.perf_counter()
        while running or (not case.replies and num_prompts < 2):
            states = {one.request_id: one for one in engine.status().sequences}
            warm = warm or all(len(times) > 8 for times in arrivals.values())
            if case.prompts and warm and not any(name.startswith("prompt") for name in states):
                if num_prompts == 0:
                    started = time.perf_counter()
                num_prompts += 1
                engine.add(
                    self._request(
                        f"prompt {num_prompts}", options.prompt_tokens, 1, case.prompt_class
                    )
                )
            message = engine.step()
            now = time.perf_counter()
            for update in message.updates:
                if update.request_id in arrivals and update.token_ids:
                    arrivals[update.request_id].append(now)
                elif update.finish_reason and update.request_id.startswith("prompt"):
                    read, ended = read + options.prompt_tokens, now
                if update.finish_reason:
                    running.discard(update.request_id)
                    if update.error:
                        raise EmberdError(update.error)
            if case.prompts and not running and case.replies:
                states = {one.request_id: one for one in engine.status().sequences}
                read += sum(one.num_computed_tokens for n, one in states.items() if n[0] == "p")
                ended = now
        for name in [one.request_id for one in engine.status().sequences]:
            engine.cancel(name)
        while engine.has_work:
            engine.step()
        engine.close()
        gaps = [1e3 * (b - a) for times in arrivals.values() for a, b in pairwise(times[8:])]
        return Run(
            percentile(gaps, 50),
            percentile(gaps, 95),
            max(gaps, default=0.0),
            read / (ended - started) if read else 0.0,
        )

    def _request(self, name: str, size: int, max_tokens: int, priority: int) -> GenerateRequest:
        low = min(300, self._vocab_size // 2)
        ids = tuple(low + secrets.randbelow(self._vocab_size - low) for _ in range(size))
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return GenerateRequest(name, ids, params, cache_salt=None, priority=priority)


def _rows(bench: _Bench, options: argparse.Namespace) -> list[Row]:
    n = options.replies
    cases = [
        Case("replies alone", n, False),
        Case("prompts alone", 0, True),
        Case("both, no pace", n, True, share=PLAIN_SHARE),
        Case("both", n, True),
        Case("interactive replies, batch prompts", n, True, DEFAULT_SHARE, INTERACTIVE, BATCH),
    ]
    runs: dict[str, list[Run]] = {case.what: [] for case in cases}
    for _ in range(options.repeats):
        for case in cases:
            runs[case.what].append(bench.run(case))
    alone = Spread.of(run.gap_p95_ms for run in runs["replies alone"]).median
    prompts = Spread.of(run.prompt_tok_s for run in runs["prompts alone"]).median
    rows = []
    for case in cases:
        found = runs[case.what]
        p95 = Spread.of(run.gap_p95_ms for run in found)
        speed = Spread.of(run.prompt_tok_s for run in found)
        rows.append(
            Row(
                case.what,
                Spread.of(run.gap_p50_ms for run in found),
                p95,
                Spread.of(run.gap_max_ms for run in found),
                p95.median / alone,
                speed,
                speed.median / prompts,
            )
        )
    return rows


def _print(rows: Sequence[Row]) -> None:
    common.print_table(
        ("", "GAP p50 ms", "p95 ms", "max ms", "p95 RATIO", "PROMPT tok/s", "RATIO"),
        [
            (
                row.what,
                row.gap_p50_ms.median,
                str(row.gap_p95_ms),
                row.gap_max_ms.median,
                row.gap_p95_ratio,
                str(row.prompt_tok_s),
                row.prompt_ratio,
            )
            for row in rows
        ],
    )


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("Gaps between tokens while long prompts are read in the background", 3)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--replies", type=common.positive, default=1, help="streams at once")
    parser.add_argument("--reply-prompt-tokens", type=common.positive, default=64)
    parser.add_argument("--new-tokens", type=common.positive, default=512, help="of each reply")
    parser.add_argument("--prompt-tokens", type=common.positive, default=32768)
    parser.add_argument("--max-batch-tokens", type=common.positive, default=512)
    parser.add_argument("--kv-memory", type=common.positive, help="bytes; default: a share")
    return parser


if __name__ == "__main__":
    sys.exit(main())
