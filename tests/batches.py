"""Batches made by hand, for tests that drive a Runner without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emberd.protocol import Admission, Batch, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Row:
    """Consecutive tokens of the sequence at `index`, the first at position `start`."""

    index: int
    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]  # the sequence's block table
    sample: bool = True
    admit: SamplingParams | None = None  # with the row's own tokens as history
    drafted: int = 0  # tokens at its end that are guesses


def make_batch(
    rows: Sequence[Row], block_size: int, logits_at: Sequence[int] | None = None
) -> Batch:
    lengths = [len(row.token_ids) for row in rows]
    positions = [np.arange(row.start, row.start + len(row.token_ids)) for row in rows]
    slots = [
        np.asarray(row.blocks)[place // block_size] * block_size + place % block_size
        for row, place in zip(rows, positions, strict=True)
    ]
    tables = np.full((len(rows), max(len(row.blocks) for row in rows)), -1, dtype=np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.blocks)] = row.blocks
    return Batch(
        token_ids=np.concatenate([row.token_ids for row in rows]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int32),
        query_start=np.cumsum([0, *lengths]).astype(np.int32),
        context_lens=np.array([int(place[-1]) + 1 for place in positions], dtype=np.int32),
        block_tables=tables,
        sequence_index=np.array([row.index for row in rows], dtype=np.int32),
        sample=np.array([row.sample for row in rows]),
        admissions=[
            Admission(row.index, row.admit, tuple(map(int, row.token_ids)), len(row.token_ids))
            for row in rows
            if row.admit is not None
        ],
        logits_at=None if logits_at is None else np.array(logits_at, dtype=np.int32),
        drafted=np.array([row.drafted for row in rows], np.int32)
        if any(row.drafted for row in rows)
        else None,
    )
