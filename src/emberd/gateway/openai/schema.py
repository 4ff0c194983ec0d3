"""OpenAI request bodies: the fields that are used, and those that must be refused rather than ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ...errors import BadRequestError, NotSupportedError
from ..body import FIRST_FAULT, MAX_MESSAGES, Flag, Number, Schema, Text, Whole
from ..logprobs import MAX_TOP, read_bias
from ..ollama.schema import Options
from ..priority import TierFields
from ..progress import ProgressField
from ..reuse import ReuseFields
from ..sampling import MAX_PENALTY_WINDOW, Sampling, filled
from .constraints import ConstraintFields

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
KeepAlive = Number | Text
_MAX_STOPS = 64
Budget = Annotated[Whole, Field(ge=0, lt=1 << 31)]


class StreamOptions(Schema):
    include_usage: Flag | None = None


class SamplingFields(ReuseFields, TierFields):
    """What both generating routes take."""

    model: Text
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    repeat_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[Whole, Field(ge=-1, le=MAX_PENALTY_WINDOW)] | None = None
    seed: Annotated[Whole, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=_MAX_STOPS), FIRST_FAULT] | None = None
    n: Annotated[Whole, Field(ge=1, le=8)] | None = None
    ignore_eos: Flag | None = None
    keep_alive: KeepAlive | None = None
    logit_bias: dict[str, Any] | None = None
    options: Options | None = None  # Ollama's; a field of the same meaning beside it wins
    num_ctx: Annotated[Whole, Field(ge=1)] | None = None
    max_drafted: Annotated[Whole, Field(ge=0)] | None = Field(None, alias="speculative.n_max")

    def sampling(self, max_tokens: int | None, num_logprobs: int | None = None) -> Sampling:
        """Raises BadRequestError."""
        repetition = self.repetition_penalty
        chosen = Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty if repetition is None else repetition,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_window=self.repeat_last_n,
            seed=self.seed,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            logit_bias=read_bias(self.logit_bias),
            num_logprobs=num_logprobs,
            max_drafted=self.max_drafted,
        )
        return filled(chosen, self.options.sampling()) if self.options else chosen

    def stops(self) -> tuple[str, ...]:
        if self.stop is None and self.options is not None:
            return self.options.stops()
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    def context_wish(self) -> tuple[int | None, str]:
        """Tokens of context that are asked for, and the field that asks."""
        if self.num_ctx is None and self.options is not None:
            return self.options.num_ctx, "options.num_ctx"
        return self.num_ctx, "num_ctx"

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class FunctionCall(Schema):
    name: Text
    arguments: Any = None  # JSON text, maybe not valid


class ToolCall(Schema):
    id: Text | None = None
    function: FunctionCall


class ChatMessage(Schema):
    role: Role
    content: Text | Annotated[list[dict[str, Any]], FIRST_FAULT] | None = None
    name: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None
    function_call: FunctionCall | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


class Reasoning(Schema):
    """OpenRouter's spelling."""

    effort: Text | None = None
    max_tokens: Budget | None = None
    enabled: Flag | None = None
    exclude: Flag | None = None


class Thinking(Schema):
    """Anthropic's spelling, which some send here."""

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: Budget | None = None


class TextPart(Schema):
    type: Literal["text"] = "text"
    text: Text


class Prediction(Schema):
    """What the caller thinks that the reply will hold."""

    type: Literal["content"] = "content"
    content: Text | Annotated[list[TextPart], FIRST_FAULT]

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(SamplingFields, ConstraintFields, ProgressField):
    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES), FIRST_FAULT
    ]
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Text | dict[str, Any] | None = None
    parallel_tool_calls: Flag | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP)] | None = None
    modalities: list[Text] | None = None
    functions: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Text | None = None
    reasoning: Reasoning | None = None
    think: Flag | Text | None = None
    thinking: Thinking | None = None
    thinking_token_budget: Budget | None = None
    prediction: Prediction | None = None


class CompletionRequest(SamplingFields, ConstraintFields, ProgressField):
    prompt: (
        Text
        | Annotated[list[Text], FIRST_FAULT]
        | Annotated[list[Whole], FIRST_FAULT]
        | Annotated[list[Annotated[list[Whole], FIRST_FAULT]], FIRST_FAULT]
    )
    max_tokens: Annotated[Whole, Field(ge=0)] | None = None
    best_of: Whole | None = None
    echo: Flag | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=5)] | None = None
    suffix: Text | None = None


def refuse_unserved_chat(body: ChatCompletionRequest) -> None:
    """Raises NotSupportedError or BadRequestError for what would change the answer if it were served."""
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("'top_logprobs' needs 'logprobs' to be true", "top_logprobs")
    if any(kind != "text" for kind in body.modalities or ()):
        raise _unserved("modalities", "other than text")
    if body.functions:
        raise _unserved("functions", "(send 'tools')")


def refuse_unserved_completion(body: CompletionRequest) -> None:
    """As refuse_unserved_chat."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequestError("'best_of' must equal 'n'", "best_of")
    if body.max_tokens == 0 and not body.echo:
        raise BadRequestError(
            "'max_tokens': 0 tokens is nothing to answer, unless 'echo' asks for the prompt",
            "max_tokens",
        )
    if body.echo and body.suffix:
        raise BadRequestError("'echo' does not go together with 'suffix'", "echo")


def _unserved(field: str, detail: str = "") -> NotSupportedError:
    subject = f"'{field}' {detail}".rstrip()
    return NotSupportedError(f"{subject} is not supported by this build; leave it out", field)
