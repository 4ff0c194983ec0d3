"""What a worker tells of its batch when it is asked, beside protocol.py's stream of tokens.

A leaf module: it imports nothing of ours. The gateway sends `Inspect`, the worker answers with `Inspected` of the
same number, between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SequenceState = Literal["waiting", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Inspect:
    number: int


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


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Every block is free, idle or held; `shared` are those of the held that several sequences hold."""

    total: int = 0
    free: int = 0
    idle: int = 0  # hold a prefix that no sequence holds; they go when room is needed
    held: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The whole of a worker's batch at one moment: running ones in order of admission, then waiting ones."""

    sequences: tuple[SequenceStatus, ...]
    blocks: BlockCounts = BlockCounts()


@dataclass(frozen=True, slots=True)
class Inspected:
    number: int
    status: BatchStatus
