"""Bodies of /v1/responses: the fields that are used, and those that must be refused rather than ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ....errors import BadRequestError, NotSupportedError
from ....text.grammar.answer import Constraint
from ...body import FIRST_FAULT, MAX_MESSAGES, Flag, Schema, Text, Whole
from ...constraints import format_constraint
from ...logprobs import MAX_TOP
from ..schema import SamplingFields

Json = dict[str, Any]
ENCRYPTED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


class Reasoning(Schema):
    """`summary` asks for what is told anyway: all that the model thought."""

    effort: Text | None = None
    summary: Text | None = None


class TextOptions(Schema):
    format: Json | None = None


class PromptFields(Schema):
    """What makes the prompt."""

    model: Text
    input: (
        Text
        | Annotated[
            list[Annotated[Json, Field(strict=True)]], Field(max_length=MAX_MESSAGES), FIRST_FAULT
        ]
        | None
    ) = None
    instructions: Text | None = None
    previous_response_id: Text | None = None
    tools: list[Json] | None = None
    tool_choice: Text | Json | None = None
    parallel_tool_calls: Flag | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Any = None
    prompt: Any = None

    def constraint(self) -> Constraint | None:
        """Raises BadRequestError."""
        return format_constraint(self.text.format if self.text else None, "text.format")


class InputTokensRequest(PromptFields):
    """As for a response, without what makes the reply."""


class ResponsesRequest(PromptFields, SamplingFields):
    n: Annotated[Whole, Field(ge=1, le=1)] | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    store: Flag | None = None
    include: list[Text] | None = None
    metadata: Annotated[dict[Text, Text], Field(max_length=16)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP)] | None = None
    background: Flag | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Beside each token; None: no log-probabilities at all."""
        asked = self.top_logprobs or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if asked else None


def refuse_unserved(body: PromptFields) -> None:
    """Raises NotSupportedError or BadRequestError for what would change the answer if it were served."""
    if body.conversation is not None:
        raise _unserved("conversation", "(send 'previous_response_id', or the items)")
    if body.prompt is not None:
        raise _unserved("prompt", "(send 'instructions' and 'input')")
    body.constraint()
    if not isinstance(body, ResponsesRequest):
        return
    if body.background and body.stream:
        raise _unserved("background", "of a stream")
    if body.background and body.store is False:
        raise BadRequestError("'background' needs 'store': nobody could ask for it", "background")


def refuse_empty(body: PromptFields, num_items: int) -> None:
    if num_items == 0 and not body.instructions:
        raise BadRequestError(
            "'input' is required: a text, or a list with at least one item", "input"
        )


def _unserved(field: str, detail: str = "") -> NotSupportedError:
    subject = f"'{field}' {detail}".rstrip()
    return NotSupportedError(f"{subject} is not supported by this build; leave it out", field)
