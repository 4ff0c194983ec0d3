"""Places in a caller's schema: what a reference names, and how a place is called in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ...errors import BadRequestError

NOTHING = object()


def resolved(root: Any, reference: str) -> Any:
    """The part of a schema that `#/a/b` names; NOTHING where there is none."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return NOTHING
    node = root
    for part in reference[2:].split("/"):
        part = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdecimal() and int(part[:9]) < len(node):
            node = node[int(part[:9])]
        else:
            return NOTHING
    return node


def refused(path: str, reason: str) -> BadRequestError:
    shown = path if len(path) <= 256 else f"{path[:256]}…"
    return BadRequestError(f"'{shown}': {reason}", shown)


def as_path(pointer: str) -> str:
    return pointer.replace("/", ".")
