"""Measured tiles, checked in every kernel that they have a part in before a model serves with them.

Tuning compares a tile's plain product with the rules' choice on random input; the forward pass also leaves norms to
it, and lets it multiply other numbers of tokens. A tile that is wrong in one of these is not taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ..gguf.model import ModelFile
from ..runtime.activations import is_fine
from ..runtime.linear import LinearTable
from ..runtime.products import Product
from .ahead import compile_ahead
from .check import Check
from .load_bench import Kept, LoadBench, WatchedKernels
from .pairs import check_tuned_pairs
from .steps import Steps
from .uses import check_tuned, model_uses

logger = logging.getLogger(__name__)


def check_tiles(
    kernels: WatchedKernels,
    model: ModelFile,
    table: LinearTable,
    *,
    max_tokens: int,
    max_rows: int,
    cache_dir: Path | None,
) -> LinearTable:
    """`table` without the tiles that are wrong. What was right is kept, as by `check_at_load`."""
    device, start = kernels.device, time.monotonic()
    kept = Kept.read(cache_dir, device)
    bench, steps = LoadBench(kernels, kept), Steps(max_tokens, max_rows)
    bench.fine = is_fine(model.spec.hidden_size)
    num_measured, num_checks = table.num_tuned, 0
    while True:
        cases = partial(_cases, model=model, steps=steps, table=table)
        bench.before_running = partial(compile_ahead, kernels, kept, cases)
        checks = list(cases(bench))
        num_checks = max(num_checks, len(checks))
        wrong = {product: check for product, check in checks if not _may_serve(check)}
        if not wrong:
            break
        for product, check in wrong.items():
            logger.warning(
                "%s (%s) is wrong on %s by the tile measured for %s: the rules' tile is taken",
                *(check.kernel, check.type, device.name, product),
            )
        # Others may share a tile's kernel, which was run once for all: the next turn is theirs.
        table = table.without_tiles(wrong)
    kept.write()
    logger.info(
        "%d measured tiles on %s: %d checks (%d run now, %.1f s), %d left out",
        *(num_measured, device.name, num_checks, bench.num_run, time.monotonic() - start),
        num_measured - table.num_tuned,
    )
    return table


def _cases(
    bench: LoadBench, model: ModelFile, steps: Steps, table: LinearTable
) -> Iterator[tuple[Product, Check]]:
    yield from check_tuned(bench, model, model_uses(model, steps), table)
    yield from check_tuned_pairs(bench, model, steps, table)


def _may_serve(check: Check) -> bool:
    return check.passed or check.unchecked
