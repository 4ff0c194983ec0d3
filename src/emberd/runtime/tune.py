"""Tuning: which tile is fastest for each product of a model, measured on the device when it is first loaded.

Only tiles that the tests cover are tried, a winner must give what the rules' choice gives, and what is found
is kept for the next load. `EMBERD_TUNE=0` leaves the choice to the rules. It knows no steps.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from ..errors import DeviceError
from ..gguf.model import ModelFile
from .activations import is_fine
from .clock import Clock, make_clock
from .device import AdapterInfo
from .kernel import COMPILE_THREADS, Dispatch, Kernels
from .linear import LinearTable, Tile, can_fuse_gate_up, candidates, default_table
from .matvec import can_fuse_output
from .model import ModelWeights
from .pair import WeightPair, can_pair
from .products import MEASURED_TOKENS, Form, Product
from .replay import Recording, record
from .trial import Job, Trial, difference
from .tuned_file import device_key, load_tiles, save_tiles, tuned_path
from .weights import WeightMatrix

logger = logging.getLogger(__name__)

TileCheck = Callable[[ModelFile, LinearTable], LinearTable]
"""Gives the table without the measured tiles that are wrong in some kernel that the model takes by it."""

BUDGET = 3.0
"""Seconds after which no further product is begun; the next load goes on with those left."""

LEAST_GAIN = 0.03
"""Share of the time that a tile must save to take the place of the rules' choice: less is noise."""

ROUNDS = 5
"""Measurements of each tile, in turn with the others', of which the median counts."""

WARM_SECONDS = 0.4
"""How long a device works before it is first timed. One that rested has lowered its clock, but not its memory's, and
raises it after 0.1 to 0.2 s of work: tiles that are 2 % apart then were 13 % apart before."""

_ORDER = (1, 512, 32, 8, 64, 16)
"""Numbers of tokens in the order in which a user gains from them."""


def tuned_table(
    kernels: Kernels,
    weights: ModelWeights,
    *,
    max_tokens: int,
    max_rows: int,
    cache_dir: Path | None,
    rules: LinearTable | None = None,
    clock: Clock | None = None,
    budget: float | None = None,
) -> LinearTable:
    """The rules' table, with the tiles in front that are faster for this model on this device.

    `max_tokens` a step and `max_rows` with logits bound what is measured. Waits for the uploads where
    something is left to measure. Without a folder the result is not kept.
    """
    device = kernels.device
    rules = rules or default_table(device)
    if not is_wanted(device.info):
        return rules
    jobs = jobs_of(weights, rules, max_tokens, max_rows)
    known: dict[Product, Tile | None] = {}
    path, key = None, device_key(device)
    if cache_dir is not None:
        path = tuned_path(cache_dir, key)
        known = load_tiles(path, key, device)
    missing = [job for job in jobs if job.product not in known]
    if missing:
        weights.uploads.wait()
        tuner = Tuner(kernels, weights, rules, clock or make_clock(device))
        known.update(tuner.measure(missing, BUDGET if budget is None else budget))
        if path is not None:
            save_tiles(path, key, known)
    found = {job.product: known.get(job.product) for job in jobs}
    return rules.with_tiles({product: tile for product, tile in found.items() if tile})


def is_wanted(adapter: AdapterInfo) -> bool:
    """On real GPUs, where it gains a few percent; a software device compiles too slowly. `EMBERD_TUNE` decides else."""
    setting = os.environ.get("EMBERD_TUNE", "")
    return setting == "1" or (setting != "0" and not adapter.is_software)


def jobs_of(weights: ModelWeights, rules: LinearTable, max_tokens: int, max_rows: int) -> list[Job]:
    """What is worth measuring: what takes most of a step first, of each number of tokens."""
    found: dict[tuple[Product, bool], list[WeightMatrix | WeightPair]] = {}
    for tokens in MEASURED_TOKENS:
        for form, matrix, accumulate in _uses(weights, rules, tokens, max_tokens, max_rows):
            key = Product.of(form, matrix, tokens), accumulate
            found.setdefault(key, []).append(matrix)
    # Products that differ in `accumulate` alone share a tile: the one that reads most is measured.
    jobs: dict[Product, Job] = {}
    for (product, accumulate), matrices in found.items():
        job = Job(product, tuple(matrices), accumulate)
        if product not in jobs or jobs[product].nbytes < job.nbytes:
            jobs[product] = job
    ordered = []
    for order, tokens in enumerate(_ORDER):
        same = [job for job in jobs.values() if job.product.tokens == tokens]
        same.sort(key=lambda job: -job.nbytes)
        ordered += [(rank, order, job) for rank, job in enumerate(same)]
    ordered.sort(key=lambda entry: entry[:2])
    return [job for _, _, job in ordered]


def _uses(
    weights: ModelWeights, rules: LinearTable, tokens: int, max_tokens: int, max_rows: int
) -> Iterator[tuple[Form, WeightMatrix | WeightPair, bool]]:
    """Each product of a step of so many tokens as the forward pass makes it, and whether it is added to its output."""
    plain: Form = "rows" if tokens <= rules.matvec.tokens else "matmul"
    for layer in weights.layers if tokens <= max_tokens else ():
        for each in _paired(rules, layer.qkv.matrices, tokens):
            yield plain, each, False
        adds, norm = layer.post_attention_norm is None, layer.attention_norm
        fuses = adds and (norm is None or norm.bias is None)  # LayerNorms are made apart
        dense = layer if layer.router is None else layer.shared  # experts have kernels of their own
        down = () if dense is None else dense.down.matrices
        gate_up = () if dense is None else dense.gate_up.matrices
        for part in (layer.o, *((layer.down,) if dense is layer else ())):
            (matrix,) = part.matrices
            fused = fuses and not part.is_biased and can_fuse_output(rules.matvec, matrix, tokens)
            yield ("output", matrix, False) if fused else (plain, matrix, adds)
        for matrix in () if dense is layer else down:
            yield plain, matrix, False
        biased = dense is not None and dense.gate_up.is_biased
        whole = len(gate_up) == 1 and weights.spec.gated and not biased
        if whole and can_fuse_gate_up(rules, gate_up[0], tokens):
            yield "gate_up", gate_up[0], False
            continue
        for each in _paired(rules, gate_up, tokens):
            yield plain, each, False
    for matrix in weights.output.matrices if tokens <= max_rows else ():
        yield plain, matrix, False


def _paired(
    rules: LinearTable, matrices: Sequence[WeightMatrix], tokens: int
) -> Iterator[WeightMatrix | WeightPair]:
    """Matrices side by side as dispatches take them."""
    left = list(matrices)
    while left:
        first, *left = left
        if left and can_pair(rules, first, left[0], tokens):
            yield WeightPair(first, left.pop(0))
        else:
            yield first


class Tuner:
    """Measures products with a loaded model's own weights."""

    def __init__(
        self, kernels: Kernels, weights: ModelWeights, rules: LinearTable, clock: Clock
    ) -> None:
        self._kernels, self._device = kernels, kernels.device
        self._rules, self._clock = rules, clock
        self._activation, self._fine = weights.spec.activation, is_fine(weights.spec.hidden_size)
        self._last: tuple[Recording, int] | None = None  # measured last, and how many times at once

    def measure(self, jobs: Sequence[Job], budget: float) -> Mapping[Product, Tile | None]:
        """The fastest tile of each product, until the time is up; None: the rules' choice."""
        name, start = self._device.name, time.monotonic()
        logger.info("tuning %d products on %s, for about %.0f s", len(jobs), name, budget)
        found: dict[Product, Tile | None] = {}
        for job in jobs:
            if time.monotonic() - start >= budget:
                break
            try:
                found[job.product] = self.fastest(job)
            except DeviceError as error:
                logger.warning("tuning ends early at %s: %s", job.product, error)
                break
        logger.info(
            "tuned %d products on %s: %.1f s; %d gain by another tile, %d are left for the next load",
            len(found),
            name,
            time.monotonic() - start,
            sum(tile is not None for tile in found.values()),
            len(jobs) - len(found),
        )
        return found

    def fastest(self, job: Job) -> Tile | None:
        """The tile that saves most time, None where none saves enough. Raises DeviceError."""
        product, matrix = job.product, job.matrices[0]
        rule = self._rules.tile_for(product.form, matrix, product.tokens)
        trial = Trial(self._kernels, job, self._rules, self._activation, self._fine)
        chains = self._agreeing(trial, job, rule)
        if len(chains) == 1:
            return None
        seconds = self._seconds(trial, list(chains.values()))
        medians = dict(zip(chains, seconds, strict=True))
        best = min(medians, key=medians.__getitem__)
        if medians[rule] <= 0:  # a clock too coarse to tell
            return None
        gain = 1 - medians[best] / medians[rule]
        logger.debug("%s: %s, %.0f %% faster than %s", product, best, 100 * gain, rule)
        return best if gain > LEAST_GAIN else None

    def _agreeing(self, trial: Trial, job: Job, rule: Tile) -> dict[Tile, list[list[Dispatch]]]:
        """The dispatches of the rules' choice, then of each other tile that gives the same result."""
        others = [tile for tile in candidates(self._device, job.product) if tile != rule]
        with ThreadPoolExecutor(COMPILE_THREADS, "emberd-compile") as pool:
            made = [pool.submit(trial.dispatches, tile) for tile in (rule, *others)]
            while self._last is not None and not all(future.done() for future in made):
                self._clock(
                    [self._last[0]], self._last[1]
                )  # a device at rest would lower its clock
        found = {rule: made[0].result()}
        expected = trial.result(found[rule][0])
        for tile, future in zip(others, made[1:], strict=True):
            try:
                chain = future.result()
            except DeviceError as error:
                logger.warning("%s is left out of %s: %s", tile, job.product, error)
                continue
            off = difference(trial.result(chain[0]), expected)
            if off <= trial.tolerance:
                found[tile] = chain
            else:
                logger.warning("%s is left out of %s: off by %.1e", tile, job.product, off)
        return found

    def _seconds(self, trial: Trial, chains: Sequence[list[list[Dispatch]]]) -> list[float]:
        """The median time of each chain, over so many of the matrices that a measurement means something."""
        once = [record(self._device, chains[0][0], trial.output)]
        self._clock(once, 1)  # the first run may still set something up
        wanted = self._clock.least_seconds / max(self._clock(once, 1)[0], 1e-6)
        length = min(len(chains[0]), max(1, round(wanted)))
        times = max(1, round(wanted / length))
        recordings = [
            record(self._device, [step for steps in chain[:length] for step in steps], trial.output)
            for chain in chains
        ]
        if self._last is None:
            start = time.monotonic()
            while time.monotonic() - start < WARM_SECONDS:
                self._clock(recordings[:1], times)
        self._last = recordings[0], times
        taken = np.reshape(self._clock(recordings * ROUNDS, times), (ROUNDS, len(chains)))
        return [median(column) for column in taken.T.tolist()]
