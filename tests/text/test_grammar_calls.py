"""Calls that a grammar forces, in every notation: random ones are read back by the notation's reader (OC-11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from text_vocabularies import byte_level
from tool_notations import TEMPLATES as NOTATIONS

from emberd.errors import BadRequestError
from emberd.text.grammar.arguments import Parameters
from emberd.text.grammar.notations import Function, calls, notation_of, text_with_calls
from emberd.text.grammar.reply import ReplyRules, bound
from emberd.text.grammar.rules import Rules
from emberd.text.parts import TextDelta
from emberd.text.reasoning import thinking_of
from emberd.text.reply import ReplyFormat
from emberd.text.sections import sections_of
from emberd.text.tokenizer import Tokenizer
from emberd.text.tools.body import tools_of
from emberd.text.tools.syntax import tool_support
from grammar_player import Player, calls_of

Json = dict[str, Any]
WEATHER: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "ok": {"type": "boolean"},
        "where": {
            "type": "object",
            "properties": {
                "lat": {"type": "number"},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            },
            "required": ["lat"],
        },
        "unit": {"type": "string", "enum": ["c", "f"]},
        "name": {"type": "string", "minLength": 2, "maxLength": 6},
        "note": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
    },
    "required": ["city", "where", "name"],
    "$defs": {"text": {"type": "string", "minLength": 1}},
}
CLOCK: Json = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}

pytestmark = pytest.mark.slow

TEMPLATES = {
    **NOTATIONS,
    "generic": "",
    "mistral with names": "[TOOL_CALLS] [ARGS]",
    "mistral with ids": "[TOOL_CALLS] [CALL_ID] [ARGS]",
    "deepseek with fences": "<｜tool▁calls▁begin｜> ```json",
    "xml in tags": "<tool_call> <function= <parameter=",
    "minimax": "<invoke name= minimax:tool_call",
    "seed": "<seed:tool_call> <function= <parameter=",
    "toolcall in small letters": "<extra_id_1>Assistant",
    "tool-calls by lines": "<tool_calls>",
    "channels": "<|channel|> <|message|>",
}
SECTIONED = ("recipient", "assistant", "atem", "typed", "solar")
WITHOUT_OPENING = ("llama-json", "pythonic", "action", "channels", *SECTIONED)
CLOSINGS = (  # as one token each, or no random reply would ever close a text
    "\n</parameter>\n",
    "</parameter>\n",
    "</param>",
    "</｜DSML｜parameter>\n",
    "</arg_value>\n",
    "</arg_value:opensource>\n",
    "]<]minimax[>[</",
    "</atem:parameter>\n",
    "<escape>",
    '<|"|>',
)


class Case:
    """One notation, with its tags as control tokens or as plain text."""

    def __init__(self, mark: str, *, control: bool) -> None:
        self.template = f"{{% if tools %}}{{% endif %}}{{# {mark} #}}"
        support, thinking = tool_support(self.template), thinking_of(self.template)
        assert support is not None
        self.form = ReplyFormat(
            thinking=thinking.tags if thinking else None,
            syntax=support.syntax,
            sections=sections_of(self.template),
        )
        names = self.form.marks if control else ()
        in_channels = self.form.in_channels
        self.notation = notation_of(support.syntax.name, self.template, in_channels=in_channels)
        pieces = dict.fromkeys((*CLOSINGS, *filter(None, [self.notation.opening])))
        vocabulary = byte_level(
            control=["<eos>", *names],
            user_defined=[text for text in pieces if text not in names],
            eos_token_id="<eos>",
        )
        self.tokenizer = Tokenizer.from_metadata(vocabulary)
        self.player = Player(self.tokenizer)

    def bound(
        self, schemas: dict[str, Json], *, one: bool = False, free: bool = False
    ) -> ReplyFormat:
        tools = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in schemas.items()
        ]
        form = replace(self.form, tools=tools_of(tools))
        assert form.syntax is not None
        functions = [Function(n, Parameters(s, f"{n}.p"), f"{n}.name") for n, s in schemas.items()]
        if free:
            syntax = form.syntax.bound(with_bare=self.notation.bare)
            rules = ReplyRules(
                text_with_calls=lambda r: text_with_calls(r, self.notation, functions)
            )
            return bound(replace(form, syntax=syntax), rules, self.tokenizer)
        rules = ReplyRules(calls=lambda r: calls(r, self.notation, functions, one=one))
        return bound(form, rules, self.tokenizer)

    def played(
        self, form: ReplyFormat, seed: int, *, with_text: bool = False
    ) -> list[tuple[str, Json]] | None:
        """The calls of a random reply; None: it did not end. Text behind forced calls is not told."""
        assert form.grammar is not None
        ids, ended = self.player.play(form.grammar, seed)
        if not ended:
            return None
        parser = form.parser(self.tokenizer.controls(form.marks))
        parts = parser.push(self.player.text(ids, form)) + parser.finish(cut=False)
        told = parts
        if form.calls_only:  # text behind a call ends the reply
            is_text = [isinstance(part, TextDelta) for part in parts]
            first = is_text.index(False) if False in is_text else len(parts)
            told = parts[: is_text.index(True, first)] if True in is_text[first:] else parts
        texts = [part.text for part in told if isinstance(part, TextDelta)]
        assert with_text or texts == []
        assert not self.notation.opening or self.notation.opening not in "".join(texts)
        return calls_of(told)


@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_forced_calls_are_read_back_and_fit_oc11(name: str, control: bool) -> None:
    case = Case(TEMPLATES[name], control=control)
    one, many = case.bound(SCHEMAS, one=True), case.bound(SCHEMAS)
    replies = [case.played(one if seed < 8 else many, seed) for seed in range(12)]
    ended = [reply for reply in replies if reply is not None]
    assert len(ended) >= 3
    for reply in ended:
        assert reply
        for called, arguments in reply:
            jsonschema.validate(arguments, SCHEMAS[called])
    assert {called for reply in ended for called, _ in reply} == set(SCHEMAS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_exactly_one_call_where_one_is_asked_for_oc11(name: str) -> None:
    case = Case(TEMPLATES[name], control=True)
    form = case.bound({"clock": CLOCK}, one=True)
    assert [case.played(form, seed) for seed in range(3)] == [[("clock", {})]] * 3


@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_fit_wherever_the_text_has_them_oc11(name: str, control: bool) -> None:
    """As for strict tools that the model may call or not."""
    case = Case(TEMPLATES[name], control=control)
    if not case.notation.opening:
        assert name in WITHOUT_OPENING
        return
    form, made = case.bound(SCHEMAS, free=True), []
    for seed in range(30):
        found = case.played(form, seed, with_text=True)
        made += found or []
        if len(made) > 5:
            break
    assert made
    for called, arguments in made:
        jsonschema.validate(arguments, SCHEMAS[called])
    assert form.grammar and case.player.accepts(form.grammar, "No call, only <text> [at] all {}.")


@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ('{"name": "clock", "arguments": {}}', True),
        ('\n{"name":"clock",\n "parameters": {}\n}\n', True),
        ('{"name": "clock", "arguments": {"a": 1}}', None),
        ('{"name": "clock"}', None),
        ('{"name": "cl\\u006fck", "arguments": {"a": 1}}', None),
        ('{"n\\u0061me": "clock", "arguments": {"a": 1}}', None),
        ('{"name": "clock", "arguments": {}} {"name": "clock", "arguments": {"a": 1}}', None),
        ('{"name": "Ann", "arguments": {"a": 1}}', False),
        ('{"arguments": {"a": 1}, "name": "clock"}', False),
        ('[{"name": "clock", "arguments": {"a": 1}}]', False),
        ('It: {"name": "clock", "arguments": {"a": 1}}', False),
        ('{"a": 5}', False),
    ],
)
def test_a_bare_call_that_is_the_whole_reply_fits_and_other_json_is_text(
    text: str, is_call: bool | None, control: bool
) -> None:
    """As for strict tools. None: no such reply can be made."""
    case = Case("<tool_call>", control=control)
    form = case.bound({"clock": CLOCK}, free=True)
    assert form.grammar and case.player.accepts(form.grammar, text) is (is_call is not None)
    if is_call is not None:
        parser = form.parser(case.tokenizer.controls(form.marks))
        parts = [*parser.push(text), *parser.finish(cut=False)]
        assert calls_of(parts) == ([("clock", {})] if is_call else [])
        told = "".join(part.text for part in parts if isinstance(part, TextDelta))
        assert told == ("" if is_call else text)


def test_behind_a_call_json_is_text_where_calls_must_fit() -> None:
    case = Case("<tool_call>", control=False)
    form = case.bound({"clock": CLOCK}, free=True)
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    text = '{"name": "clock", "arguments": {"a": 1}}'
    assert form.grammar and case.player.accepts(form.grammar, f"{call}\n{text}")
    parser = form.parser({})
    parts = [*parser.push(f"{call}\n{text}"), *parser.finish(cut=False)]
    assert calls_of(parts) == [("clock", {})]
    assert [part.text for part in parts if isinstance(part, TextDelta)] == [text]


NO_ARGUMENTS: list[Json] = [{}, {"type": "object", "properties": {}, "additionalProperties": False}]


@pytest.mark.parametrize("schema", NO_ARGUMENTS)
def test_a_function_without_parameters_is_called_without_arguments(schema: Json) -> None:
    case = Case("<tool_call>", control=False)
    assert case.played(case.bound({"clock": schema}, one=True), 1) == [("clock", {})]


@pytest.mark.parametrize(
    ("mark", "schemas", "param"),
    [
        ("<tool_call>", {"f": {"properties": {"a": {"not": {}}}}}, "f.p.properties.a.not"),
        ("<tool_call>", {"f": {"type": "array"}}, "f.p.type"),
        ("[func_name1(", {"a b": CLOCK}, "a b.name"),
        ("<arg_key>", {"f": {"properties": {"a>": {}}}}, "f.p.properties.a>"),
        ("<arg_key>", {"f": {"anyOf": [{"required": ["a"]}]}}, "f.p.anyOf"),
        ("<arg_key>", {"f": {"properties": {"a": {"type": "string", "pattern": "b"}}}}, "f.p.properties.a.pattern"),
        ("<arg_key>", {"f": {"properties": {"a": {"type": "string", "enum": ["</arg_value>"]}}}}, "f.p.properties.a"),
        ("<|tool_call>", {"f": {"properties": {"b:": {"type": "null"}}}}, "f.p.properties.b:"),
        ("<|tool_call>", {"f": {"properties": {"a": {"prefixItems": [{}]}}}}, "f.p.properties.a.prefixItems"),
        ("<|tool_call>", {"f": {"maxProperties": 1}}, "f.p.maxProperties"),
    ],
)  # fmt: skip
def test_what_a_notation_cannot_hold_is_refused_by_path(
    mark: str, schemas: dict[str, Json], param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        Case(mark, control=False).bound(schemas)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("mark", "schema", "keyword"),
    [
        ("<arg_key>", {"properties": {"a": {"type": "string", "pattern": "b"}}}, "pattern"),
        ("<arg_key>", {"properties": {"a": {"type": "string", "enum": ["</arg_value>", "b"]}}}, "enum"),
        ("<arg_key>", {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "anyOf"),
        ("<arg_key>", {"properties": {"a>": {}, "a": {}}}, "properties"),
        ("<tool_call>", {"type": "string"}, "type"),
    ],
)  # fmt: skip
def test_relaxed_what_a_notation_cannot_hold_is_left_out(
    mark: str, schema: Json, keyword: str
) -> None:
    parameters = Parameters(schema, "p", relaxed=True)
    calls(Rules({}), Case(mark, control=False).notation, [Function("f", parameters, "f")], one=True)
    assert parameters.left_out == (keyword,)
