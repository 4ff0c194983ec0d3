"""Arguments of tools that are not strict, in notations that write each by its name; and bare calls beside strict
ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from text_vocabularies import byte_level

from emberd.errors import BadRequestError
from emberd.text.grammar.arguments import Parameters
from emberd.text.grammar.notations import Function, Notation, calls, notation_of, text_with_calls
from emberd.text.grammar.rules import Rules
from emberd.text.parts import TextDelta, ToolCallStart
from emberd.text.reply import ReplyFormat
from emberd.text.tokenizer import Tokenizer
from emberd.text.tools.body import tools_of
from emberd.text.tools.syntax import HERMES, tool_support
from grammar_player import Player

Json = dict[str, Any]
XML, PYTHON, GEMMA = "<function= <parameter=", "[func_name1(", "<|tool_call>"
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FULL = {
    XML: "<function=f>\n<parameter=city>\n%s\n</parameter>\n</function>",
    PYTHON: '[f(city="%s")]',
    GEMMA: '<|tool_call>call:f{city:<|"|>%s<|"|>}<tool_call|>',
}
LOOP: Json = {**CITY, "properties": {"city": {"$ref": "#"}}}


@pytest.fixture(scope="module")
def player() -> Player:
    vocabulary = byte_level(control=["<eos>"], eos_token_id="<eos>")
    return Player(Tokenizer.from_metadata(vocabulary))


def notation(mark: str) -> Notation:
    template = f"{{% if tools %}}{{% endif %}}{{# {mark} #}}"
    support = tool_support(template)
    assert support is not None
    return notation_of(support.syntax.name, template, in_channels=False)


def forced(mark: str, schema: Json, *, relaxed: bool = True) -> tuple[str, tuple[str, ...]]:
    """The grammar of one forced call of `f`, and what it leaves out."""
    rules, parameters = Rules({}), Parameters(schema, "p", relaxed=relaxed)
    start = calls(rules, notation(mark), [Function("f", parameters, "f")], one=True)
    return rules.source(start), parameters.left_out


@pytest.mark.parametrize("relaxed", [True, False])
@pytest.mark.parametrize("mark", FULL)
def test_a_reference_that_is_the_whole_schema_is_followed(
    mark: str, relaxed: bool, player: Player, rng: np.random.Generator
) -> None:
    city = "".join(rng.choice(list("abcdef"), 5))
    schema = {"$ref": "#/$defs/B", "$defs": {"A": CITY, "B": {"$ref": "#/$defs/A"}}}
    grammar, left_out = forced(mark, schema, relaxed=relaxed)
    assert left_out == ()
    text = FULL[mark] % city
    assert player.accepts(grammar, text)
    assert not player.accepts(grammar, text.replace("city", "town"))


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"anyOf": [CITY, {"properties": {"town": {"type": "string"}}}]}, "p.anyOf"),
        ({"allOf": [CITY]}, "p.allOf"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [CITY]}}}, "p.$defs.A.anyOf"),
        ({"$ref": "#/$defs/nothing"}, "p.$ref"),
        ({"patternProperties": {"^c": {"type": "string"}}}, "p.patternProperties"),
        (LOOP, "p"),  # nothing finite
    ],
)
@pytest.mark.parametrize("mark", [XML, PYTHON])
def test_no_call_is_forced_whose_arguments_could_not_be_written(
    mark: str, schema: Json, param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        forced(mark, schema)
    assert refused.value.param == param


@pytest.mark.parametrize("schema", [LOOP, {"anyOf": [CITY]}, {"$ref": "#/$defs/nothing"}])
def test_nor_in_gemmas_notation(schema: Json) -> None:
    with pytest.raises(BadRequestError):
        forced(GEMMA, schema)


@pytest.mark.parametrize("mark", FULL)
def test_a_function_that_takes_nothing_is_called_with_nothing(mark: str, player: Player) -> None:
    grammar, left_out = forced(mark, {})
    empty = {XML: "<function=f>\n</function>", PYTHON: "[f()]", GEMMA: "<|tool_call>call:f{}<tool_call|>"}  # fmt: skip
    assert player.accepts(grammar, empty[mark])
    assert left_out == ()


TEXTS: Json = {"type": "array", "items": {"type": "string"}}
SOME = '[<|"|>x<|"|>,<|"|>y<|"|>]'


@pytest.mark.parametrize(
    ("schema", "value", "keyword"),
    [
        ({**TEXTS, "minItems": "two"}, SOME, "minItems"),
        ({**TEXTS, "maxItems": "x"}, SOME, "maxItems"),
        ({**TEXTS, "minItems": None}, "[]", "minItems"),
        ({**TEXTS, "minItems": 3, "maxItems": 1}, SOME, "minItems"),
        ({**TEXTS, "minItems": 2.0, "maxItems": 2.0}, SOME, None),
        ({"type": "integer", "enum": 5}, "7", "enum"),
        ({"type": "integer", "const": 2**60}, "7", "const"),
        ({"const": None}, "null", None),
        ({"const": False}, "false", None),
        ({"type": "object", "properties": {"b": {"type": "null"}}, "required": 5}, "{}", "required"),
    ],
)  # fmt: skip
def test_wrong_keywords_are_left_out_of_gemmas_notation(
    schema: Json, value: str, keyword: str | None, player: Player
) -> None:
    grammar, left_out = forced(GEMMA, {"properties": {"a": schema}, "required": ["a"]})
    assert keyword is None or keyword in left_out
    assert player.accepts(grammar, f"<|tool_call>call:f{{a:{value}}}<tool_call|>")
    assert not player.accepts(grammar, "<|tool_call>call:f{}<tool_call|>")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": {"a": 1}},
        {"type": ["string", {}]},
        {"type": "object", "properties": 5},
        {"anyOf": []},
        {"enum": 5},
    ],
)
def test_without_a_type_wrong_ones_are_refused_by_path(schema: Json) -> None:
    with pytest.raises(BadRequestError) as refused:
        forced(GEMMA, {"properties": {"a": schema}})
    assert str(refused.value.param).startswith("p.properties.a")


@pytest.mark.parametrize("constant", [{"enum": ["</parameter>", "<function="]}, {"const": "</parameter>"}])  # fmt: skip
def test_a_text_whose_constants_all_look_like_tags_is_any_text(
    constant: Json, player: Player
) -> None:
    schema = {**CITY, "properties": {"city": {"type": "string", **constant}}}
    grammar, left_out = forced(XML, schema)
    assert left_out == tuple(constant)
    assert player.accepts(grammar, FULL[XML] % "Oslo")
    assert not player.accepts(grammar, FULL[XML] % "</parameter>")
    with pytest.raises(BadRequestError):
        forced(XML, schema, relaxed=False)


@pytest.mark.parametrize("first", ["null", '{"x": 1}', "", "5", '["f"]', ' x"f"'])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_bare_object_whose_first_name_is_no_text_is_text(
    first: str, size: int, player: Player
) -> None:
    """Where calls must fit, the grammar takes it as text; so must the reader."""
    text = f'{{"name": {first}, "name": "f", "arguments": {{"evil": 1}}}}'
    rules = Rules({})
    function = Function("f", Parameters(CITY, "p"), "f")
    hermes = notation("<tool_call>")
    assert player.accepts(rules.source(text_with_calls(rules, hermes, [function])), text)
    tools = tools_of([{"type": "function", "function": {"name": "f", "parameters": CITY}}])
    parser = ReplyFormat(syntax=HERMES.bound(with_bare=True), tools=tools).parser({})
    parts = [part for i in range(0, len(text), size) for part in parser.push(text[i : i + size])]
    parts += parser.finish(cut=False)
    assert not any(isinstance(part, ToolCallStart) for part in parts)
    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == text
