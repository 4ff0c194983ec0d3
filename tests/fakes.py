"""A runner without a model, which fails on any mistake in the batches it is given.

It keeps token ids, and a digest of all before them, where a model keeps keys and values, and reads them back
through the block tables: a slot that was lost, wrongly shared or written in the wrong order shows at once.
Import it as `from fakes import …`.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from emberd.protocol import (
    FROM_LAST_STEP,
    MAX_LOGPROBS,
    Admission,
    Batch,
    Bytes,
    GenerateRequest,
    Logprobs,
    MaskArray,
    SamplingParams,
    StepOutput,
    TokenTable,
    WorkerInfo,
)

VOCABULARY = 1000
END, TURN = 999, 998
TABLE = TokenTable(
    pieces=(
        *(bytes([byte]) for byte in range(256)),
        *(b"%c%c" % (97 + first, 97 + second) for first in range(26) for second in range(26)),
        *(b"" for _ in range(VOCABULARY - 256 - 26 * 26 - 2)),
        b"<turn>",
        b"<end>",
    ),
    control_ids=(TURN, END),
    end_ids=(TURN, END),
)
"""The runner's vocabulary for grammars: bytes, pairs of small letters, tokens that write nothing, two ends."""
NextToken = Callable[[Sequence[int], SamplingParams], int]


def hashed(history: Sequence[int], params: SamplingParams) -> int:
    """A next token that depends on every token before it and on the seed."""
    return zlib.crc32(np.array([*history, params.seed], np.int64).tobytes()) % VOCABULARY


def chain(table: dict[int, int], default: int = 0) -> NextToken:
    """A next token that depends on the last one alone."""
    return lambda history, params: table.get(history[-1], default)


def allowed_from(token_id: int, mask: MaskArray) -> int:
    """The first token from `token_id` on, round the vocabulary, that a mask allows."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCABULARY]
    return int((np.roll(bits, -token_id).argmax() + token_id) % VOCABULARY)


Written = tuple[
    int, int, int
]  # what a slot holds: position, token id, digest of the tokens up to it


def written(history: Sequence[int], position: int) -> Written:
    return position, history[position], hash(tuple(history[: position + 1]))


def told_logprobs(histories: Sequence[Sequence[int]]) -> Logprobs:
    """What the runner tells of each history's last token: numbers that depend on all of it."""
    seeds = [zlib.crc32(np.array(history, np.int64).tobytes()) for history in histories]
    ids = [(np.arange(MAX_LOGPROBS) + seed) % VOCABULARY for seed in seeds]
    top = [-np.arange(MAX_LOGPROBS) - seed % 1000 for seed in seeds]
    return Logprobs(
        -np.array(seeds, np.float32) % 1000,
        np.array(ids, np.int32).reshape(-1, MAX_LOGPROBS),
        np.array(top, np.float32).reshape(-1, MAX_LOGPROBS),
    )


def lone_run(
    request: GenerateRequest, next_token: NextToken = hashed, context_length: int = 1 << 30
) -> tuple[tuple[int, ...], str]:
    """Completion tokens and finish reason of a request that has everything to itself, without a grammar."""
    params = request.params
    stops = () if params.ignore_eos else params.stop_token_ids
    history = list(request.token_ids)
    longest = min(len(history) + params.max_tokens, context_length)
    while len(history) < longest:
        history.append(next_token(history, params))
        if history[-1] in stops:
            return tuple(history[len(request.token_ids) :]), "stop"
    return tuple(history[len(request.token_ids) :]), "length"


@dataclass
class Place:
    """What a runner remembers of the sequence in one place."""

    params: SamplingParams
    history: list[int]
    num_prompt_tokens: int
    most_tokens: int  # that its blocks were ever known to hold
    drafts: list[int] | None = None  # of its last row


@dataclass
class ScriptedCopy:
    data: Bytes | None

    def take(self) -> Bytes:
        data, self.data = self.data, None
        assert data is not None, "a copy is taken twice"
        return data


class ScriptedRunner:
    """protocol.Runner over `next_token(history, params)`; every check is an AssertionError."""

    def __init__(
        self,
        *,
        next_token: NextToken = hashed,
        num_blocks: int = 64,
        block_size: int = 4,
        max_sequences: int = 8,
        max_batch_tokens: int = 32,
        context_length: int = 256,
        steps_in_flight: int = 1,
        window: int = 0,
        goes_back: bool = False,
    ) -> None:
        """`goes_back`: as of a draft model, rows may start before the end of what is known, with other tokens, and have
        blocks that they are going to need."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_sequences = max_sequences
        self.max_batch_tokens = max_batch_tokens
        self.steps_in_flight = steps_in_flight
        self.window, self.goes_back = window, goes_back
        self.block_bytes = 24 * block_size
        self.kv_layout = "scripted"
        self.batches: list[Batch] = []
        self.closed = False
        self.num_right = 0  # drafted tokens that were
        self._context_length = context_length
        self._next_token = next_token
        self._slots: dict[int, Written] = {}
        self._places: dict[int, Place] = {}
        self._in_flight: deque[StepOutput] = deque()
        self._held: tuple[Batch, StepOutput] | None = None  # waits for its masks

    def prepare(self) -> bool:
        return False

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            device="scripted",
            device_kind="cpu",
            context_length=self._context_length,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_sequences=self.max_sequences,
            weight_bytes=0,
            kv_bytes=0,
            load_seconds=0.0,
            window=self.window,
        )

    def submit(self, batch: Batch) -> None:
        assert not self.closed and len(self._in_flight) < self.steps_in_flight
        assert self._held is None, "the last batch waits for its masks"
        self._check_shapes(batch)
        self.batches.append(batch)
        self._admit(batch.admissions)
        rows = range(batch.num_rows)
        for row in rows:  # as on a device, all rows write before any reads
            self._write(batch, row)
        self._check_contexts(batch)
        output = StepOutput(np.full(batch.num_rows, -1, np.int32))
        if batch.hidden_at is not None:
            output.hidden = np.array(
                [self._state(batch, place) for place in batch.hidden_at.tolist()], np.float32
            )
        if batch.scored_at is not None:
            output.scores = self._scores(batch)
        if batch.masked is None:
            self._sample_rows(batch, output, {})
        else:
            assert batch.masked.any() and not (batch.masked & ~batch.sample).any()
            self._held = batch, output

    def sample(self, masks: MaskArray) -> None:
        assert self._held is not None, "masks came without a batch that waits for them"
        (batch, output), self._held = self._held, None
        assert batch.masked is not None and masks.dtype == np.uint32
        _, rows = batch.sampled_places()
        of_rows: dict[int, list[MaskArray]] = {}
        for row, mask in zip(rows[batch.masked[rows]].tolist(), masks, strict=True):
            of_rows.setdefault(row, []).append(mask)
        self._sample_rows(batch, output, of_rows)

    def collect(self) -> StepOutput:
        assert self._in_flight, "collect without a step in flight"
        return self._in_flight.popleft()

    def read_blocks(self, blocks: Sequence[int]) -> ScriptedCopy:
        assert len(set(blocks)) == len(blocks) > 0
        data = np.full((len(blocks), self.block_size, 3), -1, np.int64)
        for place, block in enumerate(blocks):
            for offset in range(self.block_size):
                if (held := self._slots.get(block * self.block_size + offset)) is not None:
                    data[place, offset] = held
        return ScriptedCopy(data.reshape(len(blocks), -1).view(np.uint8))

    def write_blocks(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        assert len(set(blocks)) == len(blocks) == len(data)
        assert all(row.shape == (self.block_bytes,) for row in data)
        words = np.stack(data).view(np.int64)
        for block, held in zip(blocks, words.reshape(len(blocks), -1, 3).tolist(), strict=True):
            for offset, (position, token_id, digest) in enumerate(held):
                self._slots[block * self.block_size + offset] = position, token_id, digest

    def close(self) -> None:
        self.closed = True

    def _check_shapes(self, batch: Batch) -> None:
        num_rows, num_tokens = batch.num_rows, batch.num_tokens
        assert 0 < num_tokens <= self.max_batch_tokens
        assert 0 < num_rows <= self.max_sequences
        for name in ("token_ids", "positions", "slot_mapping"):
            assert getattr(batch, name).shape == (num_tokens,), name
            assert getattr(batch, name).dtype == np.int32, name
        for name in ("context_lens", "sequence_index"):
            assert getattr(batch, name).shape == (num_rows,), name
            assert getattr(batch, name).dtype == np.int32, name
        assert batch.query_start.shape == (num_rows + 1,) and batch.query_start.dtype == np.int32
        assert batch.query_start[0] == 0 and batch.query_start[-1] == num_tokens
        assert batch.block_tables.dtype == np.int32 and len(batch.block_tables) == num_rows
        assert batch.sample.shape == (num_rows,) and batch.sample.dtype == np.bool_
        counts = np.diff(batch.query_start)
        assert counts.min() > 0
        assert (counts[: batch.num_decode_rows] == 1).all(), "rows of one token come first"
        assert len(set(batch.sequence_index.tolist())) == num_rows, "a place is used by two rows"
        slots = batch.slot_mapping.tolist()
        assert len(set(slots)) == num_tokens, "a slot is written twice in one step"

    def _admit(self, admissions: Iterable[Admission]) -> None:
        for admission in admissions:
            assert 0 <= admission.index < self.max_sequences
            assert 0 < admission.num_prompt_tokens <= len(admission.token_ids)
            self._places[admission.index] = Place(
                admission.params,
                list(admission.token_ids),
                admission.num_prompt_tokens,
                len(admission.token_ids),
            )

    def _write(self, batch: Batch, row: int) -> None:
        place = self._places[int(batch.sequence_index[row])]
        start, end = batch.query_start[row : row + 2].tolist()
        context_length = int(batch.context_lens[row])
        positions = batch.positions[start:end].tolist()
        assert positions == list(range(context_length - (end - start), context_length))
        assert context_length <= self._context_length
        table = batch.block_tables[row].tolist()
        # A sequence owns the blocks of all it was admitted with, and of what it decoded or was drafted since.
        place.most_tokens = max(place.most_tokens, context_length)
        num_blocks = -(-place.most_tokens // self.block_size)
        first_block = self._first_seen(positions[0]) // self.block_size
        assert all(0 <= block < self.num_blocks for block in table[first_block:num_blocks])
        assert all(-1 <= block < self.num_blocks for block in table[:first_block])
        assert self.goes_back or set(table[num_blocks:]) <= {-1}, (
            "-1 stands beyond the row's own blocks"
        )
        token_ids = batch.token_ids[start:end].tolist()
        num_drafted = 0 if batch.drafted is None else int(batch.drafted[row])
        if num_drafted:
            assert batch.sample[row] and num_drafted < len(token_ids)
            assert not place.params.has_penalties and place.params.num_logprobs is None
        place.drafts = token_ids[len(token_ids) - num_drafted :] if num_drafted else None
        if self.goes_back and token_ids[0] != FROM_LAST_STEP and positions[0] > 0:
            place.history[positions[0] :] = token_ids
        history = place.history + (place.drafts or [])
        for token_id, position, slot in zip(
            token_ids,
            positions,
            batch.slot_mapping[start:end].tolist(),
            strict=True,
        ):
            assert slot == self._slot(table, position)
            if token_id == FROM_LAST_STEP:
                assert self.steps_in_flight > 1 and position == len(place.history) - 1
                assert place.drafts is None, "the last token of a row with drafts is not known here"
                token_id = place.history[-1]
            assert token_id == history[position]
            self._slots[slot] = written(history, position)

    def _check_contexts(self, batch: Batch) -> None:
        for row in range(batch.num_rows):
            place = self._places[int(batch.sequence_index[row])]
            table = batch.block_tables[row].tolist()
            context_length = int(batch.context_lens[row])
            count = int(batch.query_start[row + 1] - batch.query_start[row])
            positions = range(self._first_seen(context_length - count), context_length)
            seen = [self._slots[self._slot(table, position)] for position in positions]
            history = place.history + (place.drafts or [])
            expected = [written(history, position) for position in positions]
            assert seen == expected, "slots were overwritten"
            if batch.sample[row]:
                assert context_length == len(history), "sampled before the last known token"

    def _sample_rows(
        self, batch: Batch, output: StepOutput, masks: dict[int, list[MaskArray]]
    ) -> None:
        histories: list[Sequence[int]] = []
        behind: list[int] = []
        for row in range(batch.num_rows):
            place = self._places[int(batch.sequence_index[row])]
            if place.drafts is not None:
                output.token_ids[row], *others = self._verify(place, masks.get(row))
                behind += others
            elif batch.sample[row]:
                token_id = self._next_token(place.history, place.params)
                if row in masks:
                    token_id = allowed_from(token_id, *masks[row])
                place.history.append(token_id)
                assert len(place.history) <= place.num_prompt_tokens + place.params.max_tokens
                assert len(place.history) <= self._context_length, "sampled past the context"
                output.token_ids[row] = token_id
            histories.append(tuple(place.history))
        if behind:
            output.behind_drafts = np.array(behind, np.int32)
        output.logprobs = told_logprobs(histories)
        self._in_flight.append(output)

    def _verify(self, place: Place, masks: list[MaskArray] | None) -> list[int]:
        """What follows the known tokens, and each draft; the place goes on by what follows from right ones."""
        assert place.drafts is not None
        sampled = [
            self._next_token(place.history + place.drafts[:count], place.params)
            for count in range(len(place.drafts) + 1)
        ]
        if masks is not None:
            pairs = zip(sampled, masks, strict=True)
            sampled = [allowed_from(token_id, mask) for token_id, mask in pairs]
        for token_id, draft in zip(sampled, [*place.drafts, -1], strict=True):
            place.history.append(token_id)
            self.num_right += token_id == draft
            if token_id != draft:
                break
        assert len(place.history) <= place.num_prompt_tokens + place.params.max_tokens
        assert len(place.history) <= self._context_length, "drafted past the context"
        return sampled

    def _scores(self, batch: Batch) -> Logprobs:
        assert batch.scored_at is not None and batch.scored_ids is not None
        histories = []
        for place, token_id in zip(
            batch.scored_at.tolist(), batch.scored_ids.tolist(), strict=True
        ):
            row = int(np.searchsorted(batch.query_start, place, side="right")) - 1
            history = self._places[int(batch.sequence_index[row])].history
            length = int(batch.positions[place]) + 2
            assert history[length - 1] == token_id, "scored token is not the next one"
            histories.append(history[:length])
        return told_logprobs(histories)

    def _state(self, batch: Batch, place: int) -> tuple[int, int, int]:
        """Position, token id and the sum of all ids that the token sees: as a model's state, it tells of
        everything before it."""
        row = int(np.searchsorted(batch.query_start, place, side="right")) - 1
        table, last = batch.block_tables[row].tolist(), int(batch.positions[place])
        seen = [self._slots[self._slot(table, position)] for position in range(last + 1)]
        assert [position for position, _, _ in seen] == list(range(last + 1))
        return last, seen[-1][1], sum(token_id for _, token_id, _ in seen)

    def _first_seen(self, position: int) -> int:
        return max(0, position - self.window + 1) if self.window else 0

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size
