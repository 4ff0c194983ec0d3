"""Which rows of a step get guesses, and how many: as far as places and blocks are to spare."""

from __future__ import annotations

from .blocks import BlockManager
from .sequence import Row


def with_drafts(rows: list[Row], blocks: BlockManager, room: int, num_running: int) -> list[Row]:
    """`rows` with guesses behind their tokens, `room` in all, shared evenly by those that can be guessed.

    Blocks are taken only where every running sequence can have one more after that: nobody is preempted for guesses.
    """
    left = sum(row.can_be_guessed for row in rows)
    found = []
    for row in rows:
        if row.can_be_guessed:
            share = -(-room // left)
            row = _with_drafts(row, blocks, share, num_running)
            room, left = room - len(row.drafted), left - 1
        found.append(row)
    return found


def _with_drafts(row: Row, blocks: BlockManager, room: int, num_running: int) -> Row:
    sequence = row.sequence
    assert sequence.speculation is not None
    num_tokens = len(sequence.token_ids)
    spare = max(0, blocks.num_free - num_running)
    capacity = (len(sequence.block_table) + spare) * blocks.block_size
    most = min(room, sequence.max_length - num_tokens - 1, capacity - num_tokens)
    drafted = sequence.speculation.propose(sequence.token_ids, most)
    if drafted and sequence.matcher is not None:
        drafted = drafted[: sequence.matcher.num_fitting(drafted)]
        if not drafted:
            sequence.speculation.pause()
    if not drafted:
        return row
    blocks.grow(sequence.block_table, num_tokens + len(drafted))
    return row.with_drafted(drafted)
