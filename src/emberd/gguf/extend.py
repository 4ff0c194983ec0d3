"""Contexts longer than a model was trained for: its rope scaled by a setting. No tensor changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from ..errors import ModelLoadError
from .model import LayerSpec, ModelFile, ModelSpec
from .rope import Yarn

Scaling = tuple[Literal["linear", "yarn"], float | None]
"""How, and by which factor; None: as the context needs."""


def extended(model: ModelFile, context: int | None, scaling: Scaling | None) -> ModelFile:
    """The model for `context` tokens: as it is up to its trained context, its rope scaled beyond.

    Raises ModelLoadError where scaling is asked for and the model cannot be scaled so.
    """
    spec = model.spec
    if scaling is None or context is None or context <= spec.context_length:
        return model
    kind, factor = scaling
    if reason := _refusal(model, kind):
        raise ModelLoadError(
            f"{model.file.name}: {reason}, so --rope-scaling {kind} cannot lengthen its context beyond the "
            f"{spec.context_length} tokens that it was trained for"
        )
    factor = factor or context / spec.context_length
    layers = tuple(_scaled(layer, spec, factor) for layer in spec.layers)
    longer = replace(spec, layers=layers, context_length=int(spec.context_length * factor))
    if kind == "yarn":
        yarn = Yarn(spec.context_length, beta_fast=32.0, beta_slow=1.0, mix=1.0)
        longer = replace(longer, yarn=yarn, rope_magnitude=1 + 0.1 * math.log(factor))
    return replace(model, spec=longer)


def scaling_words(trained: int, context: int, scaling: Scaling) -> str:
    """What users are told of a context that is longer than the trained one."""
    kind, factor = scaling
    return (
        f"{context} tokens of context, and the model was trained for {trained}: rope scaling {kind} by "
        f"{factor or context / trained:.4g}; how good it is there, and below, is not known"
    )


def _refusal(model: ModelFile, kind: str) -> str:
    """Why this kind of scaling cannot be; empty: it can."""
    spec, tensors = model.spec, model.tensors
    rotating = [layer for layer in spec.layers if layer.rope_base]
    if not rotating or not spec.rope_dim:
        return "its positions are not rotations"
    factors = tensors.rope_factors or tensors.long_rope_factors
    own = spec.yarn is not None or any(layer.rope_scale != 1 for layer in rotating)
    if own or factors is not None or spec.rope_magnitude != 1:
        return "it has a rope scaling of its own"
    if kind == "yarn" and any(_is_local(layer, spec) for layer in rotating):
        return "some of its layers see a window only, which YaRN would change too"
    return ""


def _scaled(layer: LayerSpec, spec: ModelSpec, factor: float) -> LayerSpec:
    if not layer.rope_base or _is_local(layer, spec):
        return layer
    return replace(layer, rope_scale=layer.rope_scale * factor)


def _is_local(layer: LayerSpec, spec: ModelSpec) -> bool:
    """Whether it never looks further back than it was trained to."""
    return 0 < layer.window <= spec.context_length
