"""Which rows of a step get guesses, and how many: as far as places and blocks are to spare."""

from __future__ import annotations

from .blocks import BlockManager
from .draft_model import DraftModel
from .sequence import Row
from .speculation import Speculation


def with_drafts(
    rows: list[Row], blocks: BlockManager, room: int, num_running: int, model: DraftModel | None
) -> list[Row]:
    """`rows` with guesses behind their tokens, `room` in all, shared evenly by those that can be guessed.

    Blocks are taken only where every running sequence can have one more after that: nobody is preempted for guesses.
    The draft model is asked for those that guess nothing from their own text, of all of them together.
    """
    left = sum(row.can_be_guessed for row in rows)
    found = []
    asked: list[tuple[int, int]] = []  # places of rows, and how many guesses they may have
    kept = num_running  # blocks that are spoken for
    for place, row in enumerate(rows):
        if row.can_be_guessed:
            most = _most(row, blocks, -(-room // left), kept)
            row = _with_drafted(
                row, _speculation(row).propose(row.sequence.token_ids, most), blocks
            )
            count = len(row.drafted)
            if not row.drafted and (count := _speculation(row).ask(most)):
                asked.append((place, count))
                num_tokens = len(row.sequence.token_ids) + count
                kept += blocks.num_missing(row.sequence.block_table, num_tokens)
            room, left = room - count, left - 1
        found.append(row)
    if model is not None and asked:
        guesses = model.guess([(found[place].sequence, count) for place, count in asked])
        for (place, _), drafted in zip(asked, guesses, strict=True):
            found[place] = _with_drafted(found[place], drafted, blocks)
    return found


def _most(row: Row, blocks: BlockManager, room: int, kept: int) -> int:
    sequence = row.sequence
    num_tokens = len(sequence.token_ids)
    spare = max(0, blocks.num_free - kept)
    capacity = (len(sequence.block_table) + spare) * blocks.block_size
    return min(room, sequence.max_length - num_tokens - 1, capacity - num_tokens)


def _with_drafted(row: Row, drafted: list[int], blocks: BlockManager) -> Row:
    """With those of the guesses that may come; where none may, no more are made for a while."""
    sequence = row.sequence
    if drafted and sequence.matcher is not None:
        drafted = drafted[: sequence.matcher.num_fitting(drafted)]
    if not drafted:
        _speculation(row).pause()
        return row
    blocks.grow(sequence.block_table, len(sequence.token_ids) + len(drafted))
    return row.with_drafted(drafted)


def _speculation(row: Row) -> Speculation:
    assert row.sequence.speculation is not None
    return row.sequence.speculation
