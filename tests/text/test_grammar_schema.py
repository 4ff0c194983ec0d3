"""JSON schemas: what is enforced in full, and what is refused by path before a token (K08, K09)."""

from __future__ import annotations

import json
from calendar import isleap
from typing import Any

import jsonschema
import numpy as np
import pytest
from text_vocabularies import byte_level

from emberd.errors import BadRequestError
from emberd.text.grammar.answer import Constraint
from emberd.text.grammar.reply import ReplyRules, bound
from emberd.text.grammar.schema import SchemaReader
from emberd.text.reply import PLAIN
from emberd.text.tokenizer import Tokenizer
from grammar_player import Player
from random_schemas import RandomSchemas

Json = dict[str, Any]
NUM_RANDOM = 60
TOKENIZER = Tokenizer.from_metadata(byte_level(control=["<eos>"], eos_token_id="<eos>"))


def grammar_of(schema: Any, *, strict: bool = False) -> str:
    constraint = Constraint("json", schema, "schema", strict)
    grammar = bound(PLAIN, ReplyRules(constraint.expression, param="schema"), TOKENIZER).grammar
    assert grammar is not None
    return grammar


@pytest.fixture(scope="module")
def player() -> Player:
    return Player(TOKENIZER)


OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}}
APART = {
    "oneOf": [{"type": "string"}, {"$ref": "#/$defs/i"}],
    "$defs": {"i": {"type": "integer"}},
}
LOOP = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": "^a(b$"}, "schema.pattern"),
        ({"type": "string", "pattern": "(?=a)b"}, "schema.pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "schema.pattern"),
        ({"$ref": "#/$defs/nothing"}, "schema.$ref"),
        ({"$ref": "https://example.com/schema"}, "schema.$ref"),
        ({"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}, "schema.$ref"),
        ({"properties": {"a": {"items": {"$ref": "#/a"}}}}, "schema.properties.a.items.$ref"),
        ({"type": "strin"}, "schema.type"),
        ({"type": []}, "schema.type"),
        ({"type": "string", "format": "color"}, "schema.format"),
        ({"type": "array", "uniqueItems": True}, "schema.uniqueItems"),
        ({"not": {"type": "string"}}, "schema.not"),
        ({"if": {}, "then": {}}, "schema.if"),
        ({"anyOf": [{}, {"contains": {}}]}, "schema.anyOf[1].contains"),
        ({"propertyNames": {"pattern": "a"}}, "schema.propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "schema.dependentRequired"),
        ({"unevaluatedProperties": False}, "schema.unevaluatedProperties"),
        ({"$dynamicRef": "#a"}, "schema.$dynamicRef"),
        ({"maxLenght": 5}, "schema.maxLenght"),
        ({"properties": {"a": {"$id": "b"}}}, "schema.properties.a.$id"),
        ({"type": "object", "minProperties": 2}, "schema.minProperties"),
        ({"items": {"properties": {"a": {}}, "minProperties": 1}}, "schema.items.minProperties"),
        (
            {"items": {"anyOf": [{"properties": {"a": {}}}], "minProperties": 1}},
            "schema.items.minProperties",
        ),
        (
            {"properties": {"a": {}, "b": {}}, "required": ["a"], "maxProperties": 1},
            "schema.maxProperties",
        ),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "schema.oneOf"),
        (
            {
                "oneOf": [
                    {"properties": {"k": {"const": 1}}, "required": ["k"]},
                    {"properties": {"k": {"const": 2}}, "required": ["k"]},
                ]
            },
            "schema.oneOf",
        ),
        ({"enum": []}, "schema.enum"),
        ({"anyOf": []}, "schema.anyOf"),
        ({"const": "a\x01"}, "schema.const"),
        ({"const": 1 << 60}, "schema.const"),
        ({"properties": {"\x7f": {}}}, "schema.properties.\x7f"),
        ({"minLength": "3"}, "schema.minLength"),
        ({"minLength": -1}, "schema.minLength"),
        ({"minItems": 1.5}, "schema.minItems"),
        ({"maximum": "5"}, "schema.maximum"),
        ({"maximum": 1e300}, "schema.maximum"),
        ({"enum": [1, 10**400]}, "schema.enum"),
        ({"minLength": 10**400}, "schema.minLength"),
        ({"multipleOf": 0}, "schema.multipleOf"),
        ({"multipleOf": 12345}, "schema.multipleOf"),
        ({"allOf": [{"multipleOf": 97}, {"multipleOf": 0.107}]}, "schema"),
        ({"multipleOf": 97, "$ref": "#/$defs/a", "$defs": {"a": {"multipleOf": 107}}}, "schema"),
        ({"pattern": 5}, "schema.pattern"),
        ({"required": "a"}, "schema.required"),
        ({"properties": ["a"]}, "schema.properties"),
        ({"items": 5}, "schema.items"),
        ({"items": []}, "schema.items"),
        ({"additionalProperties": "no"}, "schema.additionalProperties"),
        ([], "schema"),
        ("string", "schema"),
        (False, "schema"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "schema"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "schema"),
        ({"type": "string", "enum": [1]}, "schema"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "schema"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "schema"),
        (LOOP, "schema"),
        ({"$ref": "#"}, "schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "schema"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "schema"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_path_k08(schema: Any, path: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        grammar_of(schema)
    assert refused.value.param == path
    assert f"'{path}'" in str(refused.value)


TEXT: Json = {"type": "string"}


@pytest.mark.parametrize(
    ("keyword", "schema", "rest"),
    [
        ("uniqueItems", {"type": "array", "uniqueItems": True, "items": TEXT}, {"type": "array", "items": TEXT}),
        ("format", {**TEXT, "format": "path", "maxLength": 5}, {**TEXT, "maxLength": 5}),
        ("pattern", {**TEXT, "pattern": "^(?!a)"}, TEXT),
        ("dependentRequired", {"required": ["a"], "dependentRequired": {"a": ["b"]}}, {"required": ["a"]}),
        ("propertyNames", {"propertyNames": {"pattern": "a"}}, {}),
        ("type", {"type": "any"}, {}),
        ("$ref", {"$ref": "#/x"}, {}),
        ("minLength", {**TEXT, "minLength": 5, "maxLength": 2}, TEXT),
        ("oneOf", {"oneOf": [TEXT, {"const": "a"}]}, {"allOf": [{"anyOf": [TEXT, {"const": "a"}]}]}),
        ("properties", {"properties": 5, "additionalProperties": False, "required": ["a"]}, {"required": ["a"]}),
        ("items", {"items": [5], "additionalItems": TEXT}, {}),
        ("type", {"oneOf": [{"type": 5}, {"type": ["null", {}]}]}, {"allOf": [{"anyOf": [{}, {}]}]}),
        ("maximum", {"type": "number", "maximum": 10**400}, {"type": "number"}),
    ],
)  # fmt: skip
def test_relaxed_a_keyword_that_cannot_be_enforced_is_left_out(
    keyword: str, schema: Json, rest: Json
) -> None:
    reader = SchemaReader({"properties": {"p": schema}}, "schema", relaxed=True)
    assert reader.document() == SchemaReader({"properties": {"p": rest}}, "schema").document()
    assert keyword in reader.left_out


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"title": "T", "description": "d", "default": 1, "examples": [2], "x-any": {"not": 1}},
        {"$schema": "http://json-schema.org/draft-07/schema#", **OBJECT},
        {"type": "array", "uniqueItems": False, "items": {"type": "null"}},
        {"type": "object", "propertyNames": {"type": "string"}},
        {"properties": {"not": {}, "if": {}, "uniqueItems": {"type": "boolean"}}},
        {"definitions": {"unused": {"not": {}}}, "type": "null"},
        {"type": "integer", "format": "int64"},
        {"type": "number", "format": "double"},
        {"type": "string", "nullable": True},
        {"x-guidance": {"lenient": True}, "type": "string"},
    ],
)
def test_what_says_nothing_of_values_is_no_fault(schema: Any) -> None:
    grammar_of(schema)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (OBJECT, ['{"n":1}', "{}", '{"n":1,"x":[]}'], ['{"n":"1"}', "1", "", '{"n":1']),
        ({"type": "integer", "format": "int8"}, ["127", "-128"], ["128", "-129", "1.0"]),
        ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
        ({"type": "string", "pattern": "^a$"}, ['"a"'], ['"ab"', '"ba"']),
        ({"type": "string", "maxLength": 1}, ['"🙂"', '"é"', '""'], ['"ab"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-02-30"', '"24-1-1"']),
        ({"format": "date"}, ["1", '"0004-02-29"', '"2000-02-29"'], ['"0000-01-01"', '"1900-02-29"', '"2023-02-29"']),
        ({"type": "string", "format": "date", "pattern": "^2"}, ['"2000-01-31"'], ['"1999-01-31"', '"2001-02-29"']),
        ({"format": "date-time"}, ['"2024-02-29T23:59:59.5Z"'], ['"2023-02-29T00:00:00Z"', '"2024-01-01T00:00:60Z"']),
        ({"format": "time"}, ['"12:00:59+01:00"'], ['"12:00:60Z"', '"24:00:00Z"']),
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2", "true"]),
        (APART, ['"a"', "1"], ["null"]),
        ({"items": [{"type": "null"}], "additionalItems": False, "type": "array"}, ["[null]"], ["[1]", "[null,1]"]),
        ({"type": "integer", "minimum": 2, "exclusiveMinimum": True}, ["3"], ["2"]),
        ({"type": "integer"}, ["-9123456789012345678", "0"], ["1" * 20, "-" + "1" * 20]),
        ({"type": ["null", "integer"], "minimum": 5}, ["5", "9" * 18, "null"], ["1" * 20, "4"]),
        ({"type": "number"}, ["1" * 25, "6.02e23", "-1e-12"], ["1e", ".5"]),
        ({"multipleOf": 30000}, ["60000"], ["1"]),
        ({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"type": "null"}}}, ["null"], ["1"]),
        ({"$ref": "#/$defs/gr%C3%B6%C3%9Fe", "$defs": {"größe": {"type": "null"}}}, ["null"], ["1"]),
    ],
)  # fmt: skip
def test_values_that_fit_and_others_do_not_k08(
    player: Player, schema: Json, right: list[str], wrong: list[str]
) -> None:
    grammar = grammar_of(schema)
    assert [text for text in right if not player.accepts(grammar, text)] == []
    assert [text for text in wrong if player.accepts(grammar, text)] == []


@pytest.mark.slow
@pytest.mark.parametrize("year", [4, 100, 399, 400, 1900, 2000, 2023, 2024, 9999])
def test_dates_are_those_of_the_calendar_k08(player: Player, year: int) -> None:
    grammar = grammar_of({"type": "string", "format": "date"})
    for month, days in enumerate((31, 28 + isleap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)):
        first = f"{year:04}-{month + 1:02}"
        taken = [player.accepts(grammar, f'"{first}-{day:02}"') for day in (0, 1, days, days + 1)]
        assert taken == [False, True, True, False], first


def test_properties_come_in_the_order_of_the_schema(player: Player) -> None:
    grammar = grammar_of({"type": "object", "properties": {"z": {}, "a": {}}})
    assert player.accepts(grammar, '{"z":1,"a":2}')
    assert not player.accepts(grammar, '{"a":2,"z":1}')


def test_a_key_has_one_spelling(player: Player) -> None:
    """Else a property could be written again, of any type, and readers take the last one."""
    grammar = grammar_of(OBJECT)
    assert not player.accepts(grammar, '{"n":1,"n":"s"}')
    assert not player.accepts(grammar, '{"n":1,"\\u006e":"s"}')


def test_strict_closes_objects_that_name_properties(player: Player) -> None:
    inner = {"type": "object", "properties": {"in": OBJECT, "map": {"type": "object"}}}
    loose, strict = grammar_of(inner), grammar_of(inner, strict=True)
    for text in ('{"x":1}', '{"in":{"x":1}}'):
        assert player.accepts(loose, text) and not player.accepts(strict, text)
    assert player.accepts(strict, '{"in":{"n":1},"map":{"x":1}}')
    joined = {"allOf": [OBJECT, {"type": "object", "properties": {"m": {}}}]}
    assert player.accepts(grammar_of(joined, strict=True), '{"n":1,"m":2}')


def test_blanks_are_few_and_never_outside_k09(player: Player) -> None:
    grammar = grammar_of(OBJECT)
    for text in ('{"n": 1}', '{ "n" : 1 }', '{\n  "n": 1\n}', '{"n":1\n\n}'):
        assert player.accepts(grammar, text)
    for text in (' {"n":1}', '{"n":1} ', '{"n":1}\n', '{"n":1\n\n\n}', '{   "n":1}'):
        assert not player.accepts(grammar, text)
    assert not player.accepts(grammar, "{\n" + " " * 40 + '"n":1}')


@pytest.mark.parametrize(
    "seed",
    [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, NUM_RANDOM))],
)
def test_what_random_schemas_allow_validates_k08(player: Player, seed: int) -> None:
    schema = RandomSchemas(seed).schema()
    grammar, num_ended = grammar_of(schema), 0
    for play in range(5):
        ids, ended = player.play(grammar, seed * 100 + play)
        if ended:
            num_ended += 1
            jsonschema.validate(json.loads(player.text(ids, PLAIN)), schema)
    assert num_ended > 0


def deep(number: int) -> Json:
    schema: Json = {"type": "null"}
    for _ in range(number):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = {
    "deep": deep(200),
    "wide": {"properties": {f"p{i}": {"type": "string"} for i in range(5000)}},
    "many optional": {"properties": {f"p{i}": {"type": "string"} for i in range(1200)}},
    "joined patterns": {"allOf": [{"pattern": f".*{c}.*{d}.*"} for c in "abcdefgh" for d in "klmn"]},
    "joined by references": {
        "$defs": {f"p{i}": {"pattern": f".*{i}.*{i}.*", "$ref": f"#/$defs/p{i + 1}"} for i in range(16)} | {"p16": {}},
        "$ref": "#/$defs/p0",
    },
    "long pattern": {"type": "string", "pattern": "(a|b)" * 1000},
    "large enum": {"enum": [f"v{i}" * 20 for i in range(20_000)]},
    "branches": {"anyOf": [{"properties": {f"a{j}": {"maxLength": i + j} for j in range(5)}} for i in range(300)]},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_within_bounds(name: str) -> None:
    """That it ends at all is the point: the suite's time limit would end it."""
    with pytest.raises(BadRequestError):
        grammar_of(HOSTILE[name])


TWICE = {
    f"a{i}": {"properties": {name: {"$ref": f"#/$defs/a{i + 1}"} for name in "xy"}}
    for i in range(30)
}
OPEN = [{"type": "integer"}, {"type": ["integer", "null"]}, {"type": "integer", "minimum": 0}]
HARMLESS = {
    "integers": {
        "properties": {f"p{i}": OPEN[i % 3] for i in range(900)},
        "required": [f"p{i}" for i in range(900)],
    },
    "shared": {"$defs": TWICE | {"a30": {}}, "$ref": "#/$defs/a0"},
    "backtracking": {"type": "string", "pattern": "^(a|a)*b(a|b){30}$"},
    "repeated": {"type": "string", "pattern": "(a{1000}){1000}"},
    "long lists": {
        "type": "array",
        "items": {"type": "array", "maxItems": 100_000},
        "minItems": 10**9,
    },
    "long texts": {"type": "string", "minLength": 10**9},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_large_numbers_and_shared_parts_cost_nothing(player: Player, name: str) -> None:
    ids, ended = player.play(
        grammar_of(HARMLESS[name]), int(np.random.default_rng().integers(1 << 30)), 50
    )
    assert ended or len(ids) == 50
