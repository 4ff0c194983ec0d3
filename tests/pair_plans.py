"""Plans of models that have q, k and v, or gate and up, in two weight types: the dispatches, none of them compiled."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.spec import open_model
from emberd.runtime.buffers import allocate
from emberd.runtime.device import Device
from emberd.runtime.inputs import InputSizes, StepInputs
from emberd.runtime.kernel import Dispatch, Kernels
from emberd.runtime.kv_cache import allocate as allocate_cache
from emberd.runtime.linear import default_table
from emberd.runtime.model import load_weights
from emberd.runtime.transformer import Shape
from tiny_gguf import random_model, random_rows

WIDTH, FFN, KV = 256, 512, 128


def mixed_model(path: Path, rng: np.random.Generator) -> Path:
    """Three layers of Q4_K; v of the first and up of the last are Q6_K."""
    q6 = GGMLType.Q6_K
    others = {
        "blk.0.attn_v.weight": (q6, random_rows(rng, KV, WIDTH, q6)),
        "blk.2.ffn_up.weight": (q6, random_rows(rng, FFN, WIDTH, q6)),
    }
    return random_model(path, quant="Q4_K", layers=3, width=WIDTH, ffn=FFN, tensors=others)


def as_gpu(device: Device, *left_out: str) -> Device:
    """The same device, said to be a real GPU."""
    other = copy.copy(device)
    other.info = replace(device.info, kind="DiscreteGPU")
    other.left_out = frozenset(left_out)
    return other


def layers_of(device: Device, path: Path, tokens: int) -> list[Dispatch]:
    """A decode step of so many rows, without its head."""
    model = open_model(path)
    kernels, weights = Kernels(device), load_weights(device, model, 64)
    weights.uploads.wait()
    made = allocate(
        kernels,
        weights,
        allocate_cache(device, model.spec, 4, "f16"),
        default_table(device),
        max_tokens=tokens,
        max_rows=tokens,
        context_length=64,
    )
    model.close()
    sizes = InputSizes(tokens, tokens, tokens, 0)
    buffer = device.empty((StepInputs.words_needed(device, sizes),), "i32").buffer
    inputs = StepInputs(device, buffer, sizes)
    return made.transformer.body(inputs, Shape(tokens, tokens, 0))
