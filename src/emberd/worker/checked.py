"""The device that is to serve a model, with its kernels checked on the model's weights where that is wanted.

Imported by process.py alone, when there is an adapter.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from emberd.errors import DeviceError, HeadsError, ModelFileError
from emberd.gguf.model import ModelFile
from emberd.gguf.spec import open_any
from emberd.protocol import WorkerOptions
from emberd.runtime.device import AdapterInfo, Device, open_device
from emberd.runtime.encoder_ops import check_heads
from emberd.runtime.footprint import fitted
from emberd.runtime.kernel import Kernels
from emberd.runtime.linear import LinearTable
from emberd.runtime.ops import kv_include
from emberd.runtime.text_runner import encoder_sizes
from emberd.runtime.tune import TileCheck

log = logging.getLogger("emberd.worker")


def checked_kernels(
    options: WorkerOptions, adapter: AdapterInfo
) -> tuple[Kernels | None, WorkerOptions, TileCheck | None]:
    """The kernels of the adapter's device, or None where the CPU must serve; what the check found, in the options; and
    what is to check measured tiles.

    A fault of the check itself, which says nothing about the kernels, keeps no model from serving.
    Raises DeviceError where kernels are wrong, or lack the model's heads, and the device was asked for;
    ModelFileError for the file.
    """
    device = open_device("gpu" if options.device == "auto" else options.device)
    if not (options.verify or (options.verify is None and not adapter.is_software)):
        return Kernels(device), options, None
    from emberd.verify.load_bench import WatchedKernels
    from emberd.verify.loading import check_at_load
    from emberd.verify.tiles import check_tiles

    name, watched = Path(options.model_path).name, WatchedKernels(device)
    try:
        fitting = _fitted(device, options)
    except HeadsError as error:
        return None, cpu_instead(device, options, error.message), None
    sizes: dict[str, Any] = {
        "max_tokens": max(fitting.max_batch_tokens, fitting.max_sequences),
        "max_rows": fitting.max_sequences,
        "cache_dir": None if options.cache_dir is None else Path(options.cache_dir),
    }
    try:
        found = check_at_load(
            watched,
            options.model_path,
            kv_types=("f16", "q8_0") if options.kv_type == "auto" else (options.kv_type,),
            **sizes,
        )
    except ModelFileError:
        raise
    except Exception as fault:
        log.exception("the kernel check of %s failed", name)
        told = f"kernels were not checked: {type(fault).__name__}: {fault}"
        return Kernels(device), replace(options, verification=told), None
    if not found.wrong:

        def measured(model: ModelFile, table: LinearTable) -> LinearTable:
            try:
                return check_tiles(watched, model, table, **sizes)
            except Exception:
                log.exception("the check of measured tiles of %s failed: none is taken", name)
                return table.with_tiles({})

        return Kernels(device), replace(options, verification=str(found)), measured
    hint = ". --device cpu serves it, --no-verify takes the device as it is"
    return None, cpu_instead(device, options, str(found), hint), None


def cpu_instead(device: Device, options: WorkerOptions, why: str, hint: str = "") -> WorkerOptions:
    """Options for the CPU device, which tell why it serves. Raises DeviceError where a GPU was asked for."""
    name = Path(options.model_path).name
    device.close()
    if options.device != "auto":
        raise DeviceError(f"{name} is not served: {why}{hint}")
    log.warning("the CPU serves %s: %s", name, why)
    return replace(options, verification=f"served by the CPU: {why}")


def _fitted(device: Device, options: WorkerOptions) -> WorkerOptions:
    """What the runner will make of the options. Raises ModelFileError, HeadsError."""
    model = open_any(options.model_path)
    try:
        if isinstance(model, ModelFile):
            kv_include(device, model.spec.head_dim)
        else:
            check_heads(device, model.spec.head_dim)
        if isinstance(model, ModelFile) and model.spec.causal:
            return fitted(device, model.spec, options)
        _, tokens = encoder_sizes(device, model, options)
    finally:
        model.close()
    rows, most = min(options.max_sequences, tokens), min(options.max_batch_tokens, tokens)
    return replace(options, max_sequences=rows, max_batch_tokens=most)
