"""The grammar of a whole reply: thinking first, where the model may, then the answer or calls.

Two of each: for the reply from its start, and for what follows where a budget ended the thinking by force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import BadRequestError
from ..reasoning import CHANNEL_FINAL, CHANNELS
from ..reply import ReplyFormat
from ..tokenizer import Tokenizer
from .rules import Rules

MakeExpression = Callable[[Rules], str]
_GAP = r"/[ \t\r\n]{1,4}/"  # blanks that models put behind a span of thinking


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What a reply is made of. `calls` begins at once; with both, the model chooses."""

    answer: MakeExpression | None = None
    calls: MakeExpression | None = None
    text_with_calls: MakeExpression | None = None  # instead of both; not of replies in channels
    param: str = ""  # the field that is told where llguidance refuses the whole


def bound(form: ReplyFormat, rules: ReplyRules, tokenizer: Tokenizer) -> ReplyFormat:
    """The format with its grammars. Raises BadRequestError."""
    in_channels = form.in_channels
    if in_channels and rules.answer is None and form.thinking is not None:
        form = replace(
            form,
            thinking=replace(
                CHANNELS, forced_close=CHANNELS.forced_close.removesuffix(CHANNEL_FINAL)
            ),
        )
    may_think = form.thinking is not None and form.thinking_budget != 0
    whole = _grammar(form, rules, tokenizer, may_think=may_think, behind=False)
    behind = (
        _grammar(form, rules, tokenizer, may_think=False, behind=True)
        if may_think and form.thinking_budget is not None
        else None
    )
    fault = tokenizer.grammar_checker.fault(whole)
    if fault:
        raise BadRequestError(f"'{rules.param}' cannot be enforced: {fault}", rules.param)
    calls_only = rules.calls is not None and rules.text_with_calls is None
    return replace(
        form,
        grammar=whole,
        grammar_behind_thinking=behind,
        grammar_param=rules.param,
        calls_only=calls_only,
    )


def _grammar(
    form: ReplyFormat, parts: ReplyRules, tokenizer: Tokenizer, *, may_think: bool, behind: bool
) -> str:
    rules = Rules(tokenizer.control_names)
    body = _body(form, parts, rules, behind=behind)
    if form.thinking is None:
        return rules.source(body)
    tags = form.thinking
    gap = "" if form.sections is not None else f"{rules.terminal(_GAP)}?"
    if form.in_channels:
        if not may_think:
            return rules.source(body)
        close = CHANNELS.forced_close.removesuffix(CHANNEL_FINAL)
        return rules.source(f"({rules.text(tags.open)} {rules.until(close)})? {body}")
    if behind:
        return rules.source(f"{gap} {body}")
    if not may_think:
        return rules.source(body)
    span = f"{rules.until(tags.close)} {gap}"
    if form.inside_thinking:
        return rules.source(f"{span} {body}")
    return rules.source(f"({rules.text(tags.open)} {span})? {body}")


def _body(form: ReplyFormat, parts: ReplyRules, rules: Rules, *, behind: bool) -> str:
    if parts.text_with_calls is not None:
        return parts.text_with_calls(rules)
    answer = parts.answer(rules) if parts.answer is not None else ""
    if answer and form.in_channels:
        if behind:
            return answer  # its channel is open already
        answer = f"{rules.text(CHANNEL_FINAL)} {answer}"
    elif answer and form.sections is not None and form.sections.answer:
        answer = f"{rules.text(form.sections.answer)} {answer}"
    calls = parts.calls(rules) if parts.calls is not None else ""
    return rules.rule(" | ".join(one for one in (answer, calls) if one))
