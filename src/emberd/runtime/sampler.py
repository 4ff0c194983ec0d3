"""The GPU sampler: logits in a buffer to token ids in a buffer, with each sequence's state on the device.

Gives the tokens of reference/sampling.py (what is kept, and the draw, are told there). Two dispatches: the
vocabulary in slices, then one workgroup a row. It knows no model and no batch layout.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..protocol import Admission, Batch, SamplingParams
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernel, Kernels

Mode = Literal["plain", "penalties"]
"""Whether some sampled row has penalties; a plan is recorded for one of them."""

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
    ]
)


class Sampler:
    """Per-sequence state for `max_sequences` places, and the dispatches that sample.

    `last_tokens` u32 (max_sequences,) holds each place's last sampled token. A penalty window of
    `context_length` tokens or more drops none and counts as all. Penalty counts (1 MB a place for
    the largest vocabularies) are allocated when the first sequence with penalties comes; DeviceError if one
    binding cannot hold them.
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
        self._penalty_state: Tensor | None = None
        self._penalized = np.zeros(max_sequences, np.bool_)
        self.last_tokens = device.empty((max_sequences,), "u32", "last tokens")

    def admit(self, admission: Admission) -> None:
        """Set the place's state; takes effect for steps submitted afterwards."""
        index, params = admission.index, admission.params
        penalized = _has_penalties(params)
        window = params.penalty_window if params.penalty_window < self._ring else -1
        settings = _settings(params, window if penalized else 0, self._vocab_size)
        self._device.write(self._settings, settings, index * _SETTINGS.itemsize)
        self._penalized[index] = penalized
        if penalized:
            state = self._penalties()
            row = self._state_of(window, admission.token_ids)
            self._device.write(state, row, index * row.nbytes)

    def mode_for(self, batch: Batch) -> Mode:
        """The mode that the batch's sampled rows need, its admissions being made."""
        sampled = batch.sequence_index[batch.sample]
        return "penalties" if self._penalized[sampled].any() else "plain"

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
        state = (self._penalties(),) if mode == "penalties" else ()
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
        penalties = "penalties" if mode == "penalties" else "penalties_none"
        includes = {"penalties": penalties, "reduce": self._kernels.reduce}
        return self._kernels.get(name, includes, **constants)

    def _penalties(self) -> Tensor:
        if self._penalty_state is None:
            shape = (self._max_sequences, self._vocab_size + 1 + self._ring)
            self._penalty_state = self._device.empty(shape, "u32", "penalty counts")
        return self._penalty_state

    def _state_of(self, window: int, token_ids: tuple[int, ...]) -> NDArray[np.uint32]:
        """Counts (V,), length and ring of a sequence with this history, as penalties.wgsl keeps them."""
        seen = np.asarray(token_ids if window < 0 else token_ids[-window:], np.int64)
        row = np.zeros(self._vocab_size + 1 + self._ring, np.uint32)
        row[: self._vocab_size] = np.bincount(seen, minlength=self._vocab_size)
        row[self._vocab_size] = len(seen)
        if window > 0:
            row[self._vocab_size + 1 :][: len(seen)] = seen
        return row


def _has_penalties(params: SamplingParams) -> bool:
    return params.penalty_window != 0 and (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


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
    return row.view(np.uint32)
