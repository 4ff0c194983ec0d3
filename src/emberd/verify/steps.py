"""Steps: which sizes a runner's steps have, as far as these decide the kernels that serve them."""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.model import ModelSpec
from ..runtime import decode_attention, linear
from ..runtime.device import Device
from ..runtime.plan_key import FEW_ROWS

USUAL_ROWS = 4
"""Of a case, where its kernel leaves the choice: some contexts side by side."""

_CONTEXTS = (1, 1024, 1 << 20)  # one for each rule by which a context is split


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Rows of a case of decode attention, the workgroups that share a row's context, and what it writes: float, or
    int8 of which `run` values share a scale."""

    rows: int
    splits: int
    run: int | None
    near: bool = False  # as of `decode_near`


@dataclass(frozen=True, slots=True)
class Steps:
    """Up to `max_tokens` a step and `max_rows` with logits. The defaults are those that `emberd verify` looks at."""

    max_tokens: int = 512
    max_rows: int = 32

    @property
    def numbers_of_tokens(self) -> list[int]:
        """As plans have them."""
        return numbers_up_to(self.max_tokens)

    def quant_runs(self, device: Device, places: int = 1) -> list[int]:
        """How many int8 activations may share a scale, of `places` rows for each token."""
        table = linear.default_table(device)
        return sorted({table.quant_run(places * tokens) for tokens in self.numbers_of_tokens})

    def decode_shapes(self, device: Device, spec: ModelSpec, quantizes: bool) -> list[DecodeShape]:
        """One for each kernel that decode attention takes; `quantizes`: what reads it takes int8 where it can."""
        table = linear.default_table(device)
        quantizes = quantizes and decode_attention.gives_int8(spec.head_dim)
        alone = [
            (rows, table.quant_run(rows) if quantizes else None)
            for rows in numbers_up_to(self.max_rows)
        ]
        # Beside prefill rows it is float, whatever reads it.
        few = min(FEW_ROWS, self.max_rows)
        beside = [(rows, None) for rows in (few, self.max_rows) if self.max_tokens > few]
        found: dict[tuple[object, ...], list[DecodeShape]] = {}
        for case, (rows, run) in enumerate([*alone, *beside]):
            for context in _CONTEXTS:
                sizes = {
                    "rows": rows,
                    "num_kv_heads": spec.num_kv_heads,
                    "context": min(context, spec.context_length),
                }
                splits = decode_attention.decode_splits(device, **sizes)
                near = case < len(alone) and decode_attention.decode_near(device, **sizes)
                together = decode_attention.heads_together(
                    spec.num_heads // spec.num_kv_heads, rows * spec.num_kv_heads * splits
                )
                # A single row has kernels of its own by subgroups, and may have its splits in their text.
                single = rows == 1 and device.subgroup_size is not None
                kernel = (single, near, together, splits if self.max_rows == 1 else splits > 1, run)
                found.setdefault(kernel, []).append(DecodeShape(rows, splits, run, near))
        return [min(shapes, key=_unusual) for shapes in found.values()]


USUAL = Steps()

ONE_TOKEN = Steps(1, 1)
"""Steps whose kernels have their sizes in their text, where the device gains by it."""


def numbers_up_to(most: int) -> list[int]:
    """1, 2, 4 and so on, and `most`."""
    return list(dict.fromkeys([*(1 << n for n in range(most.bit_length())), most]))


def _unusual(shape: DecodeShape) -> int:
    return abs(shape.rows - USUAL_ROWS)
