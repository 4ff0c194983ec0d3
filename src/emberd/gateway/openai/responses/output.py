"""A reply's events to the output items of /v1/responses: whole ones, and the stream events that build them up.

A function of the events and of random ids. Knows nothing of the response around the items.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ...events import (
    Event,
    Finish,
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
    sent back by clients that keep nothing else of it.
    """

    def __init__(self, tools: Mapping[str, Tool], *, encrypted: bool = False) -> None:
        self.items: list[Json] = []
        self._tools = tools
        self._encrypted = encrypted
        self._open: Json | None = None
        self._raw = ""  # what came for the open item: text, or a call's arguments
        self._held: tuple[Kind, str] = ("message", "")  # blanks that may begin an item

    def push(self, event: Event) -> list[Json]:
        """Stream events, without their numbers, that tell what `event` tells."""
        return list(self._push(event))

    def _push(self, event: Event) -> Iterator[Json]:
        match event:
            case ReasoningDelta(text):
                yield from self._text("reasoning", text)
            case TextDelta(text):
                yield from self._text("message", text)
            case ToolCallStart(_, id, name):
                yield from self._begin(self._call(id, name))
            case ToolCallArguments(_, fragment):
                self._raw += fragment
                if self._kind == "function_call":
                    yield self._of_item("function_call_arguments.delta", delta=fragment)
            case Finish(reason):
                if not self.items and self._open is None:
                    kind, blanks = self._held
                    yield from self._begin_text("message", blanks if kind == "message" else "")
                yield from self._close("incomplete" if reason == "length" else "completed")

    @property
    def _kind(self) -> str:
        return self._open["type"] if self._open is not None else ""

    def _text(self, kind: Kind, text: str) -> Iterator[Json]:
        if self._kind == kind:
            self._raw += text
            yield self._delta(text)
            return
        held_kind, blanks = self._held
        text = blanks + text if held_kind == kind else text
        if text.strip():
            yield from self._begin_text(kind, text)
        else:
            self._held = (kind, text)

    def _begin_text(self, kind: Kind, text: str) -> Iterator[Json]:
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
            yield self._of_item("content_part.added", content_index=0, part=_text_part(""))
        else:
            yield from self._begin({"id": f"rs_{_new_id()}", "type": "reasoning", "summary": []})
            part = {"type": "summary_text", "text": ""}
            yield self._of_item("reasoning_summary_part.added", summary_index=0, part=part)
        self._raw = text
        if text:
            yield self._delta(text)

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
        self._open, self._raw, self._held = item, "", ("message", "")
        yield self._of_list("output_item.added", item)

    def _delta(self, text: str) -> Json:
        if self._kind == "message":
            return self._of_item("output_text.delta", content_index=0, delta=text, logprobs=[])
        return self._of_item("reasoning_summary_text.delta", summary_index=0, delta=text)

    def _close(self, status: Status) -> Iterator[Json]:
        item, text = self._open, self._raw
        if item is None:
            return
        changes: Json = {"status": status}
        match item["type"]:
            case "message":
                part = _text_part(text)
                changes["content"] = [part]
                yield self._of_item("output_text.done", content_index=0, text=text, logprobs=[])
                yield self._of_item("content_part.done", content_index=0, part=part)
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


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _new_id() -> str:
    return secrets.token_hex(24)
