"""Forced and strict calls on the wire of all APIs: the reply is bound to them, and what cannot be forced is refused by
its field or listed (OC-11, AN-02).

The fake worker follows no grammar; what a grammar allows is asked of the grammar itself.
"""

from __future__ import annotations

from typing import Any

import pytest
from constraints_harness import (
    CHAT,
    FLAT,
    MESSAGES,
    NESTED,
    NUMBER,
    OLLAMA,
    OTHER,
    RESPONSES,
    SCHEMA,
    Ask,
    Json,
    function,
)

from grammar_player import Player


def anthropic_tool(name: str) -> Json:
    return {"name": name, "input_schema": SCHEMA}


TOOLS = [function("f"), function("g")]
FLAT_TOOLS = [{"type": "function", "name": n, "parameters": SCHEMA} for n in ("f", "g")]
ONLY_FLAT_F: Json = {"mode": "required", "tools": [{"type": "function", "name": "f"}]}
ANTHROPIC_TOOLS = [anthropic_tool("f"), anthropic_tool("g")]


def call(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"n": 5}}}}\n</tool_call>'


F, G = call("f"), call("g")
ONLY_F: Json = {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}


def allowed(**fields: Any) -> Json:
    return {"type": "allowed_tools", "allowed_tools": fields}


ANY_ONE: Json = {"type": "any", "disable_parallel_tool_use": True}
ONE_F: Json = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "fields", "right", "wrong"),
    [
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}, [F, G, f"{F}\n{G}"], ["A B"]),
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}, [f"{F}\n", f"{F}\nIt"], [f"{F}\n<"]),
        (CHAT, {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, [F, G], [f"{F}\n{G}"]),
        (CHAT, {"tools": TOOLS, "tool_choice": ONE_F}, [F], [G, f"{F}\n{F}"]),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "name": "f"}}, [F], [G]),
        (CHAT, {"tools": TOOLS, "tool_choice": allowed(**ONLY_F)}, [F, f"{F}\n{F}"], [G]),
        (CHAT, {"tools": TOOLS, "tool_choice": "required", "response_format": NESTED}, [F], [NUMBER]),
        (CHAT, {"tools": TOOLS, "response_format": NESTED}, [F, NUMBER], [OTHER, F + NUMBER]),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": "required"}, [F, f"{F}\n{G}"], ["A"]),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "function", "name": "g"}}, [G], [F]),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "allowed_tools", **ONLY_FLAT_F}}, [F], [G]),
        (RESPONSES, {"tools": FLAT_TOOLS, "text": {"format": FLAT}}, [F, NUMBER], [OTHER]),
        (OLLAMA, {"tools": TOOLS, "format": SCHEMA}, [F, NUMBER], [OTHER]),
        (OLLAMA, {"tools": TOOLS, "tool_choice": "required"}, [F, f"{F}\n{G}"], ["A"]),
        (OLLAMA, {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, [F], [f"{F}\n{G}"]),
        (OLLAMA, {"tools": TOOLS, "tool_choice": ONE_F}, [F], [G, f"{F}\n{F}"]),
        (MESSAGES, {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}}, [F, f"{F}\n{G}"], ["A"]),
        (MESSAGES, {"tools": ANTHROPIC_TOOLS, "tool_choice": ANY_ONE}, [F], [f"{F}\n{G}"]),
        (MESSAGES, {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, [G], [F]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["hermes", pytest.param("plain", marks=pytest.mark.slow)])
def test_calls_are_forced_oc11_an02(
    ask: Ask,
    player: Player,
    model: str,
    path: str,
    fields: Json,
    right: list[str],
    wrong: list[str],
) -> None:
    """Also on a model whose template knows no tools."""
    grammar = ask(path, fields, model).grammar
    assert [text for text in right if not player.accepts(grammar, text)] == []
    assert [text for text in wrong if player.accepts(grammar, text)] == []


def test_without_a_choice_ollamas_tools_are_hidden_too(ask: Ask) -> None:
    asked = ask(OLLAMA, {"tools": TOOLS, "tool_choice": "none"}, "hermes")
    assert bytes(asked.requests[0].token_ids) == b"b" and asked.requests[0].params.grammar is None
    assert "x-emberd-ignored" not in asked.headers


def test_allowed_tools_hide_the_others_oc11(ask: Ask) -> None:
    choice = allowed(**{**ONLY_F, "mode": "auto"})
    asked = ask(CHAT, {"tools": TOOLS, "tool_choice": choice})
    assert asked.status == 200
    prompt = bytes(asked.requests[0].token_ids)
    assert b'"name": "f"' in prompt and b'"name": "g"' not in prompt
    assert asked.requests[0].params.grammar is None


SERVER_TOOL = {"type": "web_search"}
LOOSE: Json = {"properties": {"n": {"type": "integer"}, "a": {"not": {}}}, "minProperties": 1}
BAD_FLAT = {"type": "function", "name": "f", "strict": True, "parameters": {"not": {}}}
BAD_INPUT = {"name": "f", "strict": True, "input_schema": {"not": {}}}
BAD = function("f", strict=True, parameters=LOOSE)
MORE = {"properties": {"a": {}}, "minProperties": 1, "additionalProperties": True}
FEW = function("f", strict=True, parameters=MORE)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tools": [], "tool_choice": ONE_F}, "tool_choice"),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice"),
        (CHAT, {"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        (CHAT, {"tools": TOOLS, "tool_choice": allowed(mode="auto")}, "tool_choice.allowed_tools.tools"),
        (CHAT, {"tools": TOOLS, "tool_choice": allowed(mode="x", tools=[])}, "tool_choice.allowed_tools.mode"),
        (CHAT, {"tools": TOOLS, "tool_choice": allowed(tools=[{"name": "h"}])}, "tool_choice.allowed_tools.tools[0]"),
        (CHAT, {"tools": [BAD], "tool_choice": "required"}, "tools[0].function.parameters.properties.a.not"),
        (CHAT, {"tools": [FEW], "tool_choice": "required"}, "tools[0].function.parameters.minProperties"),
        (OLLAMA, {"tool_choice": "required"}, "tool_choice"),
        (OLLAMA, {"tools": [BAD], "tool_choice": ONE_F}, "tools[0].function.parameters.properties.a.not"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name"),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.name"),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "mcp"}}, "tool_choice"),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": allowed()}, "tool_choice.tools"),
        (RESPONSES, {"tools": [SERVER_TOOL, BAD_FLAT], "tool_choice": "required"}, "tools[1].parameters.not"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (MESSAGES, {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "h"}}, "tool_choice.name"),
        (MESSAGES, {"tools": [BAD_INPUT], "tool_choice": ANY_ONE}, "tools[0].input_schema.not"),
    ],
)  # fmt: skip
def test_forcing_what_cannot_be_forced_is_refused_oc11(
    ask: Ask, path: str, fields: Json, param: str
) -> None:
    asked = ask(path, fields, "hermes")
    assert asked.status == 400
    assert f"'{param}'" in asked.message
    assert asked.requests == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"tools": [function("f", parameters=LOOSE)], "tool_choice": "required"}),
        (CHAT, {"tools": [function("f", parameters=LOOSE)], "response_format": NESTED}),
        (RESPONSES, {"tools": [{"type": "function", "name": "f", "parameters": LOOSE}], "tool_choice": "required"}),
        (OLLAMA, {"tools": [function("f", parameters=LOOSE)], "format": SCHEMA}),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": LOOSE}], "tool_choice": {"type": "any"}}),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_of_a_tool_is_left_out_and_listed(
    ask: Ask, player: Player, path: str, fields: Json
) -> None:
    asked = ask(path, fields, "hermes")
    assert player.accepts(asked.grammar, F.replace('"n": 5', '"n": 5, "a": [null]'))
    assert not player.accepts(asked.grammar, F.replace("5", "[]"))
    assert asked.headers["x-emberd-ignored"] == "tools.f.not, tools.f.minProperties"


def test_one_tool_that_cannot_be_enforced_does_not_concern_the_others(
    ask: Ask, player: Player
) -> None:
    lists = {"type": "array", "minItems": 1, "items": {"$ref": "#/properties/a"}}
    tools = [
        function("f", parameters={"properties": {"a": lists}, "required": ["a"]}),
        function("g"),
    ]
    asked = ask(CHAT, {"tools": tools, "tool_choice": "required"}, "hermes")
    for text, fits in ((F, True), (G, True), (G.replace("5", "[]"), False)):
        assert player.accepts(asked.grammar, text) == fits
    assert asked.headers["x-emberd-ignored"] == "tools.f.parameters"
    assert (
        ask(CHAT, {"tools": [function("f", parameters=LOOSE)]}).requests[0].params.grammar is None
    )


@pytest.mark.parametrize("model", ["hermes", "thinks"])
def test_beside_a_strict_tool_what_is_left_out_of_others_is_listed(ask: Ask, model: str) -> None:
    tools = [function("g", strict=True), function("f", parameters=LOOSE)]
    asked = ask(CHAT, {"tools": tools}, model)
    assert asked.grammar
    assert asked.headers["x-emberd-ignored"] == "tools.f.not, tools.f.minProperties"


@pytest.mark.parametrize(
    ("model", "texts"),
    [
        ("xml", ("<function=%s>\n<parameter=n>\n%s\n</parameter>\n</function>", "5", "x")),
        ("gemma", ("<|tool_call>call:%s{n:%s}<tool_call|>", "5", '<|"|>x<|"|>')),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_beside_a_strict_tool_one_whose_arguments_are_not_named_is_open(
    ask: Ask, model: str, texts: tuple[str, str, str], choice: str, player: Player
) -> None:
    odd = {"anyOf": [{"required": ["n"]}, {"required": ["m"]}], "if": {}}
    tools = [function("g", strict=True), function("f", parameters=odd)]
    asked = ask(CHAT, {"tools": tools, "tool_choice": choice}, model)
    assert asked.status == 200 and asked.grammar is not None
    assert asked.headers["x-emberd-ignored"] == "tools.f.if, tools.f.anyOf"
    call, number, text = texts
    for name, value, fits in (("g", number, True), ("g", text, False), ("f", text, True)):
        assert player.accepts(asked.grammar, call % (name, value)) is fits
    strict = [function("f", strict=True, parameters={"anyOf": odd["anyOf"]})]
    refused = ask(CHAT, {"tools": strict, "tool_choice": choice}, model)
    assert refused.status == 400
    assert refused.answer["error"]["param"] == "tools[0].function.parameters.anyOf"


def test_a_model_whose_template_refuses_several_calls_makes_one(ask: Ask, player: Player) -> None:
    """Or the conversation could not go on."""
    call = '{"name": "f", "parameters": {"n": 5}}'
    for model, several in (("llama", True), ("single", False)):
        asked = ask(CHAT, {"tools": [function("f")], "tool_choice": "required"}, model)
        assert player.accepts(asked.grammar, call)
        assert player.accepts(asked.grammar, f"{call}; {call}") is several


def test_strict_tools_are_held_to_their_schema_where_the_model_calls_them_oc11(
    ask: Ask, player: Player
) -> None:
    strict = {"tools": [function("f", strict=True), function("g")]}
    for model in ("hermes", "plain"):
        asked = ask(CHAT, strict, model)
        for text in ("Any { text.", F, f"Well, {G} then"):
            assert player.accepts(asked.grammar, text)
        bare = '{"name": "f", "arguments": {"n": 5}}'
        assert player.accepts(asked.grammar, bare)
        for text in (
            bare.replace("5", "[]"),
            F.replace("5", "[]"),
            F.replace('"f"', '"h"'),
            F[:-20],
        ):
            assert not player.accepts(asked.grammar, text)
        assert "x-emberd-ignored" not in asked.headers
    bad = {"tools": [function("f", strict=True, parameters={"not": {}})]}
    assert "'tools[0].function.parameters.not'" in ask(CHAT, bad, "hermes").message


def strict_tool(path: str) -> Json:
    """`f`, strict, as each API has it."""
    made: Json = function("f", strict=True)["function"]
    if path == CHAT:
        return {"type": "function", "function": made}
    if path == RESPONSES:
        return {"type": "function", **made}
    return {"name": "f", "strict": True, "input_schema": made["parameters"]}


@pytest.mark.parametrize(
    ("path", "forced"), [(CHAT, "required"), (RESPONSES, "required"), (MESSAGES, {"type": "any"})]
)
def test_strict_tools_are_listed_where_calls_cannot_be_told_from_text_oc11(
    ask: Ask, player: Player, path: str, forced: Any
) -> None:
    tools = {"tools": [strict_tool(path)]}
    asked = ask(path, tools, "pythonic")
    assert asked.status == 200
    assert asked.requests[0].params.grammar is None
    assert asked.headers["x-emberd-ignored"] == "tools.strict"
    bound = ask(path, {**tools, "tool_choice": forced}, "pythonic")
    assert "x-emberd-ignored" not in bound.headers and bound.grammar
    held = ask(path, tools, "hermes")
    assert "x-emberd-ignored" not in held.headers
    assert player.accepts(held.grammar, F) and not player.accepts(
        held.grammar, F.replace("5", "[]")
    )
