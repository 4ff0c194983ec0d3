"""Arguments as models write them where a notation is not JSON: which value a text is, and Python as it comes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from text_replies import cuts, read

from emberd.text.reply import ReplyFormat
from emberd.text.tools.body import tools_of
from emberd.text.tools.syntax import tool_support

Json = dict[str, Any]
PROPERTIES: Json = {
    "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "zip": {"$ref": "#/$defs/Zip"},
    "size": {"type": "number"},
    "count": {"type": "integer"},
    "kind": {"enum": ["1", "2"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "either": {"type": ["string", "integer"]},
    "from": {"type": "string"},
    "free": {},
}
SCHEMA: Json = {
    "$ref": "#/$defs/Whole",
    "$defs": {
        "Zip": {"type": "string"},
        "Whole": {"type": "object", "properties": PROPERTIES, "additionalProperties": {"type": "string"}},
    },
}  # fmt: skip


def form(mark: str, schema: Json, name: str = "f") -> ReplyFormat:
    support = tool_support("{{ tools }}" + mark)
    assert support is not None
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}}]
    return ReplyFormat(syntax=support.syntax, tools=tools_of(tools))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("name", "007", "007"),
        ("name", "null", None),
        ("name", "None", None),
        ("name", "true", "true"),
        ("name", '"quoted"', "quoted"),
        ("zip", "12345", "12345"),
        ("zip", '"12345"', '"12345"'),
        ("size", "3", 3),
        ("size", "1e3", 1000.0),
        ("size", "NaN", "NaN"),
        ("size", "Infinity", "Infinity"),
        ("count", "5.0", 5),
        ("count", "True", True),
        ("kind", "1", "1"),
        ("tags", "['a', 'b']", ["a", "b"]),
        ("tags", '["a", null]', ["a", None]),
        ("tags", "[a, b]", "[a, b]"),
        ("either", "7", 7),
        ("either", "7.5", "7.5"),
        ("either", "[1]", "[1]"),
        ("other", "7", "7"),
        ("free", "7", 7),
        ("free", "[1", "[1"),
    ],
)
def test_a_text_is_a_value_of_a_type_that_the_schema_knows(key: str, text: str, value: Any) -> None:
    xml = f"<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>"
    glm = f"<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    for mark, reply in (("<function= <parameter=", xml), ("<arg_key>", glm)):
        assert read(form(mark, SCHEMA), [reply]).calls == [("f", {key: value})]


def test_what_a_call_says_of_a_value_comes_first() -> None:
    mark = "｜DSML｜"
    values = f'<{mark}parameter name="a" string="true">7</{mark}parameter>' + (
        f'<{mark}parameter name="b" string="false">7</{mark}parameter>'
    )
    reply = f'<{mark}function_calls><{mark}invoke name="f">{values}</{mark}invoke></{mark}function_calls>'
    assert read(form(f"'{mark}'", {}), [reply]).calls == [("f", {"a": "7", "b": 7})]


TAGS = {"x": "</parameter><parameter=z></arg_value></param>", "y": ["</parameter>\n<b>"]}


@pytest.mark.parametrize(
    ("mark", "opening", "close", "call"),
    [
        ("<function= <parameter=", "<parameter=%s>\n", "\n</parameter>\n", "<function=f>\n%s</function>"),
        ("<arg_key>", "<arg_key>%s</arg_key>\n<arg_value>", "</arg_value>\n", "<tool_call>f\n%s</tool_call>"),
        ("<invoke name=", '<parameter name="%s">', "</parameter>\n", '<invoke name="f">\n%s</invoke>'),
        ("<param name=", '<param name="%s">', "</param>", '<function name="f">%s</function>'),
    ],
)  # fmt: skip
def test_tags_within_json_are_text_of_it(mark: str, opening: str, close: str, call: str) -> None:
    values = "".join(opening % key + json.dumps(TAGS) + close for key in ("a", "b"))
    assert read(form(mark, {}), [call % values]).calls == [("f", {"a": TAGS, "b": TAGS})]


CODE = "a </function> b\n<function=g>\n</invoke> <tool_call> </tool_call>"


@pytest.mark.parametrize(
    ("mark", "reply"),
    [
        (
            "<function= <parameter=",
            "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "<arg_key>",
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
        ),
        ("<invoke name=", '<invoke name="f">\n<parameter name="a">%s</parameter>\n</invoke>'),
        (
            "'｜DSML｜'",
            '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">%s</｜DSML｜parameter>'
            "</｜DSML｜invoke>",
        ),
        ("<param name=", '<function name="f"><param name="a"><![CDATA[%s]]></param></function>'),
    ],
)
def test_the_tag_that_closes_a_call_is_text_within_a_value(
    mark: str, reply: str, rng: np.random.Generator
) -> None:
    """As where the model writes about calls, or in another markup."""
    for pieces in cuts(f"{reply % CODE}\nDone.", rng):
        found = read(form(mark, {}), pieces)
        assert (found.text, found.calls) == ("Done.", [("f", {"a": CODE})])


def test_a_value_without_its_closing_tag_ends_with_the_call() -> None:
    function = "<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>\n"
    reply = f"<tool_call>\n{function}<tool_call>\n{function}"
    found = read(form("<function= <parameter=", {}), [reply])
    assert (found.text, found.calls) == ("", [("f", {"a": 1, "b": 2})] * 2)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("f(from='Oslo', class=1)", {"from": "Oslo", "class": 1}),
        ("f(x-y=1, a.b = 'x', $z=2, 3d=true)", {"x-y": 1, "a.b": "x", "$z": 2, "3d": True}),
        ("f(name='a\nb')", {"name": "a\nb"}),
        (r"f(name='\d+ C:\Users\x', zip='a\/b')", {"name": r"\d+ C:\Users\x", "zip": "a/b"}),
        ('f(name="""two\n"lines" x""")', {"name": 'two\n"lines" x'}),
        ("f(name='from=1, g(x=2)')", {"name": "from=1, g(x=2)"}),
        ("f('Oslo', size=2)", {"name": "Oslo", "size": 2}),
        ('f(**{"a b": [1, {"c": null}]}, count=1)', {"a b": [1, {"c": None}], "count": 1}),
        ("f(size=-1.5e3)", {"size": -1500.0}),
        ("f(tags=('a', 'b'))", {"tags": ["a", "b"]}),
        (
            r"""f(name='It's "so", \'a\'', tags=['b', 'c'])""",
            {"name": """It's "so", 'a'""", "tags": ["b", "c"]},
        ),
    ],
)
@pytest.mark.parametrize("mark", ["[func_name1(", "<|tool_list_start|>"])
def test_python_as_models_write_it(
    mark: str, call: str, arguments: Json, rng: np.random.Generator
) -> None:
    reply = f"[{call}]" if mark[0] == "[" else f"<|tool_call_start|>[{call}]<|tool_call_end|>"
    for pieces in cuts(reply, rng):
        found = read(form(mark, {"properties": PROPERTIES}), pieces)
        assert (found.text, found.calls) == ("", [("f", arguments)])


@pytest.mark.parametrize("name", ["get-weather", "a.b", "import", "2d_plot"])
def test_python_with_functions_of_any_name(name: str) -> None:
    assert read(form("[func_name1(", {}, name), [f"[{name}(a=1)]"]).calls == [(name, {"a": 1})]


@pytest.mark.parametrize(
    "call",
    ["f(g(x=1))", "f(a=b)", "f(1, 2)", "f(**[1])", "f(a=1e999)", "f(a=b'x')", "f(a=2-(1))"],
)
def test_python_that_is_no_call_is_text(call: str) -> None:
    found = read(form("[func_name1(", {"properties": {"a": {}}}), [f"[{call}]"])
    assert (found.text, found.calls) == (f"[{call}]", [])


@pytest.mark.parametrize(
    ("mark", "reply"),
    [
        ("[func_name1(", r"[f(a='\ud83d\ude00 \ud83d')]"),
        ("<function= <parameter=", r'<function=f><parameter=a>["\ud83d"]</parameter></function>'),
    ],
)
def test_halves_of_characters_stay_escapes(mark: str, reply: str) -> None:
    """No UTF-8 holds them, and no answer could be sent."""
    found = read(form(mark, {}), [reply])
    assert found.names == ["f"] and "\\ud83d" in found.arguments[0]
    found.arguments[0].encode()
    assert "\ud83d" in "".join(json.loads(found.arguments[0])["a"])
