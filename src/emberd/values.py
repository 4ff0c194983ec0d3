"""Values: what the text of a setting means. Each parser raises ValueError with what to write instead.

Knows no setting.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from ipaddress import IPv6Address
from pathlib import Path

_UNITS_OF_SIZE = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS_OF_SIZE |= {_letter: 1024**_power, f"{_letter}IB": 1024**_power}
    _UNITS_OF_SIZE[f"{_letter}B"] = 1000**_power
_UNITS_OF_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_REASONING_KEYS = ("reasoning_content", "reasoning")
_PLACES = ("huggingface", "ollama", "lmstudio", "home")
_REGISTRY = re.compile(r"(https?://)?[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?")
_SWITCH = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_MAX_SECONDS = 1e10  # longer, as a century's worth of seconds, is the same as never


def parse_size(text: str) -> int:
    """Bytes from "2GiB", "512M", "1.5GB" or a bare number. K, M, G, T and KiB.. count in 1024, KB.. in 1000."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS_OF_SIZE.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"'{text}' is not a size; write a number of bytes, or as 512MiB or 2GiB")
    return int(float(match[1]) * unit)


def parse_duration(text: str) -> float:
    """Seconds from a Go duration ("5m", "1h30m", "300ms") or bare digits; may be negative."""
    body = text.strip()
    sign = -1.0 if body.startswith("-") else 1.0
    body = body[1:] if body[:1] in ("-", "+") else body
    parts = _DURATION_PART.findall(body)
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", body):
        seconds = float(body)
    elif parts and "".join(number + unit for number, unit in parts) == body:
        seconds = sum(float(number) * _UNITS_OF_TIME[unit] for number, unit in parts)
    else:
        raise ValueError(f"'{text:.64}' is not a duration; write seconds, or as 30s, 5m or 1h30m")
    return sign * seconds


def keep_alive_seconds(value: float | str) -> float:
    """How long a model stays loaded after a reply: seconds, `math.inf` for never unloading (negative)."""
    seconds = parse_duration(value) if isinstance(value, str) else float(value)
    if math.isnan(seconds):
        raise ValueError("not a number is not a duration")
    return math.inf if seconds < 0 or seconds > _MAX_SECONDS else seconds


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"'{text}' is not a whole number from {low} to {high}")
        return int(text)

    return parse


def positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"'{text}' must be longer than zero")
    return seconds


def positive_size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError(f"'{text}' must be more than zero bytes")
    return size


def share(text: str) -> float:
    """A part of 1, from above 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise ValueError(f"'{text:.64}' is not a share; write a number above 0 and up to 1, as 0.5")
    return number


def words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def places(text: str) -> tuple[str, ...]:
    found = words(text)
    if unknown := [word for word in found if word not in _PLACES and "/" not in word]:
        if found == ("none",):
            return ()
        raise ValueError(
            f"'{unknown[0]}' is not one of {', '.join(_PLACES)}, none or the path of a folder"
        )
    return found


def registries(text: str) -> tuple[str, ...]:
    found = tuple(word.rstrip("/") for word in words(text))
    if not found:
        raise ValueError("it must name a registry")
    for word in found:
        if not _REGISTRY.fullmatch(word) and (word != "*" or word == found[0]):
            raise ValueError(
                f"'{word}' is not HOST, HOST:PORT, http://HOST:PORT, or * after others"
            )
    return found


def aliases(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in words(text):
        alias, _, model = (part.strip() for part in word.partition("="))
        if not alias or not model:
            raise ValueError(f"'{word}' is not an alias; write NAME=MODEL")
        pairs.append((alias, model))
    return tuple(pairs)


def drafts(text: str) -> tuple[tuple[str, str], ...]:
    """MODEL=DRAFT, separated by commas; a DRAFT alone is any model's."""
    pairs = []
    for entry in words(text):
        model, equals, draft = (part.strip() for part in entry.rpartition("="))
        if not draft or (equals and not model):
            raise ValueError(f"'{entry}' is not a draft; write DRAFT, or MODEL=DRAFT")
        pairs.append((model or "*", draft))
    return tuple(pairs)


def word(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be empty")
    return text.strip()


def host(text: str) -> str:
    """A name or an address; one of IPv6 with or without brackets."""
    bare = word(text).removeprefix("[").removesuffix("]")
    try:
        if ":" in bare:
            IPv6Address(bare)
        elif re.search(r"[\s/@?#\[\]]", bare):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"'{text}' is not a name or an address alone; the port is --port"
        ) from None
    return bare


def path(text: str) -> Path:
    return Path(word(text)).expanduser()


def folder(text: str) -> Path:
    """A path at which there is a folder, or nothing yet."""
    found = path(text)
    if os.path.exists(found) and not os.path.isdir(found):
        raise ValueError(f"'{text}' is a file and not a folder")
    return found


def rope_scaling(text: str) -> tuple[str, float | None]:
    """linear or yarn, with a factor above 1 behind a colon or without one."""
    kind, colon, factor = text.strip().lower().partition(":")
    if kind not in ("linear", "yarn"):
        raise ValueError(f"'{text}' is not linear or yarn, as yarn or yarn:4")
    if not colon:
        return kind, None
    if not re.fullmatch(r"\d{1,4}(\.\d{1,6})?", factor) or float(factor) <= 1:
        raise ValueError(f"'{text}': the factor is not a number above 1")
    return kind, float(factor)


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(f"'{text}' is not one of {', '.join(allowed)}")
        return text.strip().lower()

    return parse


def switch(text: str) -> bool:
    value = _SWITCH.get(text.strip().lower())
    if value is None:
        raise ValueError(f"'{text}' is not 1 or 0")
    return value


def reasoning_keys(text: str) -> tuple[str, ...]:
    found = words(text)
    if unknown := set(found) - set(_REASONING_KEYS):
        raise ValueError(f"'{min(unknown)}' is not one of {', '.join(_REASONING_KEYS)}")
    return found
