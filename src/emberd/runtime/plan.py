"""Plans: the ordered dispatches of one kind of step, recorded once for each bucket and then replayed.

Which plan a step runs is plan_key.py's; making one takes up to a tenth of a second, or a second where its kernels are
new to the driver. So a step whose plan is not there takes a larger one, while a thread makes the one it lacked; and
those that a busy daemon needs are made in pauses.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from ..errors import DeviceError
from ..protocol import Batch
from .decode_attention import decode_near
from .device import Device, Tensor
from .inputs import InputSizes, StepInputs
from .kernel import Dispatch
from .logprobs import COLUMNS, LogprobKernels
from .matvec import gains_by_baking
from .plan_key import Buckets, PlanKey
from .replay import Recording, Words, record
from .sampler import Mode, Sampler
from .scratch import first_rows
from .transformer import Shape, Transformer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    key: PlanKey
    inputs: StepInputs
    recording: Recording
    sampling: Recording | None = None  # what is left for when the masks are there


class Plans:
    """The recorded plans of one loaded model, made when first needed: on a GPU by a thread beside the steps. A software
    adapter would compile with the cores that run the steps."""

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
        self._making = Lock()
        self._asked_for: dict[PlanKey, Future[None]] = {}
        software = device.info.is_software
        self._thread = None if software else ThreadPoolExecutor(1, "emberd-plans")
        kv_heads = transformer.weights.spec.num_kv_heads
        near = partial(decode_near, device, num_kv_heads=kv_heads)
        self._buckets = Buckets(max_tokens, max_rows, transformer.decode_splits, near)
        self._likely = self._buckets.likely()

    def _num_tiles(self, tokens: int) -> int:
        return -(-tokens // self._transformer.tile_size) + self._max_rows

    @property
    def output_bytes(self) -> int:
        return self._output.nbytes

    def logprobs_of(self, output: Words, rows: int) -> NDArray[np.float32]:
        """The rows of log-probabilities (rows, COLUMNS) in the output of a plan with logprobs."""
        found = output[self._logprobs_at :].view(np.float32)
        return found[: rows * COLUMNS].reshape(rows, COLUMNS)

    def for_step(self, batch: Batch, num_sampled: int, mode: Mode) -> Plan:
        """The smallest plan that holds such a step and is there; where there is none, one is made that will hold all
        like it."""
        key = self._buckets.key(batch, num_sampled, mode)
        plan = self._made.get(key)
        if plan is not None or self._thread is None:
            return plan or self.get(key)
        larger = [made for made in self._made.copy() if made.holds(key)]
        plan = self.get(min(larger, default=self._buckets.largest(key)))
        self._ask_for(key)
        return plan

    def prepare_first(self) -> None:
        """Make the plans that nearly every user needs first: one sequence's prefill and decode. Those that hold all
        others are on their way."""
        for key in self._buckets.first(self._transformer.weights.spec.context_length):
            self.get(key)
        for key in self._buckets.holding_all():
            self._ask_for(key)

    def prepare_next(self) -> bool:
        """Wait for one that steps have lacked, or make one more plan of those that many sequences at once need; False:
        there are all of them."""
        for asked in self._asked_for.values():
            if not asked.done():
                asked.result()
                return True
        key = next((key for key in self._likely if key not in self._made), None)
        if key is not None:
            self._get_beside(key)
        return key is not None

    def get(self, key: PlanKey) -> Plan:
        if key not in self._made:
            with self._making:
                if key not in self._made:
                    self._made[key] = self._make(key)
        return self._made[key]

    def close(self) -> None:
        """Return when no plan is being made."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _ask_for(self, key: PlanKey) -> None:
        if self._thread is not None and key not in self._asked_for:
            self._asked_for[key] = self._thread.submit(self._get_beside, key)

    def _get_beside(self, key: PlanKey) -> None:
        try:
            self.get(key)
        except (DeviceError, wgpu.GPUError) as error:
            logger.warning("no plan for %s, larger ones stay in use: %s", key, error)

    def _make(self, key: PlanKey) -> Plan:
        tiles = self._num_tiles(key.tokens) if key.prefill else 0
        sizes = InputSizes(key.tokens, self._max_rows, key.sampled, tiles)
        inputs = StepInputs(self._device, self._input_buffer, sizes)
        shape = Shape(key.tokens, key.decode_rows, tiles, key.splits, key.near)
        steps = self._baked(key, self._transformer.body(inputs, shape))
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
        return self._baked(key, steps), output

    def _baked(self, key: PlanKey, steps: list[Dispatch]) -> list[Dispatch]:
        """One stream waits for latencies above all: its kernels have their params in their text."""
        if not bakes(self._device, key.tokens):
            return steps
        kernels = self._transformer.kernels
        return [kernels.baked(step) if gains_by_baking(step) else step for step in steps]


def bakes(device: Device, tokens: int) -> bool:
    """Only for plans made at load, since each kernel is compiled for them once more, and where it gains."""
    return tokens == 1 and not device.info.is_software and "baked" not in device.left_out
