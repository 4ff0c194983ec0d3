"""Contexts beyond the trained one: rope scaled by a setting is what a file that says the same gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch_models import architecture_model
from batches import Row, make_batch
from emberd.config import Config
from emberd.errors import ConfigError, ModelLoadError
from emberd.estimate import MemoryQuestion
from emberd.gguf.extend import Scaling, extended
from emberd.gguf.spec import open_model
from emberd.models.facts import read_facts
from emberd.models.fit import judge, question_of
from emberd.models.memory import longest_context
from emberd.protocol import WorkerOptions
from emberd.reference.estimate import estimate as estimate_cpu
from emberd.reference.runner import CpuRunner
from emberd.runtime.estimate import estimate
from made_up_gpu import made_up_gpu
from tiny_gguf import random_model

TRAINED = 64


def model(path: Path, metadata: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    sizes = {"context_length": TRAINED, "layers": 2, "width": 64, "ffn": 64, "heads": 2}
    return random_model(path, kv_heads=1, head_dim=32, metadata=metadata, **(sizes | changes))


def logits(path: Path, token_ids: list[int], scaling: Scaling | None) -> np.ndarray:
    options = WorkerOptions(
        str(path),
        "cpu",
        context_length=len(token_ids),
        kv_memory=1 << 20,
        max_sequences=1,
        rope_scaling=scaling,
    )
    runner = CpuRunner.load(options)
    assert runner.context_length == len(token_ids)
    blocks = list(range(-(-len(token_ids) // runner.block_size)))
    places = [len(token_ids) - 1, 10]
    runner.submit(make_batch([Row(0, token_ids, 0, blocks, False)], runner.block_size, places))
    out = runner.collect().logits
    runner.close()
    assert out is not None
    return out


@pytest.mark.parametrize("kind", ["linear", pytest.param("yarn", marks=pytest.mark.slow)])
def test_a_setting_gives_what_a_file_that_says_it_gives(
    tmp_path: Path, rng: np.random.Generator, kind: Any, one_blas_thread: None
) -> None:
    token_ids = rng.integers(0, 500, 2 * TRAINED).tolist()
    plain = model(tmp_path / "plain.gguf")
    said = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": TRAINED,
    }
    own = model(tmp_path / "own.gguf", said, context_length=2 * TRAINED)
    expected = logits(own, token_ids, None)
    for factor in (None, 2.0):
        np.testing.assert_array_equal(logits(plain, token_ids, (kind, factor)), expected)
    # Up to the trained context nothing changes.
    short = token_ids[:TRAINED]
    np.testing.assert_array_equal(logits(plain, short, (kind, 2.0)), logits(plain, short, None))


def test_without_a_scaling_the_trained_context_is_the_longest(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    for scaling, served in ((None, TRAINED), ("yarn:2", 2 * TRAINED), ("linear", 200)):
        given = {"ctx": "200", "device": "cpu", "memory": "1GiB", "rope_scaling": scaling}
        config = Config.from_env({}, **given)
        question = question_of(config, path)
        for made in (estimate_cpu(question), estimate(made_up_gpu(), question)):
            assert (made.context_length, made.trained_context) == (served, TRAINED)
            verdict = judge(made, config)
            assert (verdict.verdict == "fits") == (served == 200)
            assert ("rope scaling" in verdict.reason) == (scaling is not None)
        assert longest_context(read_facts(path, tmp_path), config) == served


@pytest.mark.parametrize(
    ("metadata", "architecture", "kind", "word"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            "llama",
            "linear",
            "own",
        ),
        ({}, "gemma3", "yarn", "window"),
    ],
)
def test_models_that_cannot_be_scaled_say_why(
    tmp_path: Path, metadata: dict[str, Any], architecture: Any, kind: Any, word: str
) -> None:
    window = {"sliding_window": 16} if architecture == "gemma3" else {}
    path = model(tmp_path / "m.gguf", metadata, architecture=architecture, **window)
    options = WorkerOptions(str(path), context_length=100, rope_scaling=(kind, None))
    with pytest.raises(ModelLoadError, match=f"{word}.*--rope-scaling {kind}"):
        estimate(made_up_gpu(), MemoryQuestion(options))


def test_layers_with_a_window_are_left_alone(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf", architecture="gemma3", sliding_window=16, layers=6)
    opened = open_model(path)
    longer = extended(opened, 200, ("linear", None)).spec
    opened.close()
    scales = {(layer.window, layer.rope_scale) for layer in longer.layers}
    assert scales == {(16, 1.0), (0, 200 / TRAINED)}
    assert longer.context_length == 200


@pytest.mark.parametrize("text", ["ntk", "yarn:", "yarn:1", "yarn:x", "linear:-2", "yarn:1e9"])
def test_other_scalings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="EMBERD_ROPE_SCALING"):
        Config.from_env({"EMBERD_ROPE_SCALING": text})


def test_learned_positions_cannot_be_stretched(tmp_path: Path) -> None:
    path = architecture_model(tmp_path / "m.gguf", "gpt2")
    options = WorkerOptions(str(path), context_length=512, rope_scaling=("linear", None))
    with pytest.raises(ModelLoadError, match="its positions are not rotations"):
        estimate(made_up_gpu(), MemoryQuestion(options))
