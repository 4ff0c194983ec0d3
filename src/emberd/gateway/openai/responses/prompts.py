"""A request of /v1/responses to prompt ids: the stored conversation, what is new, and cutting where it is allowed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ....errors import BadRequestError, ContextOverflowError
from ....models.loaded import LoadedModel, ModelText
from ....text.messages import check_depth
from ...conversation import Conversation, ThinkingWish
from ...cutting import Cut, Ids, Messages, read_fitting
from ...service import PromptIds
from .items import Item, kind_of, template_messages
from .schema import PromptFields, refuse_empty
from .store import ResponseStore
from .tools import Tools, read_tools

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the model is asked. `left_out` names parts of the request that do nothing."""

    body: PromptFields
    items: Sequence[Json]
    messages: list[Json]
    tools: Tools
    left_out: Sequence[str]
    cut: Cut = field(default_factory=Cut)

    def prompt(self, model: LoadedModel) -> PromptIds:
        """Blocks. Raises BadRequestError."""

        def read(messages: Messages) -> Ids:
            conversation = self._conversation(messages)
            return conversation.read(model.text, self.body.model, model.context_length)

        cut = self.cut if self.body.truncation == "auto" else None
        ids, form = _by_input(lambda: read_fitting(model, self.messages, read, cut))
        return PromptIds((ids,), param="input", form=form)

    def num_tokens(self, model: ModelText, context_length: int) -> int:
        """Of the whole prompt. Blocks. Raises BadRequestError."""
        conversation = self._conversation(self.messages)
        ids, _ = _by_input(lambda: conversation.read(model, self.body.model, context_length))
        return len(ids)

    def context(self) -> list[Json]:
        """The items in the form in which they are stored and listed."""
        return [_listed(item) for item in self.items]

    def _conversation(self, messages: Messages) -> Conversation:
        effort = self.body.reasoning.effort if self.body.reasoning else None
        mode = None if effort is None else effort != "none"
        return Conversation(
            messages,
            self.tools.functions,
            ThinkingWish(mode, effort if mode else None, param="reasoning.effort"),
            one_call=self.body.parallel_tool_calls is False,
            constraint=self.body.constraint(),
            forced=self.tools.forced,
            schema_paths=self.tools.schema_paths,
        )


def asked_of(body: PromptFields, store: ResponseStore) -> Asked:
    """Raises BadRequestError, NotSupportedError, and NotFoundError for what is not stored."""
    items = [*_earlier(body, store), *_new_items(body, store)]
    refuse_empty(body, len(items))
    tools = read_tools(body.tools, body.tool_choice)
    messages, left_out = template_messages(body.instructions, items, tools)
    kept = [item for _, item in items]
    return Asked(body, kept, messages, tools, [*tools.left_out, *left_out])


def _earlier(body: PromptFields, store: ResponseStore) -> Iterator[Item]:
    """Of the previous response, whose instructions are not carried over."""
    name = "previous_response_id"
    if body.previous_response_id is not None:
        stored = store.get(body.previous_response_id, name, "previous_response_not_found")
        for item in stored.items:
            yield name, item


def _new_items(body: PromptFields, store: ResponseStore) -> Iterator[Item]:
    if isinstance(body.input, str):
        yield "input", {"type": "message", "role": "user", "content": body.input}
        return
    for index, item in enumerate(body.input or ()):
        path = f"input[{index}]"
        check_depth(item, path)
        if kind_of(item, path) != "item_reference":
            yield path, item
            continue
        if not isinstance(id := item.get("id"), str):
            raise BadRequestError(f"'{path}.id' is required and must be a text", f"{path}.id")
        yield path, store.item(id, f"{path}.id")


def _by_input(read: Callable[[], T]) -> T:
    """What is said of `messages` behind this is about `input`."""
    try:
        return read()
    except ContextOverflowError as error:
        error.param = "input"
        raise
    except BadRequestError as error:
        if error.param == "messages":
            error.param = "input"
        raise


def _listed(item: Json) -> Json:
    """With the fields that readers of a list count on. An item that has an id is one already."""
    if isinstance(item.get("id"), str):
        return item
    kind = kind_of(item, "input")
    listed = {"id": f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(24)}", **item, "type": kind}
    if kind == "message":
        content, part = item.get("content"), "input_text"
        if item["role"] == "assistant":
            part = "output_text"
        if isinstance(content, str):
            more: Json = {"annotations": []} if part == "output_text" else {}
            listed["content"] = [{"type": part, "text": content, **more}]
    return listed


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
