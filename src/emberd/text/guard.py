"""Keeps control tokens' names that a caller typed from becoming control tokens.

While a template renders, one character of every such name is replaced by a stand-in from a private plane
of Unicode, so templates may strip, split and move the text, and the stand-ins tell afterwards which places
of the prompt are the caller's. Knows the names, nothing of templates or ids.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import BadRequestError
from .special import NameIndex

_PLANES = (0xF0000, 0x100000)  # private use; code points up to U+FFFD have a place in each
_LAST = 0xFFFD


class ControlGuard:
    """The names of a vocabulary's control tokens, ready to be looked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(set(names))
        self._backwards = sorted(name[::-1] for name in self._names)
        self._index = NameIndex(self._names)
        self._longest = max(map(len, self._names), default=0)
        self._all = "\0".join(self._names)

    def present(self, texts: Iterable[str]) -> NameIndex:
        """Those names that occur somewhere in `texts`."""
        return NameIndex(self._index.present("\0".join(texts)))

    def places(self, text: str, names: NameIndex, *, whole_only: bool = False) -> set[int]:
        """Places in `text` that no control token may cover: one in each of the `names`, and, unless
        `whole_only`, one in each beginning, middle or end of a name with which `text` could complete one
        that a template wrote around it. Plain words are left alone there: templates make tags of them.
        """
        spans = []
        for name, found in names.present(text).items():
            start = found.after(0)
            while start >= 0:
                spans.append((start, start + len(name)))
                start = found.after(start + 1)
        if not whole_only:
            count = len(text)
            for length in range(1, min(count, self._longest - 1) + 1):
                if _begins(text[-length:], self._names):
                    spans.append((count - length, count))
                if _begins(text[length - 1 :: -1], self._backwards):
                    spans.append((0, length))
            if 0 < count < self._longest and text in self._all:
                spans.append((0, count))
            spans = [span for span in spans if not re.fullmatch(r"\w*", text[slice(*span)])]
        places = set()
        for start, end in spans:
            place = next((i for i in range(start, end) if ord(text[i]) <= _LAST), None)
            if place is not None:
                places.add(place)
        return places


class Guarded:
    """A conversation whose control text is replaced. `needed` is False where there was none."""

    def __init__(
        self,
        guard: ControlGuard,
        template_source: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        extra: Mapping[str, Any],
    ) -> None:
        texts = list(_texts([messages, tools, extra]))
        self._guard = guard
        self._names = guard.present(texts)
        self._plane = _free_plane("".join([template_source, *texts]))
        self.needed = False
        self.messages = [
            {
                key: self._text(value, whole_only=True) if key == "role" else self._value(value)
                for key, value in message.items()
            }
            for message in messages
        ]
        self.tools = self._value(tools)
        self.extra = self._value(extra)

    def restored(self, prompt: str) -> tuple[str, set[int]]:
        """A prompt rendered from the guarded conversation with its characters put back, and their places."""
        assert self._plane is not None
        plane = self._plane
        stand_in = _any_of(plane)
        places = {match.start() for match in stand_in.finditer(prompt)}
        return stand_in.sub(lambda match: chr(ord(match[0]) - plane), prompt), places

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._value(key): self._value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(item) for item in value]
        return value

    def _text(self, text: str, *, whole_only: bool = False) -> str:
        places = self._guard.places(text, self._names, whole_only=whole_only)
        if not places:
            return text
        if self._plane is None:
            raise BadRequestError(
                "The conversation holds names of control tokens together with characters of both "
                "supplementary private use planes (from U+F0000); leave one of the two out.",
                "messages",
            )
        self.needed = True
        characters = list(text)
        for place in places:
            characters[place] = chr(ord(text[place]) + self._plane)
        return "".join(characters)


def _begins(text: str, names: Sequence[str]) -> bool:
    """Whether one of the sorted `names` begins with `text` and is longer."""
    index = bisect_right(names, text)
    return index < len(names) and names[index].startswith(text)


def _free_plane(text: str) -> int | None:
    return next((plane for plane in _PLANES if not _any_of(plane).search(text)), None)


def _any_of(plane: int) -> re.Pattern[str]:
    return re.compile(f"[{chr(plane)}-{chr(plane + _LAST)}]")


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
