"""Command devices: the adapters that WebGPU reaches, and which one would serve."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..config import Config
from ..errors import DeviceError
from .output import JsonOption, print_json, print_table, size_words
from .settings import with_settings

_SHOWN_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
)
_SHOWN_FEATURES = ("subgroup", "shader-f16", "timestamp-query")


@with_settings("device")
def devices(config: Config, json: JsonOption = False) -> None:
    """List adapters with their features and limits, and say which device would be chosen and why."""
    from ..hardware import gpu_tier
    from ..runtime.device import adapters, choose_adapter
    from ..runtime.device_memory import device_memory

    found = adapters()
    memory = {info.index: device_memory(info) for info in found}
    classes = {info.index: gpu_tier(info.kind, memory[info.index]) for info in found}
    refused: DeviceError | None = None
    chosen, reason = None, ""
    try:
        chosen, reason = choose_adapter(config.device)
    except DeviceError as error:
        refused = error
    choice = {
        "wanted": config.device,
        "chosen": None if refused else (chosen.name if chosen else "cpu"),
        "adapter": chosen.index if chosen else None,
        "reason": refused.message if refused else reason,
    }
    if json:
        told = [
            dataclasses.asdict(info) | {"memory": memory[info.index], "class": classes[info.index]}
            for info in found
        ]
        print_json({"adapters": told, "choice": choice})
    else:
        if found:
            columns = ("", "ADAPTER", "KIND", "BACKEND", "DRIVER", "FEATURES")
            print_table(columns, [_row(info, chosen) for info in found])
            for info in found:
                size = memory[info.index]
                known = "does not tell its memory" if size is None else f"memory {size_words(size)}"
                print(f"{info.name}: {known}, class {classes[info.index]}")
                limits = ", ".join(_limit(name, info.limits[name]) for name in _SHOWN_LIMITS)
                print(f"{info.name}: {limits}")
        else:
            print("no WebGPU adapter was found")
        if not refused:
            print(f"device {config.device!r} would be {choice['chosen']}: {reason}")
    if refused:
        raise refused


def _row(info: Any, chosen: Any) -> tuple[str, ...]:
    mark = "*" if chosen is not None and info.index == chosen.index else ""
    features = [name for name in _SHOWN_FEATURES if name in info.features]
    kind = "software" if info.is_software else info.kind
    return (mark, info.name, kind, info.backend, info.driver, " ".join(features))


def _limit(name: str, value: int) -> str:
    return f"{name} {size_words(value) if name.endswith('size') else value}"
