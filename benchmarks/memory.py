"""What models take, told before a load against what is measured after one: the figures of `emberd fit`.

    python benchmarks/memory.py MODEL.gguf... --devices gpu,cpu --ctx 512 --sequences 2

On a GPU the worker counts its own buffers. On the CPU device it is the worker's own memory (USS) once every
sequence has filled its context, less that of a worker whose model is next to nothing. It measures no time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil

import common
from emberd.errors import EmberdError
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.gguf.reader import GGUFFile
from emberd.protocol import GenerateRequest, SamplingParams, WorkerOptions
from emberd.worker.client import WorkerClient

NEW_TOKENS = 4
MIB = 1 << 20


def main() -> int:
    parser = common.parser("Memory of models, estimated and measured", 1)
    parser.add_argument("models", type=Path, nargs="+", help="GGUF files")
    parser.add_argument("--devices", default="gpu,cpu", help="devices, separated by commas")
    parser.add_argument("--ctx", type=common.positive, default=512, help="tokens of each sequence")
    parser.add_argument("--sequences", type=common.positive, default=2)
    options = parser.parse_args()
    try:
        return asyncio.run(_run(options))
    except EmberdError as error:
        print(error.message, file=sys.stderr)
        return 1


async def _run(options: argparse.Namespace) -> int:
    results, device = [], ""
    for wanted in options.devices.split(","):
        bare = await _bare() if wanted == "cpu" else 0
        for model in options.models:
            loaded = WorkerOptions(
                str(model),
                wanted,
                context_length=options.ctx,
                kv_memory=1 << 40,
                max_sequences=options.sequences,
            )
            told = await WorkerClient.estimate(MemoryQuestion(loaded))
            results.append(await _measured(loaded, told, bare))
            device = device or told.device
            print(_line(results[-1]), file=sys.stderr)
    common.print_table(
        ("model", "device", "estimated MiB", "measured MiB", "off by"),
        [_cells(result) for result in results],
    )
    facts = common.conditions(
        device=device,
        driver="",
        repeats=1,
        commit=options.commit,
        context=options.ctx,
        sequences=options.sequences,
    )
    common.finish("memory", facts, results, options.out)
    return 0


async def _measured(options: WorkerOptions, told: MemoryEstimate, bare: int) -> dict[str, Any]:
    estimated = told.weight_bytes + told.kv_bytes + told.scratch(told.context_length)
    worker = await WorkerClient.start(options)
    try:
        info = worker.info
        if info.device_kind == "gpu":
            measured = info.weight_bytes + info.kv_bytes + info.scratch_bytes
        else:
            await _fill(worker, options)
            measured = _own_bytes(worker) - bare
    finally:
        await worker.close()
    return {
        "model": Path(options.model_path).name,
        "device": told.device,
        "estimated_bytes": estimated,
        "measured_bytes": measured,
        "off": estimated / measured - 1,
    }


async def _fill(worker: WorkerClient, options: WorkerOptions) -> None:
    """Every sequence up to its context."""
    info = worker.info
    with GGUFFile(options.model_path) as file:
        vocab = next(t.shape[0] for t in file.tensors.values() if t.name == "token_embd.weight")

    async def one(index: int) -> None:
        rng = random.Random(index)
        ids = tuple(rng.randrange(vocab) for _ in range(info.context_length - NEW_TOKENS))
        params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)
        async for _ in worker.generate(GenerateRequest(str(index), ids, params)):
            pass

    await asyncio.gather(*(one(index) for index in range(info.max_sequences)))


def _own_bytes(worker: WorkerClient) -> int:
    return int(psutil.Process(worker.pid).memory_full_info().uss)


async def _bare() -> int:
    """A worker without a model worth the name, after it has run."""
    with tempfile.TemporaryDirectory() as folder:
        options = WorkerOptions(str(_nothing(Path(folder) / "nothing.gguf")), "cpu")
        worker = await WorkerClient.start(options)
        try:
            await _fill(worker, options)
            return _own_bytes(worker)
        finally:
            await worker.close()


def _nothing(path: Path) -> Path:
    """A llama of one layer and 32 dims."""
    rng, width = np.random.default_rng(0), 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, rows in (
        ("token_embd", 64),
        ("output_norm", 0),
        ("blk.0.attn_norm", 0),
        ("blk.0.ffn_norm", 0),
        *((f"blk.0.attn_{part}", width) for part in ("q", "k", "v", "output")),
        *((f"blk.0.ffn_{part}", width) for part in ("gate", "up", "down")),
    ):
        shape = (rows, width) if rows else (width,)
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _cells(result: dict[str, Any]) -> list[str]:
    sizes = [f"{result[name] / MIB:,.1f}" for name in ("estimated_bytes", "measured_bytes")]
    return [result["model"], result["device"], *sizes, f"{100 * result['off']:+.1f} %"]


def _line(result: dict[str, Any]) -> str:
    return "  ".join(_cells(result))


if __name__ == "__main__":
    raise SystemExit(main())
