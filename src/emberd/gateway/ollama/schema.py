"""Ollama request bodies: the fields that are used, and those that must be refused rather than ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...errors import BadRequestError
from ...models.recipe import MAX_STOPS, is_go_template
from ...text.grammar.answer import Constraint
from ..body import FIRST_FAULT, MAX_MESSAGES, Flag, Number, Schema, Text, Whole, read_keep_alive
from ..conversation import ThinkingWish
from ..logprobs import MAX_TOP
from ..priority import PriorityField
from ..progress import ProgressField
from ..sampling import MAX_PENALTY_WINDOW, Sampling


class Options(Schema):
    num_ctx: Annotated[Whole, Field(ge=1)] | None = None
    num_predict: Whole | None = None  # -1 and -2: until it ends or the context is full
    seed: Annotated[Whole, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=1 << 31)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repeat_last_n: Annotated[Whole, Field(ge=-1, le=MAX_PENALTY_WINDOW)] | None = None
    repeat_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-10, le=10)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-10, le=10)] | None = None
    draft_num_predict: Annotated[Whole, Field(ge=0)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS), FIRST_FAULT] | None = None

    def sampling(self, num_logprobs: int | None = None) -> Sampling:
        """Raises BadRequestError."""
        if self.num_predict == 0:
            raise BadRequestError(
                "'options.num_predict': 0 tokens cannot be generated; send 1 or more, or -1 for no limit",
                "options.num_predict",
            )
        unlimited = self.num_predict is None or self.num_predict < 0
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_window=self.repeat_last_n,
            seed=self.seed,
            max_tokens=None if unlimited else self.num_predict,
            num_logprobs=num_logprobs,
            max_drafted=self.draft_num_predict,
        )

    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)


class GeneratingFields(PriorityField, ProgressField):
    """What both generating routes take."""

    model: Text
    stream: Flag | None = None
    options: Options | None = None
    keep_alive: Number | Text | None = None
    format: Any = None
    think: Flag | Text | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP)] | None = None

    def keep_alive_seconds(self) -> float | None:
        """Raises BadRequestError."""
        return read_keep_alive(self.keep_alive)

    def thinking(self) -> ThinkingWish:
        """Unset is on where the model can think (OL-10). Raises BadRequestError."""
        if self.think is None or self.think == "":
            return ThinkingWish(mode=True)
        if isinstance(self.think, bool):
            return ThinkingWish(mode=self.think, required=True)
        return ThinkingWish(mode=True, effort=self.think, required=True)

    def constraint(self) -> Constraint | None:
        """Raises BadRequestError."""
        if self.format is None or self.format == "":
            return None
        if self.format == "json":
            return Constraint("object", None, "format")
        if not isinstance(self.format, dict):
            raise BadRequestError(
                "'format' must be \"json\" or a JSON schema, which is an object", "format"
            )
        return Constraint("json", self.format, "format")

    def refuse_unserved(self) -> None:
        """Raises BadRequestError for what would change the answer if it were served."""
        self.constraint()
        self.thinking()
        if self.top_logprobs and not self.logprobs:
            raise BadRequestError("'top_logprobs' needs 'logprobs' to be true", "top_logprobs")

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class GenerateRequest(GeneratingFields):
    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    template: Text | None = None
    context: Annotated[list[Whole], FIRST_FAULT] | None = None
    raw: Flag | None = None
    images: list[Any] | None = None

    def refuse_unserved(self) -> None:
        super().refuse_unserved()
        if self.images:
            raise BadRequestError(f'"{self.model:.512}" does not support images', "images")
        if self.suffix and (self.template or self.system or self.context):
            raise BadRequestError(
                "'suffix' leaves no place for 'template', 'system' or 'context'", "suffix"
            )
        if self.raw and (self.template or self.system or self.context):
            raise BadRequestError(
                "'raw' leaves no place for 'template', 'system' or 'context'", "raw"
            )
        if self.template and is_go_template(self.template):
            raise BadRequestError(
                "'template' is a Go template, which is not supported; send a Jinja chat template, or "
                "the whole prompt with 'raw'",
                "template",
            )


class CalledFunction(Schema):
    name: Text
    arguments: dict[str, Any] | Text | None = None


class ToolCall(Schema):
    id: Text | None = None
    function: CalledFunction


class Message(Schema):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text | Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    thinking: Text | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: Text | None = None
    name: Text | None = None
    tool_call_id: Text | None = None


def _listed(messages: Any) -> Any:
    """null is a list without messages, as Go has it."""
    return [] if messages is None else messages


class ChatRequest(GeneratingFields):
    messages: Annotated[
        list[Message], Field(max_length=MAX_MESSAGES), FIRST_FAULT, BeforeValidator(_listed)
    ]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Text | dict[str, Any] | None = None  # not Ollama's, nor is the next
    parallel_tool_calls: Flag | None = None
    truncate: Flag | None = None

    def refuse_unserved(self) -> None:
        super().refuse_unserved()
        for index, message in enumerate(self.messages):
            if message.images:
                path = f"messages[{index}].images"
                raise BadRequestError(
                    f"'{path}': \"{self.model:.512}\" does not support images", path
                )


class ShowRequest(Schema):
    model: Text | None = None
    name: Text | None = None  # the older spelling
    verbose: Flag | None = None

    def wanted(self) -> str:
        """Raises BadRequestError."""
        if not (name := self.model or self.name):
            raise BadRequestError("'model' is required", "model")
        return name
