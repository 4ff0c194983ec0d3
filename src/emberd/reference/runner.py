"""CpuRunner: runs batches of token ids with NumPy and BLAS, in float32.

The device that serves where no GPU does, and the truth that GPU runs are checked against. It knows
slots and rows; not who they belong to, nor any text.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from emberd.errors import ModelLoadError
from emberd.gguf.extend import extended
from emberd.gguf.rope import kv_layout
from emberd.gguf.spec import open_model
from emberd.hardware import CPU_STEP_TOKENS, num_cores
from emberd.protocol import (
    FROM_LAST_STEP,
    Batch,
    Bytes,
    IntArray,
    Logprobs,
    MaskArray,
    StepOutput,
    WorkerInfo,
    WorkerOptions,
)

from .kv_cache import BLOCK_SIZE, KVCache, cache_kind, plan_cache
from .ops import F32, kv_write, paged_attention
from .sampling import SamplerState, logprobs, sample
from .threads import BlasThreads
from .transformer import Routing, hidden_states, layer_rope_tables, logits, output_norm
from .weights import Weights, load_weights

FEW_TOKENS = 4
"""Known tokens a row that are no prefill yet: a draft model's rows have up to a few."""

LOGIT_ROWS = 16
"""Places whose logits are held at once while prompts are scored: a row is 1 MB for the largest vocabularies."""


def step_tokens(options: WorkerOptions) -> int:
    """Tokens of a step at most."""
    return min(options.max_batch_tokens, max(CPU_STEP_TOKENS, options.max_sequences))


class CpuRunner:
    """Implements `protocol.Runner`: `submit` computes the step, `collect` hands its output over."""

    block_size = BLOCK_SIZE
    steps_in_flight = 1

    def __init__(self, weights: Weights, options: WorkerOptions) -> None:
        """Raises `ModelLoadError` where not even one KV block fits into memory."""
        self.weights = weights
        self.routing: Routing | None = None  # of the next step, where experts are given
        self.max_sequences = options.max_sequences
        self._verification = options.verification
        self.max_batch_tokens = step_tokens(options)
        self._largest_batch = options.max_batch_tokens  # there are no buffers that bound it
        free_bytes = psutil.virtual_memory().available
        spec = weights.spec
        self.kv_type = cache_kind(spec, options, free_bytes)
        self.context_length, self.num_blocks = plan_cache(spec, options, free_bytes, self.kv_type)
        self._cache = KVCache.allocate(spec, self.num_blocks * BLOCK_SIZE, self.kv_type)
        self._rope_tables = layer_rope_tables(weights, self.context_length)
        self.block_bytes = self._cache.nbytes // self.num_blocks
        self.kv_layout = kv_layout(
            spec, f"cpu {self.kv_type}", self.block_bytes, self.context_length
        )
        self._samplers: list[SamplerState | None] = [None] * options.max_sequences
        self._last_tokens = np.zeros(options.max_sequences, dtype=np.int32)
        self._outputs: deque[StepOutput] = deque()
        self._held: tuple[Batch, F32, StepOutput] | None = None  # run, its masks not known yet
        self._load_seconds = 0.0
        self._threads = BlasThreads(
            [w for layer in weights.layers for w in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        )

    @classmethod
    def load(
        cls, options: WorkerOptions, progress: Callable[[float], None] | None = None
    ) -> CpuRunner:
        """Read, check and decode the model file; `progress` gets the share done, 0 to 1.

        Raises `ModelFileError` for a bad file, `ModelLoadError` where memory does not suffice.
        """
        start = time.perf_counter()
        model = open_model(options.model_path)
        try:
            model = extended(model, options.context_length, options.rope_scaling)
            weights = load_weights(model, progress)
            runner = cls(weights, options)
        except MemoryError as error:
            raise ModelLoadError(f"{model.file.name}: out of memory while loading") from error
        finally:
            model.file.close()
        runner._load_seconds = time.perf_counter() - start
        return runner

    def prepare(self) -> bool:
        return False

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            device=f"CPU (NumPy, {num_cores()} cores)",
            device_kind="cpu",
            context_length=self.context_length,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=self.max_sequences,
            weight_bytes=self.weights.nbytes,
            kv_bytes=self._cache.nbytes,
            load_seconds=self._load_seconds,
            verification=self._verification,
            device_memory=psutil.virtual_memory().total,
            tier="cpu",
            kv_type=self.kv_type,
            window=self.weights.spec.window,
            max_batch_tokens=self.max_batch_tokens,
        )

    def submit(self, batch: Batch) -> None:
        """Compute the step; its output waits for `collect`."""
        assert not self._outputs, "a step is still waiting to be collected"
        assert batch.num_tokens <= self._largest_batch, "batch larger than max_batch_tokens"
        num_drafted = 0 if batch.drafted is None else int(batch.drafted.sum())
        few = FEW_TOKENS * batch.num_rows
        with self._threads.limit(prefill=batch.num_tokens - num_drafted > few):
            self._run(batch)

    def sample(self, masks: MaskArray) -> None:
        assert self._held is not None, "masks came without a batch that waits for them"
        (batch, hidden, output), self._held = self._held, None
        with self._threads.limit(prefill=False):
            self._sample(batch, hidden, output, masks)

    def collect(self) -> StepOutput:
        return self._outputs.popleft()

    def read_blocks(self, blocks: Sequence[int]) -> CopiedBlocks:
        return CopiedBlocks(self._cache.read(blocks))

    def write_blocks(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        self._cache.write(blocks, np.stack(data))

    def close(self) -> None:
        """Let weights and cache go; the runner is not used after."""
        del self.weights, self._cache, self._rope_tables

    def _run(self, batch: Batch) -> None:
        assert self._held is None, "the last batch waits for its masks"
        for admission in batch.admissions:
            self._samplers[admission.index] = SamplerState.start(
                admission.params, admission.token_ids, self.weights.spec.vocab_size
            )
        hidden = hidden_states(
            self.weights,
            self._rope_tables,
            self._token_ids(batch),
            batch.positions,
            lambda *args: self._attend(batch, *args),
            self.routing,
        )
        output = StepOutput(np.full(batch.num_rows, -1, dtype=np.int32))
        if batch.logits_at is not None:
            output.logits = logits(self.weights, hidden[batch.logits_at])
        if batch.hidden_at is not None:
            output.hidden = output_norm(self.weights, hidden[batch.hidden_at])
        if batch.scored_at is not None and batch.scored_ids is not None:
            output.scores = self._score(hidden[batch.scored_at], batch.scored_ids)
        if batch.masked is None:
            self._sample(batch, hidden, output, None)
        else:
            self._held = batch, hidden, output

    def _score(self, hidden: F32, token_ids: IntArray) -> Logprobs:
        """What hidden states (N, hidden) say of the tokens (N,) that follow them."""
        parts = [
            logprobs(
                logits(self.weights, hidden[first : first + LOGIT_ROWS]),
                token_ids[first : first + LOGIT_ROWS],
            )
            for first in range(0, len(token_ids), LOGIT_ROWS)
        ]
        return Logprobs(
            np.concatenate([part.chosen for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top for part in parts]),
        )

    def _token_ids(self, batch: Batch) -> IntArray:
        rows = np.repeat(batch.sequence_index, np.diff(batch.query_start))  # (T,)
        last = self._last_tokens[rows]
        return np.where(batch.token_ids == FROM_LAST_STEP, last, batch.token_ids)

    def _attend(self, batch: Batch, layer: int, q: F32, k: F32, v: F32) -> F32:
        spec = self.weights.spec
        k_cache, v_cache = self._cache.k[layer], self._cache.v[layer]
        kv_write(k, v, batch.slot_mapping, k_cache, v_cache)
        return paged_attention(
            q,
            k_cache,
            v_cache,
            batch.block_tables,
            batch.query_start,
            batch.positions,
            BLOCK_SIZE,
            spec.layers[layer].window,
            spec.attention_scale,
            spec.attention_cap,
            self.weights.layers[layer].sinks,
        )

    def _sample(
        self, batch: Batch, hidden: F32, output: StepOutput, masks: MaskArray | None
    ) -> None:
        """Sample the rows that want it, and hand the step's output over."""
        self._outputs.append(output)
        places, rows = batch.sampled_places()
        if not len(rows):
            return
        indexes = batch.sequence_index[rows]
        samplers = [self._samplers[index] for index in indexes]
        states = [state for state in samplers if state is not None]
        assert len(states) == len(rows), "a row is sampled whose sequence was never admitted"
        row_logits = logits(self.weights, hidden[places])
        row_masks: list[MaskArray | None] = [None] * len(rows)
        if masks is not None and batch.masked is not None:
            for place, mask in zip(np.flatnonzero(batch.masked[rows]), masks, strict=True):
                row_masks[place] = mask
        sampled = sample(row_logits, states, batch.positions[places] + 1, row_masks)
        self._last_tokens[indexes] = np.maximum(sampled, 0)  # a row without a token ends
        output.put_sampled(rows, sampled)
        if any(state.params.num_logprobs is not None for state in states):
            output.logprobs = _by_row(logprobs(row_logits, sampled), rows, batch.num_rows)


@dataclass(frozen=True, slots=True)
class CopiedBlocks:
    """Implements `protocol.BlockCopy`."""

    data: Bytes

    def take(self) -> Bytes:
        return self.data


def _by_row(found: Logprobs, rows: IntArray, num_rows: int) -> Logprobs:
    """Places of the sampled rows as places of all rows; the others hold zeros."""
    spread = [
        np.zeros((num_rows, *a.shape[1:]), a.dtype)
        for a in (found.chosen, found.top_ids, found.top)
    ]
    for whole, part in zip(spread, (found.chosen, found.top_ids, found.top), strict=True):
        whole[rows] = part
    return Logprobs(*spread)
