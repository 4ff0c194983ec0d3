"""A reply's events to Anthropic's content blocks: whole ones, and the stream events that build them up.

A pure function of the events. Knows nothing of messages around the blocks.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Literal

from ..events import (
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)

Json = dict[str, Any]
Kind = Literal["thinking", "text"]


class Blocks:
    """The blocks of one message, one open at a time.

    Blanks alone are no block beside others: histories that hold one are refused by Anthropic. Without
    `show_thinking` thinking blocks come without their text.
    """

    def __init__(self, *, show_thinking: bool = True) -> None:
        self.content: list[Json] = []
        self._show_thinking = show_thinking
        self._open = ""  # type of the last block while it is open
        self._raw = ""  # what came for the open block: thinking, or a call's arguments
        self._held: tuple[Kind, str] = ("text", "")  # blanks that may begin a block

    def push(self, event: Event) -> list[Json]:
        """Stream events that tell what `event` tells; `content` has it too."""
        return list(self._push(event))

    def _push(self, event: Event) -> Iterator[Json]:
        match event:
            case ReasoningDelta(text):
                yield from self._text("thinking", text)
            case TextDelta(text):
                yield from self._text("text", text)
            case ToolCallStart(_, id, name):
                self._held = ("text", "")
                block = {"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": {}}
                yield from self._start(block)
            case ToolCallArguments(_, fragment):
                self._raw += fragment
                yield self._delta({"type": "input_json_delta", "partial_json": fragment})
            case Finish():
                kind, blanks = self._held
                if blanks and not self.content:
                    yield from self._begin(kind, blanks)
                yield from self._stop()

    def _text(self, kind: Kind, text: str) -> Iterator[Json]:
        if self._open != kind:
            held_kind, blanks = self._held
            text = blanks + text if held_kind == kind else text
            if not text.strip():
                self._held = (kind, text)
                return
            yield from self._begin(kind, "")
        self._raw += text
        if kind == "text":
            self.content[-1]["text"] = self._raw
            yield self._delta({"type": "text_delta", "text": text})
        elif self._show_thinking:
            self.content[-1]["thinking"] = self._raw
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def _begin(self, kind: Kind, blanks: str) -> Iterator[Json]:
        self._held = ("text", "")
        more = {"signature": ""} if kind == "thinking" else {}
        yield from self._start({"type": kind, kind: "", **more})
        if blanks:
            yield from self._text(kind, blanks)

    def _start(self, block: Json) -> Iterator[Json]:
        yield from self._stop()
        self._open, self._raw = block["type"], ""
        self.content.append(block)
        yield {
            "type": "content_block_start",
            "index": len(self.content) - 1,
            "content_block": dict(block),
        }

    def _stop(self) -> Iterator[Json]:
        if not self._open:
            return
        block = self.content[-1]
        if self._open == "thinking":
            block["signature"] = _signature(self._raw)
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        elif self._open == "tool_use":
            block["input"] = _object(self._raw)
        self._open = ""
        yield {"type": "content_block_stop", "index": len(self.content) - 1}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


def _signature(thinking: str) -> str:
    """Clients keep it with the block and send both back. Nobody checks it, but it must not be empty."""
    return base64.b64encode(hashlib.sha256(b"emberd\0" + thinking.encode()).digest()).decode()


def _object(arguments: str) -> Json:
    """The arguments as an object; an empty one where the token limit cut them."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
