"""Tool calls in the notations that models write: found whole, streamed, and nothing of a tag as text (K07)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from text_replies import Calls, cuts, read
from tool_notations import CLOCK, NAMES, PARIS, TEMPLATES, TOOLS, form_of
from written_calls import NS, WRITTEN

from emberd.text.reasoning import CHANNELS, thinking_of
from emberd.text.reply import ReplyFormat
from emberd.text.sections import sections_of
from emberd.text.tools.body import tools_of
from emberd.text.tools.form import ToolSyntax
from emberd.text.tools.prompt import as_text, with_calls_in_metadata
from emberd.text.tools.sectioned import GLM_CALLS
from emberd.text.tools.syntax import HERMES, tool_support

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
