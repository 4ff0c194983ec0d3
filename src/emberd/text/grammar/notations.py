"""How calls are written in each notation of tools/syntax.py, so that its reader reads them.

In `call`, %N is the function's name, %A its arguments, %I a number, %C an id of nine letters and digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tools.closed import ELEMENTS
from .arguments import Parameters, Write, as_json, as_keywords, as_tagged
from .gemma import as_gemma
from .pointers import refused
from .rules import ANY_TEXT, Rules, literal


@dataclass(frozen=True, slots=True)
class Notation:
    call: str
    arguments: Write = as_json
    between: str = "\n"
    before: str = ""
    after: str = ""
    opening: str = (
        ""  # what a call, or the first one, begins with, and no other text; "" where there is none
    )
    always_one: bool = False
    bare: bool = False  # models also write the call's JSON without a tag

    @property
    def names_are_json(self) -> bool:
        """A function may have any name then."""
        return self.arguments is as_json and '"%N"' in self.call


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: Parameters
    path: str


_PLACE = re.compile(r"(%[NAIC])")
_TEXT_BEHIND = r"/\s{0,4}[^\s<\[{(`](?s:.*)/"  # that nothing of a notation begins like
_NAME = re.compile(r"[\w.\-]+")
_NAMES_IN_TAGS = r"[^<>\s\x00-\x1f]([^<>\x00-\x1f]{0,126}[^<>\s\x00-\x1f])?"
_NAMES_IN_QUOTES = _NAMES_IN_TAGS.replace("<>", '<>"')
_BARE_HEAD = r'\s{0,8}\{\s{0,16}"name"\s{0,2}:\s{0,2}"%N"\s{0,2},\s{0,16}"(arguments|parameters)"\s{0,2}:\s{0,2}'
_BARE_END = r"/\s{0,16}\}\s{0,4}/"
_BLANKS = r"[\s\x1c-\x1f]*"
_BARE_TEXT = rf"""{_BLANKS}\{{{_BLANKS}"([^"]*\\|name"{_BLANKS}:{_BLANKS}"([^"]*\\|(%N)"))(?s:.*)"""
"""What a reader takes for the head of such a call, and names that are written with escapes."""

_HERMES = Notation(
    '<tool_call>\n{"name": "%N", "arguments": %A}\n</tool_call>', opening="<tool_call>", bare=True
)
_CHANNELS = Notation(
    "<|channel|>commentary to=functions.%N <|constrain|>json<|message|>%A", always_one=True
)
_PYTHONIC = Notation("%N(%A)", as_keywords, between=", ", before="[", after="]")


def _listed(call: str, before: str, after: str) -> Notation:
    return Notation(
        call, between=", ", before=before, after=after, opening=before.removesuffix("[")
    )


def _xml(template: str) -> Notation:
    write = as_tagged(
        "<parameter=%N>\n", "\n</parameter>\n", r"</?(parameter|function)", _NAMES_IN_TAGS
    )
    call = "<function=%N>\n%A</function>"
    if "<seed:tool_call>" in template:
        return Notation(
            f"<seed:tool_call>\n{call}\n</seed:tool_call>", write, opening="<seed:tool_call>"
        )
    if "<tool_call>" not in template:
        return Notation(call, write, opening="<function=")
    return Notation(f"<tool_call>\n{call}\n</tool_call>", write, opening="<tool_call>")


def _invoke(template: str) -> Notation:
    write = as_tagged(
        '<parameter name="%N">',
        "</parameter>\n",
        r"</?[^<>\s]*(parameter|invoke)",
        _NAMES_IN_QUOTES,
    )
    mark = "minimax:tool_call"
    before, after = (f"<{mark}>\n", f"\n</{mark}>") if mark in template else ("", "")
    return Notation(
        '<invoke name="%N">\n%A</invoke>',
        write,
        before=before,
        after=after,
        opening='<invoke name="',
    )


def _dsml(template: str) -> Notation:
    write = as_tagged(
        '<｜DSML｜parameter name="%N" string="%T">',
        "</｜DSML｜parameter>\n",
        r"</?[^<>\s]*(parameter|invoke)",
        _NAMES_IN_QUOTES,
    )
    around = "function_calls" if "function_calls>" in template else "tool_calls"
    return Notation(
        '<｜DSML｜invoke name="%N">\n%A</｜DSML｜invoke>',
        write,
        before=f"<｜DSML｜{around}>\n",
        after=f"\n</｜DSML｜{around}>",
        opening='<｜DSML｜invoke name="',
    )


def _key_value(template: str) -> Notation:
    write = as_tagged(
        "<arg_key>%N</arg_key>\n<arg_value>",
        "</arg_value>\n",
        r"</?(arg_|tool_call)",
        _NAMES_IN_TAGS,
    )
    return Notation("<tool_call>%N\n%A</tool_call>", write, opening="<tool_call>")


def _tool_calls(template: str) -> Notation:
    call = '{"name": "%N", "arguments": %A}'
    if "<tool_calls>[" in template:
        return _listed(call, "<tool_calls>[", "]</tool_calls>")
    return Notation(f"<tool_calls>\n{call}\n</tool_calls>", opening="<tool_calls>")


def _toolcall(template: str) -> Notation:
    call = '{"name": "%N", "arguments": %A}'
    if "<TOOLCALL>" in template:
        return _listed(call, "<TOOLCALL>[", "]</TOOLCALL>")
    return Notation(f"<toolcall> {call} </toolcall>", opening="<toolcall>")


def _mistral(template: str) -> Notation:
    if "[ARGS]" not in template:
        return _listed('{"name": "%N", "arguments": %A}', "[TOOL_CALLS][", "]")
    call_id = "[CALL_ID]%C" if "[CALL_ID]" in template else ""
    return Notation(f"[TOOL_CALLS]%N{call_id}[ARGS]%A", between="", opening="[TOOL_CALLS]")


def _deepseek(template: str) -> Notation:
    begin, end, sep = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    call, between = f"{begin}%N{sep}%A{end}", ""
    if "```json" in template:
        call, between = f"{begin}function{sep}%N\n```json\n%A\n```{end}", "\n"
    return Notation(
        call,
        before="<｜tool▁calls▁begin｜>",
        between=between,
        after="<｜tool▁calls▁end｜>",
        opening=begin,
    )


_NOTATIONS: dict[str, Notation | Callable[[str], Notation]] = {
    "hermes": _HERMES,
    "xml": _xml,
    "functionary": Notation("<function=%N>%A</function>", between="", opening="<function="),
    "mcp": Notation(
        "<use_mcp_tool>\n<tool_name>%N</tool_name>\n<arguments>\n%A\n</arguments>\n</use_mcp_tool>",
        opening="<use_mcp_tool>",
    ),
    "invoke": _invoke,
    "dsml": _dsml,
    "apertus": _listed('{"%N": %A}', "<|tools_prefix|>[", "]<|tools_suffix|>"),
    "key-value": _key_value,
    "functiongemma": Notation(
        "<start_function_call>call:%N%A<end_function_call>",
        as_gemma("<escape>"),
        between="",
        opening="<start_function_call>",
    ),
    "gemma4": Notation(
        "<|tool_call>call:%N%A<tool_call|>", as_gemma('<|"|>'), between="", opening="<|tool_call>"
    ),
    "elements": Notation(
        f'{ELEMENTS}<invoke name="%N">%A{ELEMENTS}</invoke>',
        as_tagged(f"{ELEMENTS}<%N>", f"{ELEMENTS}</%N>", re.escape(ELEMENTS), _NAMES_IN_TAGS),
        before=f"{ELEMENTS}<tool_call>\n",
        after=f"\n{ELEMENTS}</tool_call>",
        opening=f'{ELEMENTS}<invoke name="',
    ),
    "tencent": Notation(
        "<tool_call:opensource>%N<tool_sep:opensource>\n%A</tool_call:opensource>",
        as_tagged(
            "<arg_key:opensource>%N</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
            r"</?(arg_|tool_)",
            _NAMES_IN_TAGS,
        ),
        before="<tool_calls:opensource>\n",
        after="\n</tool_calls:opensource>",
        opening="<tool_call:opensource>",
    ),
    "action": Notation(
        '    {\n        "tool_name": "%N",\n        "parameters": %A\n    }',
        between=",\n",
        before="Action: ```json\n[\n",
        after="\n]```",
    ),
    "function-call-role": Notation(
        'function call<|role_sep|>\n{"name": "%N", "arguments": %A}',
        before="<|message_sep|>\n\n",
        opening="function call<|role_sep|>",
        always_one=True,
    ),
    "recipient": Notation("%N\n%A", between=">>>"),
    "assistant": Notation("%N\n%A", between="<|assistant|>"),
    "atem": Notation(
        ' to=%N<|message|><atem:function_calls>\n<atem:invoke name="%N">\n%A</atem:invoke>\n</atem:function_calls>',
        as_tagged(
            '<atem:parameter name="%N">',
            "</atem:parameter>\n",
            r"</?[^<>\s]*(parameter|invoke)",
            _NAMES_IN_QUOTES,
        ),
        between="<|eom|><|start|>assistant",
    ),
    "typed": Notation(
        '<|open|>call tool="%N" index="%I"<|sep|><|open|>json type="object"<|sep|>%A<|close|>json<|sep|>'
        "<|close|>call<|sep|>",
        between="",
        before="<|close|>response<|sep|><|open|>tools<|sep|>",
        after="<|close|>tools<|sep|>",
    ),
    "solar": Notation(
        "<|tool_call:begin|>%C<|tool_call:name|>%N<|tool_call:args|>%A<|tool_call:end|>",
        between="",
        before="<|tool_calls|>",
    ),
    "mistral": _mistral,
    "deepseek": _deepseek,
    "kimi": Notation(
        "<|tool_call_begin|>functions.%N:%I<|tool_call_argument_begin|>%A<|tool_call_end|>",
        between="",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
        opening="<|tool_call_begin|>",
    ),
    "command": Notation(
        '{"tool_call_id": "%I", "tool_name": "%N", "parameters": %A}',
        between=",\n    ",
        before="<|START_ACTION|>[\n    ",
        after="\n]<|END_ACTION|>",
        opening="<|START_ACTION|>",
    ),
    "lfm2": Notation(
        "%N(%A)",
        as_keywords,
        between=", ",
        before="<|tool_call_start|>[",
        after="]<|tool_call_end|>",
        opening="<|tool_call_start|>",
    ),
    "granite": _listed('{"name": "%N", "arguments": %A}', "<|tool_call|>[", "]"),
    "gigachat": Notation(
        '<|function_call|>{"name": "%N", "arguments": %A}', opening="<|function_call|>"
    ),
    "toolcall": _toolcall,
    "tool-calls": _tool_calls,
    "param": Notation(
        '<function name="%N">%A</function>',
        as_tagged(
            '<param name="%N">', "</param>", r"</?(param|function)|<!\[CDATA", _NAMES_IN_QUOTES
        ),
        opening='<function name="',
    ),
    "olmo": Notation(
        "%N(%A)",
        as_keywords,
        before="<function_calls>",
        after="</function_calls>",
        opening="<function_calls>",
    ),
    "pythonic": _PYTHONIC,
    "llama-json": Notation('{"name": "%N", "parameters": %A}', between="; "),
}


def notation_of(syntax_name: str, template: str, *, in_channels: bool) -> Notation:
    """`template`: the model's chat template, which tells the variants of a notation apart."""
    if in_channels:
        return _CHANNELS
    found = _NOTATIONS[syntax_name]
    return found if isinstance(found, Notation) else found(template)


def written(notation: Notation, made: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Calls as a model writes them, for templates that leave them out of past messages. In notations that are
    neither JSON nor Python, as JSON."""
    if notation.arguments is as_keywords:
        texts = [", ".join(f"{key}={value!r}" for key, value in one.items()) for _, one in made]
    else:
        texts = [json.dumps(arguments, ensure_ascii=False) for _, arguments in made]
    calls = []
    for index, (name, _) in enumerate(made):
        parts = {"%N": name, "%A": texts[index], "%I": str(index), "%C": f"{index:09}"}
        calls.append("".join(parts.get(part, part) for part in _PLACE.split(notation.call)))
    return notation.before + notation.between.join(calls) + notation.after


def calls(rules: Rules, notation: Notation, functions: Sequence[Function], *, one: bool) -> str:
    """One call or more. Behind a call the model goes on as it likes: with a further one, or with text, which
    ends the reply (`ReplyFormat.calls_only`); it is never led into a further call. Raises BadRequestError."""
    call = _alternatives(rules, notation, functions)
    before, after = rules.text(notation.before), rules.text(notation.after)
    more = ""
    if not one and not notation.always_one:
        between = rules.text(notation.between)
        more = f"({between} {call})*"
        if not notation.between.strip():
            end = "" if after else rules.terminal(_TEXT_BEHIND)
            more += f" ({rules.rule(f'{between} | {end}' if between and end else between or end)})?"
    return rules.rule(" ".join(part for part in (before, call, more, after) if part))


def text_with_calls(rules: Rules, notation: Notation, functions: Sequence[Function]) -> str:
    """Any text, in which what begins like a call is one. Only for notations with an opening."""
    opening, before = notation.opening, notation.before
    wrapper = f"({rules.text(before)})?" if before and not before.startswith(opening) else ""
    first = _alternatives(rules, notation, functions, opening)
    if before.startswith(opening):
        first = f"{rules.text(before[len(opening) :])} {_alternatives(rules, notation, functions)}"
    more = ""
    if notation.between and before:
        more = f"({rules.text(notation.between)} {_alternatives(rules, notation, functions)})*"
    after = rules.text(notation.after)
    ended = f"({after})?" if wrapper else after

    def part(text: str) -> str:
        """Text of a pattern, and calls behind it."""
        if rules.begins_with_control(opening):
            begun = f"{rules.terminal(text)} {wrapper} {rules.text(opening)}"
        else:
            begun = rules.until(opening, text)  # a wrapper before it is text
        return f"{begun} {first} {more} {ended}"

    free = f"({part(ANY_TEXT)})* {rules.terminal(ANY_TEXT)}"
    if not notation.bare:
        return rules.rule(free)
    names = "|".join(re.escape(function.name) for function in functions)
    text = f"{ANY_TEXT} & ~/{_BARE_TEXT.replace('%N', names)}/"
    calls = [_bare_call(rules, function) for function in functions]
    return rules.rule(" | ".join([*calls, rules.terminal(text), f"{part(text)} {free}"]))


def _bare_call(rules: Rules, function: Function) -> str:
    """A call's JSON without a tag, as the whole reply. Its head is one pattern: text may begin like it."""
    head = rules.terminal(f"/{_BARE_HEAD.replace('%N', re.escape(function.name))}/")
    return f"{head} {as_json(rules, function.parameters)} {rules.terminal(_BARE_END)}"


def _alternatives(
    rules: Rules, notation: Notation, functions: Sequence[Function], begun: str = ""
) -> str:
    """A call of one of the functions; `begun`: what of it is written already. One whose name cannot be written is
    left out beside others, where that may be."""
    fitting = [f for f in functions if notation.names_are_json or _NAME.fullmatch(f.name)]
    for function in functions:
        if function not in fitting and not (fitting and function.parameters.leave_out("name")):
            raise refused(
                function.path,
                f"'{function.name:.64}' is no name that this model's notation of calls can hold",
            )
    return rules.rule(" | ".join(_call(rules, notation, f, begun) for f in fitting))


def _call(rules: Rules, notation: Notation, function: Function, begun: str = "") -> str:
    call = notation.call.removeprefix(begun)
    name = json.dumps(function.name, ensure_ascii=False)[1:-1]
    parts = {
        "%N": literal(name if notation.names_are_json else function.name),
        "%A": notation.arguments(rules, function.parameters),
        "%I": "/[0-9]{1,2}/",
        "%C": "/[a-zA-Z0-9]{9}/",
    }
    found = (parts[p] if p in parts else rules.text(p) for p in _PLACE.split(call))
    return " ".join(part for part in found if part)
