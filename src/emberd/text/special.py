"""Finding special tokens in text, as llama.cpp does: the longest token first, everywhere, then the next.

Splits text into ids and the stretches between them. Knows nothing of what the stretches become.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

_SPACES = tuple(" \t\n\v\f\r")


class NameIndex:
    """Which of many names a text holds. Names fall into groups of one beginning (a vocabulary may have
    6,000 of the kind `<unused7>`), and a group is looked at where its beginning occurs."""

    def __init__(self, names: Iterable[str]) -> None:
        self._groups: dict[str, list[str]] = {}
        for name in names:
            if name:
                self._groups.setdefault(name[:4], []).append(name)

    def present(self, text: str) -> list[str]:
        return [
            name
            for beginning, names in self._groups.items()
            if beginning in text
            for name in names
            if name in text
        ]


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
        pieces: list[tuple[int, str | int]] = [(0, text)] if text else []
        present = (self._all if control else self._always).present(text)
        for token in sorted(present, key=_longest_first):
            guarded = protected if token in self._control else ()
            strip = token in self._strip_behind
            pieces = [
                piece
                for start, part in pieces
                for piece in (
                    [(start, part)]
                    if isinstance(part, int)
                    else _cut(start, part, token, self._ids[token], guarded, strip)
                )
            ]
        return [part for _, part in pieces]


def _cut(
    start: int, text: str, token: str, token_id: int, guarded: Collection[int], strip: bool
) -> Iterator[tuple[int, str | int]]:
    """A stretch of text that begins at `start` of the whole, cut at each occurrence of one token."""
    done = 0
    at = text.find(token)
    while at >= 0:
        end = at + len(token)
        if guarded and any(start + place in guarded for place in range(at, end)):
            at = text.find(token, at + 1)
            continue
        if at > done:
            yield start + done, text[done:at]
        yield start + at, token_id
        while strip and text[end : end + 1] in _SPACES:
            end += 1
        done = end
        at = text.find(token, end)
    if done < len(text):
        yield start + done, text[done:]


def _longest_first(token: str) -> int:
    return -len(token.encode("utf-8", "replace"))
