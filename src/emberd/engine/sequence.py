"""One sequence: its token ids, how far they are computed, and why it ended.

It changes only itself: blocks, places and queues are the scheduler's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from emberd.inspection import PrefixFinding
from emberd.protocol import (
    NORMAL,
    EmbedRequest,
    FinishReason,
    FloatArray,
    GenerateRequest,
    SamplingParams,
)

from .grammar import Matcher
from .pooling import Pool
from .prefix import BlockKeys
from .priority import Standing
from .scores import PromptScores
from .speculation import Speculation

_NO_SAMPLING = SamplingParams(max_tokens=1)
_NONE = range(0)


class Sequence:
    """Prompt and generated token ids of one request; with a `pool`, a prompt to be embedded and no more.

    Several steps may be in flight, so there are two counts of what is there: `token_ids` are known,
    and `num_pending_tokens` more are being sampled by steps that are not collected yet.
    """

    __slots__ = (
        "_stop_token_ids",
        "block_table",
        "finding",
        "finish_reason",
        "index",
        "keys",
        "matcher",
        "max_length",
        "num_accepted_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_drafted_tokens",
        "num_pending_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_reused_tokens",
        "num_scored_tokens",
        "num_start_tokens",
        "num_told_blocks",
        "params",
        "pool",
        "priority",
        "request_id",
        "samples",
        "scores",
        "speculation",
        "standing",
        "token_ids",
        "verifies",
    )

    def __init__(self, request: GenerateRequest | EmbedRequest, context_length: int) -> None:
        self.request_id = request.request_id
        self.params, self.pool, self.scores = _NO_SAMPLING, None, None
        self.priority = NORMAL
        if isinstance(request, EmbedRequest):
            self.pool = Pool(request.pooling)
        else:
            self.params, self.priority = request.params, request.priority
            if request.prompt_logprobs is not None:
                self.scores = PromptScores(request.prompt_logprobs)
        self.token_ids = list(request.token_ids)
        self.num_prompt_tokens = len(request.token_ids)
        self.samples = self.pool is None and self.params.max_tokens > 0
        self.max_length = self.num_prompt_tokens + max(self.params.max_tokens, 1)
        if self.samples:
            self.max_length = min(self.max_length, context_length)
        self._stop_token_ids = (
            frozenset() if self.params.ignore_eos else frozenset(self.params.stop_token_ids)
        )
        self.block_table: list[int] = []
        self.index: int | None = None  # place in the runner's per-sequence state while running
        self.num_start_tokens = self.num_prompt_tokens  # known when it was given its place
        self.num_computed_tokens = 0  # tokens whose KV the submitted steps have written
        self.num_pending_tokens = 0
        self.num_preemptions = 0
        self.standing = Standing(self.priority, 0, 0.0)  # the scheduler knows a better one
        self.keys: BlockKeys | None = None  # None: takes no part in the prefix cache
        self.num_cached_tokens: int | None = None  # reused when it first ran
        self.finding: PrefixFinding | None = None  # of then
        self.num_reused_tokens = (
            0  # since it runs: found in the prefix cache, where its first row starts
        )
        self.num_published_blocks = 0  # of the table: full, and others may use them
        self.num_told_blocks = 0  # of the table, as the runner knows it
        self.num_scored_tokens = (
            1  # of the prompt, in submitted steps; nothing comes before the first
        )
        self.matcher: Matcher | None = None  # has taken the known tokens behind the prompt
        self.speculation: Speculation | None = None  # None: nothing is guessed
        self.num_drafted_tokens = self.num_accepted_tokens = 0  # guesses, and those that were right
        self.verifies = False  # a row with guesses is in flight
        self.finish_reason: FinishReason | None = None

    @property
    def reads(self) -> bool:
        """Whether its prompt is all that is run; nothing is sampled."""
        return not self.samples and (self.pool is not None or self.scores is not None)

    @property
    def num_tokens(self) -> int:
        """Tokens known and pending."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to run before the next one can be sampled; 0 when no more may be sampled, and while it waits for
        the tokens in flight: it has guessed, or is about to."""
        if self.num_tokens >= self.max_length or self.verifies:
            return 0
        if self.num_pending_tokens and self.speculation is not None:
            if self.speculation.wants(self.token_ids):
                return 0
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether known tokens are left to run."""
        return self.num_computed_tokens < len(self.token_ids)

    def start(self, index: int, num_reused_blocks: int, block_size: int) -> None:
        """Run in place `index`; so many blocks of its table hold its first tokens already."""
        self.index = index
        num_reused_tokens = num_reused_blocks * block_size
        self.num_computed_tokens = self.num_reused_tokens = num_reused_tokens
        self.num_published_blocks = num_reused_blocks
        self.num_start_tokens = len(self.token_ids)
        self.num_told_blocks = 0
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_reused_tokens

    def take(self, count: int) -> Row:
        """Put the next `count` uncomputed tokens in a step."""
        start = self.num_computed_tokens
        assert self.index is not None and 0 < count <= self.num_uncomputed_tokens
        sample = self.samples and start + count == self.num_tokens
        self.num_computed_tokens += count
        self.num_pending_tokens += sample
        scored = range(0)
        if (
            self.scores is not None
        ):  # a preempted sequence runs its prompt again, but is scored once
            end = min(self.num_computed_tokens + 1, self.num_prompt_tokens)
            scored = range(self.num_scored_tokens, end)
            self.num_scored_tokens = max(self.num_scored_tokens, end)
        return Row(self, start, count, sample, scored)

    def append_all(self, token_ids: list[int]) -> tuple[int, ...]:
        """Add tokens that were sampled, up to the one that is the last; those that were. Raises GrammarError."""
        for place, token_id in enumerate(token_ids, 1):
            self.append(token_id)
            if self.finish_reason is not None:
                return tuple(token_ids[:place])
        return tuple(token_ids)

    def append(self, token_id: int) -> None:
        """Add a token that was sampled; sets `finish_reason` when it is the last. Raises GrammarError."""
        self.token_ids.append(token_id)
        if self.matcher is not None:
            self.matcher.take(token_id)
            if self.matcher.is_over:
                self.finish_reason = "stop"
        if token_id in self._stop_token_ids:
            self.finish_reason = "stop"
        elif self.finish_reason is None and len(self.token_ids) >= self.max_length:
            self.finish_reason = "length"


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's part of one step: `count` tokens from position `start` on."""

    sequence: Sequence
    start: int
    count: int
    sample: bool  # whether a token is sampled from the last of them
    scored: range = _NONE  # prompt positions whose tokens are scored by the ones before them
    drafted: tuple[int, ...] = ()  # the last of its `count` tokens: guesses

    @property
    def masked(self) -> bool:
        """Whether the token is sampled behind a grammar's mask."""
        return self.sample and self.sequence.matcher is not None

    @property
    def can_be_guessed(self) -> bool:
        """Whether guesses may stand behind its token: the last known one, of a sequence that guesses."""
        return (
            self.sample
            and self.count == 1
            and self.sequence.speculation is not None
            and self.start + 1 == len(self.sequence.token_ids)
        )

    def with_drafted(self, drafted: list[int]) -> Row:
        """The same with guesses behind its token; the sequence waits for what comes of it."""
        self.sequence.verifies = True
        return replace(self, count=1 + len(drafted), drafted=tuple(drafted))

    def take_sampled(self, sampled: list[int]) -> list[int]:
        """Of what was sampled behind its token and each guess, that which follows from right ones."""
        right = 0
        while right < len(self.drafted) and self.drafted[right] == sampled[right]:
            right += 1
        if self.drafted:
            self.sequence.verifies = False
            if self.sequence.index is not None:  # else preempted meanwhile: nothing is computed
                self.sequence.num_computed_tokens += right
        return sampled[: right + 1]

    @property
    def scored_ids(self) -> list[int]:
        return self.sequence.token_ids[self.scored.start : self.scored.stop]

    @property
    def admits(self) -> bool:
        """Whether it is its sequence's first since that runs."""
        return self.start == self.sequence.num_reused_tokens

    @property
    def ends_prompt(self) -> bool:
        return self.start + self.count == self.sequence.num_prompt_tokens

    @property
    def pooled_places(self) -> range:
        """Tokens of this row whose states its sequence's pool wants, counted from the row's first."""
        pool, end = self.sequence.pool, self.start + self.count
        if pool is None:
            return range(0)
        wanted = pool.places(self.sequence.num_prompt_tokens)
        return range(max(wanted.start - self.start, 0), min(wanted.stop, end) - self.start)

    def take_states(self, states: FloatArray) -> None:
        """Take the states of `pooled_places`. Rows come in order; a preempted sequence starts again."""
        assert self.sequence.pool is not None
        wanted = self.sequence.pool.places(self.sequence.num_prompt_tokens)
        if self.start <= wanted.start:
            self.sequence.pool.clear()
        self.sequence.pool.add(states)
