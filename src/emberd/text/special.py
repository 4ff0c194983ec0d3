"""Finding special tokens in text, as llama.cpp does: the longest token first, everywhere, then the next.

Splits text into ids and the stretches between them. Knows nothing of what the stretches become.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping

_BEGINNING = 4  # characters
_STEP = 256
"""Characters that are searched for a name in the time that one place is looked at."""

_SPACES = tuple(" \t\n\v\f\r")


class NameIndex:
    """Which of many names a text holds. Names fall into groups of one beginning (a vocabulary may have
    6,000 of the kind `<unused7>`), and a group is looked at where its beginning occurs."""

    def __init__(self, names: Iterable[str]) -> None:
        groups: dict[str, list[str]] = {}
        for name in names:
            if name:
                groups.setdefault(name[:_BEGINNING], []).append(name)
        self._groups = {beginning: _Group(beginning, names) for beginning, names in groups.items()}

    def present(self, text: str) -> dict[str, Places]:
        found: dict[str, Places] = {}
        for beginning, group in self._groups.items():
            if beginning in text:
                found |= group.present(text)
        return found


class Places:
    """Where one name is in a text."""

    def __init__(self, text: str, name: str, known: list[int] | None) -> None:
        self._text = text
        self._name = name
        self._known = known  # all places; None: they have to be looked for

    def after(self, start: int) -> int:
        """The first one from `start` on, -1 if there is none."""
        if self._known is None:
            return self._text.find(self._name, start)
        index = bisect_left(self._known, start)
        return self._known[index] if index < len(self._known) else -1


class _Group:
    def __init__(self, beginning: str, names: list[str]) -> None:
        self._beginning = beginning
        self._names = dict.fromkeys(names)
        self._lengths = sorted({len(name) for name in names})

    def present(self, text: str) -> dict[str, Places]:
        steps = text.count(self._beginning) * len(self._lengths) * _STEP
        if steps > len(text) * len(self._names):
            return {name: Places(text, name, None) for name in self._names if name in text}
        found: dict[str, list[int]] = {}
        at = text.find(self._beginning)
        while at >= 0:
            for length in self._lengths:
                name = text[at : at + length]
                if len(name) == length and name in self._names:
                    found.setdefault(name, []).append(at)
            at = text.find(self._beginning, at + 1)
        return {name: Places(text, name, found[name]) for name in self._names if name in found}


class SpecialTokens:
    """The tokens that are matched as whole texts, before anything is cut into words or merged.

    `always` are matched in any text (user-defined tokens), `control` only where the caller asks for it. Those in
    `strip_behind` take the white space behind them, which is lost.
    """

    def __init__(
        self,
        always: Mapping[str, int],
        control: Mapping[str, int],
        strip_behind: Collection[str] = (),
    ) -> None:
        self._strip_behind = strip_behind
        self._always = NameIndex(always)
        self._all = NameIndex([*always, *control])
        self._ids = {**always, **control}
        self._control = control

    def split(
        self, text: str, *, control: bool, protected: Collection[int] = ()
    ) -> list[str | int]:
        """Ids and the text between them, in order. A control token that covers one of the places in
        `protected` (indices into `text`) stays text."""
        present = (self._all if control else self._always).present(text)
        taken = bytearray(len(text))  # 1 where a token was found
        found: list[tuple[int, int, int]] = []  # start, end, id
        for token in sorted(present, key=_longest_first):
            places = present[token]
            guarded = protected if token in self._control else ()
            at = places.after(0)
            while at >= 0:
                end = at + len(token)
                if (last := taken.rfind(1, at, end)) >= 0:
                    free = taken.find(0, last + 1)
                    at = places.after(free) if free >= 0 else -1
                elif guarded and any(place in guarded for place in range(at, end)):
                    at = places.after(at + 1)
                else:
                    if token in self._strip_behind:
                        while text[end : end + 1] in _SPACES and not taken[end]:
                            end += 1
                    taken[at:end] = bytes([1]) * (end - at)
                    found.append((at, end, self._ids[token]))
                    at = places.after(end)
        pieces: list[str | int] = []
        done = 0
        for start, end, token_id in sorted(found):
            if start > done:
                pieces.append(text[done:start])
            pieces.append(token_id)
            done = end
        return [*pieces, text[done:]] if done < len(text) else pieces


def _longest_first(token: str) -> int:
    return -len(token.encode("utf-8", "replace"))
