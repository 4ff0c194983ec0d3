"""Plans: the ordered dispatches of one kind of step, recorded once for each bucket and then replayed.

A step runs the smallest plan that holds it. Buckets are powers of two, so at most half of a plan's
rows are idle, and few plans exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..protocol import Batch
from .device import Device
from .inputs import InputSizes, StepInputs
from .replay import Recording, record
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


class Plans:
    """The recorded plans of one loaded model, made when first needed."""

    def __init__(
        self,
        device: Device,
        transformer: Transformer,
        sampler: Sampler,
        max_tokens: int,
        max_rows: int,
    ) -> None:
        self._device, self._transformer, self._sampler = device, transformer, sampler
        self._max_tokens, self._max_rows = max_tokens, max_rows
        sizes = InputSizes(max_tokens, max_rows, max_rows, self._num_tiles(max_tokens))
        words = StepInputs.words_needed(device, sizes)
        self._input_buffer: Any = device.empty((words,), "i32", "step inputs").buffer
        self._out_tokens = device.empty((max_rows,), "i32", "sampled tokens")
        self._made: dict[PlanKey, Plan] = {}

    def _num_tiles(self, tokens: int) -> int:
        return -(-tokens // self._transformer.tile_size) + self._max_rows

    @property
    def output_bytes(self) -> int:
        return self._out_tokens.nbytes

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
        self.get(PlanKey(self._max_tokens, 0, 1, True, "plain"))
        context = self._transformer.weights.spec.context_length
        for splits in {self._transformer.decode_splits(1, length) for length in (1, context)}:
            self.get(PlanKey(1, 1, 1, False, "plain", splits))

    def get(self, key: PlanKey) -> Plan:
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def _make(self, key: PlanKey) -> Plan:
        tiles = self._num_tiles(key.tokens) if key.prefill else 0
        sizes = InputSizes(key.tokens, self._max_rows, key.sampled, tiles)
        inputs = StepInputs(self._device, self._input_buffer, sizes)
        steps = self._transformer.body(
            inputs, Shape(key.tokens, key.decode_rows, tiles, key.splits)
        )
        output = first_rows(self._out_tokens, max(1, key.sampled))
        if key.sampled:
            count = inputs["num_sampled"]
            steps += self._transformer.head(inputs["sampled_tokens"], count, key.sampled)
            steps += self._sampler.dispatches(
                first_rows(self._transformer.scratch.logits, key.sampled),
                inputs["sampled_sequences"],
                inputs["sampled_positions"],
                output,
                count,
                rows=key.sampled,
                mode=key.mode,
            )
        return Plan(key, inputs, record(self._device, steps, output))
