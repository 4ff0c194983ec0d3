"""What an engine tells of itself when it is asked. Reads only."""

from __future__ import annotations

from emberd.inspection import BatchStatus, BlockCounts, SequenceStatus

from .blocks import HOLE, BlockManager
from .scheduler import Scheduler
from .sequence import Sequence
from .steps import StepLog


def batch_status(
    scheduler: Scheduler, steps: StepLog, whole: bool = True, draft: BlockManager | None = None
) -> BatchStatus:
    """Running sequences, then those that wait, as they stand between two steps; `whole`: blocks, those of the draft
    model's pool too, and steps."""
    running = [_of(sequence, None) for sequence in scheduler.running]
    waiting = [_of(sequence, place) for place, sequence in enumerate(scheduler.waiting)]
    if not whole:
        return BatchStatus((*running, *waiting))
    return BatchStatus(
        (*running, *waiting),
        _counts(scheduler.blocks),
        scheduler.blocks.prefixes.shape(),
        steps.num_done,
        steps.times(),
        None if draft is None else _counts(draft),
    )


def _of(sequence: Sequence, position: int | None) -> SequenceStatus:
    decodes = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    return SequenceStatus(
        request_id=sequence.request_id,
        state="waiting" if position is not None else "decode" if decodes else "prefill",
        position=position,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_completion_tokens=len(sequence.token_ids) - sequence.num_prompt_tokens,
        num_blocks=sum(block != HOLE for block in sequence.block_table),
        num_preemptions=sequence.num_preemptions,
        priority=sequence.priority,
        num_drafted_tokens=sequence.num_drafted_tokens,
        num_accepted_tokens=sequence.num_accepted_tokens,
    )


def _counts(blocks: BlockManager) -> BlockCounts:
    idle = blocks.prefixes.num_idle
    return BlockCounts(
        total=blocks.num_blocks,
        free=blocks.num_free - idle,
        idle=idle,
        held=blocks.num_blocks - blocks.num_free,
        shared=blocks.num_shared,
    )
