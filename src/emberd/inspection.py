"""What a worker tells of its batch when it is asked, and of prompts, beside protocol.py's stream of tokens.

A leaf module: it imports nothing of ours. The gateway sends `Inspect`, the worker answers with `Inspected` of the
same number, between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SequenceState = Literal["waiting", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Inspect:
    number: int
    whole: bool = (
        True  # else the sequences alone: counting blocks takes as long as there are blocks
    )


@dataclass(frozen=True, slots=True)
class SequenceStatus:
    """One sequence that waits or runs. Counts are tokens unless they say otherwise."""

    request_id: str
    state: SequenceState
    position: int | None  # how many are to be admitted before it; None: it runs
    num_prompt_tokens: int
    num_computed_tokens: int  # with keys and values in its blocks, cached ones among them
    num_cached_tokens: int  # of the prompt, found in the prefix cache when it first ran
    num_completion_tokens: int
    num_blocks: int
    num_preemptions: int
    priority: int = 1  # of protocol.PRIORITIES
    num_drafted_tokens: int = 0  # guesses so far
    num_accepted_tokens: int = 0  # those that were right


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Every block is free, idle or held; `shared` are those of the held that several sequences hold."""

    total: int = 0
    free: int = 0
    idle: int = 0  # hold a prefix that no sequence holds; they go when room is needed
    held: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class PrefixShape:
    """The prefix cache as a tree of full blocks, each behind the one before it."""

    blocks: int = 0
    beginnings: int = 0  # blocks with none before them
    ends: int = 0  # blocks with none behind them
    deepest: int = 0  # blocks of the longest path


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The last steps of one kind; times are seconds."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    longest: float = 0.0
    prompt_tokens: int = 0  # in all of them
    reply_rows: int = 0


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The whole of a worker's batch at one moment: running ones in order of admission, then waiting ones."""

    sequences: tuple[SequenceStatus, ...]
    blocks: BlockCounts = BlockCounts()
    prefixes: PrefixShape = PrefixShape()
    num_steps: int = 0  # since the model was loaded
    steps: dict[str, StepTimes] = field(default_factory=dict)  # replies, prompts, both
    draft_blocks: BlockCounts | None = None  # of the draft model's pool; None: there is none


@dataclass(frozen=True, slots=True)
class Inspected:
    number: int
    status: BatchStatus


@dataclass(frozen=True, slots=True)
class Preempt:
    """Put a running sequence back to those that wait. None: the one that would go first if room were needed."""

    number: int
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Preempted:
    """Which it was; None: it does not run."""

    number: int
    request_id: str | None


@dataclass(frozen=True, slots=True)
class PrefixFinding:
    """How a prompt went along with earlier ones when its sequence first ran. Counts are tokens.

    The nearest path is the earlier sequence that begins with most of the prompt's tokens, as far as it is known:
    by blocks that are kept, blocks that went lately, and its unfinished last one.
    """

    num_known: int  # where the prompt parts from the nearest path, or one of the two ends
    num_gone: int  # of these, in blocks that were kept once and no longer, or slower to fetch than to compute
    request_id: str | None = None  # whose that path is there; None: not known
    theirs: tuple[
        int, ...
    ] = ()  # a few of its tokens from there on; none: it ends there, or the prompt does
