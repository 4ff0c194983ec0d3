"""Speed of an engine over a runner, without HTTP: prefill and decode tok/s for a number of streams.

Shared by `emberd bench` and benchmarks/engine.py. Prompts are random token ids, sampling is greedy and runs
to the full count. It does not judge what the model says.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .engine import Engine
from .engine.draft_model import DraftModel
from .protocol import GenerateRequest, Runner, SamplingParams


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement. Rates are tok/s over all streams together."""

    streams: int
    prompt_tokens: int  # a stream
    new_tokens: int  # a stream
    prefill_tok_s: float
    decode_tok_s: float
    total_tok_s: float  # generated tokens over the whole run, prefill included
    step_ms: float  # mean of the decode steps
    weight_gb_s: float  # weights read once a decode step, over its time
    drafted: int = 0  # guesses while decoding, of all streams
    accepted: int = 0  # those that were right


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured at each number of streams."""

    streams: tuple[int, ...] = (1,)
    prompt_tokens: int = 128
    new_tokens: int = 64


def measure(
    runner: Runner,
    vocab_size: int,
    workload: Workload,
    seed: int,
    repeats: int = 1,
    draft: DraftModel | None = None,
) -> Iterator[Speed]:
    """`repeats` Speeds for each number of streams, after a run that meets the same batches, and when all is made that
    they need. `draft`: guesses for the runner's model."""
    rng = np.random.default_rng(seed)
    for streams in workload.streams:
        sizes = (1 + repeats, streams, workload.prompt_tokens)
        warm_up, *prompts = rng.integers(0, vocab_size, sizes).tolist()
        prefill_steps = -(-streams * workload.prompt_tokens // runner.max_batch_tokens)
        few = workload.new_tokens if draft is not None else 2 * prefill_steps + 4
        _run(runner, warm_up, min(workload.new_tokens, few), draft)
        while runner.prepare():
            pass
        for prompt in prompts:
            yield _run(runner, prompt, workload.new_tokens, draft)


def longest(runner: Runner, workload: Workload) -> int:
    """Tokens of all streams together at the end, for comparison with the runner's KV slots."""
    return max(workload.streams) * (workload.prompt_tokens + workload.new_tokens)


def _run(
    runner: Runner, prompts: Iterable[list[int]], new_tokens: int, draft: DraftModel | None
) -> Speed:
    """Prefill ends, and decode begins, with the step in which the last stream gets its first token."""
    engine = Engine(runner, draft=draft)
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    waiting = set()
    num_prompt_tokens = prompt_length = 0
    for index, prompt in enumerate(prompts):
        engine.add(GenerateRequest(str(index), tuple(prompt), params))
        waiting.add(str(index))
        prompt_length = len(prompt)
        num_prompt_tokens += prompt_length
    streams = len(waiting)
    start = prefilled = time.perf_counter()
    decoded = steps = drafted = accepted = 0
    while engine.has_work:
        message = engine.step()
        if waiting:
            waiting -= {update.request_id for update in message.updates}
            prefilled = time.perf_counter()
            continue
        decoded += sum(len(update.token_ids) for update in message.updates)
        drafted += sum(update.num_drafted for update in message.updates)
        accepted += sum(update.num_accepted for update in message.updates)
        steps += 1
    end = time.perf_counter()
    seconds = end - prefilled
    rate = steps / seconds if steps else 0.0
    return Speed(
        streams=streams,
        prompt_tokens=prompt_length,
        new_tokens=new_tokens,
        prefill_tok_s=round(num_prompt_tokens / (prefilled - start), 1),
        decode_tok_s=round(decoded / seconds, 1) if decoded else 0.0,
        total_tok_s=round(streams * new_tokens / (end - start), 1),
        step_ms=round(1000 / rate, 3) if rate else 0.0,
        weight_gb_s=round(rate * runner.info().weight_bytes / 1e9, 2),
        drafted=drafted,
        accepted=accepted,
    )
