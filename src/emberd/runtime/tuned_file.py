"""Measured tiles on disk: one JSON file for each adapter, driver and version of kernels and tables.

A file that is broken, or made by other kernels, counts as empty. Knows tiles and products; measures nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wgpu

from .compose import shader_dir
from .device import Device
from .linear import Tile, candidates, default_table
from .matmul import matmul_tiles
from .matvec import matvec_tiles
from .products import Product

logger = logging.getLogger(__name__)

Tiles = Mapping[Product, Tile | None]
"""None: the rule's own choice is as fast as any."""

_VERSION = 2  # of how tiles are measured


def device_key(device: Device) -> dict[str, str]:
    """What measurements hold for."""
    tiles = (
        [matvec_tiles(device, form) for form in ("rows", "output", "gate_up")],
        [matmul_tiles(device, form) for form in ("matmul", "gate_up")],
    )
    kernels = hashlib.sha256(repr((default_table(device), tiles)).encode())
    for path in sorted(shader_dir().rglob("*.wgsl")):
        kernels.update(path.read_bytes())
    return {
        "version": str(_VERSION),
        "adapter": device.info.name,
        "backend": device.info.backend,
        "driver": device.info.driver,
        "wgpu": wgpu.__version__,
        "kernels": kernels.hexdigest(),
        "subgroup": str(device.subgroup_size),
    }


def tuned_path(cache_dir: Path, key: Mapping[str, str]) -> Path:
    name = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir / "tiles" / f"{name}.json"


def load_tiles(path: Path, key: Mapping[str, str], device: Device) -> dict[Product, Tile | None]:
    """What the file holds; empty if it is missing, broken, for another key or names a tile that is no candidate."""
    try:
        values: Any = json.loads(path.read_bytes())
        if values["key"] != key:
            raise ValueError("it was made for another device or version")
        return dict(_parse(entry, device) for entry in values["products"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("measured tiles in %s are not used: %s", path, error)
        return {}


def save_tiles(path: Path, key: Mapping[str, str], tiles: Tiles) -> None:
    entries = [
        {**dataclasses.asdict(product), "tile": None if tile is None else dataclasses.asdict(tile)}
        for product, tile in tiles.items()
    ]
    keep_json(path, {"key": dict(key), "products": entries})


def keep_json(path: Path, value: Any) -> None:
    """Written whole or not at all; what cannot be kept is only found out again."""
    text = json.dumps(value, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        logger.warning(
            "what was found out about the device cannot be kept in %s: %s", path.parent, error
        )


def _parse(entry: dict[str, Any], device: Device) -> tuple[Product, Tile | None]:
    product = Product(**{key: value for key, value in entry.items() if key != "tile"})
    if entry["tile"] is None:
        return product, None
    for tile in candidates(device, product):
        if dataclasses.asdict(tile) == entry["tile"]:
            return product, tile
    raise ValueError(f"{product} has a tile that is not among the tested ones: {entry['tile']}")
