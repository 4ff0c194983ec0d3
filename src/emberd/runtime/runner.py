"""GpuRunner: batches in, token ids out, on a WebGPU device. Implements `protocol.Runner`.

Steps overlap: the token that one samples stays on the GPU and feeds the next, so on a GPU one step
runs, one waits behind it and one is being recorded. A software adapter has no time to hide.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelLoadError
from ..gguf.extend import extended
from ..gguf.loaded import loaded_nbytes
from ..gguf.rope import kv_layout
from ..gguf.spec import ModelFile, open_model
from ..hardware import gpu_tier
from ..protocol import (
    Batch,
    BlockCopy,
    Bytes,
    FloatArray,
    IntArray,
    Logprobs,
    MaskArray,
    StepOutput,
    WorkerInfo,
    WorkerOptions,
)
from . import kv_cache
from .buffers import allocate
from .device import AllocationError, Device, Tensor, open_device
from .device_memory import device_memory
from .footprint import decoder_footprint, fitted, lowered
from .kernel import Kernels, run_once
from .kv_copy import BlockCopies
from .kv_size import size_kv
from .linear import LinearTable
from .logprobs import COLUMNS
from .model import ModelWeights, load_weights
from .plan import Plan
from .replay import Recording, make_replayer
from .sampler import Mode
from .scratch import first_rows
from .tune import TileCheck, tuned_table

logger = logging.getLogger(__name__)


class GpuRunner:
    """One model on one device."""

    def __init__(self, device: Device, model: ModelFile, options: WorkerOptions) -> None:
        self._started = time.monotonic()
        asked, options = options, fitted(device, model.spec, options)
        if told := lowered(asked, options, device.max_binding_bytes):
            logger.info("%s", told)
        self._device, self._model, self._options = device, model, options
        self.block_size = kv_cache.BLOCK_SIZE
        self.max_sequences = options.max_sequences
        self.max_batch_tokens = max(options.max_batch_tokens, options.max_sequences)
        self.steps_in_flight = 2 if device.info.is_software else 3
        self._memory = device_memory(device.info)
        size = size_kv(
            device.info,
            device.max_binding_bytes,
            self._memory,
            model.spec,
            decoder_footprint(device.info, model, options),
            options,
        )
        self.num_blocks, self.context_length = size.num_blocks, size.context_length
        self.kv_type = size.kind
        self._pending: deque[tuple[IntArray, StepOutput, Mode]] = deque()
        self._held: tuple[Recording, NDArray[np.bool_]] | None = None  # waits for its masks
        self._last_plan: Plan | None = None  # of the last step
        self._lent = False

    @classmethod
    def load(
        cls,
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
        check_tiles: TileCheck | None = None,
        *,
        lent: bool = False,
    ) -> GpuRunner:
        """Open the file and the device (or take that of `kernels`), upload weights, allocate the cache. `lent`: the
        device is another runner's, and stays open.

        `check_tiles` sees the measured tiles before any is taken.
        Raises ModelFileError for the file, DeviceError for the device, ModelLoadError where it has no room.
        """
        model = extended(
            open_model(options.model_path), options.context_length, options.rope_scaling
        )
        if kernels is None:
            kernels = Kernels(open_device("gpu" if options.device == "auto" else options.device))
        runner = cls(kernels.device, model, options)
        runner._lent = lent
        try:
            runner._build(kernels, progress, check_tiles)
        except AllocationError as error:
            raise ModelLoadError(runner._too_large(error)) from error
        return runner

    def _too_large(self, error: AllocationError) -> str:
        weights = sum(loaded_nbytes(info) for info in self._model.file.tensors.values())
        tokens = self.num_blocks * self.block_size
        kv = self.num_blocks * kv_cache.bytes_per_block(self._model.spec, self.kv_type)
        return (
            f"{self._model.file.name} needs {weights} bytes for weights and {kv} for a KV cache of {tokens} "
            f"tokens, and {error.message}. A smaller --ctx or --kv-memory needs less"
        )

    def _build(
        self,
        kernels: Kernels,
        progress: Callable[[float], None] | None,
        check_tiles: TileCheck | None,
    ) -> None:
        device, spec = self._device, self._model.spec
        before = device.allocated_bytes
        weights = load_weights(device, self._model, self.context_length, progress)
        try:
            cache, table, told = self._allocate(kernels, weights, check_tiles)
        except BaseException:
            weights.uploads.drop()
            raise
        weights.uploads.wait()
        self._replayer = make_replayer(device, self._plans.output_bytes, self.steps_in_flight)
        self._info = WorkerInfo(
            device=device.name,
            device_kind="gpu",
            context_length=self.context_length,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_sequences=self.max_sequences,
            weight_bytes=weights.nbytes,
            kv_bytes=cache.nbytes,
            load_seconds=time.monotonic() - self._started,
            verification=self._options.verification + told,
            tuned_products=table.num_tuned,
            scratch_bytes=device.allocated_bytes - before - weights.nbytes - cache.nbytes,
            device_memory=self._memory,
            tier=gpu_tier(device.info.kind, self._memory),
            kv_type=self.kv_type,
            window=spec.window,
            max_batch_tokens=self.max_batch_tokens,
        )

    def _allocate(
        self, kernels: Kernels, weights: ModelWeights, check_tiles: TileCheck | None
    ) -> tuple[kv_cache.KVCache, LinearTable, str]:
        """All that is not weights, and the plans that nearly every user needs first; what is to be told of tiles."""
        device, spec = self._device, self._model.spec
        cache = kv_cache.allocate(device, spec, self.num_blocks, self.kv_type)
        self._copies = BlockCopies(device, cache.parts, self.num_blocks)
        self.block_bytes = self._copies.block_bytes
        self.kv_layout = kv_layout(
            spec, f"gpu {self.kv_type}", self.block_bytes, self.context_length
        )
        folder = self._options.cache_dir
        table = tuned_table(
            kernels,
            weights,
            max_tokens=self.max_batch_tokens,
            max_rows=self.max_sequences,
            cache_dir=None if folder is None else Path(folder),
        )
        measured, told = table.num_tuned, ""
        if check_tiles is not None and measured:
            table = check_tiles(self._model, table)
            if num_wrong := measured - table.num_tuned:
                told = f"; {num_wrong} measured tiles are wrong and not taken"
        buffers = allocate(
            kernels,
            weights,
            cache,
            table,
            max_tokens=self.max_batch_tokens,
            max_rows=self.max_sequences,
            context_length=self.context_length,
        )
        self._sampler, self._tables = buffers.sampler, buffers.tables
        self._transformer, self._logprobs = buffers.transformer, buffers.logprobs
        self._plans = buffers.plans
        self._plans.prepare_first()
        return cache, table, told

    def info(self) -> WorkerInfo:
        return self._info

    def heartbeat(self) -> None:
        """Find out while idle whether the device is still there."""
        self._device.touch()

    def prepare(self) -> bool:
        # A software adapter compiles for seconds, with the cores that a request would want.
        return not self._device.info.is_software and self._plans.prepare_next()

    @property
    def kernels(self) -> Kernels:
        return self._transformer.kernels

    def submit(self, batch: Batch) -> None:
        assert self._held is None, "the last batch waits for its masks"
        changed = self._tables.changed_rows(batch)
        if batch.admissions or changed:
            self._replayer.flush()
            for admission in batch.admissions:
                self._sampler.admit(admission)
            self._tables.write(batch, changed)
        places, rows = batch.sampled_places()
        mode = self._sampler.mode_for(batch)
        plan = self._plans.for_step(batch, len(places), mode)
        self._last_plan = plan
        values = plan.inputs.fill(batch, places, rows, self._transformer.tile_size)
        self._replayer.submit(plan.recording, plan.inputs.tensor, values)
        output = StepOutput(np.full(batch.num_rows, -1, np.int32))
        if batch.logits_at is not None:
            output.logits = self._logits(batch.logits_at)
        if batch.hidden_at is not None:
            output.hidden = self._hidden(batch.hidden_at)
        if batch.scored_at is not None and batch.scored_ids is not None:
            output.scores = self._scores(batch.scored_at, batch.scored_ids)
        if plan.sampling is not None and batch.masked is not None:
            self._held = plan.sampling, batch.masked[rows]
        self._pending.append((rows, output, mode))

    def sample(self, masks: MaskArray) -> None:
        assert self._held is not None, "masks came without a batch that waits for them"
        (recording, masked), self._held = self._held, None
        words = self._sampler.mask_words(masks, masked)
        self._replayer.submit(recording, self._sampler.masks, words)

    def collect(self) -> StepOutput:
        rows, output, mode = self._pending.popleft()
        words = self._replayer.collect().view(np.int32)
        output.put_sampled(rows, words[: len(rows)])
        if Mode.LOGPROBS in mode:
            found = np.zeros((len(output.token_ids), COLUMNS), np.float32)
            found[rows] = self._plans.logprobs_of(words, len(rows))
            output.logprobs = self._logprobs.read(found)
        return output

    def experts_of(self, batch: Batch) -> list[IntArray]:
        """The experts (T, used) that each layer chose in the step of this batch: synchronous, for verification.

        It must have been the last step and sample nothing; it is run again, which changes nothing.
        """
        self._replayer.flush()
        assert self._last_plan is not None
        found, steps = [], []
        for dispatch in self._last_plan.recording.dispatches:
            steps.append(dispatch)
            if dispatch.kernel.key.name == "top_experts":
                run_once(self._device, steps)
                ids = self._device.read(dispatch.tensors[2])
                found.append(ids[: batch.num_tokens].astype(np.int32))
                steps = []
        return found

    def _scores(self, places: IntArray, token_ids: IntArray) -> Logprobs:
        """What token places of the step just submitted say of the tokens behind them: synchronous."""
        rows, device = self.max_sequences, self._device
        out = device.empty((rows, COLUMNS), label="scores")
        index = device.upload(np.arange(rows, dtype=np.int32))
        found = []
        for first in range(0, len(places), rows):
            part, count = self._head(places[first : first + rows])
            tokens = np.zeros(rows, np.uint32)
            tokens[: len(part)] = token_ids[first : first + rows]
            steps = self._logprobs.dispatches(
                self._transformer.scratch.logits,
                index,
                count,
                device.upload(tokens),
                out,
                rows=rows,
            )
            run_once(device, steps)
            found.append(device.read(first_rows(out, len(part))))
        return self._logprobs.read(np.concatenate(found))

    def _head(self, places: IntArray) -> tuple[IntArray, Tensor]:
        """Run the head for at most `max_sequences` places; gives them and their count on the device."""
        rows, device = self.max_sequences, self._device
        self._replayer.flush()
        padded = np.zeros(rows, np.int32)
        padded[: len(places)] = places
        count = device.upload(np.array([len(places)], np.uint32))
        run_once(device, self._transformer.head(device.upload(padded), count, rows))
        return places, count

    def _logits(self, places: IntArray) -> FloatArray:
        """Logits of token places of the step just submitted: synchronous, for tests."""
        found = []
        for first in range(0, len(places), self.max_sequences):
            part, _ = self._head(places[first : first + self.max_sequences])
            logits = first_rows(self._transformer.scratch.logits, len(part))
            found.append(self._device.read(logits))
        return np.concatenate(found)

    def _hidden(self, places: IntArray) -> FloatArray:
        """States of token places of the step just submitted, behind the output norm: synchronous."""
        transformer, device = self._transformer, self._device
        scratch = transformer.scratch
        self._replayer.flush()
        states = first_rows(scratch.projected, len(places))  # of no use between two steps
        norm = transformer.output_norm(device.upload(places), states)
        run_once(device, [norm])
        return device.read(states)[:, : self._model.spec.hidden_size]

    def read_blocks(self, blocks: Sequence[int]) -> BlockCopy:
        self._replayer.flush()
        return self._copies.read(blocks)

    def write_blocks(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        self._replayer.flush()
        self._copies.write(blocks, data)

    def close(self) -> None:
        self._plans.close()
        self._replayer.close()
        if not self._lent:
            self._device.close()
        self._model.file.close()
