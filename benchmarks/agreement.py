"""Greedy tokens of mixed requests: alone, all at once, and in other orders of arrival.

    python benchmarks/agreement.py MODEL.gguf --device gpu --requests 16

Other batches take other kernels (matvec or tiles, split attention or not), whose float sums differ in the last
bits; an int8 rounding or two then flips, and where two tokens are nearly as likely the texts may part. This says
how often they do, how near the two tokens were there, and, of one decode step on a GPU, which kernels make the state
of a token differ between a step of its own and one of all requests, and by how much. It measures no time.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import common
from emberd.engine import Engine
from emberd.errors import EmberdError
from emberd.gguf.spec import open_model
from emberd.protocol import Batch, GenerateRequest, Runner, SamplingParams, WorkerOptions
from emberd.runtime.kernel import run_once
from emberd.runtime.runner import GpuRunner
from emberd.runtime.scratch import first_rows
from emberd.worker.process import load_runner

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a request's tokens leave those of its lone run."""

    way: str
    request: int
    position: int  # tokens that agree
    margin: float  # logit of the lone run's token less that of the other


@dataclass(frozen=True, slots=True)
class Change:
    """A dispatch behind which the token's state is another in the two steps."""

    place: int  # of those that change the state; the embedding is 0
    alone: str
    together: str
    difference: float  # of the state's norm


def main() -> int:
    parser = common.parser("Whether tokens depend on the company a request keeps", 1)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--device", default="auto", help="auto, gpu, cpu, or part of a name")
    parser.add_argument("--requests", type=common.positive, default=16)
    parser.add_argument("--new-tokens", type=common.positive, default=48)
    parser.add_argument("--longest", type=common.positive, default=300, help="prompt tokens, most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        return _run(options)
    except EmberdError as error:
        print(error.message, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    vocab_size = open_model(options.model).spec.vocab_size
    context = options.longest + options.new_tokens
    runner = load_runner(
        WorkerOptions(
            str(options.model),
            options.device,
            context_length=context,
            max_sequences=options.requests,
            cache_dir=common.cache_dir(),
        ),
        lambda _: None,
    )
    facts = common.conditions(
        device=runner.info().device,
        driver=common.driver(runner),
        repeats=1,
        commit=options.commit,
        **common.model_facts(options.model),
    )
    common.print_conditions(facts)
    rng = np.random.default_rng(options.seed)
    lengths = rng.integers(4, options.longest, options.requests)
    prompts = [rng.integers(0, vocab_size, int(n)).tolist() for n in lengths]
    alone = [_generate(runner, prompts, [i], options.new_tokens)[i] for i in range(len(prompts))]
    orders = {"at once": list(range(len(prompts)))}
    for number in range(3):
        order = list(range(len(prompts)))
        random.Random(options.seed + number).shuffle(order)
        orders[f"one a step, order {number + 1}"] = order
    partings = []
    for way, order in orders.items():
        apart = 0 if way == "at once" else 1
        together = _generate(runner, prompts, order, options.new_tokens, apart)
        found = _partings(runner, way, prompts, alone, together)
        partings += found
        print(f"{way}: {len(prompts) - len(found)} of {len(prompts)} requests as alone")
        for parting in found:
            print(
                f"  request {parting.request}: {parting.position} tokens agree, then the two are "
                f"{parting.margin:.4f} apart"
            )
    results = {
        "requests": len(prompts),
        "ways": len(orders),
        "partings": list(map(asdict, partings)),
        "changes": [],
    }
    if isinstance(runner, GpuRunner):
        changes = _changes(runner, prompts[0], len(prompts))
        results["changes"] = list(map(asdict, changes))
        print(f"one decode step, alone and among {len(prompts)}: where the state differs")
        for change in changes[:3] + changes[-1:]:
            print(
                f"  behind change {change.place}, by {change.difference:.1e}: {change.alone}\n"
                f"    and {change.together}"
            )
    runner.close()
    common.finish("agreement", facts, results, options.out)
    return 0


def _generate(
    runner: Runner, prompts: Prompts, order: Sequence[int], new_tokens: int, apart: int = 0
) -> dict[int, list[int]]:
    """Tokens by request; with `apart`, a request arrives every so many steps."""
    engine = Engine(runner)
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    waiting = list(order)
    tokens: dict[int, list[int]] = {i: [] for i in order}
    step = 0
    while waiting or engine.has_work:
        while waiting and step >= apart * (len(order) - len(waiting)):
            index = waiting.pop(0)
            engine.add(GenerateRequest(str(index), tuple(prompts[index]), params))
        for update in engine.step().updates:
            tokens[int(update.request_id)] += update.token_ids
        step += 1
    return tokens


def _partings(
    runner: Runner,
    way: str,
    prompts: Prompts,
    alone: Sequence[list[int]],
    together: dict[int, list[int]],
) -> list[Parting]:
    found = []
    for index, tokens in sorted(together.items()):
        differing = [
            i for i, pair in enumerate(zip(alone[index], tokens, strict=True)) if len({*pair}) > 1
        ]
        if not differing:
            continue
        place = differing[0]
        logits = _last_logits(runner, [*prompts[index], *tokens[:place]])
        margin = float(logits[alone[index][place]] - logits[tokens[place]])
        found.append(Parting(way, index, place, margin))
    return found


def _last_logits(runner: Runner, token_ids: Sequence[int]) -> np.ndarray:
    """Logits behind `token_ids`, prefilled chunk by chunk in the first blocks."""
    logits = None
    for first in range(0, len(token_ids), runner.max_batch_tokens):
        part = token_ids[first : first + runner.max_batch_tokens]
        batch = _batch(runner, [part], first)
        batch.logits_at = np.array([len(part) - 1], np.int32)
        runner.submit(batch)
        logits = runner.collect().logits
    assert logits is not None
    return logits[0]


def _changes(runner: GpuRunner, prompt: Sequence[int], streams: int) -> list[Change]:
    """Where the state of the prompt's last token differs between its own step and one of `streams` such sequences.

    All of them have the same keys and values, since all prompts are read in the same chunks.
    """
    for row in range(streams):
        for first in range(0, len(prompt) - 1, runner.max_batch_tokens):
            end = min(first + runner.max_batch_tokens, len(prompt) - 1)
            runner.submit(_batch(runner, [prompt[first:end]], first, row))
            runner.collect()
    last = [prompt[-1:]]
    alone = _states(runner, _batch(runner, last, len(prompt) - 1))
    together = _states(runner, _batch(runner, last * streams, len(prompt) - 1))
    changes = []
    for place, ((one, state), (other, among)) in enumerate(zip(alone, together, strict=True)):
        difference = float(np.linalg.norm(among - state) / np.linalg.norm(state))
        if difference > 0:
            changes.append(Change(place, one, other, difference))
    return changes


def _states(runner: GpuRunner, batch: Batch) -> list[tuple[str, np.ndarray]]:
    """The first token's state behind each dispatch of the step that changes it, with the dispatch's kernel.

    The step's inputs are written by running it once. It ends as it began: keys and values are the same again.
    """
    runner.submit(batch)
    runner.collect()
    plan = runner._plans.for_step(batch, 0, runner._sampler.mode_for(batch))
    hidden = first_rows(runner._transformer.scratch.hidden, 1)
    device, found = runner.kernels.device, []
    for dispatch in plan.recording.dispatches:
        run_once(device, [dispatch])
        if any(tensor.buffer is hidden.buffer for tensor in dispatch.tensors):
            state = device.read(hidden)[0]
            if not found or not np.array_equal(state, found[-1][1]):
                found.append((dispatch.kernel.label, state))
    return found


def _batch(runner: Runner, rows: Sequence[Sequence[int]], first: int, first_row: int = 0) -> Batch:
    """Tokens of as many sequences from position `first` on, all as long; nothing is sampled."""
    count, length = len(rows), len(rows[0])
    end = first + length
    num_blocks = -(-end // runner.block_size)
    per_row = runner.num_blocks // runner.max_sequences
    assert num_blocks <= per_row
    starts = per_row * (first_row + np.arange(count))
    positions = np.tile(np.arange(first, end), count)
    return Batch(
        token_ids=np.concatenate([np.array(row) for row in rows]).astype(np.int32),
        positions=positions.astype(np.int32),
        slot_mapping=(positions + np.repeat(starts, length) * runner.block_size).astype(np.int32),
        query_start=np.arange(0, count * length + 1, length, dtype=np.int32),
        context_lens=np.full(count, end, np.int32),
        block_tables=(starts[:, None] + np.arange(num_blocks)).astype(np.int32),
        sequence_index=(first_row + np.arange(count)).astype(np.int32),
        sample=np.zeros(count, np.bool_),
    )


if __name__ == "__main__":
    sys.exit(main())
