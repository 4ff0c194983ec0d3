"""The benchmark's drafts: a model's first layers say what a copy of it says whose other layers add nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batches import Row, make_batch
from emberd.gguf.reader import GGUFFile
from emberd.protocol import WorkerOptions
from emberd.reference.runner import CpuRunner
from tiny_gguf import random_model


def logits_of(path: Path, token_ids: list[int]) -> Any:
    """(tokens, vocabulary)"""
    runner = CpuRunner.load(WorkerOptions(str(path), "cpu", context_length=32, max_sequences=1))
    batch = make_batch([Row(0, token_ids, 0, [0], sample=False)], runner.block_size)
    batch.logits_at = np.arange(len(token_ids), dtype=np.int32)
    runner.submit(batch)
    found = runner.collect().logits
    runner.close()
    return found


@pytest.mark.slow
def test_silent_layers_leave_what_the_first_ones_say(
    load: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    model = random_model(tmp_path / "m.gguf", quant="Q4_K", layers=3)
    made, silent = tmp_path / "made.gguf", tmp_path / "silent.gguf"
    shallow = load("shallow").shallow
    shallow(model, made, 1)
    shallow(model, silent, 1, silence=True)
    with GGUFFile(made) as one, GGUFFile(silent) as other, GGUFFile(model) as whole:
        assert len(one.tensors) < len(other.tensors) == len(whole.tensors)
        differing = {
            key
            for key in whole.metadata
            if not np.array_equal(one.metadata[key], whole.metadata[key])
        }
        assert differing == {"llama.block_count"} and one.metadata.keys() == whole.metadata.keys()
    token_ids = rng.integers(0, 256, 9).tolist()
    first, same = logits_of(made, token_ids), logits_of(silent, token_ids)
    assert np.array_equal(first, same)
    assert np.abs(first - logits_of(model, token_ids)).max() > 0.1
    with pytest.raises(ValueError, match="has 3 layers"):
        shallow(model, made, 3)
