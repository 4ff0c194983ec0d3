"""Tool calls in the notations that models write: found whole, streamed, and nothing of a tag as text (K07).

Longer than 400 lines because the notations are one table of cases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_replies import Calls, cuts, read

from emberd.text.reasoning import CHANNELS, thinking_of
from emberd.text.reply import ReplyFormat
from emberd.text.sections import sections_of
from emberd.text.tools.body import tools_of
from emberd.text.tools.form import ToolSyntax
from emberd.text.tools.prompt import as_text, with_calls_in_metadata
from emberd.text.tools.sectioned import GLM_CALLS
from emberd.text.tools.syntax import HERMES, tool_support

NAMES = ("weather", "clock")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "zip": {"type": "string"},
                    "where": {"type": "object"},
                },
            },
        },
    }
    for name in NAMES
]
PARIS = ("weather", {"city": "Paris"})
PARIS_2 = ("weather", {"city": "Paris", "days": 2})
CLOCK: tuple[str, Any] = ("clock", {})

TEMPLATES = {  # the smallest texts that templates of these notations hold
    "hermes": "<tool_call>",
    "llama-json": "<|python_tag|>",
    "pythonic": "[func_name1(params_name1=params_value1)",
    "mistral": "[TOOL_CALLS]",
    "functiongemma": "<start_function_call>",
    "gemma4": "<|tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "command": "<|START_ACTION|>",
    "granite": "<|tool_call|>",
    "xml": "<function= <parameter=",
    "functionary": "<function=",
    "key-value": "<arg_key>",
    "kimi": "<|tool_calls_section_begin|>",
    "lfm2": "<|tool_list_start|>",
    "invoke": "<invoke name=",
    "dsml": "'｜DSML｜'",
    "apertus": "<|tools_prefix|>",
    "mcp": "<use_mcp_tool>",
    "gigachat": "<|function_call|>",
    "toolcall": "<TOOLCALL>",
    "tool-calls": "<tool_calls>[",
    "param": "<param name=",
    "olmo": "<function_calls>",
    "tencent": "'<tool_sep{}>'.format(suffix)",
    "action": "a json-formatted list of actions that you want",
    "function-call-role": "<|role_sep|>",
    "elements": "]<]minimax[>[",
    "recipient": ">>>${recipient}",
    "assistant": "在调用上述函数时，请使用 Json 格式",
    "atem": "<atem:function_calls>",
    "typed": "<|end_of_msg|>",
    "solar": "<|begin|>assistant<|think|>",
}
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
WRITTEN: list[tuple[str, str, str, Calls]] = [  # notation, reply, its text, its calls
    (
        "hermes",
        'Sure.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "Sure.",
        [PARIS],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris", "days": 2}, "name": "weather"}</tool_call>\n'
        '<tool_call>\n{"name": "clock"}\n</tool_call>\nDone.',
        "Done.",
        [PARIS_2, CLOCK],
    ),
    ("hermes", '{"name": "weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    (
        "hermes",
        '```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```',
        "",
        [PARIS],
    ),
    (
        "hermes",
        '<tool_call>[{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}, {"name": "clock", '
        '"arguments": null}]</tool_call>',
        "",
        [PARIS, CLOCK],
    ),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "a\nb } \\" </tool_call> é", "where": '
        '{"x": [1, {"y": "]"}]}}}</tool_call>',
        "",
        [("weather", {"city": 'a\nb } " </tool_call> é', "where": {"x": [1, {"y": "]"}]}})],
    ),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "clock", "arguments": {"days": 1}}}',
        "",
        [("clock", {"days": 1})],
    ),
    ("llama-json", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama-json",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "clock", '
        '"parameters": {}}',
        "",
        [PARIS, CLOCK],
    ),
    (
        "pythonic",
        "[weather(city='Paris', days=2), clock()]",
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "pythonic",
        '[weather(city="]) \\"x", where={"a": [True, null, -1.5]})]',
        "",
        [("weather", {"city": ']) "x', "where": {"a": [True, None, -1.5]}})],
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        '{"name": "clock", "arguments": {}}]',
        "",
        [PARIS, CLOCK],
    ),
    (
        "mistral",
        'Well. [TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]clock[CALL_ID]x1[ARGS]{}',
        "Well.",
        [PARIS, CLOCK],
    ),
    ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}', "", [PARIS]),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Paris<escape>,days:2}<end_function_call>"
        "<start_function_call>call:clock{}<end_function_call>",
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "gemma4",
        '<|tool_call>call:weather{city:<|"|>a, b}<|"|>,where:{x:[1,<|"|>y<|"|>,true],z:{}}}<tool_call|>',
        "",
        [("weather", {"city": "a, b}", "where": {"x": [1, "y", True], "z": {}}})],
    ),
    (
        "deepseek",
        f"I look.<｜tool▁calls▁begin｜>{BEGIN}function{SEP}weather\n```json\n"
        f'{{"city": "Paris"}}\n```{END}\n{BEGIN}function{SEP}clock\n```json\n{{}}\n```{END}<｜tool▁calls▁end｜>',
        "I look.",
        [PARIS, CLOCK],
    ),
    (
        "deepseek",
        f'<｜tool▁calls▁begin｜>{BEGIN}weather{SEP}{{"city": "Paris"}}{END}<｜tool▁calls▁end｜>',
        "",
        [PARIS],
    ),
    (
        "command",
        'Plan.<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        '{"city": "Paris"}},\n    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>',
        "Plan.",
        [PARIS, CLOCK],
    ),
    (
        "granite",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]',
        "",
        [PARIS],
    ),
    (
        "xml",
        "Ok.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        "Ok.",
        [PARIS_2, CLOCK],
    ),
    (
        "xml",
        "<function=weather><parameter=city>Paris</parameter><parameter=days>2</parameter></function>",
        "",
        [PARIS_2],
    ),
    (
        "xml",
        '<function=weather>\n<parameter=where>\n{"x": "<function=a><parameter=b>c</parameter>d"}\n</parameter>'
        "\n</function>",
        "",
        [("weather", {"where": {"x": "<function=a><parameter=b>c</parameter>d"}})],
    ),
    (
        "xml",
        '<function=weather>\n<parameter=zip>\n007\n</parameter>\n<parameter=where>\n{"x": 1}\n</parameter>'
        "\n<parameter=city>\n two\n\nlines \n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", {"zip": "007", "where": {"x": 1}, "city": " two\n\nlines "})],
    ),
    ("functionary", '<function=weather>{"city": "Paris"}</function>', "", [PARIS]),
    (
        "key-value",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>"
        "\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>clock</tool_call>",
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.clock:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [PARIS, CLOCK],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[weather(city="Paris"), clock()]<|tool_call_end|>Checking.',
        "Checking.",
        [PARIS, CLOCK],
    ),
    (
        "invoke",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
        "",
        [PARIS_2, CLOCK],
    ),
    (
        "dsml",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">'
        "Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        [PARIS],
    ),
    (
        "apertus",
        '<|tools_prefix|>[{"weather": {"city": "Paris"}}, {"clock": {}}]<|tools_suffix|>',
        "",
        [PARIS, CLOCK],
    ),
    (
        "mcp",
        "<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>weather</tool_name>\n<arguments>\n"
        '{"city": "Paris"}\n</arguments>\n</use_mcp_tool>',
        "",
        [PARIS],
    ),
    (
        "gigachat",
        '<|function_call|>{"name": "weather", "arguments": {"city": "Paris"}}',
        "",
        [PARIS],
    ),
]
WRITTEN += [
    ("llama-json", "[weather(city='Paris', days=2), clock()]", "", [PARIS_2, CLOCK]),
    (
        "llama-json",
        '[ {"name": "weather", "parameters": {"city": "Paris"}}, {"name": "clock"}]',
        "",
        [PARIS, CLOCK],
    ),
    (
        "gemma4",
        "<|tool_call>call:weather{where:{a:None,b:[True]}}<tool_call|>",
        "",
        [("weather", {"where": {"a": None, "b": [True]}})],
    ),
    (
        "dsml",
        'Ok.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="clock">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "Ok.",
        [CLOCK],
    ),
    ("hermes", '<tools>\n{"name": "clock", "arguments": {}}\n</tools>', "", [CLOCK]),
    (
        "lfm2",
        "<|tool_call_start|>[weather(city='Paris', days=2)]<|tool_call_end|>",
        "",
        [PARIS_2],
    ),
    (
        "llama-json",
        '<|python_start|>{"name": "clock", "parameters": {}}<|python_end|>',
        "",
        [CLOCK],
    ),
    (
        "pythonic",
        "<|python_start|>[weather(city='Paris'), clock()]<|python_end|>",
        "",
        [PARIS, CLOCK],
    ),
    (
        "xml",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n<parameter=where>"
        "{'a': True}</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("weather", {"city": "Paris", "where": {"a": True}})],
    ),
    (
        "toolcall",
        'I look.\n<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "clock", '
        '"arguments": "{}"}]</TOOLCALL>',
        "I look.",
        [PARIS, CLOCK],
    ),
    (
        "tool-calls",
        'So:\n<tool_calls>[{"name": "weather", "arguments": {"city": "Paris"}, "id": "1"}, {"name": '
        '"clock", "arguments": {}}]</tool_calls>',
        "So:",
        [PARIS, CLOCK],
    ),
    (
        "tool-calls",
        '<tool_calls>\n{"name": "weather", "arguments": {"city": "Paris"}}\n{"name": "clock", '
        '"arguments": {}}\n</tool_calls>',
        "",
        [PARIS, CLOCK],
    ),
    (
        "param",
        'Now.\n<function name="weather"><param name="city"><![CDATA[</param>\n& <b>]]></param><param name="days">'
        '2</param></function>\n<function name="clock"></function>',
        "Now.",
        [("weather", {"city": "</param>\n& <b>", "days": 2}), CLOCK],
    ),
    (
        "olmo",
        '<function_calls>weather(city="Paris",\n  days=2)\nclock()</function_calls>',
        "",
        [PARIS_2, CLOCK],
    ),
]
NS = "]<]minimax[>["
WRITTEN += [
    (
        "tencent",
        "I look.<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "I look.",
        [PARIS_2, CLOCK],
    ),
    (
        "action",
        'Plan first.\nAction:\n```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": '
        '{"city": "Paris"}\n    },\n    {\n        "tool_name": "clock",\n        "parameters": {}\n    }\n]```\n',
        "Plan first.",
        [PARIS, CLOCK],
    ),
    (
        "action",
        'Action: ```json\n[{"tool_name": "weather", "parameters": {"city": "Paris"}}]\n```',
        "",
        [PARIS],
    ),
    (
        "function-call-role",
        'I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Paris"}}',
        "I look.",
        [PARIS],
    ),
    (
        "elements",
        f'Ok.{NS}<tool_call>\n{NS}<invoke name="weather">{NS}<city>Paris{NS}</city>{NS}<days>2{NS}</days>'
        f'{NS}</invoke>\n{NS}<invoke name="clock">{NS}</invoke>\n{NS}</tool_call>',
        "Ok.",
        [PARIS_2, CLOCK],
    ),
    (
        "elements",
        f'{NS}<tool_call>\n{NS}<invoke name="weather">{NS}<city> <b>{{}} \n{NS}</city>{NS}<where>{NS}<at>'
        f"{NS}<item>1{NS}</item>{NS}<item>two{NS}</item>{NS}</at>{NS}<by>{NS}<x>true{NS}</x>{NS}</by>{NS}</where>"
        f"{NS}</invoke>\n{NS}</tool_call>",
        "",
        [("weather", {"city": " <b>{} \n", "where": {"at": [1, "two"], "by": {"x": True}}})],
    ),
]
WRITTEN += [
    (
        "toolcall",
        '<toolcall> {"type": "function", "arguments": {"city": "Paris"}, "name": "weather"} </toolcall>\n'
        '<toolcall> {"name": "clock", "arguments": {}} </toolcall>',
        "",
        [PARIS, CLOCK],
    ),
]
WRITTEN += [  # in sections
    (
        "recipient",
        'all\nI look.>>>weather\n{"city": "Paris"}>>>clock\n{}',
        "I look.",
        [PARIS, CLOCK],
    ),
    (
        "assistant",
        '\nI look.<|assistant|>weather\n{"city": "Paris"}<|assistant|>clock\n{}',
        "I look.",
        [PARIS, CLOCK],
    ),
    ("recipient", 'weather\n{"city": ">>>all"}', "", [("weather", {"city": ">>>all"})]),
    (
        "atem",
        " to=user<|message|>I look.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="weather">\n<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter '
        'name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=clock'
        '<|message|><atem:function_calls>\n<atem:invoke name="clock">\n</atem:invoke>\n</atem:function_calls>',
        "I look.",
        [PARIS_2, CLOCK],
    ),
    (
        "typed",
        '<|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" '
        'index="1"<|sep|><|open|>argument key="zip" type="string"<|sep|>007<|close|>argument<|sep|><|open|>argument '
        'key="days" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="clock" '
        'index="2"<|sep|><|open|>json type="object"<|sep|>{"days": 1}<|close|>json<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        "I look.",
        [("weather", {"zip": "007", "days": 2}), ("clock", {"days": 1})],
    ),
    (
        "solar",
        "<|content|>I look.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>"
        'weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|tool_call:begin|>f6<|tool_call:name|>clock'
        "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        "I look.",
        [PARIS, CLOCK],
    ),
]
PROSE: list[tuple[str, str]] = [  # replies that only begin like calls
    ("hermes", "The <tool_card> of <tool_call> is a tag.\n"),
    ("hermes", "<tool_call> {not json} </tool_call>  end"),
    ("hermes", '{"name": "nobody", "arguments": {}}'),
    ("hermes", '{"answer": 5}'),
    ("hermes", "```json\n[1, 2]\n```\n"),
    ("hermes", "a < b <tool_"),
    ("hermes", "\n\n  blanks around  \n"),
    ("llama-json", '{"city": "Paris", "name": "weather"}'),
    ("llama-json", "[1] is a note, [weather(city='Paris')] a call"),
    ("llama-json", "[[weather()]]"),
    ("llama-json", " [ "),
    ("pythonic", "[1, 2, 3] is a list"),
    ("pythonic", "[weather] is what I look for"),
    ("pythonic", "[nobody(x=1)]"),
    ("mistral", "The array [TOOL_ and more"),
    ("xml", "<tool_call> and <function=> are tags </function> here"),
    ("gemma4", "<|tool_call> me maybe <tool_call|>"),
    ("deepseek", "no tool at all <｜tool"),
    ("key-value", "<tool_call>two words</tool_call>"),
    ("tencent", "<tool_call:opensource>two words</tool_call:opensource>"),
    ("action", 'Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```'),
    ("action", "Action: go. Actions:```json"),
    ("function-call-role", "A function call <|role_"),
    ("elements", f'{NS}<invoke name="two words">{NS}</invoke>'),
    ("elements", f'{NS}<invoke name="clock">{NS}</city>{NS}</invoke>'),
    ("recipient", "A model that forgot >>>its\nsections >>>al"),
    ("assistant", 'nobody\n{"a": 1}'),
    ("assistant", "The clock\nis late"),
    ("atem", "to=nobody is <|start| a header"),
    ("typed", "Use the response tag <|open|>or\n\n"),
    ("solar", "A plain <|conten answer "),
]


def form_of(notation: str) -> ReplyFormat:
    template = "{{ tools }}" + TEMPLATES[notation]
    support = tool_support(template)
    assert support is not None and support.syntax.name == notation
    sections = sections_of(template)
    return ReplyFormat(syntax=support.syntax, tools=tools_of(TOOLS), sections=sections)


@pytest.mark.parametrize(("notation", "reply", "text", "calls"), WRITTEN)
def test_calls_are_found_however_the_reply_is_cut(
    notation: str, reply: str, text: str, calls: Calls, rng: np.random.Generator
) -> None:
    """K06, K07: also where every tag is a control token."""
    form = form_of(notation)
    for pieces in cuts(reply, rng):
        found = read(form, pieces)
        assert (found.text, found.calls) == (text, calls), pieces
    assert read(form, [reply], controls=form.marks).calls == calls


@pytest.mark.parametrize(("notation", "reply"), PROSE)
def test_prose_that_begins_like_a_call_arrives_whole(
    notation: str, reply: str, rng: np.random.Generator
) -> None:
    """K07."""
    for pieces in cuts(reply, rng):
        found = read(form_of(notation), pieces)
        assert (found.text, found.calls) == (reply, []), pieces


def test_every_notation_is_tested() -> None:
    from emberd.text.tools import syntax

    names = {one.name for _, one in syntax._SYNTAXES} | {GLM_CALLS.name}
    assert names == set(TEMPLATES) == {notation for notation, *_ in WRITTEN}


@pytest.mark.parametrize("notation", ["hermes", "mistral", "deepseek", "kimi", "functionary"])
def test_arguments_are_streamed_as_they_are_made(notation: str) -> None:
    reply = next(reply for name, reply, _, _ in WRITTEN if name == notation)
    assert read(form_of(notation), list(reply)).fragments >= len('{"city": "Paris"}')


@pytest.mark.parametrize(("notation", "reply", "text", "calls"), WRITTEN)
def test_a_call_that_the_token_limit_cuts_shows_no_tag(
    notation: str, reply: str, text: str, calls: Calls
) -> None:
    """At every place: what is shown is text, and at most the beginning of a tag that is not complete."""
    form = form_of(notation)
    syntax = form.syntax
    assert syntax is not None
    marks = [*syntax.openings, *syntax.wrappers, *syntax.bare_starts]
    if form.sections is not None:  # of its tags, what the prompt has not begun
        begun = form.sections.begun
        tags = [*form.sections.tags, *(form.sections.named.replace("%N", n) for n in NAMES)]
        marks += [tag.removeprefix(begun).lstrip() for tag in tags] + tags
    for end in range(len(reply)):
        shown = read(form, [reply[:end]], cut=True).text
        left = shown.removeprefix(text).strip()
        partial = any(len(mark) > len(left) and mark.startswith(left) for mark in marks)
        assert partial or text.startswith(shown), (end, shown)


def test_control_tokens_that_begin_no_call_are_hidden() -> None:
    form = form_of("mistral")
    found = read(form, ["x ", "[TOOL_CALLS]", " 1 2 3"], controls={"[TOOL_CALLS]"})
    assert (found.text, found.calls) == ("x  1 2 3", [])


def test_thinking_comes_before_calls_and_is_not_searched_for_them() -> None:
    thinking = thinking_of("<think></think>")
    assert thinking is not None
    form = ReplyFormat(thinking.tags, True, None, HERMES, tools_of(TOOLS))
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    found = read(form, list(f"I <tool_call> it.\n</think>\n\nYes.\n{call}"))
    assert (found.reasoning, found.text, found.calls) == ("I <tool_call> it.", "Yes.", [CLOCK])


CHANNEL_REPLY = (
    "<|channel|>analysis<|message|>Hm, a call.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        (CHANNEL_REPLY, ("Hm, a call.", "I look.", [PARIS])),
        (
            "<|channel|>analysis<|message|>A\n<|end|><|start|>assistant<|channel|>final<|message|>B <|return|>",
            ("A", "B ", []),
        ),
        (" to=functions.clock<|channel|>commentary json<|message|>", ("", "", [CLOCK])),
        ("Plain text <b>.", ("", "Plain text <b>.", [])),
    ],
)
def test_channels(reply: str, wanted: tuple[str, str, Calls], rng: np.random.Generator) -> None:
    form = ReplyFormat(CHANNELS, tools=tools_of(TOOLS))
    for pieces in cuts(reply, rng):
        found = read(form, pieces)
        assert (found.reasoning, found.text, found.calls) == wanted


def test_templates_of_the_cases_have_their_notation(cases_dir: Path) -> None:
    wanted = {
        "Qwen-Qwen2.5-7B-Instruct": "hermes",
        "Qwen3-Coder": "xml",
        "meta-llama-Llama-3.1-8B-Instruct": "llama-json",
        "unsloth-mistral-Devstral-Small-2507": "mistral",
        "llama-cpp-deepseek-r1": "deepseek",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command",
        "google-gemma-4-31B-it": "gemma4",
        "GLM-4.6": "key-value",
        "Kimi-K2-Instruct": "kimi",
        "meetkai-functionary-medium-v3.1": "functionary",
        "deepseek-ai-DeepSeek-V3.2": "dsml",
        "Apertus-8B-Instruct": "apertus",
        "microsoft-Phi-3.5-mini-instruct": None,
    }
    for name, notation in wanted.items():
        template = json.loads((cases_dir / "templates" / f"{name}.json").read_text())["template"]
        support = tool_support(template)
        assert (support and support.syntax.name) == notation, name


def test_calls_in_metadata_and_results_as_observations() -> None:
    call = {"id": "1", "function": {"name": "clock", "arguments": '{"days": 1}'}}
    messages = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "content": "noon"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    made = {"role": "assistant", "metadata": "clock", "content": '{"days": 1}'}
    assert with_calls_in_metadata(messages) == [
        messages[0],
        {"role": "assistant", "content": "I look."},
        made,
        {"role": "observation", "content": "noon"},
        made,
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools }}</think>在调用上述函数时，请使用 Json 格式",
        "{% for item in messages %}{% set tools = item.tools %}在调用上述函数时，请使用 Json 格式{% endfor %}",
    ],
)
def test_templates_that_are_no_more_than_like_glm_s_have_no_sections(template: str) -> None:
    assert sections_of(template) is None


def test_the_generic_prompt_puts_tools_calls_and_results_into_text() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Time?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "clock", "arguments": {"days": 1}}}]
            * 2,
        },
        {"role": "tool", "name": "clock", "content": "noon"},
        {"role": "tool", "content": [{"type": "text", "text": "night"}]},
        {"role": "assistant", "content": "Noon."},
    ]
    result = as_text(messages, TOOLS)
    assert [m["role"] for m in result] == ["system", "user", "assistant", "user", "assistant"]
    assert result[0]["content"].startswith("Be kind.\n\nYou can call functions")
    assert all(json.dumps(tool["function"]) in result[0]["content"] for tool in TOOLS)
    form = ReplyFormat(syntax=HERMES, tools=tools_of(TOOLS))
    assert read(form, [result[2]["content"]]).calls == [("clock", {"days": 1})] * 2
    assert result[3]["content"] == "Result of clock:\nnoon\n\nResult of the call:\nnight"
    assert not any("tool_calls" in m for m in result)


@pytest.mark.slow
def test_broken_calls_of_every_notation_are_read_alike_however_they_are_cut(
    rng: np.random.Generator,
) -> None:
    """Replies with characters dropped, doubled and swapped: every part still has its order."""
    for notation, reply, _, _ in WRITTEN:
        for _ in range(20):
            characters = list(reply)
            for place in rng.integers(0, len(characters), 3):
                kind = rng.integers(3)
                if kind == 0:
                    characters[place] = ""
                elif kind == 1:
                    characters[place] *= 2
                else:
                    characters[place] = chr(rng.integers(32, 127))
            broken = "".join(characters)
            for cut in (False, True):
                found = [read(form_of(notation), p, cut=cut) for p in cuts(broken, rng)]
                told = [(one.text, one.names, one.arguments) for one in found]
                assert told[1:] == told[:-1], broken


@pytest.mark.parametrize(
    ("reply", "text", "names", "arguments"),
    [
        (
            '<tool_call>{"name": "clock", "arguments": {}, oops}}</tool_call>\nSo.',
            "So.",
            ["clock"],
            ["{}"],
        ),
        (
            '<tool_call>[{"name": "clock"}, {"name: 5}] {"a": </tool_call> <tool_call>{"name": "clock"}</tool_call>',
            "",
            ["clock", "clock"],
            ["{}", "{}"],
        ),
        ('{"name": "clock", "price": 5}', '{"name": "clock", "price": 5}', [], []),
        ('<tool_call>{"name": "clock", arguments}', '<tool_call>{"name": "clock", arguments}', [], []),
    ],
)  # fmt: skip
def test_what_breaks_behind_a_call_is_dropped_up_to_the_next_tag(
    reply: str, text: str, names: list[str], arguments: list[str], rng: np.random.Generator
) -> None:
    for pieces in cuts(reply, rng):
        found = read(form_of("hermes"), pieces)
        assert (found.text, found.names, found.arguments) == (text, names, arguments)


def test_a_syntax_has_no_mark_twice() -> None:
    for template in TEMPLATES.values():
        support = tool_support("{{ tools }}" + template)
        assert support is not None
        syntax: ToolSyntax = support.syntax
        assert len(set(syntax.marks)) == len(syntax.marks)
