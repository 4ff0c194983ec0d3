"""Stop strings over text that comes in pieces: nothing of a stop string is ever let through.

Knows nothing of tokens. The result does not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Iterable

from .marks import possible_beginning


class StopStrings:
    """Watches one reply. The stop string that is complete first ends it; of several that end at the same
    place, the one that began first. Empty ones are left out."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self.held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be shown now, and the stop string that ended the reply, if one did. What could be
        the beginning of a stop string is held. After a match nothing more is shown."""
        if self.matched is not None:
            return "", self.matched
        text = self.held + text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if found:
            _, start, self.matched = min(found)
            self.held = ""
            return text[:start], self.matched
        keep = possible_beginning(text, self._stops)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """The held text, when no more comes: it was no stop string."""
        held, self.held = self.held, ""
        return held
