"""What is not computed twice: shared beginnings, cached prompts, an agent's turns, a restart, preemption. Without HTTP.

    python benchmarks/reuse.py MODEL.gguf                                   sizes as in the issue that asked for them
    python benchmarks/reuse.py MODEL.gguf --device cpu --shared 512 --prompt 1024 --turns 20 --first-turn 1024

Prompts are random token ids, replies greedy to the full count. TTFT is from the request to its first token, alone on an
idle engine, the model loaded. Restarted engines read files that are in the system's page cache still, and then files
that it was asked to drop from it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import common
from common import Spread
from emberd.engine import Engine
from emberd.engine.tier_options import tiers_for
from emberd.errors import EmberdError
from emberd.gguf.digest import model_digest
from emberd.protocol import GenerateRequest, Runner, SamplingParams, WorkerOptions
from emberd.worker.process import load_runner

CHATS, UNIQUE, REPLY = 16, 64, 32
"""Chats that share a beginning, the tokens of each behind it, and those of its reply."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Blocks of chats that share a beginning and run at once."""

    chats: int
    shared_tokens: int
    tokens_each: int  # behind the shared ones, reply included
    blocks: int  # the most that were in use
    blocks_expected: int  # shared + chats x unique
    blocks_static: int  # one slot a chat, as long as what it needs
    mib: float
    mib_static: float


@dataclass(frozen=True, slots=True)
class Again:
    """TTFT of a prompt, and of the same prompt once more."""

    what: str
    prompt_tokens: int
    cold_ms: Spread
    again_ms: Spread
    ratio: float  # of the medians
    cached_tokens: int
    promoted_blocks: int


@dataclass(frozen=True, slots=True)
class Agent:
    turns: int
    prompt_tokens: int  # of all turns together
    cached_share: float  # of them
    cached_share_later: float  # of those behind the first turn, which nobody has sent before
    computed_again: int  # tokens behind the first turn that a turn before had computed or sampled
    next_session_share: (
        float  # cached, of all turns of a session with the same tools and another task
    )
    last_prompt: int
    first_ttft_ms: float
    last_ttft_ms: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens sent, those of them that the turn before had sent or got, and those that were found."""

    sent: int
    known: int
    cached: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """Sequences that together need twice the pool: tokens run, of those that have to be."""

    what: str
    needed_tokens: int
    run_tokens: int
    promoted_blocks: int
    seconds: float


class Site:
    """A loaded model with an engine; requests one at a time or together."""

    def __init__(self, options: WorkerOptions) -> None:
        self.runner: Runner = load_runner(options, lambda _: None)  # type: ignore[assignment]
        self.tiers = tiers_for(self.runner, options, model_digest)
        self.engine = Engine(self.runner, self.tiers)
        self.fewest_free = self.runner.num_blocks
        self.num_run = 0
        submit = self.runner.submit

        def counted(batch: Any) -> None:
            self.num_run += batch.num_tokens
            submit(batch)

        self.runner.submit = counted  # type: ignore[method-assign]
        self._names = 0

    def run(
        self, prompts: Sequence[Sequence[int]], reply: int
    ) -> list[tuple[float, int, list[int]]]:
        """Each one's TTFT in ms, cached tokens and reply; all are sent at once."""
        params = SamplingParams(temperature=0, max_tokens=reply, ignore_eos=True)
        names = [f"r{self._names + place}" for place in range(len(prompts))]
        self._names += len(prompts)
        first: dict[str, float] = {}
        cached: dict[str, int] = {}
        replies: dict[str, list[int]] = {name: [] for name in names}
        started = time.perf_counter()
        for name, prompt in zip(names, prompts, strict=True):
            self.engine.add(GenerateRequest(name, tuple(prompt), params))
        while self.engine.has_work:
            message = self.engine.step()
            self.fewest_free = min(self.fewest_free, message.num_free_blocks)
            for update in message.updates:
                if update.error:
                    raise EmberdError(update.error)
                first.setdefault(update.request_id, 1e3 * (time.perf_counter() - started))
                cached[update.request_id] = update.num_cached_tokens
                replies[update.request_id] += update.token_ids
        return [(first[name], cached[name], replies[name]) for name in names]

    @property
    def promoted(self) -> int:
        return self.tiers.counts.promoted if self.tiers is not None else 0

    def close(self) -> None:
        self.engine.close()
        self.runner.close()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except EmberdError as error:
        print(f"reuse: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    model = common.model_facts(options.model)
    rng = np.random.default_rng()
    vocab = options.vocabulary

    def prompt(length: int) -> list[int]:
        ids: list[int] = rng.integers(0, vocab, length).tolist()
        return ids

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:

        def site(context: int, **more: Any) -> Site:
            sizes: dict[str, Any] = {"max_sequences": CHATS, "context_length": context} | more
            return Site(
                WorkerOptions(str(options.model), options.device, cache_dir=folder, **sizes)
            )

        longest = max(
            options.shared + UNIQUE + REPLY,
            options.prompt + REPLY,
            options.first_turn + options.turns * (options.most_news + REPLY) + REPLY,
        )
        made = site(longest)
        info, block_bytes = made.runner.info(), made.runner.block_bytes
        facts = common.conditions(
            device=info.device,
            driver=common.driver(made.runner),
            repeats=options.repeats,
            commit=options.commit,
            **model,
            block_size=info.block_size,
            block_bytes=block_bytes,
        )
        common.print_conditions(facts)
        made.run([prompt(options.prompt)], 2)  # what a first prompt compiles or touches
        again = [_cached(made, prompt, options)]
        agent = _agent(made, prompt, rng, options)
        made.close()
        shared = _shared(site, prompt, options)
        for drop in (False, True):
            again.append(_restarted(site, prompt, options, Path(folder), drop))
        pressure = [_pressed(site, prompt, options, ram) for ram in (0, 1 << 34)]
    _print(shared, again, agent, pressure)
    results = {"shared": shared, "again": again, "agent": agent, "pressure": pressure}
    common.finish("reuse", facts, results, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("What is not computed twice", 3)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--device", default="auto", help="auto, gpu, cpu, or part of a name")
    parser.add_argument("--shared", type=common.positive, default=2048, help="system prompt")
    parser.add_argument("--prompt", type=common.positive, default=4096, help="cached prompt")
    parser.add_argument("--turns", type=common.positive, default=20, help="turns of the agent")
    parser.add_argument("--first-turn", type=common.positive, default=6000, help="its first prompt")
    parser.add_argument("--most-news", type=common.positive, default=200, help="tokens a turn adds")
    parser.add_argument("--vocabulary", type=common.positive, default=4096, help="ids below this")
    parser.add_argument("--folder", type=Path, help="where the files are made; default: temporary")
    return parser


def _cached(site: Site, prompt: Callable[[int], list[int]], options: argparse.Namespace) -> Again:
    """From the pool, in the same engine."""
    cold, warm, cached = [], [], 0
    for _ in range(options.repeats):
        asked = prompt(options.prompt)
        cold.append(site.run([asked], 2)[0][0])
        found = site.run([asked], 2)[0]
        warm.append(found[0])
        cached = found[1]
    return _again("cached", options, cold, warm, cached, 0)


def _restarted(
    site: Callable[..., Site],
    prompt: Callable[[int], list[int]],
    options: argparse.Namespace,
    folder: Path,
    drop: bool,
) -> Again:
    """From the disk, after the model was unloaded and loaded again; with `drop` as after the system's own restart."""
    cold, warm, cached, promoted = [], [], 0, 0
    for _ in range(options.repeats):
        asked, found = prompt(options.prompt), []
        for _ in range(2):
            made = site(options.prompt + REPLY, kv_disk=1 << 40)
            if drop:
                _drop_from_page_cache(folder)
            found.append(made.run([asked], 2)[0])
            promoted = made.promoted
            made.close()
        cold.append(found[0][0])
        warm.append(found[1][0])
        cached = found[1][1]
    what = "restarted, page cache empty" if drop else "restarted"
    return _again(what, options, cold, warm, cached, promoted)


def _again(
    what: str,
    options: argparse.Namespace,
    cold: list[float],
    warm: list[float],
    cached: int,
    promoted: int,
) -> Again:
    first, again = Spread.of(cold), Spread.of(warm)
    ratio = again.median / first.median
    return Again(what, options.prompt, first, again, ratio, cached, promoted)


def _drop_from_page_cache(folder: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*.kv"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _shared(
    site: Callable[..., Site], prompt: Callable[[int], list[int]], options: argparse.Namespace
) -> Shared:
    each = UNIQUE + REPLY
    made = site(options.shared + each)
    system = prompt(options.shared)
    made.run([system + prompt(UNIQUE) for _ in range(CHATS)], REPLY)
    size, blocks = made.runner.block_size, made.runner.num_blocks - made.fewest_free
    whole = -(-(options.shared + each) // size)
    shared = options.shared // size
    mib = made.runner.block_bytes / (1 << 20)
    made.close()
    return Shared(
        chats=CHATS,
        shared_tokens=options.shared,
        tokens_each=each,
        blocks=blocks,
        blocks_expected=shared + CHATS * (whole - shared),
        blocks_static=CHATS * whole,
        mib=blocks * mib,
        mib_static=CHATS * whole * mib,
    )


def _agent(
    site: Site,
    prompt: Callable[[int], list[int]],
    rng: np.random.Generator,
    options: argparse.Namespace,
) -> Agent:
    """Each turn sends all before it, the model's reply, and the result of a tool."""
    first = prompt(options.first_turn)
    turns = _session(site, prompt, rng, first, options)
    sent, found = sum(turn.sent for turn in turns), sum(turn.cached for turn in turns)
    task = options.first_turn // 12
    following = _session(
        site, prompt, rng, first[: options.first_turn - task] + prompt(task), options
    )
    return Agent(
        turns=options.turns,
        prompt_tokens=sent,
        cached_share=found / sent,
        cached_share_later=(found - turns[0].cached) / max(1, sent - turns[0].sent),
        computed_again=sum(turn.known - turn.cached for turn in turns[1:]),
        next_session_share=sum(t.cached for t in following) / sum(t.sent for t in following),
        last_prompt=turns[-1].sent,
        first_ttft_ms=turns[0].ttft_ms,
        last_ttft_ms=turns[-1].ttft_ms,
    )


def _session(
    site: Site,
    prompt: Callable[[int], list[int]],
    rng: np.random.Generator,
    asked: list[int],
    options: argparse.Namespace,
) -> list[Turn]:
    turns, known = [], 0
    for _ in range(options.turns):
        ttft, cached, reply = site.run([asked], REPLY)[0]
        turns.append(Turn(len(asked), known, cached, ttft))
        known = len(asked) + len(reply)
        asked = asked + reply + prompt(int(rng.integers(options.most_news // 4, options.most_news)))
    return turns


def _pressed(
    site: Callable[..., Site],
    prompt: Callable[[int], list[int]],
    options: argparse.Namespace,
    ram: int,
) -> Pressure:
    """Four sequences, each of which needs half the pool, three quarters of that for its reply."""
    length, reply = options.prompt // 32, 3 * options.prompt // 32
    probe = site(length + reply)
    memory = 2 * -(-(length + reply) // probe.runner.block_size) * probe.runner.block_bytes
    probe.close()
    made = site(length + reply, kv_memory=memory, kv_ram=ram)
    started = time.perf_counter()
    made.run([prompt(length) for _ in range(4)], reply)
    seconds, run, promoted = time.perf_counter() - started, made.num_run, made.promoted
    made.close()
    needed = 4 * (length + reply - 1)
    return Pressure("parked" if ram else "computed again", needed, run, promoted, seconds)


def _print(
    shared: Shared, again: Sequence[Again], agent: Agent, pressure: Sequence[Pressure]
) -> None:
    print(
        f"\n{shared.chats} chats share {shared.shared_tokens} tokens: {shared.blocks} blocks "
        f"({shared.mib:,.0f} MiB), shared + unique is {shared.blocks_expected}; a slot a chat would "
        f"take {shared.blocks_static} ({shared.mib_static:,.0f} MiB)"
    )
    rows = [
        (a.what, a.prompt_tokens, a.cached_tokens, str(a.cold_ms), str(a.again_ms), a.ratio)
        for a in again
    ]
    common.print_table(("TTFT", "PROMPT", "CACHED", "COLD MS", "AGAIN MS", "RATIO"), rows)
    print(
        f"{agent.turns} turns: {agent.prompt_tokens} prompt tokens, {agent.cached_share:.1%} cached, "
        f"{agent.cached_share_later:.1%} behind the first ({agent.computed_again} computed again), "
        f"{agent.next_session_share:.1%} of the next session; TTFT {agent.first_ttft_ms:,.0f} ms at first, "
        f"{agent.last_ttft_ms:,.0f} ms at {agent.last_prompt} tokens"
    )
    pressed = [
        (p.what, p.needed_tokens, p.run_tokens, p.promoted_blocks, p.seconds) for p in pressure
    ]
    common.print_table(("PREEMPTED", "NEEDED", "RUN", "PROMOTED", "SECONDS"), pressed)


if __name__ == "__main__":
    sys.exit(main())
