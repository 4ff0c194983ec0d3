"""LoadBench: a workbench that skips what was right before, and knows what a kernel is made of."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from .. import runtime
from ..runtime.device import Device
from ..runtime.kernel import Kernel, KernelKey, Kernels
from ..runtime.tuned_file import device_key, keep_json, tuned_path
from ..runtime.weights import FLOAT_TYPES
from .bench import Workbench
from .check import Case, Check

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Runs with new random input before a kernel counts as wrong: near ties round differently. Only what is right at the
first is kept."""

FEATURES = {
    "paired": "products of two weight types in one kernel",
    "baked": "kernels with their sizes in the text",
    "fused": "products in one kernel with what follows or precedes them",
    "subgroups": "reductions within subgroups",
    "matmul": "products in tiles",
    "matvec": "products row by row",
}
"""What can be left out, in this order: what costs least speed first. Beside these, quant types by name."""

WRITE_EVERY = 16
"""Cases that a check which is interrupted may have to run again."""

_VERSION = 1  # of what is checked


@cache
def _source_digest() -> str:
    """Of the code that chooses kernels, their grids and params, and of the cases."""
    folders = (Path(__file__).parent, *map(Path, runtime.__path__))
    sources = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


class Kept:
    """Cases that were right with this adapter, driver, code and shaders; a file beside the measured tiles'."""

    def __init__(
        self, path: Path | None, key: Mapping[str, str], cases: dict[str, tuple[str, ...]]
    ) -> None:
        self.cases = cases
        self._path, self._key, self._num_written = path, key, len(cases)

    @classmethod
    def read(cls, cache_dir: Path | None, device: Device) -> Kept:
        """Empty where there is no folder or file, or it is broken."""
        key = device_key(device) | {"checks": str(_VERSION), "code": _source_digest()}
        if cache_dir is None:
            return cls(None, key, {})
        path = (
            tuned_path(cache_dir, key).parent.parent / "checked" / tuned_path(cache_dir, key).name
        )
        try:
            values: Any = json.loads(path.read_bytes())
            if values["key"] != key:
                raise ValueError("it was made for another device or version")
            right = {str(case): tuple(map(str, used)) for case, used in values["right"].items()}
            return cls(path, key, right)
        except FileNotFoundError:
            return cls(path, key, {})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("what %s says of kernels is not used: %s", path, error)
            return cls(path, key, {})

    def add(self, case: str, features: tuple[str, ...]) -> None:
        self.cases[case] = features
        if len(self.cases) >= self._num_written + WRITE_EVERY:
            self.write()

    def write(self) -> None:
        if self._path is not None and len(self.cases) != self._num_written:
            keep_json(self._path, {"key": dict(self._key), "right": self.cases})
            self._num_written = len(self.cases)


class WatchedKernels(Kernels):
    """Kernels that remember which of them were asked for since `seen` was emptied, also those that fail to compile."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.seen: set[KernelKey] = set()

    def of(self, key: KernelKey) -> Kernel:
        self.seen.add(key)
        return super().of(key)


class LoadBench(Workbench):
    """`scope`: what tells this model's cases from those of others with the same names."""

    def __init__(self, kernels: WatchedKernels, kept: Kept) -> None:
        super().__init__(kernels.device, kernels)
        self._watched, self._kept = kernels, kept
        self.scope = ""
        self.num_run = 0
        self.before_running: Callable[[], None] | None = None  # called once, ahead of a case

    def _name(self, case: Case) -> str:
        # Products say themselves what they depend on; all else depends on the model's sizes and switches.
        scope = "" if "×" in case.shape and case.kernel.startswith("mat") else self.scope
        parts = (scope, *sorted(self.device.left_out), case.kernel, case.type, case.shape)
        forms = {"baked": self.baking, "fine": self.fine}
        return "; ".join([*filter(None, parts), *(name for name, on in forms.items() if on)])

    def is_kept(self, case: Case) -> bool:
        """Whether this case was right before, so that it will not run."""
        return self._name(case) in self._kept.cases

    def judge(self, case: Case) -> Check:
        name = self._name(case)
        if name in self._kept.cases:
            return replace(case.row(0.0), features=self._kept.cases[name])
        if self.before_running is not None:
            first, self.before_running = self.before_running, None
            first()
        self.num_run += 1
        for attempt in range(ATTEMPTS):
            self._watched.seen.clear()
            check = super().judge(case)
            at_once = check.passed and attempt == 0
            if check.passed or check.unchecked:
                break
        else:
            logger.debug("%s %s %s: %.1e %s", *case[:3], check.error, check.note)
        if check.unchecked:
            logger.warning("%s %s %s is not checked: %s", *case[:3], check.note)
        features = tuple(sorted(set().union(*map(features_of, self._watched.seen))))
        if at_once:
            self._kept.add(name, features)
        return replace(check, features=features)


def to_leave_out(check: Check, checks: Iterable[Check], left_out: Collection[str]) -> str | None:
    """What to do without so that another kernel takes the place of this check's; None: there is none.

    A quant type goes first where whatever reads it is wrong: then its decoding is. The rows of products and
    their tiles stand in for each other, so one of them stays.
    """
    features = [name for name in check.features if name not in left_out]
    for name in features:
        if name not in FEATURES and not any(c.passed for c in checks if name in c.features):
            return name
    other = {"matmul": "matvec", "matvec": "matmul"}
    for name in FEATURES:
        if name in features and other.get(name) not in left_out:
            return name
    return None


def features_of(key: KernelKey) -> set[str]:
    """What of it a device can do without."""
    includes, found = dict(key.includes), set()
    if key.params:
        found.add("baked")
    if key.second is not None:
        found |= {"paired", *features_of(key.second)}
    in_subgroups = any("subgroup" in name for name in (key.name, *includes.values()))
    if in_subgroups or "SUBGROUP" in dict(key.constants):
        found.add("subgroups")
    if key.name in ("matvec", "matmul"):
        found.add(key.name)
    alone = ("finish_rows", "tile_rows", "norm_done", "chunk_alone")
    if any(includes.get(name, alone[0]) not in alone for name in ("finish", "norm", "ahead")):
        found.add("fused")
    weight = includes.get("weight", "").upper()
    if weight in GGMLQuantizationType.__members__:
        type = GGMLQuantizationType[weight]
        if type not in FLOAT_TYPES and type != GGMLQuantizationType.Q8_0:
            found.add(weight)
    return found
