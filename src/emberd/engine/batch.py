"""Rows of a step -> the flat arrays that a runner takes. It decides nothing."""

from __future__ import annotations

import numpy as np

from emberd.protocol import FROM_LAST_STEP, Admission, Batch, IntArray

from .sequence import Row, Sequence


class BatchBuilder:
    """Builds batches; keeps the block tables of the running sequences as one array by place.

    A table mostly grows while its sequence keeps its place, so a step writes what is new in it alone.
    """

    def __init__(self, max_sequences: int, blocks_per_sequence: int, block_size: int) -> None:
        self._block_size = block_size
        self._tables = np.full((max_sequences, blocks_per_sequence), -1, np.int32)

    def build(self, rows: list[Row]) -> Batch:
        """`rows` as the scheduler has just returned them, one or more."""
        admissions = [_admission(row.sequence) for row in rows if row.admits]
        for admission in admissions:
            self._tables[admission.index] = -1
        for row in rows:
            self._write_table(row.sequence)

        sequence_index = _int_array([row.sequence.index for row in rows])
        starts = _int_array([row.start for row in rows])
        counts = _int_array([row.count for row in rows])
        if all(row.count == 1 for row in rows):  # as nearly always: cheaper than what follows
            query_start = np.arange(len(rows) + 1, dtype=np.int32)
            row_of_token, positions = query_start[:-1], starts
        else:
            query_start = np.zeros(len(rows) + 1, np.int32)
            np.cumsum(counts, out=query_start[1:])
            row_of_token = np.repeat(np.arange(len(rows), dtype=np.int32), counts)  # (T,)
            positions = np.arange(query_start[-1], dtype=np.int32)
            positions += (starts - query_start[:-1])[row_of_token]
        num_blocks = max(len(row.sequence.block_table) for row in rows)
        block_tables = self._tables[sequence_index, :num_blocks]  # (R, B)
        blocks = block_tables[row_of_token, positions // self._block_size]  # (T,)
        hidden_at = [
            first + place
            for first, row in zip(query_start.tolist(), rows, strict=False)
            for place in row.pooled_places
        ]
        masked = [row.masked for row in rows]
        drafted = [len(row.drafted) for row in rows]
        scored_at, scored_ids = _scored(rows, query_start.tolist())
        return Batch(
            token_ids=_int_array([token_id for row in rows for token_id in _token_ids(row)]),
            positions=positions,
            slot_mapping=blocks * self._block_size + positions % self._block_size,
            query_start=query_start,
            context_lens=starts + counts,
            block_tables=block_tables,
            sequence_index=sequence_index,
            sample=np.array([row.sample for row in rows], np.bool_),
            admissions=admissions,
            hidden_at=_int_array(hidden_at) if hidden_at else None,
            masked=np.array(masked, np.bool_) if any(masked) else None,
            scored_at=_int_array(scored_at) if scored_at else None,
            scored_ids=_int_array(scored_ids) if scored_at else None,
            drafted=_int_array(drafted) if any(drafted) else None,
        )

    def _write_table(self, sequence: Sequence) -> None:
        assert sequence.index is not None
        num_told, num_blocks = sequence.num_told_blocks, len(sequence.block_table)
        if num_told < num_blocks:
            self._tables[sequence.index, num_told:num_blocks] = sequence.block_table[num_told:]
            sequence.num_told_blocks = num_blocks


def _token_ids(row: Row) -> list[int]:
    known = row.sequence.token_ids[row.start : row.start + row.count]
    if row.drafted:
        return known + list(row.drafted)
    return known or [FROM_LAST_STEP]  # only a decode row can be ahead of what is known


def _scored(rows: list[Row], query_start: list[int]) -> tuple[list[int], list[int]]:
    """Token places behind which a prompt token is scored, and those tokens."""
    places, token_ids = [], []
    for first, row in zip(query_start, rows, strict=False):
        if row.scored:
            places += [first + position - 1 - row.start for position in row.scored]
            token_ids += row.scored_ids
    return places, token_ids


def _admission(sequence: Sequence) -> Admission:
    assert sequence.index is not None
    return Admission(
        sequence.index, sequence.params, tuple(sequence.token_ids), sequence.num_prompt_tokens
    )


def _int_array(values: list[int] | list[int | None]) -> IntArray:
    return np.array(values, np.int32)
