"""Replies that are hardly calls, as models write when they go round in circles: read in time that grows with their
length alone, and never by a fault."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from emberd.text.parts import TextDelta
from emberd.text.reply import ReplyFormat
from emberd.text.tools.body import NotACallError, Tools, tools_of
from emberd.text.tools.closed import key_value_calls, xml_call
from emberd.text.tools.python_calls import python_calls
from emberd.text.tools.syntax import tool_support

Read = Callable[[str, Tools], object]
SECONDS = 2.0
"""What is read in time that grows with the square takes 3 to 60."""


def tools(parameters: object) -> Tools:
    return tools_of([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


@pytest.mark.parametrize(
    ("read", "head", "unit"),
    [
        (python_calls, "[f(a=", '"x '),
        (python_calls, "[f(a=", '"""x '),
        (python_calls, '[f(a="', "'x "),
        (python_calls, "[f(a=", "'''x\\"),
        (xml_call, "f>\n<parameter=a>\n", "\n\n "),
        (xml_call, "f>\n", "\n\n "),
        (key_value_calls, "f\n<arg_key>", "<arg_key>"),
        (key_value_calls, "f\n<arg_key>", "<arg_key>a</arg_key>"),
    ],
)
def test_what_goes_on_without_an_end_is_read_in_time(read: Read, head: str, unit: str) -> None:
    began = time.perf_counter()
    try:
        read(head + unit * 10000, tools({}))
    except NotACallError:
        pass
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize("text", ["[_7 \\\n(a=1)]", "[f(_9 \\\n=3)]", "[f(_9 #x\n=3)]"])
def test_names_like_those_that_stand_for_others_are_no_call(text: str) -> None:
    with pytest.raises(NotACallError):
        python_calls(text, tools({}))


@pytest.mark.parametrize("inside", ["", "f", '\n{"name": "f", "arguments": {}}\n', "<parameter=a>"])
def test_tags_of_xml_without_a_function_are_text(inside: str) -> None:
    support = tool_support(
        "{% if tools %}{% endif %}{# <tool_call><function= <parameter= </tool_call> #}"
    )
    assert support is not None
    parser = ReplyFormat(syntax=support.syntax, tools=tools({})).parser({})
    text = f"<tool_call>{inside}</tool_call>"
    parts = [*parser.push(text), *parser.finish(cut=False)]
    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == text


def test_blank_lines_around_tags_are_no_part_of_values() -> None:
    text = (
        "f>\n\n\n<parameter=a>\nx\n\n\n<parameter=b>\n y \n</parameter>  <parameter=c>\n1\n</parameter>\n"
        "</function>\n\n \n<function=f>"
    )
    properties = {name: {"type": "string"} for name in "ab"}
    found = xml_call(text, tools({"type": "object", "properties": properties}))
    assert found == [("f", {"a": "x", "b": " y ", "c": 1}), ("f", {})]


def test_schemas_that_lead_to_themselves_in_several_ways_are_followed_once() -> None:
    options = {"anyOf": [{"$ref": "#/$defs/any"}] * 8 + [{"type": "boolean"}]}
    of_f = tools(
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/any"}}, "$defs": {"any": options}}
    )
    began = time.perf_counter()
    assert of_f.converted("f", {"a": "true"}) == {"a": True}
    assert time.perf_counter() - began < SECONDS
