"""Chain models that the end-to-end tests talk to, and what they answer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tiny_gguf import chain_model, script_model

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
"""Three people joined into one character, 18 bytes."""

CHAIN_TOKEN_BYTES = 2 * 8 * 64 * 4
SMALL_POOL_TOKENS = 512


def write_scripts(path: Path) -> Path:
    """What is answered to a text that ends in a digit."""
    family = FAMILY.encode()
    cuts = (0, 2, 5, 8, 10, 13, 18)  # inside characters, and pieces that are all different
    return script_model(
        path,
        {
            "1": ["A B", " C D", " E F", " G"],
            "2": [" on", " and"],
            "3": [b"\xf0", b"\x9f", b"\x99", b"\x82", "!"],
            "4": [b"\xc3", b"\xa9"],
            "5": [b"\xed", b"\x95", b"\x9c"],
            "6": [family[a:b] for a, b in pairwise(cuts)],
        },
        endless="2",
    )


def write_choices(path: Path, logits: list[float]) -> Path:
    """Whatever came last, the same tokens "a", "b", ... follow with these logits, for ever."""
    row = {ord("a") + i: logit for i, logit in enumerate(logits)}
    return chain_model(path, {last: row for last in range(256)})
