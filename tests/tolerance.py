"""The one table of tolerances: ‖out − ref‖ / ‖ref‖ by kind of computation (design.md, "Numbers that count")."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["float", "f16", "kv_q8", "int8_twin", "int8_float"]

TOLERANCE: dict[Kind, float] = {
    "float": 1e-5,  # float32 against float32
    "f16": 1e-3,  # a value stored as f16 on the way
    "kv_q8": 1e-2,  # 32 values that share a scale as int8: half of a 127th of the largest, at most
    "int8_twin": 1e-5,  # int8 activations against a reference that quantizes the same way
    "int8_float": 1e-2,  # int8 activations against float32
}


def relative_error(out: NDArray[Any], ref: NDArray[Any]) -> float:
    """‖out − ref‖ / ‖ref‖ in float64; NaN when `out` holds one."""
    out64, ref64 = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    norm = float(np.linalg.norm(ref64))
    return float(np.linalg.norm(out64 - ref64)) / (norm or 1.0)


def check(out: NDArray[Any], ref: NDArray[Any], kind: Kind) -> None:
    """Fail with the error, its largest difference and where that lies."""
    assert out.shape == ref.shape, (out.shape, ref.shape)
    error = relative_error(out, ref)
    if error <= TOLERANCE[kind]:
        return
    difference = np.abs(np.asarray(out, np.float64) - ref)
    place = np.unravel_index(int(np.nanargmax(difference)), difference.shape)
    raise AssertionError(
        f"relative error {error:.3g} > {TOLERANCE[kind]:g} ({kind}); largest difference "
        f"{difference[place]:.3g} at {tuple(map(int, place))}: {out[place]!r} against {ref[place]!r}; "
        f"{int(np.isnan(out).sum())} NaN"
    )
