"""A request's priority class from what its body, its header and its key say.

The header wins over the body, `priority` over `service_tier`, all of them over the key's own class; and nobody
gets a better class than the key has.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..errors import BadRequestError
from ..protocol import NORMAL, PRIORITIES
from .body import Schema, Whole
from .requests import Caller

HEADER = "x-emberd-priority"
TIERS = ("priority", "default", "flex")
"""OpenAI's names of the classes."""

Tier = Literal["auto", "default", "flex", "scale", "priority"]
_MOST = 1 << 31


class PriorityField(Schema):
    """vLLM's: a number, the lower the sooner. Below 0 is interactive, 0 normal, above batch."""

    priority: Annotated[Whole, Field(ge=-_MOST, lt=_MOST)] | None = None

    def said_priority(self) -> int | None:
        """The class that the body asks for; None: it says nothing."""
        return None if self.priority is None else _class_of(self.priority)


class TierFields(PriorityField):
    service_tier: Tier | None = None  # auto and scale are as if nothing was said

    def said_priority(self) -> int | None:
        said = super().said_priority()
        if said is None and self.service_tier in TIERS:
            said = TIERS.index(self.service_tier)
        return said


def priority_of(caller: Caller, body: PriorityField) -> int:
    """A place in PRIORITIES. Raises BadRequestError for a header that is none."""
    said = body.said_priority() if caller.priority is None else _of_header(caller.priority)
    best = 0 if caller.key_priority is None else caller.key_priority
    if said is None:
        said = NORMAL if caller.key_priority is None else caller.key_priority
    return max(said, best)


def _of_header(text: str) -> int:
    word = text.strip().lower()
    if word in PRIORITIES:
        return PRIORITIES.index(word)
    try:
        return _class_of(int(word))
    except ValueError:
        raise BadRequestError(
            f"the header '{HEADER}' must be one of {', '.join(PRIORITIES)} or a whole number, the lower the "
            f"sooner; got {text[:64]!r}",
            HEADER,
        ) from None


def _class_of(number: int) -> int:
    return NORMAL + (number > 0) - (number < 0)
