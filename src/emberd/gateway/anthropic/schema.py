"""Anthropic request bodies: the fields that are used."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...errors import BadRequestError
from ...text.grammar.answer import Constraint
from ..body import FIRST_FAULT, MAX_MESSAGES, Flag, Number, Schema, Text, Whole
from ..constraints import format_constraint
from ..priority import PriorityField
from ..sampling import Sampling

Blocks = list[dict[str, Any]]
_MAX_STOPS = 64


class Message(Schema):
    role: Literal["user", "assistant", "system"]
    content: Text | Blocks


class Tool(Schema):
    """A function, or one of Anthropic's own tools, which are known by `type`."""

    name: Text | None = None
    type: Text | None = None
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    strict: Flag | None = None


class ToolChoice(Schema):
    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: Flag | None = None


class Thinking(Schema):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Whole, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Schema):
    effort: Text | None = None
    format: dict[str, Any] | None = None


class CountTokensRequest(Schema):
    """What makes the prompt."""

    model: Text
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), FIRST_FAULT]
    system: Text | Blocks | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, PriorityField):
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop_sequences: Annotated[list[Text], Field(max_length=_MAX_STOPS)] | None = None
    stream: Flag | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=1 << 31)] | None = None
    output_format: dict[str, Any] | None = None
    keep_alive: Number | Text | None = None

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
        )

    def stops(self) -> tuple[str, ...]:
        return tuple(stop for stop in self.stop_sequences or () if stop)

    def constraint(self) -> Constraint | None:
        """Raises BadRequestError."""
        in_config = self.output_config.format if self.output_config else None
        if in_config is not None and self.output_format is not None:
            raise BadRequestError(
                "'output_config.format' and 'output_format' cannot both be followed; send one",
                "output_format",
            )
        if in_config is not None:
            return format_constraint(in_config, "output_config.format")
        return format_constraint(self.output_format, "output_format")

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"
