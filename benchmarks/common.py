"""What every benchmark here shares: conditions, repeats and spread, a table, one JSON line and a result file.

It measures nothing itself. Standard library only until a device is asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from emberd.config import Config
from emberd.protocol import Runner, WorkerOptions
from emberd.runtime import tune
from emberd.runtime.device import choose_adapter
from emberd.worker.process import load_runner

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one measurement."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found))

    def __str__(self) -> str:
        return f"{_number(self.median)} ({_number(self.low)}–{_number(self.high)})"


def parser(description: str, repeats: int) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--repeats", type=positive, default=repeats, help="runs of each measurement")
    made.add_argument("--out", type=Path, help="result file (default: benchmarks/results/…)")
    made.add_argument(
        "--commit",
        default=os.environ.get("EMBERD_COMMIT"),
        help="commit to name in the result, where git cannot tell it",
    )
    return made


def cache_dir() -> str:
    """Where a daemon with this environment keeps its measured tiles."""
    return str(Config.from_env(os.environ).cache_dir)


def measure_tiles(options: WorkerOptions) -> None:
    """Load the model once where tiles are measured, so that a load that is timed finds them."""
    adapter, _ = choose_adapter(options.device)
    if adapter is not None and tune.is_wanted(adapter):
        tune.BUDGET = 60.0
        load_runner(options, lambda _: None).close()


def positive(text: str) -> int:
    """An argument that is a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """An argument such as 1,8,32."""
    return tuple(positive(word) for word in text.split(","))


def conditions(
    *, device: str, driver: str, repeats: int, commit: str | None = None, **more: Any
) -> dict[str, Any]:
    """Where and when a result was taken; `more` is the benchmark's own settings."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
        "device": device,
        "driver": driver,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "wgpu": _version("wgpu"),
        "numpy": _version("numpy"),
        "repeats": repeats,
        **more,
    }


def driver(runner: Runner) -> str:
    """What runs the kernels."""
    if runner.info().device_kind == "cpu":
        return "numpy"
    from emberd.runtime.runner import GpuRunner

    assert isinstance(runner, GpuRunner)
    return runner.kernels.device.info.driver


def model_facts(path: Path) -> dict[str, Any]:
    """Name, size and sha256 of a model file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 24):
            digest.update(part)
    return {"model": path.name, "model_bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def print_conditions(facts: dict[str, Any]) -> None:
    print("  ".join(f"{name} {value}" for name, value in facts.items()), flush=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[cell if isinstance(cell, str) else _number(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [
        all(not isinstance(row[i], str) or row[i] in {"", "-"} for row in rows)
        for i in range(len(headers))
    ]
    for row in [list(headers), *cells]:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        print("  ".join(padded).rstrip())


def finish(name: str, facts: dict[str, Any], results: Any, out: Path | None) -> Path:
    """Write the result file and print the result as the last line. Returns the file's path."""
    stamp = re.sub(r"[-:]", "", str(facts["date"]))[:13]
    device = re.sub(r"[^a-z0-9]+", "-", str(facts["device"]).lower()).strip("-")[:40]
    path = out or RESULTS / f"{name}-{device}-{stamp}.json"
    record = {"benchmark": name, "conditions": facts, "results": plain(results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
    print(json.dumps(record), flush=True)
    return path


def plain(value: Any) -> Any:
    """`value` as JSON takes it: dataclasses as objects, floats with six figures."""
    if hasattr(value, "__dataclass_fields__"):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with a plus where files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
