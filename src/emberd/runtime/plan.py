"""Plans: the ordered dispatches of one kind of step, recorded once for each bucket and then replayed.

A step runs the smallest plan that holds it. Buckets are powers of two, so at most half of a plan's
rows are idle, and few plans exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol import Batch
from .device import Device, Tensor
from .inputs import InputSizes, StepInputs
from .kernel import Dispatch
from .logprobs import COLUMNS, LogprobKernels
from .replay import Recording, Words, record
from .sampler import Mode, Sampler
from .scratch import bucket, first_rows
from .transformer import Shape, Transformer

MIN_PREFILL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What a plan can run: up to this many tokens, decode rows and sampled rows."""

    tokens: int
    decode_rows: int
    sampled: int
    prefill: bool
    mode: Mode
    splits: int = 1  # workgroups that may share a decode row's context


@dataclass(frozen=True, slots=True)
class Plan:
    key: PlanKey
    inputs: StepInputs
    recording: Recording
    sampling: Recording | None = None  # what is left for when the masks are there


class Plans:
    """The recorded plans of one loaded model, made when first needed."""

    def __init__(
        self,
        device: Device,
        transformer: Transformer,
        sampler: Sampler,
        logprobs: LogprobKernels,
        max_tokens: int,
        max_rows: int,
    ) -> None:
        self._device, self._transformer, self._sampler = device, transformer, sampler
        self._logprobs = logprobs
        self._max_tokens, self._max_rows = max_tokens, max_rows
        sizes = InputSizes(max_tokens, max_rows, max_rows, self._num_tiles(max_tokens))
        words = StepInputs.words_needed(device, sizes)
        self._input_buffer: Any = device.empty((words,), "i32", "step inputs").buffer
        align = max(16, device.limits["min-storage-buffer-offset-alignment"]) // 4
        self._logprobs_at = (
            -(-max_rows // align) * align
        )  # in words of the output, behind the tokens
        words = self._logprobs_at + max_rows * COLUMNS
        self._output = device.empty((words,), "i32", "sampled tokens")
        self._made: dict[PlanKey, Plan] = {}

    def _num_tiles(self, tokens: int) -> int:
        return -(-tokens // self._transformer.tile_size) + self._max_rows

    @property
    def output_bytes(self) -> int:
        return self._output.nbytes

    def logprobs_of(self, output: Words, rows: int) -> NDArray[np.float32]:
        """The rows of log-probabilities (rows, COLUMNS) in the output of a plan with logprobs."""
        found = output[self._logprobs_at :].view(np.float32)
        return found[: rows * COLUMNS].reshape(rows, COLUMNS)

    def key(self, batch: Batch, num_sampled: int, mode: Mode) -> PlanKey:
        """The smallest bucket that holds such a step."""
        decode_rows = batch.num_decode_rows
        prefill = batch.num_tokens > decode_rows
        least = MIN_PREFILL_TOKENS if prefill else 1
        rows = min(bucket(decode_rows), self._max_rows)
        splits = 1
        if rows:
            context = int(batch.context_lens[:decode_rows].max())
            splits = self._transformer.decode_splits(rows, context)
        return PlanKey(
            tokens=min(bucket(batch.num_tokens, least), self._max_tokens),
            decode_rows=rows,
            sampled=min(bucket(num_sampled), self._max_rows),
            prefill=prefill,
            mode=mode,
            splits=splits,
        )

    def prepare(self) -> None:
        """Make the plans that nearly every user needs first: one sequence's prefill and decode."""
        self.get(PlanKey(self._max_tokens, 0, 1, True, Mode.PLAIN))
        context = self._transformer.weights.spec.context_length
        for splits in {self._transformer.decode_splits(1, length) for length in (1, 1024, context)}:
            self.get(PlanKey(1, 1, 1, False, Mode.PLAIN, splits))

    def get(self, key: PlanKey) -> Plan:
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def _make(self, key: PlanKey) -> Plan:
        tiles = self._num_tiles(key.tokens) if key.prefill else 0
        sizes = InputSizes(key.tokens, self._max_rows, key.sampled, tiles)
        inputs = StepInputs(self._device, self._input_buffer, sizes)
        shape = Shape(key.tokens, key.decode_rows, tiles, key.splits)
        steps = self._transformer.body(inputs, shape)
        if not key.sampled:
            return Plan(key, inputs, record(self._device, steps, first_rows(self._output, 1)))
        sampling, output = self._sampling(inputs, key, shape)
        if Mode.MASKS in key.mode:
            later = record(self._device, sampling, output)
            return Plan(key, inputs, record(self._device, steps, output, read_back=False), later)
        return Plan(key, inputs, record(self._device, steps + sampling, output))

    def _sampling(
        self, inputs: StepInputs, key: PlanKey, shape: Shape
    ) -> tuple[list[Dispatch], Tensor]:
        """What comes behind the layers, and what is read back of it."""
        rows, count = key.sampled, inputs["num_sampled"]
        logits = first_rows(self._transformer.scratch.logits, rows)
        output = first_rows(self._output, rows)
        steps = self._transformer.head(inputs["sampled_tokens"], count, rows, shape)
        steps += self._sampler.dispatches(
            logits,
            inputs["sampled_sequences"],
            inputs["sampled_positions"],
            output,
            count,
            rows=rows,
            mode=key.mode,
        )
        if Mode.LOGPROBS in key.mode:
            at = 4 * self._logprobs_at
            steps += self._logprobs.dispatches(
                logits,
                inputs["sampled_sequences"],
                count,
                self._sampler.last_tokens,
                Tensor(self._output.buffer, (rows, COLUMNS), "f32", at),
                rows=rows,
            )
            output = first_rows(self._output, self._logprobs_at + rows * COLUMNS)
        return steps, output
