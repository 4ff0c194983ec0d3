"""The GPU sampler: logits in a buffer to token ids in a buffer, with each sequence's state on the device.

Gives the tokens of reference/sampling.py (what is kept, and the draw, are told there). Two dispatches: the
vocabulary in slices, then one workgroup a row. It knows no model and no batch layout.
"""

from __future__ import annotations

from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from ..protocol import Admission, Batch, MaskArray, SamplingParams
from .compose import Constant
from .device import Device, DType, Tensor
from .kernel import Dispatch, Kernel, Kernels


class Mode(IntFlag):
    """What some sampled row needs; a plan is recorded for what its step needs, and pays for no more."""

    PLAIN = 0
    PENALTIES = 1
    BIAS = 2
    MASKS = 4
    LOGPROBS = 8


_SLICE, _RUN = 4096, 32  # of sampling.wgsl
_RUNS = _SLICE // _RUN
_OFF = np.float32(-3.0e38)  # NEG_LARGE

MIN_TEMPERATURE = 1e-5
"""A lower one, not 0, counts as this, as in the NumPy sampler."""

_SETTINGS = np.dtype(
    [
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("log_min_p", "<f4"),
        ("top_k", "<u4"),
        ("seed_low", "<u4"),
        ("seed_high", "<u4"),
        ("repetition", "<f4"),
        ("presence", "<f4"),
        ("frequency", "<f4"),
        ("window", "<i4"),
        ("biased", "<u4"),
    ]
)


class Sampler:
    """Per-sequence state for `max_sequences` places, and the dispatches that sample.

    `last_tokens` u32 (max_sequences,) holds each place's last sampled token. A penalty window of
    `context_length` tokens or more drops none and counts as all. Penalty counts (1 MB a place for
    the largest vocabularies), biases and masks are allocated when the first sequence with some comes; DeviceError
    if one binding cannot hold them.
    """

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        max_sequences: int,
        vocab_size: int,
        context_length: int = 4096,
    ) -> None:
        assert vocab_size < 1 << 24, vocab_size  # kernels carry token ids as exact f32
        self._device, self._kernels = device, kernels
        self._max_sequences, self._vocab_size = max_sequences, vocab_size
        self._ring = context_length
        self._num_slices = -(-vocab_size // _SLICE)
        words = _SETTINGS.itemsize // 4
        self._settings = device.empty((max_sequences, words), "u32", "sampling settings")
        self._slices = device.empty((max_sequences, self._num_slices, 4), label="sampling slices")
        self._run_max = device.empty(
            (max_sequences, self._num_slices * _RUNS), label="sampling runs"
        )
        self._num_words = -(-vocab_size // 32)  # of a mask
        self._later: dict[str, Tensor] = {}  # what not every daemon needs, by name
        self._needs = np.zeros(max_sequences, np.uint8)  # Mode, by place
        self.last_tokens = device.empty((max_sequences,), "u32", "last tokens")

    def admit(self, admission: Admission) -> None:
        """Set the place's state; takes effect for steps submitted afterwards."""
        index, params = admission.index, admission.params
        penalized = params.has_penalties
        window = params.penalty_window if params.penalty_window < self._ring else -1
        settings = _settings(params, window if penalized else 0, self._vocab_size)
        self._device.write(self._settings, settings, index * _SETTINGS.itemsize)
        needs = Mode.PLAIN
        if penalized:
            needs |= Mode.PENALTIES
            row = self._state_of(window, admission.token_ids)
            self._device.write(self._penalties, row, index * row.nbytes)
        if params.logit_bias:
            needs |= Mode.BIAS
            bias = self._bias_of(params)
            self._device.write(self._logit_bias, bias, index * bias.nbytes)
        if params.num_logprobs is not None:
            needs |= Mode.LOGPROBS
        self._needs[index] = needs

    def mode_for(self, batch: Batch) -> Mode:
        """The mode that the batch's sampled rows need, its admissions being made."""
        needs = int(np.bitwise_or.reduce(self._needs[batch.sequence_index[batch.sample]]))
        return Mode(needs) if batch.masked is None else Mode(needs) | Mode.MASKS

    def mask_words(self, masks: MaskArray, masked: NDArray[np.bool_]) -> NDArray[np.int32]:
        """What `masks` holds for a step: of the rows of `masked` (rows,), which are sampled, some have a mask."""
        header = np.zeros(self._max_sequences, np.uint32)
        num_masks, num_words = len(masks), min(masks.shape[1], self._num_words)
        places = self._max_sequences + self._num_words * np.arange(num_masks, dtype=np.uint32)
        header[np.flatnonzero(masked)] = places
        words = np.zeros((num_masks, self._num_words), np.uint32)
        words[:, :num_words] = masks[:, :num_words]
        return np.concatenate([header, words.reshape(-1)]).view(np.int32)

    def dispatches(
        self,
        logits: Tensor,
        sequence_index: Tensor,
        positions: Tensor,
        out_tokens: Tensor,
        count: Tensor,
        *,
        rows: int,
        mode: Mode,
    ) -> list[Dispatch]:
        """Sample logits (rows, V): writes out_tokens i32 (rows,), last_tokens, and counts for penalties.

        sequence_index i32 (rows,) is each row's place, negative where it does not sample (-1 is written);
        positions i32 (rows,) are the sampled tokens' own. Rows from count on are written -1.
        """
        assert logits.shape == (rows, self._vocab_size) and rows <= self._max_sequences, logits
        assert sequence_index.shape == positions.shape == out_tokens.shape == (rows,)
        state = []
        if Mode.PENALTIES in mode:
            state.append(self._penalties)
        if Mode.BIAS in mode:
            state.append(self._logit_bias)
        if Mode.MASKS in mode:
            state.append(self.masks)
        inputs = (logits, sequence_index, positions, self._settings, count, *state)
        found = (self._slices, self._run_max)
        sizes = {
            "vocab_size": self._vocab_size,
            "num_slices": self._num_slices,
            "ring": self._ring,
        }
        lanes = min(512, self._device.max_workgroup_size) if self._device.subgroup_size else 128
        return [
            self._kernels.dispatch(
                self._kernel("sample_split", mode, _RUNS),
                (*inputs, *found),
                (self._num_slices, rows, 1),
                **sizes,
            ),
            self._kernels.dispatch(
                self._kernel("sample_merge", mode, lanes),
                (*inputs, *found, out_tokens, self.last_tokens),
                (rows, 1, 1),
                **sizes,
            ),
        ]

    def _kernel(self, name: str, mode: Mode, lanes: int) -> Kernel:
        constants: dict[str, Constant] = {"WG": lanes}
        if self._device.subgroup_size:
            constants["SUBGROUP"] = self._device.subgroup_size
        includes = {
            "penalties": "penalties" if Mode.PENALTIES in mode else "penalties_none",
            "logit_bias": "logit_bias" if Mode.BIAS in mode else "logit_bias_none",
            "mask": "mask" if Mode.MASKS in mode else "mask_none",
            "reduce": self._kernels.reduce,
        }
        return self._kernels.get(name, includes, **constants)

    def allocate_optional(self) -> None:
        """What is else allocated when the first sequence with penalties, biases or masks comes."""
        _ = self._penalties, self._logit_bias, self.masks

    @property
    def masks(self) -> Tensor:
        """Where `mask_words` is to be written before a step with masks is sampled."""
        num_words = self._max_sequences * (1 + self._num_words)
        return self._when_needed("token masks", (num_words,), "u32")

    @property
    def _penalties(self) -> Tensor:
        shape = (self._max_sequences, self._vocab_size + 1 + self._ring)
        return self._when_needed("penalty counts", shape, "u32")

    @property
    def _logit_bias(self) -> Tensor:
        return self._when_needed("logit bias", (self._max_sequences, self._vocab_size), "f32")

    def _when_needed(self, label: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        if label not in self._later:
            self._later[label] = self._device.empty(shape, dtype, label)
        return self._later[label]

    def _bias_of(self, params: SamplingParams) -> NDArray[np.float32]:
        row = np.zeros(self._vocab_size, np.float32)
        for token_id, value in params.logit_bias:
            row[token_id] = value
        return row

    def _state_of(self, window: int, token_ids: tuple[int, ...]) -> NDArray[np.uint32]:
        """Counts (V,), length and ring of a sequence with this history, as penalties.wgsl keeps them."""
        seen = np.asarray(token_ids if window < 0 else token_ids[-window:], np.int64)
        row = np.zeros(self._vocab_size + 1 + self._ring, np.uint32)
        row[: self._vocab_size] = np.bincount(seen, minlength=self._vocab_size)
        row[self._vocab_size] = len(seen)
        if window > 0:
            row[self._vocab_size + 1 :][: len(seen)] = seen
        return row


def _settings(params: SamplingParams, window: int, vocab_size: int) -> NDArray[np.uint32]:
    """One place's Settings. Filters of a greedy sequence are off: they cannot drop the likeliest token."""
    row = np.zeros(1, _SETTINGS)
    row["top_p"] = 1.0
    row["log_min_p"] = _OFF
    if params.temperature != 0.0:
        row["temperature"] = max(params.temperature, MIN_TEMPERATURE)
        row["top_k"] = params.top_k if 0 < params.top_k < vocab_size else 0
        row["top_p"] = min(1.0, max(0.0, params.top_p))
        if params.min_p > 0.0:
            row["log_min_p"] = np.log(np.float32(params.min_p))
    row["seed_low"] = params.seed & 0xFFFFFFFF
    row["seed_high"] = params.seed >> 32 & 0xFFFFFFFF
    row["repetition"] = params.repetition_penalty
    row["presence"] = params.presence_penalty
    row["frequency"] = params.frequency_penalty
    row["window"] = window
    row["biased"] = bool(params.logit_bias)
    return row.view(np.uint32)
