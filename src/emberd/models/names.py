"""Model names: what may be one, and when two mean the same.

A name is `name`, `name:tag` or `owner/name:tag`; a missing tag is `latest` and case does not matter. Names come
from callers and never become paths: they are only compared with names that were found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..errors import BadRequestError

DEFAULT_TAG = "latest"
_MAX_NAME_LENGTH = 512
_MAX_NEW_NAME_LENGTH = 160  # percent-encoded it is the name of a file
_MAX_SEGMENTS = 4
_NEW_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


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
    last, port = segments[-1], len(segments) > 2 and re.fullmatch(r"[^:]+:\d{1,5}", segments[0])
    fault = None
    if not name:
        fault = "is empty"
    elif len(name) > _MAX_NAME_LENGTH:
        fault = f"has {len(name)} characters, more than {_MAX_NAME_LENGTH}"
    elif "\\" in name or not name.isprintable():
        fault = "has characters that no model name has"
    elif any(segment.strip(".") == "" or segment.startswith(":") for segment in segments):
        fault = "looks like a path"
    elif any(":" in segment for segment in segments[1 if port else 0 : -1]) or last.count(":") > 1:
        fault = "has a colon in the wrong place"
    if fault:
        raise BadRequestError(f"'{param}' {fault}; write a name, or name:tag", param)
    return name


def check_new_name(name: str, param: str = "model") -> str:
    """The full name under which something is to be kept. Stricter: letters, digits, `.`, `_` and `-` only."""
    full = full_name(check_name(name, param))
    head, tag = split_tag(full)
    segments = head.split("/")
    host_and_port = len(segments) > 2 and re.fullmatch(r"[A-Za-z0-9.-]+:\d{1,5}", segments[0])
    for segment in [*segments[1 if host_and_port else 0 :], tag]:
        if not _NEW_PART.fullmatch(segment):
            raise BadRequestError(
                f"'{param}' may hold letters, digits, '.', '_' and '-', in parts of 1 to 96 characters that begin "
                "with a letter or digit, as owner/name:tag",
                param,
            )
    if len(segments) > _MAX_SEGMENTS or len(full) > _MAX_NEW_NAME_LENGTH:
        raise BadRequestError(
            f"'{param}' has more than {_MAX_SEGMENTS} parts or {_MAX_NEW_NAME_LENGTH} characters",
            param,
        )
    return full


def is_digest(text: Any) -> bool:
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_digest(text: str, param: str = "digest") -> str:
    """Raises BadRequestError for what is not `sha256:` and 64 lower-case hex digits, without repeating it."""
    if not is_digest(text):
        raise BadRequestError(f"'{param}' is not sha256: and 64 lower-case hex digits", param)
    return text
