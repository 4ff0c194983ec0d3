"""BatchBuilder: rows to arrays, written out by hand once."""

from __future__ import annotations

from emberd.engine.batch import BatchBuilder
from emberd.engine.blocks import BlockManager
from emberd.engine.scheduler import Scheduler
from emberd.engine.sequence import Sequence
from emberd.protocol import FROM_LAST_STEP, GenerateRequest, SamplingParams


def test_arrays_of_a_mixed_step() -> None:
    scheduler = Scheduler(BlockManager(10, 4), max_sequences=4, max_batch_tokens=8)
    batches = BatchBuilder(max_sequences=4, blocks_per_sequence=8, block_size=4)
    params = SamplingParams(seed=12)
    scheduler.add(Sequence(GenerateRequest("a", (50, 51, 52, 53), params), 100))
    first = batches.build(scheduler.schedule())
    assert first.token_ids.tolist() == [50, 51, 52, 53]
    assert first.sample.tolist() == [True]
    assert [(a.index, a.params, a.token_ids, a.num_prompt_tokens) for a in first.admissions] == [
        (0, params, (50, 51, 52, 53), 4)
    ]

    scheduler.add(Sequence(GenerateRequest("b", tuple(range(60, 70)), params), 100))
    second = batches.build(scheduler.schedule())  # a's token is not known yet
    assert second.token_ids.tolist() == [FROM_LAST_STEP, 60, 61, 62, 63, 64, 65, 66]
    assert second.positions.tolist() == [4, 0, 1, 2, 3, 4, 5, 6]
    assert second.query_start.tolist() == [0, 1, 8]
    assert second.context_lens.tolist() == [5, 7]
    assert second.block_tables.tolist() == [[0, 1, -1], [2, 3, 4]]
    assert second.slot_mapping.tolist() == [4, 8, 9, 10, 11, 12, 13, 14]
    assert second.sequence_index.tolist() == [0, 1]
    assert second.sample.tolist() == [True, False]
    assert [admission.index for admission in second.admissions] == [1]
    assert second.num_decode_rows == 1
