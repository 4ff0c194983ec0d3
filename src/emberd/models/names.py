"""Model names: what may be one, and when two mean the same.

A name is `name`, `name:tag` or `owner/name:tag`; a missing tag is `latest` and case does not matter. Names come
from callers and never become paths: they are only compared with names that were found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import BadRequestError

DEFAULT_TAG = "latest"
_MAX_NAME_LENGTH = 512


def split_tag(name: str) -> tuple[str, str]:
    """`a/b:c` -> (`a/b`, `c`), `a/b` -> (`a/b`, `latest`)."""
    head, slash, last = name.rpartition("/")
    base, _, tag = last.partition(":")
    return head + slash + base, tag or DEFAULT_TAG


def full_name(name: str) -> str:
    return ":".join(split_tag(name))


def short_name(name: str) -> str:
    """The name without `:latest`."""
    return name.removesuffix(f":{DEFAULT_TAG}")


def name_key(name: str) -> str:
    """Equal for names that mean the same model."""
    return full_name(name).casefold()


def alias_target(name: str, aliases: Iterable[tuple[str, str]]) -> str | None:
    """What the first alias that matches `name` stands for; * in an alias is any text."""
    name = name.strip()
    for alias, target in aliases:
        pattern = ".*".join(re.escape(part) for part in alias.casefold().split("*"))
        if name_key(alias) == name_key(name) or re.fullmatch(pattern, name.casefold()):
            return target
    return None


def check_name(name: str, param: str = "model") -> str:
    """`name` without blanks around it. Raises BadRequestError for what no model can be called.

    The message does not repeat the name: such names are paths more often than mistakes.
    """
    name = name.strip()
    segments = name.split("/")
    fault = None
    if not name:
        fault = "is empty"
    elif len(name) > _MAX_NAME_LENGTH:
        fault = f"has {len(name)} characters, more than {_MAX_NAME_LENGTH}"
    elif "\\" in name or not name.isprintable():
        fault = "has characters that no model name has"
    elif any(segment.strip(".") == "" or segment.startswith(":") for segment in segments):
        fault = "looks like a path"
    elif any(":" in segment for segment in segments[:-1]) or segments[-1].count(":") > 1:
        fault = "has a colon in the wrong place"
    if fault:
        raise BadRequestError(f"'{param}' {fault}; write a name, or name:tag", param)
    return name
