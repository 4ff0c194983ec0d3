"""Prefill, decode and many streams of any GGUF through the engine, without HTTP; loading too.

    python benchmarks/engine.py MODEL.gguf                            the device that `auto` takes
    python benchmarks/engine.py MODEL.gguf --device gpu --streams 1,8,32 --context 4096,16384

Measured by the function behind `emberd bench`. A decode step must read all weights once, but for an embedding
that is not the output matrix too; OF LIMIT is those bytes over the step's time and the device's read bandwidth.
"""

from __future__ import annotations

import argparse
import logging
import resource
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from common import Spread
from emberd.bench import Speed, Workload, measure
from emberd.engine import Engine
from emberd.errors import EmberdError
from emberd.gguf.spec import ModelFile, open_model
from emberd.protocol import GenerateRequest, Runner, SamplingParams, WorkerOptions
from emberd.worker.process import load_runner


@dataclass(frozen=True, slots=True)
class Row:
    """One workload. Rates are tok/s of all streams together; the share is of the read bandwidth."""

    what: str
    streams: int
    prompt_tokens: int
    new_tokens: int
    prefill_tok_s: Spread
    decode_tok_s: Spread | None  # none where the workload is prefill alone
    total_tok_s: Spread
    step_ms: Spread
    weight_gb_s: Spread  # as `emberd bench` has it: all weights
    limit_share: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """From nothing open to the first token of a short prompt, the file in the page cache."""

    seconds: float
    load_seconds: float  # until the runner was ready
    gb_s: float  # of the file, over `seconds`
    peak_rss_gb: float  # of the process; mapped file pages count too


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except EmberdError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    model = common.model_facts(options.model)  # reading the file also brings it into the page cache
    opened = open_model(options.model)
    vocab_size, step_bytes = opened.spec.vocab_size, _step_bytes(opened)
    opened.close()
    workloads = _workloads(options)
    worker_options = _worker_options(options, workloads)
    common.measure_tiles(worker_options)
    started = time.perf_counter()
    runner = load_runner(worker_options, lambda _: None)
    loaded = time.perf_counter()
    _first_token(runner)
    load = _load(model["model_bytes"], started, loaded, time.perf_counter())
    info = runner.info()
    limit, driver = _limits(runner, options.repeats)
    facts = common.conditions(
        device=info.device,
        driver=driver,
        repeats=options.repeats,
        commit=options.commit,
        **model,
        step_bytes=step_bytes,
        max_batch_tokens=options.max_batch_tokens,
        tuned_products=info.tuned_products,
    )
    common.print_conditions(facts)
    print(
        f"read bandwidth {f'{limit:,.4g} GB/s' if limit else 'not measured'}; first token after "
        f"{load.seconds:.2f} s, {load.gb_s:.2f} GB/s of the file; peak RSS {load.peak_rss_gb:.2f} GB\n",
        flush=True,
    )
    seed, rows = secrets.randbits(32), []
    for what, workload in workloads:
        speeds = list(measure(runner, vocab_size, workload, seed, options.repeats))
        for first in range(0, len(speeds), options.repeats):
            rows.append(_row(what, speeds[first : first + options.repeats], step_bytes, limit))
    runner.close()
    _print(rows)
    results = {"load": load, "read_gb_s": limit, "rows": rows}
    common.finish("engine", facts, results, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("Prefill and decode speed of a model, without HTTP", 5)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--device", default="auto", help="auto, gpu, cpu, or part of a name")
    parser.add_argument("--streams", type=common.numbers, default=(1, 8, 32), help="as 1,8,32")
    parser.add_argument("--prompt-tokens", type=common.positive, default=128)
    parser.add_argument("--new-tokens", type=common.positive, default=128)
    parser.add_argument("--prefill", type=common.positive, default=512, help="prompt of prefill")
    parser.add_argument("--context", type=common.numbers, default=(), help="long prompts, as 16384")
    parser.add_argument("--max-batch-tokens", type=common.positive, default=512)
    parser.add_argument("--kv-memory", type=int, help="bytes of KV cache")
    parser.add_argument("--kv-type", default="f16", choices=("f16", "q8_0"))
    return parser


def _workloads(options: argparse.Namespace) -> list[tuple[str, Workload]]:
    streams = Workload(options.streams, options.prompt_tokens, options.new_tokens)
    return [
        ("prefill", Workload((1,), options.prefill, 2)),
        ("streams", streams),
        *(("context", Workload((1,), length, options.new_tokens)) for length in options.context),
    ]


def _worker_options(
    options: argparse.Namespace, workloads: Sequence[tuple[str, Workload]]
) -> WorkerOptions:
    return WorkerOptions(
        model_path=str(options.model),
        device=options.device,
        context_length=max(work.prompt_tokens + work.new_tokens for _, work in workloads),
        rope_scaling=("linear", None),  # beyond the trained context too: only the speed counts
        kv_memory=options.kv_memory,
        kv_type=options.kv_type,
        max_sequences=max(options.streams),
        max_batch_tokens=options.max_batch_tokens,
        cache_dir=common.cache_dir(),
    )


def _first_token(runner: Runner) -> None:
    engine = Engine(runner)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    engine.add(GenerateRequest("first", tuple(range(8)), params))
    while engine.has_work:
        engine.step()


def _load(nbytes: int, started: float, loaded: float, answered: float) -> Load:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = answered - started
    return Load(seconds, loaded - started, nbytes / seconds / 1e9, peak / 1e9)


def _limits(runner: Any, repeats: int) -> tuple[float | None, str]:
    """The GPU's read bandwidth in GB/s and its driver; neither for the CPU runner."""
    if runner.info().device_kind == "cpu":
        return None, "numpy"
    from gpu_clock import GpuClock, read_bandwidth

    device = runner.kernels.device
    if "timestamp-query" not in device.features:
        return None, device.info.driver
    spread = read_bandwidth(device, GpuClock(device), repeats)
    return spread.median / 1e9, device.info.driver


def _step_bytes(model: ModelFile) -> int:
    """Bytes of the weights that one decode step reads."""
    tensors = model.tensors
    unread = 0
    if tensors.output.name != tensors.token_embedding.name:
        unread = tensors.token_embedding.nbytes
    return sum(info.nbytes for info in model.file.tensors.values()) - unread


def _row(what: str, speeds: Sequence[Speed], step_bytes: int, limit: float | None) -> Row:
    first = speeds[0]
    decodes = what != "prefill"
    step_ms = Spread.of(speed.step_ms for speed in speeds)
    reached = step_bytes / step_ms.median / 1e6 if step_ms.median else 0.0
    return Row(
        what=what,
        streams=first.streams,
        prompt_tokens=first.prompt_tokens,
        new_tokens=first.new_tokens,
        prefill_tok_s=Spread.of(speed.prefill_tok_s for speed in speeds),
        decode_tok_s=Spread.of(speed.decode_tok_s for speed in speeds) if decodes else None,
        total_tok_s=Spread.of(speed.total_tok_s for speed in speeds),
        step_ms=step_ms,
        weight_gb_s=Spread.of(speed.weight_gb_s for speed in speeds),
        limit_share=reached / limit if limit and decodes else None,
    )


def _print(rows: Sequence[Row]) -> None:
    headers = ("WHAT", "STREAMS", "PROMPT", "NEW", "PREFILL tok/s", "DECODE tok/s", "TOTAL tok/s")
    common.print_table(
        (*headers, "STEP ms", "WEIGHTS GB/s", "OF LIMIT"),
        [
            (
                row.what,
                row.streams,
                row.prompt_tokens,
                row.new_tokens,
                str(row.prefill_tok_s),
                str(row.decode_tok_s) if row.decode_tok_s else "-",
                str(row.total_tok_s),
                row.step_ms.median,
                row.weight_gb_s.median,
                f"{row.limit_share:.0%}" if row.limit_share else "-",
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
