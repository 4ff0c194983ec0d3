"""Bodies of llama.cpp's routes, and of vLLM's where it has the same."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ...errors import BadRequestError
from ..body import FIRST_FAULT, MAX_MESSAGES, Flag, Number, Schema, Text, Whole, read_keep_alive
from ..logprobs import read_bias
from ..openai.constraints import ConstraintFields
from ..openai.schema import ChatMessage
from ..priority import PriorityField
from ..reuse import ReuseFields
from ..sampling import MAX_PENALTY_WINDOW, Sampling

_MAX_STOPS = 64
_MAX_FILES = 256


class ModelField(Schema):
    """`model` may be left out where it is clear which one is meant."""

    model: Text | None = None


class Conversing(ModelField):
    """A conversation as it goes to the template."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES), FIRST_FAULT
    ]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: Flag | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(ModelField):
    """`content` is llama.cpp's field, `prompt` and `messages` are vLLM's."""

    content: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES), FIRST_FAULT] | None = (
        None
    )
    add_special: Flag | None = None
    add_special_tokens: Flag | None = None
    parse_special: Flag | None = None
    with_pieces: Flag | None = None
    return_token_strs: Flag | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: Flag | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def text(self) -> str | None:
        """What is to be tokenized; None: the messages are. Raises BadRequestError."""
        given = [n for n in ("content", "prompt", "messages") if getattr(self, n) is not None]
        if len(given) != 1:
            what = "and ".join(f"'{name}' " for name in given) or "neither "
            raise BadRequestError(
                f"send one of 'content', 'prompt' and 'messages'; {what.strip()} was sent",
                given[1] if given else "content",
            )
        return self.content if self.content is not None else self.prompt

    @property
    def adds_special(self) -> bool:
        """BOS and EOS where the model wants them. llama.cpp leaves them out unless asked, vLLM puts them in."""
        for said in (self.add_special, self.add_special_tokens):
            if said is not None:
                return said
        return self.prompt is not None


class DetokenizeRequest(ModelField):
    tokens: Annotated[list[Whole], FIRST_FAULT]


class ExtraFile(Schema):
    filename: Text | None = None
    text: Text


class InfillRequest(ModelField, ConstraintFields, ReuseFields, PriorityField):
    input_prefix: Text | None = None
    input_suffix: Text | None = None
    input_extra: Annotated[list[ExtraFile], Field(max_length=_MAX_FILES), FIRST_FAULT] | None = None
    prompt: Text | None = None
    stream: Flag | None = None
    n_predict: Whole | None = None  # -1: until it ends; 0: nothing
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=1 << 31)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[Whole, Field(ge=-1, le=MAX_PENALTY_WINDOW)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-10, le=10)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-10, le=10)] | None = None
    seed: Annotated[Whole, Field(ge=-(1 << 63), lt=1 << 64)] | None = None  # -1: any
    stop: Text | Annotated[list[Text], Field(max_length=_MAX_STOPS), FIRST_FAULT] | None = None
    ignore_eos: Flag | None = None
    max_drafted: Annotated[Whole, Field(ge=0)] | None = Field(None, alias="speculative.n_max")
    logit_bias: dict[str, Any] | None = None
    keep_alive: Number | Text | None = None

    def sampling(self) -> Sampling:
        """Raises BadRequestError."""
        unlimited = self.n_predict is None or self.n_predict < 0
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_window=self.repeat_last_n,
            seed=None if self.seed == -1 else self.seed,
            max_tokens=None if unlimited else self.n_predict,
            ignore_eos=self.ignore_eos,
            logit_bias=read_bias(self.logit_bias),
            max_drafted=self.max_drafted,
        )

    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    def keep_alive_seconds(self) -> float | None:
        """Raises BadRequestError."""
        return read_keep_alive(self.keep_alive)
