"""What a worker does while nothing is asked of it: it prepares, from one short pause on, until a message comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from emberd.engine import Engine
from emberd.protocol import Cancel
from emberd.worker.channel import Channel
from emberd.worker.process import HEARTBEAT_SECONDS, QUIET_SECONDS, Inbox, serve
from fakes import ScriptedRunner


class ScriptedInbox:
    """Gives messages by turn and keeps how long it was to wait; ends behind the last turn."""

    def __init__(self, turns: list[list[object]]) -> None:
        self.waits: list[float | None] = []
        self._turns = turns

    def take_all(self, wait: float | None) -> Iterator[object]:
        self.waits.append(wait)
        if not self._turns:
            raise EOFError
        yield from self._turns.pop(0)


class SilentChannel:
    def send(self, message: object) -> None: ...


def test_preparing_goes_on_without_pauses_until_a_message_comes() -> None:
    message = Cancel("nobody")
    inbox = ScriptedInbox([[], [], [message], [], [], [], [], []])
    left = 5

    def prepare() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    def heartbeat() -> None: ...

    with pytest.raises(EOFError):
        serve(
            cast(Channel, SilentChannel()),
            cast(Inbox, cast(Any, inbox)),
            Engine(ScriptedRunner()),
            prepare,
            heartbeat,
        )
    quiet, beat = QUIET_SECONDS, HEARTBEAT_SECONDS
    assert inbox.waits == [quiet, 0, 0, quiet, 0, 0, beat, beat, beat]
    assert left == 0
