"""Requests that load, wait or run: who sent them, how far they are, and how to end one from outside.

Knows no route and no dialect; what a worker alone knows (places in its queue, prompts half read) is asked of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ..errors import EmberdError, NotFoundError, RequestCancelledError
from ..inspection import SequenceStatus
from ..models.store import StoredModel
from ..protocol import NORMAL, PRIORITIES
from .explain import PromptStory
from .generate import Generation

Json = dict[str, Any]

KEPT = 512
"""Requests that have ended and can still be asked about, the last ones."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One HTTP request and who sent it, as the edge knows them."""

    request_id: str
    path: str = ""
    key: int | None = None  # which of the daemon's keys, counted from 1; never the key itself
    manages: bool = True  # may see and end the requests of others
    priority: str | None = None  # what the header says, not read yet
    key_priority: int | None = (
        None  # of PRIORITIES: what its key gets, and at best; None: says nothing
    )


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """A request until its last sequence has ended."""

    caller: Caller
    model: str  # as asked for, until it is known
    priority: int = NORMAL  # of PRIORITIES
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    generation: Generation | None = None  # None: its model loads, its prompt is read, or it embeds
    _work: asyncio.Task[Any] | None = None
    _reason: EmberdError | None = None
    _started: float = field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        """Seconds."""
        return time.monotonic() - self._started

    def end(self, reason: EmberdError) -> None:
        """End it with an error, which its caller is told behind what it has got so far."""
        if self.generation is not None:
            self.generation.fail(reason)
        elif self._work is not None and self._reason is None:
            self._reason = reason
            self._work.cancel()

    @contextlib.contextmanager
    def endable(self) -> Iterator[None]:
        """Around work of the current task that `end` may cut; raises what `end` was given."""
        self._work = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            raise self._reason from None
        finally:
            self._work = None

    def told(self, statuses: Collection[SequenceStatus]) -> Json:
        """What callers see. `statuses` are those of its sequences, as far as its worker has told any."""
        computed = sum(one.num_computed_tokens for one in statuses)
        usage = self.generation.usage if self.generation is not None else None
        places = [one.position for one in statuses if one.position is not None]
        return {
            "id": self.caller.request_id,
            "path": self.caller.path,
            "model": self.model,
            "state": self._state(statuses),
            "priority": PRIORITIES[self.priority],
            "position": min(places) if len(places) == len(statuses) and places else None,
            "key": self.caller.key,
            "started_at": self.started.isoformat(),
            "age_seconds": round(self.age, 3),
            "sequences": len(self.generation) if self.generation is not None else 0,
            "prompt_tokens": usage.num_prompt_tokens if usage else None,
            "cached_tokens": sum(one.num_cached_tokens for one in statuses),
            "computed_tokens": computed,
            "completion_tokens": usage.num_completion_tokens if usage else 0,
            "kv_blocks": sum(one.num_blocks for one in statuses),
            "preemptions": sum(one.num_preemptions for one in statuses),
        }

    def record(self) -> EndedRequest:
        """What is kept of it once it has ended."""
        generation = self.generation
        told = self.told(()) | {"state": "ended", "preemptions": None, "ends": []}
        if generation is None:
            return EndedRequest(self.caller, told, (), None)
        told["ends"] = generation.endings
        told["cached_tokens"] = generation.usage.num_cached_tokens
        return EndedRequest(self.caller, told, generation.stories, generation.model.stored)

    def _state(self, statuses: Collection[SequenceStatus]) -> str:
        """The furthest of its sequences counts."""
        if self.generation is None:
            return "starting"
        states = {one.state for one in statuses}
        for state in ("decode", "prefill", "waiting"):
            if state in states:
                return state
        return "ending" if self.generation.usage.num_completion_tokens else "waiting"


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that has ended: what callers see, and what was found of its prompts."""

    caller: Caller
    told: Json
    stories: tuple[PromptStory, ...]
    stored: StoredModel | None  # whose tokens the stories have


class Requests:
    """All that are active, in order of arrival, and the last that have ended. One for each application."""

    def __init__(self) -> None:
        self._active: dict[str, ActiveRequest] = {}
        self._ended: OrderedDict[str, EndedRequest] = OrderedDict()

    def __iter__(self) -> Iterator[ActiveRequest]:
        return iter(list(self._active.values()))

    def begin(self, caller: Caller, model: str, priority: int) -> ActiveRequest:
        request = ActiveRequest(caller, model, priority)
        self._active[caller.request_id] = request
        return request

    def ended(self, request: ActiveRequest) -> None:
        if self._active.pop(request.caller.request_id, None) is not None:
            self._ended[request.caller.request_id] = request.record()
            if len(self._ended) > KEPT:
                self._ended.popitem(last=False)

    def find(self, id: str, caller: Caller) -> ActiveRequest:
        """By the id of its answer's header, or of its body. Raises NotFoundError, as for those of others that
        the caller may not manage."""
        request = self._active.get(request_id(id))
        if request is None or not _may_see(caller, request.caller):
            raise NotFoundError(
                f"no request '{id:.128}' runs or waits here; ids are those of the header x-request-id"
            )
        return request

    def look_up(self, id: str, caller: Caller) -> ActiveRequest | EndedRequest:
        """As `find`, one that has ended lately too. Raises NotFoundError."""
        request = self._known(request_id(id))
        if request is None or not _may_see(caller, request.caller):
            raise NotFoundError(
                f"no request '{id:.128}' runs, waits or is among the last {KEPT} that ended here; ids are those of "
                "the header x-request-id"
            )
        return request

    def sees(self, caller: Caller, id: str | None) -> bool:
        """Whether a caller may see the request of that id; None: one that nobody knows."""
        request = None if id is None else self._known(id)
        return caller.manages or (request is not None and _may_see(caller, request.caller))

    def _known(self, id: str) -> ActiveRequest | EndedRequest | None:
        return self._active.get(id) or self._ended.get(id)

    def cancel(self, id: str, caller: Caller) -> ActiveRequest:
        """End a request; its blocks are free at the end of the step at the latest. Raises NotFoundError."""
        request = self.find(id, caller)
        request.end(RequestCancelledError(f"the request was cancelled (DELETE {caller.path})"))
        return request


def request_id(id: str) -> str:
    """The request's id, also from that of an answer's body (`chatcmpl-…`, `msg_…`), which has the same digits."""
    return f"req_{id.replace('-', '_').rpartition('_')[2]}"


def answer_digits(request_id: str) -> str:
    """The digits that ids in answers share with the request's."""
    return request_id.rpartition("_")[2]


def _may_see(caller: Caller, other: Caller) -> bool:
    """Whether it may see and end what the other sent."""
    return caller.manages or (caller.key is not None and caller.key == other.key)
