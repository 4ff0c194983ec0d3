"""Leaving out the oldest turns of a conversation that is too long, where the caller allows it. Never silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ContextOverflowError
from ..models.loaded import LoadedModel
from ..text.reply import ReplyFormat
from .service import fits

Messages = Sequence[dict[str, Any]]
Ids = tuple[tuple[int, ...], ReplyFormat]


@dataclass(slots=True)
class Cut:
    """What was left out of a conversation to make it fit."""

    num_messages: int = 0
    num_tokens: int = 0

    @property
    def facts(self) -> dict[str, int]:
        return {"truncated_messages": self.num_messages, "truncated_tokens": self.num_tokens}

    @property
    def headers(self) -> dict[str, str]:
        return {"x-emberd-truncated": str(self.num_tokens)} if self.num_messages else {}


def read_fitting(
    model: LoadedModel, messages: Messages, read: Callable[[Messages], Ids], cut: Cut | None
) -> Ids:
    """`read(messages)`, or of the newest turns that fit; `cut` counts what is left out, None: nothing may be.

    Raises ContextOverflowError.
    """

    def checked(kept: Messages) -> Ids:
        ids, form = read(kept)
        if not fits(model, len(ids)):
            raise ContextOverflowError(len(ids), model.context_length)
        return ids, form

    try:
        return checked(messages)
    except ContextOverflowError as error:
        if cut is None:
            raise
        kept, ids, form = _newest_turns(messages, checked)
        cut.num_messages = len(messages) - len(kept)
        # Or more: a prompt that is far too long is not counted to its end.
        cut.num_tokens = error.num_prompt_tokens - len(ids)
        return ids, form


def _newest_turns(
    messages: Messages, read: Callable[[Messages], Ids]
) -> tuple[Messages, tuple[int, ...], ReplyFormat]:
    """The most turns, counted from the end, that fit.

    A turn begins with a user message. System messages belong to none and always stay. Raises
    ContextOverflowError, as `read` does, where not even the last turn fits.
    """
    starts = [i for i, message in enumerate(messages) if message["role"] == "user"][1:]

    def without(num_turns: int) -> Messages:
        first = starts[num_turns - 1]
        stay = ("system", "developer")
        return [m for i, m in enumerate(messages) if i >= first or m["role"] in stay]

    if not starts:
        return messages, *read(messages)
    low, high = 1, len(starts)
    while low < high:
        middle = (low + high) // 2
        try:
            read(without(middle))
            high = middle
        except ContextOverflowError:
            low = middle + 1
    return without(low), *read(without(low))
