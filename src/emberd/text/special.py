"""Finding special tokens in text, as llama.cpp does: the longest token first, everywhere, then the next.

Splits text into ids and the stretches between them. Knows nothing of what the stretches become.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class SpecialTokens:
    """The tokens that are matched as whole texts, before anything is cut into words or merged.

    `always` are matched in any text (user-defined tokens), `control` only where the caller asks for it.
    """

    def __init__(
        self, always: Iterable[tuple[int, str]], control: Iterable[tuple[int, str]]
    ) -> None:
        always, control = list(always), list(control)
        self._control_ids = frozenset(token_id for token_id, _ in control)
        self._always = _longest_first(always)
        self._all = _longest_first(always + control)

    def split(
        self, text: str, *, control: bool, protected: Collection[int] = ()
    ) -> list[str | int]:
        """Ids and the text between them, in order. A control token that covers one of the places in
        `protected` (indices into `text`) stays text."""
        parts: list[str | int] = [text] if text else []
        starts = [0] if text else []
        for token_id, token in self._all if control else self._always:
            if token not in text:
                continue
            guarded = protected if token_id in self._control_ids else ()
            new_parts: list[str | int] = []
            new_starts: list[int] = []
            for start, part in zip(starts, parts, strict=True):
                if isinstance(part, int):
                    new_parts.append(part)
                    new_starts.append(start)
                    continue
                done = 0
                at = part.find(token)
                while at >= 0:
                    end = at + len(token)
                    if guarded and any(start + place in guarded for place in range(at, end)):
                        at = part.find(token, at + 1)
                        continue
                    if at > done:
                        new_parts.append(part[done:at])
                        new_starts.append(start + done)
                    new_parts.append(token_id)
                    new_starts.append(start + at)
                    done = end
                    at = part.find(token, end)
                if done < len(part):
                    new_parts.append(part[done:])
                    new_starts.append(start + done)
            parts, starts = new_parts, new_starts
        return parts


def _longest_first(tokens: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return sorted(tokens, key=lambda item: (-len(item[1].encode("utf-8", "replace")), item[0]))
