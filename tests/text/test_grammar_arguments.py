"""Arguments of tools that are not strict, in notations that write each by its name; and bare calls beside strict
ones."""

from __future__ import annotations

import json
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
from grammar_player import Player, calls_of

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


HARD: list[tuple[Json, str]] = [  # no property that XML-like notations could write; where that is told
    ({"anyOf": [CITY, {"properties": {"town": {"type": "string"}}}]}, "p.anyOf"),
    ({"allOf": [CITY, CITY]}, "p.allOf"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [CITY, CITY]}}}, "p.$defs.A.anyOf"),
    ({"$ref": "#/$defs/nothing"}, "p.$ref"),
    ({"patternProperties": {"^c": {"type": "string"}}, "additionalProperties": False}, "p.patternProperties"),
    ({"if": {"required": ["a"]}, "then": CITY}, "p.if"),
    ({"properties": {"<>": {"type": "string"}}, "additionalProperties": False}, "p.properties.<>"),
    (LOOP, "p"),  # nothing finite
]  # fmt: skip


@pytest.mark.parametrize(("schema", "param"), HARD)
def test_strict_arguments_that_cannot_be_written_are_refused_by_path(
    schema: Json, param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        forced(XML, schema, relaxed=False)
    assert refused.value.param == param


@pytest.mark.parametrize(("schema", "param"), HARD)
@pytest.mark.parametrize("mark", [XML, GEMMA])
def test_relaxed_such_a_call_is_as_open_as_in_json(
    mark: str, schema: Json, param: str, player: Player
) -> None:
    grammar, left_out = forced(mark, schema)
    assert player.accepts(grammar, FULL[mark] % "Oslo")
    assert mark == GEMMA or left_out


@pytest.mark.parametrize("relaxed", [True, False])
@pytest.mark.parametrize(
    ("schema", "fits", "others"),
    [
        (HARD[0][0], {"city": "Oslo"}, {"town": 5}),
        (HARD[2][0], {"city": "Oslo"}, {"city": 5}),
        (HARD[4][0], {"c": "Oslo"}, {"city": 5}),
        (HARD[6][0], {"<>": "Oslo"}, {"<>": 5}),
    ],
)
def test_in_pythons_notation_any_schema_is_held(
    schema: Json, fits: Json, others: Json, relaxed: bool, player: Player
) -> None:
    grammar, left_out = forced(PYTHON, schema, relaxed=relaxed)
    assert left_out == ()
    assert player.accepts(grammar, written(PYTHON, fits))
    assert not player.accepts(grammar, written(PYTHON, others))


OPEN: list[tuple[Json, str, Json]] = [  # a schema, another value of `a` that it takes or not, arguments
    ({"additionalProperties": {"type": "integer"}}, "no", {"a": 1, "b c": -20}),
    ({"additionalProperties": {"type": "string"}}, "yes", {"a": "007", "$b": "x"}),
    ({"type": "object"}, "yes", {"a": 1, "b": [{"c": "d"}], "e": None}),
    ({"properties": {}, "required": ["a"]}, "yes", {"a": {"b": [True]}}),
    ({"properties": {"a": True, "b c": {"type": "integer"}}, "required": ["b c"]}, "yes", {"a": 0.5, "b c": 3}),
]  # fmt: skip


def gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def written(mark: str, arguments: Json) -> str:
    if mark == PYTHON:
        return f"[f(**{json.dumps(arguments)})]"
    if mark == GEMMA:
        return f"<|tool_call>call:f{gemma(arguments)}<tool_call|>"
    texts = [(n, v if isinstance(v, str) else json.dumps(v)) for n, v in arguments.items()]
    tags = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in texts)
    return f"<function=f>\n{tags}</function>"


@pytest.mark.parametrize("relaxed", [True, False])
@pytest.mark.parametrize(("schema", "takes_text", "arguments"), OPEN)
@pytest.mark.parametrize("mark", FULL)
def test_arguments_of_any_name_are_written_and_read(
    mark: str, schema: Json, takes_text: str, arguments: Json, relaxed: bool, player: Player
) -> None:
    grammar, left_out = forced(mark, schema, relaxed=relaxed)
    assert left_out == ()
    text = written(mark, arguments)
    assert player.accepts(grammar, text)
    assert player.accepts(grammar, written(mark, {**arguments, "a": "x"})) is (takes_text == "yes")
    support = tool_support(f"{{% if tools %}}{{% endif %}}{{# {mark} #}}")
    tools = tools_of([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert support is not None
    parser = ReplyFormat(syntax=support.syntax, tools=tools).parser({})
    assert calls_of([*parser.push(text), *parser.finish(cut=False)]) == [("f", arguments)]


@pytest.mark.parametrize("name", ["n", "n/m", "a b", "n.(m)[0]", "/", "&n#~|", "n\\/", "ö-%n*$"])
def test_beside_named_arguments_others_are_written_where_more_was_left_out(
    name: str, player: Player
) -> None:
    """`anyOf` may name them."""
    schema = {"properties": {name: {"type": "integer"}}, "anyOf": [{"required": ["city"]}]}
    grammar, left_out = forced(XML, schema)
    assert left_out == ("anyOf",)
    assert player.accepts(grammar, written(XML, {name: 1, "city": "Oslo"}))
    assert not player.accepts(grammar, written(XML, {name: "one"}))
    assert not player.accepts(grammar, written(XML, {"city": "Oslo", name: "one"}))


@pytest.mark.parametrize(
    ("schema", "held", "others"),
    [
        ({"type": "integer", "enum": [1, "a", 2.5]}, [1], ["a", 2.5]),
        ({"type": "string", "enum": ["a", "abc", 1], "minLength": 2}, ["abc"], ["a", 1]),
        ({"enum": [1, 5, {"b": [1, "c"]}], "minimum": 4}, [5, {"b": [1, "c"]}], [1]),
        ({"type": ["string", "null"], "enum": ["a", None, 3]}, ["a", None], [3]),
        ({"const": "a", "enum": ["a", "b"]}, ["a"], ["b"]),
        ({"allOf": [{"$ref": "#/$defs/unit"}], "default": "c"}, ["c", "f"], ["k"]),
    ],
)
def test_constants_fit_what_is_said_beside_them(
    schema: Json, held: list[Any], others: list[Any], player: Player
) -> None:
    whole = {
        "properties": {"x": schema},
        "required": ["x"],
        "$defs": {"unit": {"enum": ["c", "f"]}},
    }
    for mark in (XML, GEMMA) if schema.get("type") == "string" else (GEMMA,):
        grammar, _ = forced(mark, whole, relaxed=False)
        for value in (*held, *others):
            assert player.accepts(grammar, written(mark, {"x": value})) is (value in held), value


@pytest.mark.parametrize("mark", [XML, GEMMA])
def test_where_no_constant_fits_there_is_none_to_write(mark: str, player: Player) -> None:
    schema = {"properties": {"x": {"type": "string", "enum": ["a"], "minLength": 2}}}
    with pytest.raises(BadRequestError) as refused:
        forced(mark, schema, relaxed=False)
    assert refused.value.param == "p.properties.x"
    grammar, left_out = forced(mark, schema)
    assert left_out == ("enum",)
    assert player.accepts(grammar, written(mark, {"x": "ab"}))


@pytest.mark.parametrize("mark", FULL)
def test_a_tool_whose_name_cannot_be_written_is_left_out_beside_others(
    mark: str, player: Player
) -> None:
    odd, plain = Parameters(CITY, "p", relaxed=True), Parameters(CITY, "p", relaxed=True)
    functions = [Function("a b", odd, "odd"), Function("f", plain, "f")]
    rules = Rules({})
    grammar = rules.source(calls(rules, notation(mark), functions, one=True))
    assert player.accepts(grammar, FULL[mark] % "Oslo")
    assert (odd.left_out, plain.left_out) == (("name",), ())
    with pytest.raises(BadRequestError) as refused:
        calls(Rules({}), notation(mark), functions[:1], one=True)
    assert refused.value.param == "odd"


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
def test_wrong_keywords_are_refused_by_path_where_all_must_be_held(
    schema: Json, player: Player
) -> None:
    with pytest.raises(BadRequestError) as refused:
        forced(GEMMA, {"properties": {"a": schema}}, relaxed=False)
    assert str(refused.value.param).startswith("p.properties.a")
    grammar, left_out = forced(GEMMA, {"properties": {"a": schema}})
    assert set(left_out) & set(schema)
    assert player.accepts(grammar, written(GEMMA, {"a": {"b": 1}}))


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
