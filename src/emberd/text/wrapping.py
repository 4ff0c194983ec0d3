"""Tags that some models put around their whole answer once they have thought (Granite). Knows no model."""

from __future__ import annotations

from .marks import possible_beginning

Tags = tuple[str, str]


class Unwrapper:
    """Takes the opening tag off where the answer begins with it, and then the next closing one. Blanks behind the
    opening tag are its own."""

    def __init__(self, tags: Tags) -> None:
        self._opening, self._closing = tags
        self._held = ""
        self._state = "before"  # then "opened", "inside", "outside"; or "outside" at once

    def push(self, text: str) -> str:
        """What is certain of the answer."""
        self._held += text
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._opening):
                self._state, self._held = "opened", begun[len(self._opening) :]
            elif self._opening.startswith(begun):  # or there is nothing yet
                return ""
            else:
                self._state = "outside"
        if self._state == "opened":
            self._held = self._held.lstrip()
            if not self._held:
                return ""
            self._state = "inside"
        if self._state == "inside":
            place = self._held.find(self._closing)
            if place < 0:
                keep = possible_beginning(self._held, (self._closing,))
                return self._take(len(self._held) - keep)
            self._held = self._held[:place] + self._held[place + len(self._closing) :]
            self._state = "outside"
        return self._take(len(self._held))

    def finish(self) -> str:
        """What was held, when no more comes."""
        return self._take(len(self._held))

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken
