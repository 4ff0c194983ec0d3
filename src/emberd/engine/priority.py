"""Who comes first: a sequence's class, which waiting makes better, then its arrival.

Knows no queues, blocks or places.
"""

from __future__ import annotations

AGING_SECONDS = 30.0
"""A sequence that gets nothing for so long stands one class better from then on."""

AGING_CHECKS = 8
"""How often in that time the standings are looked at."""

Rank = tuple[int, int]
"""Class and arrival; the lesser comes first."""


class Standing:
    """Of one sequence. Time counts against it only while it is served: in all, it gets nothing for at most
    AGING_SECONDS times its class before all that arrive later stand behind it for good."""

    __slots__ = ("_arrival", "_lent", "_own", "_priority", "_since", "_starved", "rank")

    def __init__(self, priority: int, arrival: int, now: float) -> None:
        self._priority, self._arrival = priority, arrival
        self._starved = 0.0  # seconds, without those since `_since`
        self._since: float | None = now
        self.rank: Rank = (priority, arrival)
        self._own = self.rank
        self._lent: Rank | None = None  # of one that waits for what this one computes

    def starve(self, now: float) -> None:
        """It gets nothing from now on."""
        if self._since is None:
            self._since = now

    def serve(self, now: float) -> None:
        """It runs, and is given tokens."""
        if self._since is not None:
            self._starved += now - self._since
            self._since = None

    def age(self, now: float) -> bool:
        """Whether it stands better than when this was last asked, by its own rank."""
        starved = self._starved + (0.0 if self._since is None else now - self._since)
        rank = (max(0, self._priority - int(starved / AGING_SECONDS)), self._arrival)
        if rank >= self._own:
            return False
        self._own = rank
        return self._settle()

    def follow(self, other: Standing) -> bool:
        """Stand no worse than `other`, which waits for what this one computes, until `stand_alone`. Whether that is
        better."""
        if other.rank >= self.rank:
            return False
        self._lent = other.rank
        return self._settle()

    def stand_alone(self) -> bool:
        """Nobody waits for it any more. Whether it stands worse for it."""
        self._lent = None
        return self._settle()

    def _settle(self) -> bool:
        before, self.rank = (
            self.rank,
            self._own if self._lent is None else min(self._own, self._lent),
        )
        return self.rank != before
