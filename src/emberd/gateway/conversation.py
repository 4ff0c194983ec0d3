"""A conversation in the one form that all dialects make, and its way to prompt ids and a reply format.

Here a dialect's wishes for thinking meet what the model can do. Blocks; runs in a thread. Knows no dialect.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadRequestError
from ..models.loaded import ModelText
from ..text.grammar.answer import Constraint
from ..text.grammar.arguments import Parameters
from ..text.grammar.notations import Function, calls, notation_of, text_with_calls, written
from ..text.grammar.reply import ReplyRules, bound
from ..text.grammar.rules import Rules, any_text
from ..text.messages import linked
from ..text.reasoning import EFFORTS, Thinking, reasoning_name, thinking_of, with_reasoning_as
from ..text.reply import PLAIN, ReplyFormat
from ..text.sections import sections_of
from ..text.tokenizer import Tokenizer
from ..text.tools.body import tools_of
from ..text.tools.prompt import (
    as_text,
    has_tool_messages,
    wants_metadata,
    with_calls_in_metadata,
    with_calls_in_text,
)
from ..text.tools.syntax import HERMES, tool_support

_TAIL = 32  # tokens at a prompt's end in which an open thinking tag is looked for
_BUDGETS = {"minimal": 512, "low": 2048, "medium": 8192}
"""Reasoning tokens of an effort, for models whose template has no word for it; higher ones have no limit."""


@dataclass(frozen=True, slots=True)
class ThinkingWish:
    """What a caller asked of thinking, folded from a dialect's spellings.

    `required`: a model that cannot think is refused, naming `param`; else the wish does nothing there.
    """

    mode: bool | None = None  # None: the model's default
    effort: str | None = None  # one of EFFORTS
    budget: int | None = None  # reasoning tokens
    required: bool = False
    param: str = "think"

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in EFFORTS:
            raise BadRequestError(
                f"'{self.param}': effort '{self.effort:.64}' is not one of none, {', '.join(EFFORTS)}",
                self.param,
            )


@dataclass(frozen=True, slots=True)
class ForcedCalls:
    """The reply must be calls. `name`: of one function alone, and once; `param` is the field that says so."""

    param: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools as chat templates read them (OpenAI's form, see text/messages.py)."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None  # None: calls in the reply stay text
    thinking: ThinkingWish = ThinkingWish()
    variables: Mapping[str, Any] = field(default_factory=dict)  # further ones of the template
    template: str | None = None  # instead of the model's own
    one_call: bool = False  # the reply ends where a second call would begin
    constraint: Constraint | None = None  # on the answer
    forced: ForcedCalls | None = None
    schema_paths: Mapping[str, str] = field(default_factory=dict)  # tool: where its schema was sent

    def __post_init__(self) -> None:
        for index, tool in enumerate(self.tools or ()):
            _check_tool(tool, f"tools[{index}]")
        if self.forced is not None:
            _check_forced(self.forced, self.tools or ())

    continued: str = ""  # the beginning of the reply; where there is one, the model does not think

    def read(
        self, model: ModelText, name: str, context_length: int | None = None
    ) -> tuple[tuple[int, ...], ReplyFormat]:
        """Prompt ids, ready for the reply, and how the reply is to be read. Raises BadRequestError, in
        which `name` is the model's, and ContextOverflowError where there is far more than `context_length`."""
        ids, form = self._read(model, name, context_length)
        if not self.continued:
            return ids, form
        head = model.control_ids(form.sections.answer) if form.sections is not None else []
        return (*ids, *head, *model.plain_ids(self.continued)), form

    def _read(
        self, model: ModelText, name: str, context_length: int | None
    ) -> tuple[tuple[int, ...], ReplyFormat]:
        source = self.template
        if source is None:
            source = model.template_for(self.tools).source
        thinking, wish = thinking_of(source), self.thinking
        if self.continued:
            wish = dataclasses.replace(wish, mode=False)
        if thinking is None and wish.required and wish.mode is not False:
            raise BadRequestError(f'"{name:.512}" does not support thinking', wish.param)
        support = tool_support(source)
        messages = with_reasoning_as(reasoning_name(source), model.opened(linked(self.messages)))
        tools = self.tools
        variables = dict(self.variables)
        unknown = "tool_calls" not in source and has_tool_messages(messages)
        if support is None and (tools or unknown):
            messages, tools = as_text(messages, tools or ()), None
        elif support is not None and unknown and wants_metadata(source):
            messages = with_calls_in_metadata(messages)
        elif support is not None and unknown:
            notation = notation_of(support.syntax.name, source, in_channels=False)
            messages = with_calls_in_text(messages, lambda made: written(notation, made))
        if support is not None and tools and support.variable != "tools":
            variables.setdefault(support.variable, tools)
        if thinking is not None:
            variables = {**thinking.variables(wish.mode, wish.effort), **variables}
        ids = model.chat_ids(messages, tools, self.template, context_length, **variables)
        form = ReplyFormat(sections=sections_of(source))
        if self.tools:
            syntax = support.syntax if support else HERMES
            one = self.one_call or (support is not None and support.one_call)
            form = dataclasses.replace(
                form, syntax=syntax, tools=tools_of(self.tools), one_call=one
            )
        if thinking is not None:
            tail = model.tokenizer.decode(ids[-_TAIL:], show_special=True).rstrip()
            inside, budget = tail.endswith(thinking.tags.open.rstrip()), _budget(wish, thinking)
            if inside and budget == 0:
                ids = [*ids, *model.control_ids(thinking.tags.forced_close)]
                inside = False
            form = dataclasses.replace(
                form, thinking=thinking.tags, inside_thinking=inside, thinking_budget=budget
            )
        return tuple(ids), self._bound(form, source, model)

    def _bound(self, form: ReplyFormat, template: str, model: ModelText) -> ReplyFormat:
        """The format with its grammar, where the reply is bound by one. Raises BadRequestError."""
        answer, forced = self.constraint, self.forced
        if answer is None and forced is None:
            return self._bound_if_strict(form, template, model)
        param = forced.param if forced else answer.param if answer else ""
        if self.continued:
            raise BadRequestError(
                f"'{param}' cannot be served where the last message begins the reply; leave that message out",
                param,
            )
        functions = self._functions()
        rules = ReplyRules(
            answer.expression if answer and forced is None else None,
            (lambda rules: self._calls(rules, form, template, functions)) if functions else None,
            param=param,
        )
        return _with_unheld(bound(form, rules, model.tokenizer), functions)

    def _bound_if_strict(self, form: ReplyFormat, template: str, model: ModelText) -> ReplyFormat:
        """Calls of strict tools fit where the model makes some; the rest of the reply is free."""
        strict = any(tool["function"].get("strict") is True for tool in self.tools or ())
        if not strict or form.syntax is None or self.continued:
            return form
        notation = notation_of(form.syntax.name, template, in_channels=form.in_channels)
        functions = self._functions()
        if form.in_channels:
            rules = ReplyRules(
                any_text, lambda r: self._calls(r, form, template, functions), param="tools"
            )
        elif notation.opening:
            syntax = form.syntax.bound(with_bare=notation.bare)
            form = dataclasses.replace(form, syntax=syntax)
            rules = ReplyRules(
                text_with_calls=lambda r: text_with_calls(r, notation, functions),
                param="tools",
            )
        else:
            return form
        return _with_unheld(bound(form, rules, model.tokenizer), functions)

    def _calls(
        self, rules: Rules, form: ReplyFormat, template: str, functions: Sequence[Function]
    ) -> str:
        assert form.syntax is not None
        notation = notation_of(form.syntax.name, template, in_channels=form.in_channels)
        one = form.one_call or (self.forced is not None and self.forced.name is not None)
        return calls(rules, notation, functions, one=one)

    def _functions(self) -> list[Function]:
        """Those that may be called. What cannot be enforced of a schema is left out, except of strict ones."""
        forced, functions = self.forced, []
        for index, tool in enumerate(self.tools or ()):
            function, path = tool["function"], f"tools[{index}].function.parameters"
            path = self.schema_paths.get(function["name"], path)
            if forced is not None and forced.name not in (None, function["name"]):
                continue
            strict = function.get("strict") is True
            parameters = Parameters(
                function.get("parameters"), path, strict=strict, relaxed=not strict
            )
            functions.append(
                Function(function["name"], parameters, f"{path.rpartition('.')[0]}.name")
            )
        return functions


def _with_unheld(form: ReplyFormat, functions: Sequence[Function]) -> ReplyFormat:
    """The format with the keywords of tools' schemas that its grammar leaves out, as `tools.NAME.KEYWORD`."""
    names = [
        ".".join(["tools", *_plain(f.name), *(_plain(keyword) or ["parameters"])])
        for f in functions
        for keyword in f.parameters.left_out
    ]
    return dataclasses.replace(form, unheld=tuple(dict.fromkeys(names)))


def _plain(name: str) -> list[str]:
    """A name that a header can hold beside others."""
    return [name] if re.fullmatch(r"[A-Za-z0-9_\-]{1,32}", name) else []


def unheld_strict(tools: Sequence[Any] | None, template: str) -> list[str]:
    """`tools.strict` where a tool has it and nothing would hold it: in a notation whose calls begin like any text.
    For tools that may be called and need not be, in OpenAI's form."""
    functions = [tool.get("function") for tool in tools or () if isinstance(tool, Mapping)]
    if not any(isinstance(one, Mapping) and one.get("strict") is True for one in functions):
        return []
    support, thinking = tool_support(template), thinking_of(template)
    in_channels = ReplyFormat(thinking.tags if thinking else None).in_channels
    syntax = support.syntax if support else HERMES
    held = in_channels or bool(notation_of(syntax.name, template, in_channels=False).opening)
    return [] if held else ["tools.strict"]


def plain_form(constraint: Constraint | None, tokenizer: Tokenizer) -> ReplyFormat:
    """Of a reply to a text that is no conversation. Raises BadRequestError."""
    if constraint is None:
        return PLAIN
    return bound(PLAIN, ReplyRules(constraint.expression, param=constraint.param), tokenizer)


def _check_forced(forced: ForcedCalls, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises BadRequestError where there is nothing to call."""
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise BadRequestError(
            f"'{forced.param}' forces a call, and there are no tools", forced.param
        )
    if forced.name is not None and forced.name not in names:
        raise BadRequestError(
            f"'{forced.param}': '{forced.name:.64}' is none of the tools: {', '.join(names):.256}",
            forced.param,
        )


def _check_tool(tool: Mapping[str, Any], path: str) -> None:
    """Raises BadRequestError where a tool is not a function with a name."""
    if not isinstance(tool, Mapping):
        raise BadRequestError(f"'{path}' must be an object", path)
    kind = tool.get("type", "function")
    if kind != "function":
        raise BadRequestError(
            f"'{path}.type': tools of type {kind!r:.64} are not supported; send functions",
            f"{path}.type",
        )
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise BadRequestError(f"'{path}.function.name' is required", f"{path}.function.name")
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    if parameters is not None and not isinstance(parameters, Mapping):
        raise BadRequestError(
            f"'{path}.function.parameters' must be an object", f"{path}.function.parameters"
        )


def _budget(wish: ThinkingWish, thinking: Thinking) -> int | None:
    if wish.mode is False:
        return 0
    if wish.budget is not None or wish.effort is None or thinking.efforts:
        return wish.budget
    return _BUDGETS.get(wish.effort)
