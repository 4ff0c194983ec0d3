"""The one language between gateway, worker, engine and runner: token ids in, token ids out.

A leaf module: of ours it imports hardware.py and inspection.py alone. Gateway and worker exchange
`WorkerOptions`, `TokenTable`, `GenerateRequest`, `EmbedRequest`, `Cancel`, `Ready`, `StepMessage`; engine and
runner `Batch`, `StepOutput`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .hardware import Tier
from .inspection import PrefixFinding

FinishReason = Literal["stop", "length", "cancelled", "refused", "error"]
Speculate = Literal["auto", "ngram", "off"]  # auto: ngram on the CPU device
Pooling = Literal["mean", "cls", "last"]  # of all tokens, the first, the last
IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]
MaskArray = NDArray[np.uint32]
"""(rows, words): token t is allowed where bit t % 32 of word t // 32 is set; what lies beyond is not."""

FROM_LAST_STEP = -1
"""In `Batch.token_ids`: the token that the runner sampled last for this row's sequence."""

PRIORITIES = ("interactive", "normal", "batch")
"""Classes of requests; a class is its place here. Who comes first is admitted first and preempted last."""
NORMAL = 1

MAX_LOGPROBS = 20
"""Likeliest tokens that can be told of one place."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence's next tokens are chosen.

    Order: penalties, bias, mask, temperature, top-k, top-p, min-p, draw. Greedy
    (`temperature == 0`) is the argmax behind the mask; nothing after it applies.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off; 0 keeps one token
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off; divides positive, multiplies negative logits
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = -1  # last tokens that penalties look at, prompt included; -1: all
    seed: int = 0  # always set; the engine's caller draws one when the user gave none
    max_tokens: int = 1 << 30  # completion tokens
    stop_token_ids: tuple[int, ...] = ()  # end of text, of turn; the token itself is returned
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, added to its logit before the draw
    num_logprobs: int | None = None  # likeliest ones told beside each token; None: off
    grammar: str | None = None  # of llguidance (Lark); what it does not allow is never sampled
    max_drafted: int | None = None  # guesses a step, which change no token; None: as many as pay
    expected: tuple[
        int, ...
    ] = ()  # what the caller thinks that the reply holds: guesses come from it too

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that were there before change the logits."""
        return self.penalty_window != 0 and (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one place: of the model's own logits, before penalties, bias, mask, temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The vocabulary as a grammar sees it. The worker gets it before the first request with a grammar."""

    pieces: tuple[bytes, ...]  # the bytes each token writes; of a control token, its name
    control_ids: tuple[int, ...]  # tokens that write no text
    end_ids: tuple[int, ...]  # tokens that may end a reply: allowed where the grammar is complete


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker needs to load one model."""

    model_path: str
    device: str = "auto"  # auto | gpu | cpu | part of an adapter's name
    context_length: int | None = None  # tokens a sequence may hold; None: what fits
    rope_scaling: tuple[Literal["linear", "yarn"], float | None] | None = (
        None  # for contexts above the trained one, and by how much; factor None: as the context needs
    )
    kv_memory: int | None = None  # bytes for the KV cache; None: a share of what is free
    kv_type: Literal["f16", "q8_0", "auto"] = "f16"  # of the KV cache; auto: f16 where it fits
    kv_limit: int | None = None  # bytes that other models leave for it, however it is sized
    max_sequences: int = 32
    max_batch_tokens: int = 512  # tokens a step; the chunk size of prefill follows from it
    prompt_share: float | None = (
        None  # of the time, that prompts get while replies run; 1: what they take; None: by device
    )
    cache_dir: str | None = None  # where measured tiles and checked kernels are kept; None: nowhere
    kv_ram: int = 0  # bytes of main memory for KV blocks that left the pool
    kv_disk: int = 0  # bytes of files in cache_dir for KV blocks, those of all models
    speculate: Speculate = "auto"
    draft_path: str | None = None  # a smaller model of the same tokens, which guesses
    beside: int = 0  # filled in by the worker: bytes of the device that its draft, without KV, and kv_ram take
    kv_share: float = 1.0  # filled in by the worker: of KV memory; the rest is the draft's
    verify: bool | None = None  # check the kernels before they serve; None: on real GPUs
    verification: str = ""  # filled in by the worker: what that found, for its WorkerInfo


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate."""

    request_id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    prompt_logprobs: int | None = None  # likeliest ones told at each place; None: off
    cache_salt: str | None = ""  # shares prefixes with that salt alone; None: with nobody
    priority: int = NORMAL  # of PRIORITIES


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """One text to embed. Answered by one update with `embedding`."""

    request_id: str
    token_ids: tuple[int, ...]
    pooling: Pooling


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a loaded worker serves."""

    device: str  # human-readable name
    device_kind: Literal["gpu", "cpu"]
    context_length: int  # tokens a sequence may hold, prompt and completion
    num_blocks: int  # 0: an encoder, which keeps no keys and values
    block_size: int
    max_sequences: int
    weight_bytes: int
    kv_bytes: int
    load_seconds: float
    tuned_products: int = 0  # matrix products whose tile was measured on the device
    scratch_bytes: int = 0  # of the device's memory, all beside weights and KV cache
    verification: str = ""  # what checking the kernels found, in words; empty: nothing was checked
    device_memory: int | None = None  # bytes that the device has; None: it does not tell
    tier: Tier = "unknown"
    kv_type: str = "f16"
    window: int = 0  # tokens that attention sees in every layer; 0: a layer sees all
    draft: str = ""  # file name of the draft, which all bytes include; empty: there is none
    draft_bytes: int = 0  # of them, the draft's
    max_batch_tokens: int = 0  # tokens of the largest step


class SequenceUpdate(NamedTuple):
    """New tokens of a sequence from a step. `error`: why it was refused or failed. A tuple: it is pickled often."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0  # of the prompt, taken from the prefix cache; with every token
    error: str | None = None
    embedding: bytes | None = None  # pooled state, little-endian float32; with the last update
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token, where asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # behind the prompt's first token; once
    num_drafted: int = 0  # guesses of the step
    num_accepted: int = 0  # those that were right
    finding: PrefixFinding | None = (
        None  # with the first token; None: takes no part in the prefix cache
    )


@dataclass(frozen=True, slots=True)
class TierCounts:
    """KV blocks kept below the pool, now; and those that were moved since the model was loaded."""

    ram_blocks: int = 0
    ram_bytes: int = 0
    disk_blocks: int = 0
    disk_bytes: int = 0
    promoted: int = 0  # blocks that came back and were not computed again
    spilled: int = 0  # blocks that left the pool and were kept
    lost: int = 0  # blocks that left the pool and were not


@dataclass(frozen=True, slots=True)
class StepMessage:
    """Everything one engine step tells the gateway, in one message."""

    updates: tuple[SequenceUpdate, ...]
    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    tiers: TierCounts | None = None  # None: there are none


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that takes place `index` in the runner's per-sequence state, before the step runs.

    Resets whatever the place held. `token_ids` is the sequence's history so far (prompt, and output when it
    was preempted); penalties count it.
    """

    index: int
    params: SamplingParams
    token_ids: tuple[int, ...]
    num_prompt_tokens: int


@dataclass(slots=True)
class Batch:
    """One step: T tokens of R rows. A row is one sequence; its tokens are consecutive.

    Rows with one token (decode) come first, rows with more (prefill chunks) after them.
    """

    token_ids: IntArray  # (T,) FROM_LAST_STEP: taken from the runner's last sample of the sequence
    positions: IntArray  # (T,)
    slot_mapping: IntArray  # (T,) block id × block size + offset
    query_start: IntArray  # (R + 1,) first token of each row, T last
    context_lens: IntArray  # (R,) tokens visible to the row's last token, itself included
    block_tables: IntArray  # (R, B) block ids in order, -1 beyond its own, behind the window
    sequence_index: IntArray  # (R,) place in the runner's per-sequence state
    sample: NDArray[np.bool_]  # (R,) whether a token is sampled from the row's last token
    admissions: list[Admission] = field(default_factory=list)
    logits_at: IntArray | None = None  # token places whose logits are wanted back (tests, scoring)
    hidden_at: IntArray | None = None  # token places whose states are wanted back (embeddings)
    masked: NDArray[np.bool_] | None = (
        None  # (R,) sampling rows whose masks come by `Runner.sample`
    )
    scored_at: IntArray | None = None  # token places behind which a known token is scored
    scored_ids: IntArray | None = None  # those tokens
    drafted: IntArray | None = (
        None  # (R,) tokens at the end of each row that are guesses; only of rows that sample
    )

    num_decode_rows: int = field(init=False)  # rows of one token

    def __post_init__(self) -> None:
        lengths = self.query_start[1:] - self.query_start[:-1]
        self.num_decode_rows = int(np.count_nonzero(lengths == 1))

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    def sampled_places(self) -> tuple[IntArray, IntArray]:
        """Token places behind which a token is sampled, in order, and the row of each: of a sampling row its last
        known token and every drafted one."""
        rows = np.flatnonzero(self.sample).astype(np.int32)
        last = self.query_start[1:] - 1
        if self.drafted is None:
            return last[rows], rows
        counts = self.drafted[rows] + 1
        ends = np.cumsum(counts)
        rows = np.repeat(rows, counts)
        back = np.repeat(ends, counts) - 1 - np.arange(len(rows))  # to the row's last token
        return (last[rows] - back).astype(np.int32), rows


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities at N places, of the model's own logits: of one token each, and of the likeliest ones."""

    chosen: FloatArray  # (N,)
    top_ids: IntArray  # (N, K) likeliest first, the lowest id among equals; K: MAX_LOGPROBS, or all tokens
    top: FloatArray  # (N, K)

    def told(self, place: int, token_id: int, num_top: int) -> TokenLogprobs:
        """What a place has to tell, as plain numbers."""
        ids, top = self.top_ids[place, :num_top], self.top[place, :num_top]
        return TokenLogprobs(
            token_id, float(self.chosen[place]), tuple(zip(ids.tolist(), top.tolist(), strict=True))
        )


@dataclass(slots=True)
class StepOutput:
    """What a step gave. `token_ids` (R,) is -1 where no token was sampled: none was asked for, or the logits are not
    finite, of which `behind_drafts` tells alike."""

    token_ids: IntArray  # of a row with drafts: what follows its known token
    behind_drafts: IntArray | None = None  # (sum of drafted,) what follows each drafted token
    logits: FloatArray | None = None  # (len(logits_at), vocab)
    hidden: FloatArray | None = None  # (len(hidden_at), hidden) behind the output norm
    logprobs: Logprobs | None = None  # R places, of use where the row's sequence asks for logprobs
    scores: Logprobs | None = None  # of scored_at

    def put_sampled(self, rows: IntArray, token_ids: IntArray) -> None:
        """What was sampled at `Batch.sampled_places`, whose rows are given."""
        first = np.ones(len(rows), np.bool_)
        first[1:] = rows[1:] != rows[:-1]
        self.token_ids[rows[first]] = token_ids[first]
        if not first.all():
            self.behind_drafts = token_ids[~first]


class BlockCopy(Protocol):
    """KV blocks on their way to the host."""

    def take(self) -> Bytes:
        """The bytes (blocks, block_bytes), once; waits for them where the device has not come so far."""


class Runner(Protocol):
    """Runs batches on a device. Steps are answered in the order they were submitted.

    The seed of a sequence and the position of the sampled token alone decide its random draw, so a row's
    token does not depend on its neighbours or on the step it falls in.

    A row may end in drafted tokens: guesses of what will be sampled. A token is sampled behind each as if it
    were right, so the guesses that turn out to be cost no steps of their own. What the wrong ones wrote to the
    KV cache is written over by later rows, which start behind the last right one. Such a row is of a sequence
    without penalties and logprobs; its sequence's next row may not use FROM_LAST_STEP, as the runner does
    not know what was right. At most `max_sequences` tokens are sampled a step.

    A draft model's sequences go back: a row may start before where the last one ended, with other tokens.
    """

    block_size: int
    num_blocks: int
    max_sequences: int
    max_batch_tokens: int
    steps_in_flight: int  # how many steps may be submitted before one is collected: 1 to 3
    block_bytes: int  # keys and values of a block, of all layers
    kv_layout: str  # with the model file and the tokens, all that a block's bytes depend on

    def info(self) -> WorkerInfo: ...

    def prepare(self) -> bool:
        """Make one thing that later steps are likely to need; False: nothing is left. Called while idle."""

    def submit(self, batch: Batch) -> None:
        """Start a step; returns before it is done where the device allows."""

    def sample(self, masks: MaskArray) -> None:
        """Give the masks of the batch just submitted, one a sampled place of the rows of `batch.masked`, and so
        let it sample.

        Must follow the submit of a batch with masked rows, before the next submit and before that step is
        collected. Collecting older steps in between is what it is for: a mask needs their tokens.
        """

    def collect(self) -> StepOutput:
        """Wait for the oldest submitted step."""

    def read_blocks(self, blocks: Sequence[int]) -> BlockCopy:
        """Begin to copy KV blocks, one or more, as submitted steps leave them; later steps may write over them."""

    def write_blocks(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        """Give each of KV blocks the bytes (block_bytes,) of a copy, for the steps submitted from now on."""

    def close(self) -> None: ...


@runtime_checkable
class EncoderRunner(Protocol):
    """Runs whole texts through an encoder on a device."""

    max_batch_tokens: int  # of one call; no text is longer
    dense: FloatArray | None  # (out, hidden): what pooled states are multiplied by; None: nothing

    def info(self) -> WorkerInfo: ...

    def hidden_states(self, token_ids: IntArray, query_start: IntArray) -> FloatArray:
        """States (T, hidden) of texts put one after the other: text r has the tokens
        query_start[r] .. query_start[r + 1], of which no other text sees anything."""

    def close(self) -> None: ...


Metadata = dict[str, Any]
TokenIds = Sequence[int]
