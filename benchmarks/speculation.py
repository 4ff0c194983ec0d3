"""Speculation against plain decoding, in turns: where a reply repeats its prompt, and where it does not.

    python benchmarks/speculation.py MODEL.gguf --device cpu
    python benchmarks/speculation.py MODEL.gguf --device gpu --streams 1,4,8
    python benchmarks/speculation.py MODEL.gguf --draft SMALLER.gguf [--text]

Real prompts, through engine and runner without HTTP: `edit` asks for a file back with a name changed (greedy),
`prose` for stories (temperature 0.8, each with a seed of its own). `--made-up`, for random weights, gives random
prompts: `edit` is then a reply that is expected as it comes, but for one token in 20 (as with `prediction` in a
request), `prose` one of which nothing is known. Both ways give the same tokens but for rounding; how many replies are
equal is told. Guesses are looked up in the text, or come from a draft model, or (`--text`) from both.
A rate is of all streams' tokens behind their first, over the time from the last stream's first token to the end.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import common
from common import Spread
from emberd.engine import Engine
from emberd.engine.draft_model import DraftModel
from emberd.errors import EmberdError
from emberd.gguf.reader import GGUFFile
from emberd.protocol import GenerateRequest, Runner, SamplingParams, WorkerOptions
from emberd.text.template import ChatTemplate, render_to_ids
from emberd.text.tokenizer import Tokenizer
from emberd.worker.process import load_runners

Prompt = tuple[Sequence[int], SamplingParams]

ROOT = Path(__file__).parent.parent
SUBJECTS = (
    "a lighthouse keeper who finds a letter",
    "two sisters who open a bakery",
    "a storm in a mountain village",
    "a clockmaker's last apprentice",
    "a dog that waits at a station",
    "the first winter on a far island",
    "a painter who has lost his colours",
    "an old ship and its youngest sailor",
)


@dataclass(frozen=True, slots=True)
class _Guesses:
    """Where guesses come from: nowhere, the text, a draft model."""

    text: bool = False
    draft: DraftModel | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One way of generating one set of replies."""

    tok_s: float
    num_tokens: int
    num_drafted: int
    num_accepted: int
    replies: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A workload. Ratios are of pairs that ran one after the other."""

    what: str
    streams: int
    prompt_tokens: int  # of the longest
    plain_tok_s: Spread
    tok_s: Spread
    ratio: Spread
    tokens: int  # of all pairs, one way
    drafted: int
    accepted: int
    equal_replies: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except EmberdError as error:
        print(f"speculation: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("Decode speed with speculation and without", 3)
    parser.add_argument("model", type=Path, help="a GGUF file with a chat template")
    parser.add_argument("--device", default="auto", help="auto, gpu, cpu, or part of a name")
    parser.add_argument("--streams", type=common.numbers, default=(1,), help="as 1,4,8")
    parser.add_argument("--new-tokens", type=common.positive, default=200)
    parser.add_argument(
        "--file", type=Path, default=ROOT / "src/emberd/engine/pooling.py", help="what to edit"
    )
    parser.add_argument("--draft", type=Path, help="a GGUF file of the same tokens, which guesses")
    parser.add_argument("--text", action="store_true", help="with --draft: look up in the text too")
    parser.add_argument("--made-up", action="store_true", help="for random weights")
    parser.add_argument("--kv-memory", type=int, help="bytes of KV cache")
    return parser


def _run(options: argparse.Namespace) -> int:
    facts = common.model_facts(options.model)
    with GGUFFile(options.model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        template = ChatTemplate(str(file.metadata["tokenizer.chat_template"]), tokenizer)
    streams = max(options.streams)
    worker_options = WorkerOptions(
        model_path=str(options.model),
        device=options.device,
        context_length=4096,
        kv_memory=options.kv_memory,
        max_sequences=max(32, streams),
        cache_dir=common.cache_dir(),
        draft_path=None if options.draft is None else str(options.draft),
    )
    common.measure_tiles(worker_options)
    runner, draft = load_runners(worker_options, lambda _: None)
    guesses = _Guesses(options.text or draft is None, None if draft is None else draft.model())
    info = runner.info()
    facts = common.conditions(
        device=info.device,
        driver=common.driver(runner),
        repeats=options.repeats,
        commit=options.commit,
        **facts,
        new_tokens=options.new_tokens,
        file="made up" if options.made_up else options.file.name,
        guesses=" and ".join(["text"] * guesses.text + ["draft"] * (draft is not None)),
        draft=None if draft is None else draft.name,
    )
    common.print_conditions(facts)
    rows = []
    for count in options.streams:
        made = (
            _made_up(options, runner, tokenizer.vocab_size, count)
            if options.made_up
            else _workloads(options, template, tokenizer, count)
        )
        for what, prompts in made:
            rows.append(_measure(runner, guesses, what, prompts, options.repeats))
            _print(rows[-1:])
    if draft is not None:
        draft.runner.close()
    runner.close()
    print()
    _print(rows)
    common.finish("speculation", facts, {"rows": rows}, options.out)
    return 0


def _workloads(
    options: argparse.Namespace, template: ChatTemplate, tokenizer: Tokenizer, streams: int
) -> Iterator[tuple[str, list[Prompt]]]:
    code = options.file.read_text(encoding="utf-8")
    edits = [
        f"Rename self._count to self._total{index} in this file. Answer with the whole file and nothing else."
        f"\n\n```python\n{code}```"
        for index in range(streams)
    ]
    stories = [
        f"Write a story about {SUBJECTS[index % len(SUBJECTS)]}." for index in range(streams)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=options.new_tokens, ignore_eos=True)
    warm = replace(params, temperature=0.8)
    for what, texts, how in (("edit", edits, params), ("prose", stories, warm)):
        chats = [[{"role": "user", "content": text}] for text in texts]
        yield what, [(render_to_ids(template, tokenizer, chat), how) for chat in chats]


def _made_up(
    options: argparse.Namespace, runner: Runner, vocab_size: int, streams: int
) -> Iterator[tuple[str, list[Prompt]]]:
    """What becomes of a random prompt is known once it was run."""
    params = SamplingParams(temperature=0.0, max_tokens=options.new_tokens, ignore_eos=True)
    prompts = [[secrets.randbelow(vocab_size) for _ in range(512)] for _ in range(streams)]
    replies = _generate(runner, [(ids, params) for ids in prompts], _Guesses()).replies
    changed = [
        tuple((token + (place % 20 == 19)) % vocab_size for place, token in enumerate(reply))
        for reply in replies
    ]
    yield (
        "edit",
        [
            (ids, replace(params, expected=reply))
            for ids, reply in zip(prompts, changed, strict=True)
        ],
    )
    yield "prose", [(ids, replace(params, temperature=0.8)) for ids in prompts]


def _measure(
    runner: Runner,
    guesses: _Guesses,
    what: str,
    prompts: Sequence[Prompt],
    repeats: int,
) -> Row:
    """Pairs of a plain run and one with guesses, of the same seeds; a short run of each before them."""
    short = [(ids, replace(params, max_tokens=24)) for ids, params in prompts]
    for way in (_Guesses(), guesses):
        _generate(runner, short, way)
    pairs = []
    for number in range(repeats):
        seed = secrets.randbits(31)
        seeded = [
            (ids, replace(params, seed=seed + index)) for index, (ids, params) in enumerate(prompts)
        ]
        order = (False, True) if number % 2 else (True, False)
        found = {way: _generate(runner, seeded, guesses if way else _Guesses()) for way in order}
        pairs.append((found[False], found[True]))
    equal = [
        one == other
        for plain, guessed in pairs
        for one, other in zip(plain.replies, guessed.replies, strict=True)
    ]
    return Row(
        what=what,
        streams=len(prompts),
        prompt_tokens=max(len(ids) for ids, _ in prompts),
        plain_tok_s=Spread.of(plain.tok_s for plain, _ in pairs),
        tok_s=Spread.of(guessed.tok_s for _, guessed in pairs),
        ratio=Spread.of(guessed.tok_s / plain.tok_s for plain, guessed in pairs),
        tokens=sum(guessed.num_tokens for _, guessed in pairs),
        drafted=sum(guessed.num_drafted for _, guessed in pairs),
        accepted=sum(guessed.num_accepted for _, guessed in pairs),
        equal_replies=f"{sum(equal)} of {len(equal)}",
    )


def _generate(runner: Runner, prompts: Sequence[Prompt], guesses: _Guesses) -> Run:
    engine = Engine(runner, speculate=guesses.text, draft=guesses.draft)
    for index, (ids, params) in enumerate(prompts):
        engine.add(GenerateRequest(str(index), tuple(ids), params))
    replies: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    started = time.perf_counter()
    decoded = drafted = accepted = 0
    while engine.has_work:
        began = all(replies.values())
        for update in engine.step().updates:
            replies[update.request_id] += update.token_ids
            drafted += update.num_drafted
            accepted += update.num_accepted
            decoded += len(update.token_ids) if began else 0
        if not began:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    return Run(
        tok_s=decoded / seconds,
        num_tokens=sum(map(len, replies.values())),
        num_drafted=drafted,
        num_accepted=accepted,
        replies=tuple(tuple(reply) for reply in replies.values()),
    )


def _print(rows: Sequence[Row]) -> None:
    headers = ("WHAT", "STREAMS", "PROMPT", "PLAIN tok/s", "GUESSED tok/s", "RATIO")
    common.print_table(
        (*headers, "TOKENS", "DRAFTED", "RIGHT", "EQUAL"),
        [
            (
                row.what,
                row.streams,
                row.prompt_tokens,
                str(row.plain_tok_s),
                str(row.tok_s),
                str(row.ratio),
                row.tokens,
                row.drafted,
                row.accepted,
                row.equal_replies,
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
