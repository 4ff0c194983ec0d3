"""How a decoder's layers rotate and what their attention sees, from metadata: bases, scaling, windows."""

from __future__ import annotations

import math
import reprlib
from dataclasses import replace

from .architectures import Architecture
from .checked import Keys
from .model import LayerSpec
from .rope import Temperature, Yarn

MAX_LAYERS = 1024
MAX_CONTEXT = 1 << 30
MAX_FACTOR = 1e6  # of scales and caps
MIN_SCALE = 0.01  # positions are divided by it; the rotations of far larger ones are noise


def layer_specs(keys: Keys, num_layers: int, architecture: Architecture) -> tuple[LayerSpec, ...]:
    """Rotation and window of each layer."""
    base = _rope_base(keys, "rope.freq_base", 10000.0)
    everywhere = LayerSpec(base, _rope_scale(keys), 0)
    if period := architecture.unrotated_period:
        still = LayerSpec(0.0, 1.0, 0)
        return tuple(
            still if layer % period == period - 1 else everywhere for layer in range(num_layers)
        )
    unrotated = architecture.multipliers and keys.scalar("rope.scaling.finetuned") is False
    if unrotated or architecture.learned_positions:
        return (LayerSpec(0.0, 1.0, 0),) * num_layers
    if not architecture.sliding_window:
        return (everywhere,) * num_layers
    if not architecture.causal:
        return _both_ways(keys, num_layers, architecture, everywhere)
    given = keys.scalar("attention.sliding_window")
    if not architecture.window_needed and not (architecture.window if given is None else given):
        return (everywhere,) * num_layers
    window = keys.count(
        "attention.sliding_window", most=MAX_CONTEXT, default=architecture.window or None
    )
    if architecture.window_period == 1:
        return (LayerSpec(base, everywhere.rope_scale, window),) * num_layers
    scale = everywhere.rope_scale if architecture.local_rope_scaled else 1.0
    sliding = LayerSpec(base, scale, window)
    if (local := architecture.local_rope_base) is not None:
        own = _rope_base(keys, "rope.freq_base_swa", local)
        sliding = LayerSpec(own, 1.0, window)
    slides = _sliding_layers(keys, num_layers, architecture.window_period)
    whole = LayerSpec(0.0, 1.0, 0) if architecture.still_without_window else everywhere
    return tuple(sliding if slid else whole for slid in slides)


def _both_ways(
    keys: Keys, num_layers: int, architecture: Architecture, everywhere: LayerSpec
) -> tuple[LayerSpec, ...]:
    """Layers whose attention looks both ways: windows are told as their width, of which half lies on either side
    (llama.cpp's LLAMA_SWA_TYPE_SYMMETRIC)."""
    half = keys.count("attention.sliding_window", most=MAX_CONTEXT) // 2
    if half == 0:
        raise keys.refuse("attention.sliding_window", "is 1; each token would see itself alone")
    base = _rope_base(keys, "rope.freq_base_swa", architecture.local_rope_base or 10000.0)
    sliding = LayerSpec(base, 1.0, half + 1, half)
    whole = replace(everywhere, ahead=MAX_CONTEXT)
    slides = _sliding_layers(keys, num_layers, architecture.window_period)
    return tuple(sliding if slid else whole for slid in slides)


def _rope_base(keys: Keys, key: str, default: float) -> float:
    base = keys.number(key, most=1e12, default=default)
    if base <= 1:
        raise keys.refuse(key, f"is {base:g}; the base of rotations must be above 1")
    return base


def _sliding_layers(keys: Keys, num_layers: int, default: int) -> list[bool]:
    """Which layers have a window: one flag a layer, or a period whose last layer has none."""
    key = "attention.sliding_window_pattern"
    flags = keys.array(key)
    if flags is not None:
        if len(flags) != num_layers:
            raise keys.refuse(key, f"has {len(flags)} entries for {num_layers} layers")
        return [bool(flag) for flag in flags]
    period = keys.count(key, most=MAX_LAYERS, default=default)
    return [layer % period < period - 1 for layer in range(num_layers)]


def _rope_scale(keys: Keys) -> float:
    """What positions are divided by. A factor of 0 means none; the second spelling is of old converters."""
    scaling = keys.scalar("rope.scaling.type")
    if scaling not in (None, "none", "linear", "yarn", "longrope"):
        raise keys.refuse(
            "rope.scaling.type",
            f"is {reprlib.repr(scaling)}; supported are 'none', 'linear', 'yarn' and 'longrope'",
        )
    factor = next(
        (key for key in ("rope.scaling.factor", "rope.scale_linear") if key in keys), None
    )
    if factor and scaling not in ("none", "longrope") and keys.scalar(factor) != 0:
        scale = keys.number(factor, most=MAX_FACTOR)
        if scale < MIN_SCALE:
            raise keys.refuse(
                factor, f"is {scale:g}; it must be 0, for none, or at least {MIN_SCALE}"
            )
        return scale
    return 1.0


def yarn_of(keys: Keys, architecture: Architecture, original_context: int) -> Yarn | None:
    """None where the file does not ask for it."""
    if keys.scalar("rope.scaling.type") != "yarn":
        return None
    if not architecture.tempered:
        keys.off("rope.scaling.yarn_log_multiplier", 0, "YaRN with a multiplier of its own is")
    return Yarn(
        original_context,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", most=MAX_FACTOR, default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", most=MAX_FACTOR, default=1.0),
        mix=keys.number("rope.scaling.yarn_ext_factor", most=1.0, default=1.0),
    )


def rope_magnitude(keys: Keys, yarn: Yarn | None) -> float:
    """What rotated values are multiplied by."""
    magnitude = keys.number("rope.scaling.attn_factor", most=MAX_FACTOR, default=1.0)
    if yarn is None:
        return magnitude
    growth = 0.1 * math.log(max(1.0, _rope_scale(keys)))
    magnitude *= 1 + growth
    if keys.scalar("rope.scaling.yarn_log_multiplier") not in (None, 0):
        magnitude /= 1 + growth * keys.number("rope.scaling.yarn_log_multiplier", most=MAX_FACTOR)
    return magnitude


def temperature_of(
    keys: Keys, architecture: Architecture, original_context: int
) -> Temperature | None:
    """Of queries far behind; None where the file has none."""
    if keys.scalar("attention.temperature_scale") in (None, 0):
        return None
    if not architecture.tempered:
        keys.off("attention.temperature_scale", 0, "a temperature of attention is")
    return Temperature(
        keys.number("attention.temperature_scale", most=MAX_FACTOR), original_context
    )
