"""API keys: how they are written, what each opens, and which of them a caller presents.

A leaf that knows nothing of HTTP. Error messages never quote a key.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ConfigError

SCOPES = ("infer", "list", "manage")
"""Generate and embed; see what there is and how it does; change what there is."""

PRIORITIES = ("interactive", "normal", "batch")
"""As in protocol.py, of which this leaf knows nothing."""

_ALL = frozenset(SCOPES)
_NOT_IN_KEYS = frozenset(",:#\"'")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. Its secret is in no `repr`, so that it is in no log."""

    secret: str = field(repr=False)
    scopes: frozenset[str] = _ALL
    priority: str | None = (
        None  # of PRIORITIES: what its requests get, and at best; None: it says nothing
    )


def parse_key(text: str) -> ApiKey:
    """A key from `KEY` (opens everything), `KEY:infer+list`, or with a priority class `KEY:infer:batch` and
    `KEY::batch`. Raises ValueError, which does not quote it."""
    secret, limited, rest = text.strip().partition(":")
    names, graded, priority = (part.strip().lower() for part in rest.partition(":"))
    if not secret or not all("!" <= letter <= "~" for letter in secret) or _NOT_IN_KEYS & {*secret}:
        raise ValueError(
            "a key is printable ASCII without blanks, commas, colons, # and quotes; one is not"
        )
    if not limited or (graded and not names):
        scopes = _ALL
    else:
        scopes = frozenset(name.strip() for name in names.split("+"))
    if not scopes <= _ALL:
        raise ValueError(
            f"a key's scopes are some of {', '.join(SCOPES)}, joined by +, as KEY:infer+list; one key has others"
        )
    if graded and priority not in PRIORITIES:
        raise ValueError(
            f"a key's priority is one of {', '.join(PRIORITIES)}, as KEY:infer+list:batch; one key has another"
        )
    return ApiKey(secret, scopes, priority or None)


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Keys separated by commas. Raises ValueError."""
    return tuple(parse_key(part) for part in text.split(",") if part.strip())


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a file, one a line, `#` begins a comment. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} is not UTF-8") from None
    keys = []
    for number, line in enumerate(lines, start=1):
        if text := line.partition("#")[0].strip():
            try:
                keys.append(parse_key(text))
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None
    if not keys:
        raise ConfigError(f"the key file {path} holds no key; write one on a line of its own")
    return tuple(keys)


def readable_by_others(path: Path) -> bool:
    """Whether every user of this machine may read the file; False too where it is not there."""
    try:
        return os.name == "posix" and bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def matching(keys: Sequence[ApiKey], presented: Iterable[str]) -> list[int]:
    """Places of the keys that were presented.

    Compares every pair, each in constant time: how long it takes tells nothing of a key.
    """
    given = [text.encode("utf-8", "surrogateescape") for text in presented]
    return [
        place
        for place, key in enumerate(keys)
        if any([hmac.compare_digest(key.secret.encode(), text) for text in given])
    ]


def granted(keys: Sequence[ApiKey], presented: Iterable[str]) -> frozenset[str] | None:
    """The scopes of the presented keys together; None when none of them is known."""
    places = matching(keys, presented)
    return frozenset().union(*(keys[place].scopes for place in places)) if places else None
