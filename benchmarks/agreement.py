"""Greedy tokens of mixed requests: alone, all at once, and in other orders of arrival.

    python benchmarks/agreement.py MODEL.gguf --device gpu --requests 16

Other batches take other kernels (matvec or tiles, split attention or not), whose float sums differ in the last
bits; an int8 rounding or two then flips, and where two tokens are nearly as likely the texts may part. This says
how often they do, and how near the two tokens were there. It measures no time.
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
from emberd.worker.process import load_runner

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a request's tokens leave those of its lone run."""

    way: str
    request: int
    position: int  # tokens that agree
    margin: float  # logit of the lone run's token less that of the other


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
        device=runner.info().device, driver="", repeats=1, **common.model_facts(options.model)
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
    }
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
        part = np.array(token_ids[first : first + runner.max_batch_tokens], np.int32)
        end = first + len(part)
        positions = np.arange(first, end, dtype=np.int32)
        runner.submit(
            Batch(
                token_ids=part,
                positions=positions,
                slot_mapping=positions,
                query_start=np.array([0, len(part)], np.int32),
                context_lens=np.array([end], np.int32),
                block_tables=np.arange(-(-end // runner.block_size), dtype=np.int32)[None],
                sequence_index=np.zeros(1, np.int32),
                sample=np.zeros(1, np.bool_),
                logits_at=np.array([len(part) - 1], np.int32),
            )
        )
        logits = runner.collect().logits
    assert logits is not None
    return logits[0]


if __name__ == "__main__":
    sys.exit(main())
