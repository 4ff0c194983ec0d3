"""Chat templates: a conversation to the prompt that a model was trained on, as text and as ids.

Whatever goes wrong in a template becomes a `BadRequestError`. How conversations are made to fit is in
messages.py, what templates may do in sandbox.py, how typed control text stays text in guard.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError

from ..errors import BadRequestError
from .bounds import MAX_SOURCE, time_limit
from .guard import Guarded
from .lengths import refuse_overlong
from .messages import (
    Conversation,
    adaptations,
    check_depth,
    described,
    in_parts,
    normalised,
    notation_count,
)
from .sandbox import TemplateRefusedError, compiled
from .spending import MAX_TEXT, TemplateLimitError, spending
from .tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
_PROBE = "probe-5f2c"
_MAX_WORDS = 2000
"""Characters of a template's own words that a caller is told."""


class _LimitError(BadRequestError):
    """The conversation and the template make more than is allowed."""


class ChatTemplate:
    """One template, compiled once. A template that does not parse is kept, and every use is refused.

    `tokenizer` gives the variables `bos_token`, `eos_token` and `unk_token`; `clock` what `strftime_now`
    shows.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer | None = None,
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._clock = clock
        self._variables = _token_variables(tokenizer) if tokenizer is not None else {}
        self._fault: str | None = None
        if len(source) > MAX_SOURCE:
            self._fault = f"This model's chat template is {len(source)} characters long; at most {MAX_SOURCE} are read."
            self.source = ""  # nothing is looked for in it either
            return
        try:
            with time_limit():
                self._strict = compiled(source, clock, may_append=False)
        except Exception as error:  # syntax, nesting too deep, constants that cannot be folded
            self._fault = f"This model's chat template does not parse: {_words(error)}."

    @property
    def fault(self) -> str | None:
        """Why it does not parse; None: it does."""
        return self._fault

    def render(
        self,
        messages: Messages,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        /,
        **extra: Any,
    ) -> str:
        """The prompt of a conversation. `extra` are further variables of the template.

        Messages are tried as they are first and made to fit step by step where the template cannot take
        them. Raises `BadRequestError` with the template's own words where it refuses the conversation on
        purpose, else with what went wrong.
        """
        if self._fault is not None:
            raise BadRequestError(self._fault, "messages")
        for value, where in (
            (messages, "messages"),
            (tools, "tools"),
            (extra, "template variables"),
        ):
            check_depth(value, where)
        variables = {
            "documents": None,
            **self._variables,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            **extra,
        }
        conversation = normalised(messages, developer_role="developer" in self.source)
        faults: list[Exception] = []
        try:
            with time_limit():  # of all forms together
                for changed in (variables, _with_usual_tools(variables)):
                    prompt = self._adapted(conversation, changed, faults)
                    if prompt is not None:
                        return prompt
                    if any(isinstance(fault, TemplateRefusedError) for fault in faults):
                        break
        except TemplateLimitError as error:
            faults = [error]
        raise _bad_request(faults)

    def _adapted(
        self, conversation: Conversation, variables: Mapping[str, Any], faults: list[Exception]
    ) -> str | None:
        """The prompt of the first form of the conversation that renders well; None: none renders, for `faults`."""
        prompts: list[tuple[int, str]] = []
        for adapted, of_form in adaptations(conversation):
            if prompts and of_form:
                break
            try:
                taken = in_parts(adapted) if self._wants_parts else adapted
                prompt = self._render(taken, variables)
            except TemplateLimitError:
                raise
            except Exception as error:  # templates are programs: anything may come out of them
                faults.append(error)
                continue
            prompts.append((notation_count(prompt, conversation), prompt))
            if prompts[-1][0] == 0:
                break
        return min(prompts, key=lambda item: item[0])[1] if prompts else None

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether a content that is a text is lost, and one in parts is not (templates of models that see)."""
        if "type" not in self.source:
            return False
        variables = {**self._variables, "tools": None, "add_generation_prompt": True}
        shown = []
        for convert in (list, in_parts):
            conversation = convert([{"role": "user", "content": _PROBE}])
            try:
                shown.append(_PROBE in self._render(conversation, variables))
            except TemplateLimitError:
                raise
            except Exception:
                shown.append(False)
        return shown == [False, True]

    @cached_property
    def _lenient(self) -> Template:
        return compiled(self.source, self._clock, may_append=True)

    def _render(self, conversation: Conversation, variables: Mapping[str, Any]) -> str:
        variables = {**variables, "messages": conversation}
        try:
            with spending(may_change=False):
                return self._strict.render(variables)
        except TemplateLimitError:
            raise
        except SecurityError:
            pass
        # Some templates append to lists that they made. They may, on copies of what is not theirs.
        with spending(may_change=True):
            return self._lenient.render(deepcopy(variables))


def render_to_ids(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Messages,
    context_length: int | None = None,
    /,
    *,
    tools: Messages | None = None,
    add_generation_prompt: bool = True,
    **extra: Any,
) -> list[int]:
    """Prompt ids of a conversation. Control tokens are those that the template writes; their names in
    messages, tools and `extra` stay text. BOS is there once where the model wants one.

    The ids are those of the rendered text in one go, so nothing changes at the borders of a message.
    Raises `BadRequestError` as `ChatTemplate.render` does, and `ContextOverflowError` where the prompt is far
    longer than `context_length`; one that is a little longer is the caller's to find.
    """

    def render(messages: Messages, tools: Messages | None, extra: Mapping[str, Any]) -> str:
        return template.render(messages, tools, add_generation_prompt, **extra)

    try:
        prompt = render(messages, tools, extra)
    except _LimitError:
        said = _said(messages)
        if context_length is not None and len(said) > MAX_TEXT:
            refuse_overlong(tokenizer, said, context_length, "messages")
        raise
    if context_length is not None:
        refuse_overlong(tokenizer, prompt, context_length, "messages")
    guard = Guarded(tokenizer.control_guard, template.source, messages, tools, extra)
    if not guard.needed:
        return tokenizer.encode_prompt(prompt)
    text, protected = guard.restored(render(guard.messages, guard.tools, guard.extra))
    guarded_ids = tokenizer.encode_prompt(text, protected)
    if text == prompt:
        return guarded_ids
    # The template looked at the guarded text and decided otherwise (it cuts reasoning at a control token,
    # say). Its first decision stands if no control token of the caller is left in what it wrote.
    plain_ids = tokenizer.encode_prompt(prompt)
    controls = [i for i in plain_ids if tokenizer.is_control(i)]
    return (
        plain_ids
        if controls == [i for i in guarded_ids if tokenizer.is_control(i)]
        else guarded_ids
    )


def _said(messages: Messages) -> str:
    """What all messages say, without what a template puts around it."""
    contents = [message.get("content") or "" for message in messages]
    parts = [[{"text": one}] if isinstance(one, str) else one for one in contents]
    return "".join(part["text"] for message in parts for part in message)


def _with_usual_tools(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Tools with all that they usually have; where there are none, no variable of them (which iterates as empty)."""
    if variables["tools"]:
        return {**variables, "tools": described(variables["tools"])}
    return {name: one for name, one in variables.items() if name != "tools"}


def _token_variables(tokenizer: Tokenizer) -> dict[str, str]:
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": tokenizer.unk_id,
    }
    return {name: "" if i is None else tokenizer.token_text(i) for name, i in ids.items()}


def _bad_request(faults: Sequence[Exception]) -> BadRequestError:
    """The first purposeful refusal if there is one, else the first fault."""
    for fault in faults:
        if isinstance(fault, TemplateRefusedError):
            return BadRequestError(str(fault)[:_MAX_WORDS], "messages")
    kind = _LimitError if isinstance(faults[0], TemplateLimitError) else BadRequestError
    return kind(
        f"This model's chat template cannot render the conversation: {_words(faults[0])}.",
        "messages",
    )


def _words(fault: Exception) -> str:
    return str(fault)[:_MAX_WORDS].rstrip(".") or type(fault).__name__
