"""What parts the blocks of one model's KV cache from those of another setting: they may not be taken for each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from emberd.gguf.rope import kv_layout
from emberd.gguf.spec import open_model
from tiny_gguf import random_model


def test_whatever_changes_keys_and_values_changes_the_layout(tmp_path: Path) -> None:
    random_model(tmp_path / "m.gguf", "llama")
    model = open_model(tmp_path / "m.gguf")
    spec = replace(model.spec, rope_original_context=512)
    model.close()
    base = ("cpu f32", 4096, 256)
    layer = replace(spec.layers[0], rope_base=2 * spec.layers[0].rope_base)
    scaled = replace(spec.layers[0], rope_scale=2.0)
    others = [
        kv_layout(replace(spec, layers=(layer, *spec.layers[1:])), *base),
        kv_layout(replace(spec, layers=(scaled, *spec.layers[1:])), *base),
        kv_layout(replace(spec, rope_magnitude=1.1), *base),
        kv_layout(replace(spec, num_kv_heads=2 * spec.num_kv_heads), *base),
        kv_layout(spec, "gpu f16", 4096, 256),
        kv_layout(spec, "cpu f32", 2048, 256),
        kv_layout(spec, "cpu f32", 4096, 1024),  # the long rope factors count from 513 on
    ]
    assert len({kv_layout(spec, *base), *others}) == 8
    assert kv_layout(spec, "cpu f32", 4096, 512) == kv_layout(spec, *base)
