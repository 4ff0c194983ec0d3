"""A reply's events to the output items of /v1/responses: whole ones, and the stream events that build them up.

A function of the events and of random ids. Knows nothing of the response around the items.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from ....protocol import TokenLogprobs
from ...events import (
    Finish,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from .items import encrypted_reasoning
from .tools import Tool, custom_input

Json = dict[str, Any]
Kind = Literal["reasoning", "message"]
Status = Literal["completed", "incomplete"]


class Output:
    """The items of one response, one open at a time; `items` has those that are done.

    Blanks alone are no item beside others. `tools` are those of Tools.known. With `encrypted` reasoning can be
    sent back by clients that keep nothing else of it. `entries` writes log-probabilities, of which those of
    messages are told.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        entries: Callable[[Iterable[TokenLogprobs]], list[Json]],
        *,
        encrypted: bool = False,
    ) -> None:
        self.items: list[Json] = []
        self._tools = tools
        self._entries = entries
        self._encrypted = encrypted
        self._open: Json | None = None
        self._raw = ""  # what came for the open item: text, or a call's arguments
        self._logprobs: list[Json] = []  # of the open message
        self._held: tuple[Kind, str, list[Json]] = ("message", "", [])  # what may begin an item

    def push(self, piece: Piece) -> list[Json]:
        """Stream events, without their numbers, that tell what `piece` tells."""
        return list(self._push(piece))

    def _push(self, piece: Piece) -> Iterator[Json]:
        match piece.event:
            case ReasoningDelta(text):
                yield from self._text("reasoning", text, [])
            case TextDelta(text):
                yield from self._text("message", text, self._entries(piece.logprobs))
            case ToolCallStart(_, id, name):
                yield from self._begin(self._call(id, name))
            case ToolCallArguments(_, fragment):
                self._raw += fragment
                if self._kind == "function_call":
                    yield self._of_item("function_call_arguments.delta", delta=fragment)
            case Finish(reason):
                if not self.items and self._open is None:
                    kind, blanks, logprobs = self._held
                    begun = (blanks, logprobs) if kind == "message" else ("", [])
                    yield from self._begin_text("message", *begun)
                yield from self._close("incomplete" if reason == "length" else "completed")

    @property
    def _kind(self) -> str:
        return self._open["type"] if self._open is not None else ""

    def _text(self, kind: Kind, text: str, logprobs: list[Json]) -> Iterator[Json]:
        if self._kind == kind:
            yield self._delta(text, logprobs)
            return
        held_kind, blanks, held = self._held
        if held_kind == kind:
            text, logprobs = blanks + text, held + logprobs
        if text.strip():
            yield from self._begin_text(kind, text, logprobs)
        else:
            self._held = (kind, text, logprobs)

    def _begin_text(self, kind: Kind, text: str, logprobs: list[Json]) -> Iterator[Json]:
        if kind == "message":
            yield from self._begin(
                {
                    "id": f"msg_{_new_id()}",
                    "type": "message",
                    "status": "in_progress",
                    "role": "assistant",
                    "content": [],
                }
            )
            yield self._of_item("content_part.added", content_index=0, part=_text_part("", []))
        else:
            yield from self._begin({"id": f"rs_{_new_id()}", "type": "reasoning", "summary": []})
            part = {"type": "summary_text", "text": ""}
            yield self._of_item("reasoning_summary_part.added", summary_index=0, part=part)
        if text:
            yield self._delta(text, logprobs)

    def _call(self, id: str, name: str) -> Json:
        tool = self._tools.get(name, Tool(name))
        kind, prefix, arguments = (
            ("custom_tool_call", "ctc", "input")
            if tool.custom
            else ("function_call", "fc", "arguments")
        )
        item = {
            "id": f"{prefix}_{_new_id()}",
            "type": kind,
            "status": "in_progress",
            "call_id": f"call_{id}",
            "name": tool.name,
            arguments: "",
        }
        return item | ({"namespace": tool.namespace} if tool.namespace else {})

    def _begin(self, item: Json) -> Iterator[Json]:
        yield from self._close("completed")
        self._open, self._raw, self._logprobs = item, "", []
        self._held = ("message", "", [])
        yield self._of_list("output_item.added", item)

    def _delta(self, text: str, logprobs: list[Json]) -> Json:
        self._raw += text
        if self._kind == "message":
            self._logprobs += logprobs
            place = {"content_index": 0}
            return self._of_item("output_text.delta", **place, delta=text, logprobs=logprobs)
        return self._of_item("reasoning_summary_text.delta", summary_index=0, delta=text)

    def _close(self, status: Status) -> Iterator[Json]:
        item, text, logprobs = self._open, self._raw, self._logprobs
        if item is None:
            return
        changes: Json = {"status": status}
        match item["type"]:
            case "message":
                part, place = _text_part(text, logprobs), {"content_index": 0}
                changes["content"] = [part]
                yield self._of_item("output_text.done", **place, text=text, logprobs=logprobs)
                yield self._of_item("content_part.done", **place, part=part)
            case "reasoning":
                summary = {"type": "summary_text", "text": text}
                changes = {"summary": [summary]}
                if self._encrypted:
                    changes["encrypted_content"] = encrypted_reasoning(text)
                yield self._of_item("reasoning_summary_text.done", summary_index=0, text=text)
                yield self._of_item("reasoning_summary_part.done", summary_index=0, part=summary)
            case "function_call":
                changes["arguments"] = text
                name = item["name"]
                yield self._of_item("function_call_arguments.done", name=name, arguments=text)
            case "custom_tool_call":
                given = custom_input(
                    text
                )  # the arguments around it are ours, so it is told at once
                changes["input"] = given
                yield self._of_item("custom_tool_call_input.delta", delta=given)
                yield self._of_item("custom_tool_call_input.done", input=given)
        done = {**item, **changes}
        yield self._of_list("output_item.done", done)
        self.items.append(done)
        self._open = None

    def _of_list(self, name: str, item: Json) -> Json:
        return {"type": f"response.{name}", "output_index": len(self.items), "item": item}

    def _of_item(self, name: str, /, **fields: Any) -> Json:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self.items)}
        return {"type": f"response.{name}", **place, **fields}


def _text_part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _new_id() -> str:
    return secrets.token_hex(24)
