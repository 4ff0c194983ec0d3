"""Tokenizer metadata that text tests write for themselves, as a GGUF reader would hand it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_level(
    merges: Sequence[str] = (),
    control: Sequence[str] = (),
    user_defined: Sequence[str] = (),
    pre: str = "gpt-2",
    **more: Any,
) -> dict[str, Any]:
    """All bytes, the results of `merges` ("a b"), then control and user-defined tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    tokens += [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined)
    tokens += [*control, *user_defined]
    return metadata("gpt2", tokens, types, merges=list(merges), pre=pre, **more)


def spm(pieces: Mapping[str, float], special: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, all bytes, `special` tokens with their types, then `pieces` with their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *special]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *special.values()]
    scores = [0.0] * len(tokens) + list(pieces.values())
    types += [NORMAL] * len(pieces)
    tokens += list(pieces)
    return metadata("llama", tokens, types, scores=scores, **more)


def metadata(model: str, tokens: list[str], types: list[int], **more: Any) -> dict[str, Any]:
    """Keys with None are left out; `NAME_id="piece"` becomes that piece's id."""
    keys = {"model": model, "tokens": tokens, "token_type": types}
    for key, value in more.items():
        if value is not None:
            keys[key] = (
                tokens.index(value) if key.endswith("_id") and isinstance(value, str) else value
            )
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def random_text(rng: Any, length: int) -> str:
    """Characters of all sorts: ASCII, spaces, letters of many scripts, emoji, marks, controls, unassigned."""
    pools = [
        "abcxyzABC",
        " \t\n\r  ",
        "0123456789",
        ".,;:!?'\"<>|[]{}()_-",
        "éßçÀſ",
        "αωάώжщЫ",
        "中文字漢ひカ한국",
        "אבגعرह्",
        "🙂👨\u200d👩\u200d👧🇩🇪",
        "\u0301\u0308\u200b\ufeff\u00a0\u2003\u3000",
        "\x00\x01\x7f\u0085\ufffd\U0010fffd\U000f0041\u0378",
    ]
    return "".join(
        "".join(rng.choice(list(pools[rng.integers(len(pools))]), size=rng.integers(1, 5)))
        for _ in range(length)
    )
