"""The whole model on the device against the whole model in NumPy: a short prefill, then decode steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..gguf.loaded import loading_note
from ..gguf.spec import ModelFile, open_model
from ..protocol import Admission, Batch, IntArray, Runner, SamplingParams, WorkerOptions
from ..reference.runner import CpuRunner
from ..reference.transformer import Routing
from ..runtime.activations import is_fine
from ..runtime.linear import FLOAT_TYPES
from ..runtime.runner import GpuRunner
from ..text.tokenizer import Tokenizer
from .check import Check

TEXT = (
    "The lighthouse keeper wrote every evening what the sea had brought: a crate of oranges, two letters "
    "in a bottle, and once, after a storm, a small boat with nobody in it."
)
DECODE_STEPS = 8
CONTEXT = 256
ROWS = 16  # sequences that the runners make room for; logits come that many rows at a time
LIKELIEST = 5
MAX_DIFFERENCE = {"float": 0.03, "int8": 0.45}
"""Allowed difference of a log-probability among the five likeliest. MAX_MEAN: of the mean over the text."""
MAX_MEAN = {"float": 0.005, "int8": 0.05}
MAX_LOST = {"float": 1e-3, "int8": 0.05}
"""Chance, by the reference's router, of its own choice of experts above that of the device's."""


def check_model(path: Path, device: str) -> Iterator[Check]:
    """Raises ModelLoadError where the model does not fit into memory as float32, which the reference needs."""
    model = open_model(path)
    try:
        ids = _prompt(model)
        fine = is_fine(model.spec.hidden_size) and not loading_note(model.file.tensors.values())
        kind = "float" if fine or _all_float(model) else "int8"
        mixed = model.spec.experts is not None
    finally:
        model.close()
    options = WorkerOptions(
        str(path),
        device=device,
        context_length=CONTEXT,
        max_sequences=ROWS,
        max_batch_tokens=CONTEXT,
    )
    routes: list[list[IntArray]] = []
    cpu = CpuRunner.load(options)
    try:
        expected, ids_after = _run(cpu, ids, None)
        try:
            found = _on_device(options, ids, ids_after, routes)
        except Exception as fault:  # whatever a broken kernel raises
            note = f"{type(fault).__name__}: {fault}"
            yield Check("model", kind, f"{len(ids)} tokens", math.nan, MAX_DIFFERENCE[kind], note)
            return
        if mixed:
            expected, check = _sent_alike(cpu, ids, ids_after, routes, kind)
            yield check
    finally:
        cpu.close()
    prompt = slice(0, len(ids))
    decode = slice(len(ids), None)
    for name, part in (("prefill", prompt), ("decode", decode)):
        rows = expected[part]
        best = np.argsort(rows, axis=1)[:, -LIKELIEST:]
        difference = np.abs(found[part] - rows)
        worst = float(np.take_along_axis(difference, best, axis=1).max())
        shape = f"{len(rows)} tokens, {LIKELIEST} likeliest"
        yield Check(f"model {name}", kind, shape, worst, MAX_DIFFERENCE[kind])
    places = np.arange(len(ids) - 1)
    mean = float((found - expected)[places, ids[1:]].mean())
    yield Check("model text", kind, f"mean of {len(places)} tokens", abs(mean), MAX_MEAN[kind])


def _sent_alike(
    cpu: CpuRunner,
    ids: Sequence[int],
    continuation: Sequence[int],
    routes: Sequence[list[IntArray]],
    kind: str,
) -> tuple[NDArray[np.float64], Check]:
    """The reference with every token sent to the device's experts, and what that loses by its own router.

    Near ties of the router fall to the other side by a rounding, and from there on logits part though nothing is wrong.
    """
    routings = [Routing(given) for given in routes]
    expected, _ = _run(cpu, ids, continuation, follow=routings)
    lost = np.concatenate([part for routing in routings for part in routing.lost])
    parted = sum(routing.parted for routing in routings)
    shape = f"{parted} of {lost.size} choices parted"
    return expected, Check("model experts", kind, shape, float(lost.max()), MAX_LOST[kind])


def _on_device(
    options: WorkerOptions,
    ids: Sequence[int],
    continuation: Sequence[int],
    routes: list[list[IntArray]],
) -> NDArray[np.float64]:
    gpu = GpuRunner.load(options)
    try:
        return _run(gpu, ids, continuation, routes)[0]
    finally:
        gpu.close()


def _prompt(model: ModelFile) -> list[int]:
    tokenizer = Tokenizer.from_metadata(model.file.metadata)
    ids = tokenizer.encode(TEXT, add_special=True, parse_special=False)
    return ids[: CONTEXT - DECODE_STEPS]


def _all_float(model: ModelFile) -> bool:
    layers = model.tensors.layers
    matrices = [info for layer in layers for info in (layer.q, layer.o, layer.up, layer.down)]
    return all(info.type in FLOAT_TYPES for info in [*matrices, model.tensors.output])


def _run(
    runner: Runner,
    prompt: Sequence[int],
    continuation: Sequence[int] | None,
    routes: list[list[IntArray]] | None = None,
    follow: Sequence[Routing] | None = None,
) -> tuple[NDArray[np.float64], list[int]]:
    """Log-probabilities after each token of the prompt and of the continuation (its own greedy one if None).

    `routes` gets the experts of each step on a GPU, `follow` gives them to the CPU.
    """
    rows: list[NDArray[np.float64]] = []
    tokens: list[int] = []

    def step(ids: Sequence[int], start: int) -> None:
        batch = batch_of(runner, ids, start)
        if follow is not None and isinstance(runner, CpuRunner):
            runner.routing = follow[len(rows)]
        runner.submit(batch)
        rows.append(log_softmax(logits_of(runner)))
        if routes is not None and isinstance(runner, GpuRunner):
            routes.append(runner.experts_of(batch))

    step(prompt, 0)
    for place in range(DECODE_STEPS):
        token = int(rows[-1][-1].argmax()) if continuation is None else continuation[place]
        tokens.append(token)
        step([token], len(prompt) + place)
    return np.concatenate(rows), tokens


def batch_of(runner: Runner, token_ids: Sequence[int], start: int) -> Batch:
    """One row's tokens from position `start` on; the sequence owns the first blocks, in order."""
    count, context = len(token_ids), runner.info().context_length
    blocks = -(-context // runner.block_size)
    positions = np.arange(start, start + count, dtype=np.int32)
    greedy = SamplingParams(temperature=0)
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        slot_mapping=positions.copy(),
        query_start=np.array([0, count], np.int32),
        context_lens=np.array([start + count], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        sequence_index=np.zeros(1, np.int32),
        sample=np.zeros(1, np.bool_),
        admissions=[Admission(0, greedy, tuple(token_ids), count)] if start == 0 else [],
        logits_at=np.arange(count, dtype=np.int32),
    )


def logits_of(runner: Runner) -> NDArray[np.float32]:
    logits = runner.collect().logits
    assert logits is not None
    return logits


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """NaN in a row that holds NaN or has no finite maximum."""
    with np.errstate(invalid="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
