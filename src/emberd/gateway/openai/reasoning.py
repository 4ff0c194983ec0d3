"""Thinking on the OpenAI route: its many spellings folded into one wish, and the names it is told by."""

from __future__ import annotations

from ...text.reasoning import thinking_of
from ..body import Json
from ..conversation import ThinkingWish, unheld_strict
from .schema import ChatCompletionRequest

_FIELDS = ("reasoning_effort", "reasoning", "think", "thinking", "thinking_token_budget")


def thinking_wish(body: ChatCompletionRequest) -> ThinkingWish:
    """The field that says most wins: `think`, `thinking`, `reasoning`, template variables, `reasoning_effort`.

    OC-12. Raises BadRequestError.
    """
    mode, effort, param = None, body.reasoning_effort, "reasoning_effort"
    variables = body.chat_template_kwargs or {}
    for name in ("enable_thinking", "thinking"):
        if isinstance(variables.get(name), bool):
            mode = variables[name]
    budget = None
    if body.reasoning is not None:
        if body.reasoning.effort is not None:
            effort, param = body.reasoning.effort, "reasoning.effort"
        mode = body.reasoning.enabled if body.reasoning.enabled is not None else mode
        budget = body.reasoning.max_tokens
    if body.thinking is not None:
        kinds = {"enabled": True, "disabled": False}
        mode = kinds.get(body.thinking.type or "", mode)
        budget = budget if body.thinking.budget_tokens is None else body.thinking.budget_tokens
    if isinstance(body.think, bool):
        mode, param = body.think, "think"
    elif body.think:
        effort, mode, param = body.think, True, "think"
    if body.thinking_token_budget is not None:
        budget = body.thinking_token_budget
    if effort in ("none", "off"):
        mode, effort = (False if mode is None else mode), None
    elif effort is not None and mode is None:
        mode = True
    if budget is not None and mode is None:
        mode = True
    return ThinkingWish(mode, effort, budget, required=bool(body.think), param=param)


def unused_fields(raw: Json, template: str) -> list[str]:
    """Fields that were sent and do nothing with this model: about thinking where it does not think, and `strict`
    of tools that it may call, where its notation of calls cannot be told from text."""
    names = [name for name in _FIELDS if raw.get(name) is not None]
    unused = [] if thinking_of(template) else names
    free = raw.get("tool_choice") in (None, "auto") and raw.get("response_format") is None
    return unused + (unheld_strict(raw.get("tools"), template) if free else [])


def reasoning_names(body: ChatCompletionRequest, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the `keys` of a message that tell its reasoning; none where the caller wants none (OC-24)."""
    return () if body.reasoning is not None and body.reasoning.exclude else keys
