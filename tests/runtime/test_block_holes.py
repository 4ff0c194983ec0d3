"""What lies behind the window of every layer is read by no kernel: its blocks may be holes in the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import arch_models
from batches import GREEDY, Row, make_batch
from emberd.engine.blocks import HOLE
from emberd.protocol import Runner, WorkerOptions

CONTEXT = 512
CHUNK = 64


def load(kind: str, path: Path) -> Runner:
    options = WorkerOptions(
        str(path), kind, CONTEXT, kv_memory=16 << 20, max_sequences=2, max_batch_tokens=CHUNK
    )
    if kind == "cpu":
        from emberd.reference.runner import CpuRunner

        return CpuRunner.load(options)
    from emberd.runtime.runner import GpuRunner

    return GpuRunner.load(options)


def last_logits(runner: Runner, ids: list[int], window: int, holes: bool) -> list[np.ndarray]:
    """Prefill by chunks but for four tokens, then those one a step. With `holes`, blocks behind the window of
    a step are another sequence's by then, and the table does not name them."""
    size = runner.block_size
    table = list(range(CONTEXT // size))
    long = len(ids) - 4
    starts = [*range(0, long, CHUNK), *range(long, len(ids))]
    found = []
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        if holes:
            for place in range(max(0, start - window + 1) // size):
                table[place] = HOLE
        row = Row(0, ids[start:end], start, table, False, GREEDY if start == 0 else None)
        runner.submit(make_batch([row], size, [end - start - 1]))
        out = runner.collect().logits
        assert out is not None
        found.append(out[0])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.device)])
def test_holes_behind_the_window_change_nothing(
    kind: str, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = int(rng.integers(20, 120))
    given = {"attention.sliding_window": window}
    monkeypatch.setitem(arch_models.CASES, "phi3, window", given)
    path = arch_models.architecture_model(tmp_path / "m.gguf", "phi3, window")
    runner = load(kind, path)
    assert runner.info().window == window
    ids = rng.integers(0, 256, int(rng.integers(300, 400))).tolist()
    whole = last_logits(runner, ids, window, holes=False)
    holed = last_logits(runner, ids, window, holes=True)
    runner.close()
    assert all(np.array_equal(a, b) for a, b in zip(whole, holed, strict=True)), f"window {window}"
