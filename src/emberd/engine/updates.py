"""What an engine tells of a sequence's new tokens."""

from __future__ import annotations

from emberd.protocol import SequenceUpdate, StepOutput

from .pooling import Pool
from .sequence import Row

NOT_FINITE = (
    "the model's output is not finite (NaN or infinity): its weights are damaged, or they overflow "
    "with this prompt"
)


def pooled_update(request_id: str, pool: Pool) -> SequenceUpdate:
    """The vector of a text that was run; an error where it is none."""
    vector = pool.vector()
    if vector is None:
        return SequenceUpdate(request_id, (), "error", error=NOT_FINITE)
    return SequenceUpdate(request_id, (), "stop", embedding=vector)


def token_update(
    row: Row, token_ids: tuple[int, ...], num_right: int, place: int, output: StepOutput
) -> SequenceUpdate:
    """Of the tokens that a sequence took from its row at `place` of a step: with what was asked for beside them."""
    sequence = row.sequence
    update = SequenceUpdate(
        sequence.request_id,
        token_ids,
        sequence.finish_reason,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_drafted=len(row.drafted),
        num_accepted=min(num_right, len(token_ids)),
    )
    if (num_top := sequence.params.num_logprobs) is not None:
        assert output.logprobs is not None
        (token_id,) = token_ids  # nothing is guessed of such a sequence
        update = update._replace(logprobs=(output.logprobs.told(place, token_id, num_top),))
    if sequence.num_prompt_tokens + len(token_ids) == len(sequence.token_ids):
        update = update._replace(finding=sequence.finding)
    if sequence.scores is not None:
        update = update._replace(prompt_logprobs=sequence.scores.take())
    return update
