"""Constraints and forced calls on the wire of all APIs: every spelling reaches the worker as a grammar, and what
cannot be followed is refused by its field (OC-10, OC-11, OR-02, OL-09, AN-02, K08).

The fake worker follows no grammar; what a grammar allows is asked of the grammar itself. Longer than 400 lines because
the spellings of all APIs are tables over the same texts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emberd.gguf.reader import GGUFFile
from emberd.text.tokenizer import Tokenizer
from grammar_player import Player
from site_fakes import CONTEXT, SCRIPTS, Site, run
from tiny_gguf import script_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT, COMPLETION, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
TEXTS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
SCHEMA: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NESTED: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
FLAT: Json = {"type": "json_schema", "name": "x", "schema": SCHEMA}
NUMBER, OTHER, OBJECT = '{"n": 5}', '{"m": "x"}', "{}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("constraints")
    thoughts = {**SCRIPTS, "e": ["<think>on", " and"]}
    for name, scripts, template in (
        ("plain", SCRIPTS, TEXTS),
        ("hermes", SCRIPTS, "{# <tool_call> #}{% if tools %}T{% endif %}" + TEXTS),
        ("pythonic", SCRIPTS, "{# [func_name1( #}{% if tools %}T{% endif %}" + TEXTS),
        ("llama", SCRIPTS, "{# <|python_tag|> #}{% if tools %}T{% endif %}" + TEXTS),
        (
            "single",
            SCRIPTS,
            "{# <|python_tag|> single tool-calls #}{% if tools %}T{% endif %}" + TEXTS,
        ),
        ("xml", SCRIPTS, "{# <function= <parameter= #}{% if tools %}T{% endif %}" + TEXTS),
        ("gemma", SCRIPTS, "{# <|tool_call> #}{% if tools %}T{% endif %}" + TEXTS),
        ("thinks", thoughts, "{# </think> #}" + TEXTS),
    ):
        metadata = {"tokenizer.chat_template": template}
        options: Json = {"context_length": CONTEXT, "metadata": metadata}
        script_model(path / f"{name}.gguf", scripts, endless="e", **options)
    return path


@pytest.fixture(scope="module")
def player(folder: Path) -> Player:
    file = GGUFFile(folder / "plain.gguf")
    try:
        return Player(Tokenizer.from_metadata(file.metadata))
    finally:
        file.close()


class Asked:
    """One request to a daemon of its own."""

    def __init__(self, site: Site, path: str, fields: Json, model: str, last: str) -> None:
        request: Json = {"model": model, "stream": False, **fields}
        if path in (OLLAMA, GENERATE):
            request["options"] = {"num_predict": 3}
        else:
            limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
            request.setdefault(limit, 16 if path == RESPONSES else 3)
        if path in (COMPLETION, GENERATE):
            request["prompt"] = last
        elif path == RESPONSES:
            request["input"] = last
        else:
            request["messages"] = [{"role": "user", "content": last}]

        async def work() -> Any:
            async with site.client() as client:
                return await client.post(path, json=request)

        response = run(work())
        self.status, self.answer = response.status_code, response.json()
        self.headers = response.headers
        self.requests = site.workers[0].requests if site.workers else []

    @property
    def grammar(self) -> str:
        assert self.status == 200, self.answer
        grammar = self.requests[0].params.grammar
        assert grammar is not None
        return grammar

    @property
    def message(self) -> str:
        error = self.answer["error"]
        return str(error if isinstance(error, str) else error["message"])


@pytest.fixture
def ask(make_site: MakeSite, folder: Path) -> Callable[..., Asked]:
    def asked(path: str, fields: Json, model: str = "plain", last: str = "b") -> Asked:
        return Asked(make_site(models_dir=folder, ctx=4096), path, fields, model, last)

    return asked


Ask = Callable[..., Asked]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": NESTED}),
        (CHAT, {"response_format": FLAT}),
        (CHAT, {"response_format": {"type": "json_object", "schema": SCHEMA}}),
        (CHAT, {"json_schema": SCHEMA, "grammar": ""}),
        (CHAT, {"guided_json": SCHEMA}),
        (CHAT, {"guided_json": '{"type": "object", "properties": {"n": {}}, "additionalProperties": false}'}),
        (CHAT, {"structured_outputs": {"json": SCHEMA, "regex": None}}),
        (CHAT, {"guided_regex": r'\{"n": \d+\}'}),
        (CHAT, {"structured_outputs": {"regex": r'\{"n": \d+\}'}}),
        (CHAT, {"guided_choice": [NUMBER, "a"]}),
        (CHAT, {"structured_outputs": {"choice": [NUMBER, "a"]}}),
        (CHAT, {"grammar": r'root ::= "{\"n\": " [0-9]+ "}"'}),
        (CHAT, {"guided_grammar": r'start: "{\"n\": " /[0-9]+/ "}"'}),
        (CHAT, {"structured_outputs": {"grammar": r'start: "{\"n\": " /[0-9]+/ "}"'}}),
        (COMPLETION, {"response_format": NESTED}),
        (COMPLETION, {"guided_json": SCHEMA}),
        (COMPLETION, {"guided_choice": [NUMBER]}),
        (RESPONSES, {"text": {"format": FLAT}}),
        (OLLAMA, {"format": SCHEMA}),
        (GENERATE, {"format": SCHEMA}),
        (GENERATE, {"format": SCHEMA, "raw": True}),
        (MESSAGES, {"output_format": FLAT}),
        (MESSAGES, {"output_config": {"format": FLAT}}),
    ],
)  # fmt: skip
def test_every_spelling_binds_the_reply_oc10_ol09_an02(
    ask: Ask, player: Player, path: str, fields: Json
) -> None:
    asked = ask(path, fields)
    assert player.accepts(asked.grammar, NUMBER)
    assert not player.accepts(asked.grammar, OTHER)
    assert "x-emberd-ignored" not in asked.headers


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"structured_outputs": {"json_object": True}}),
        (COMPLETION, {"response_format": {"type": "json_object"}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
        (OLLAMA, {"format": "json"}),
        (GENERATE, {"format": "json"}),
    ],
)
def test_json_mode_is_any_object_k09(ask: Ask, player: Player, path: str, fields: Json) -> None:
    grammar = ask(path, fields).grammar
    for text in (NUMBER, OTHER, OBJECT):
        assert player.accepts(grammar, text)
    for text in ("[]", "5", "", NUMBER + "\n"):
        assert not player.accepts(grammar, text)


def test_strict_closes_objects_oc10(ask: Ask, player: Player) -> None:
    schema = {"type": "object", "properties": {"n": {}}}
    for strict in (True, False):
        inner = {"name": "x", "schema": schema, "strict": strict}
        found = ask(CHAT, {"response_format": {"type": "json_schema", "json_schema": inner}})
        assert player.accepts(found.grammar, '{"n":1,"m":2}') is not strict


NAMED = "response_format.json_schema"


def nested(**fields: Any) -> Json:
    return {"type": "json_schema", "json_schema": fields}


def flat(schema: Json) -> Json:
    return {"type": "json_schema", "schema": schema}


WRONG = {"properties": {"a": {"type": "strin"}}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"response_format": nested(schema=WRONG)}, f"{NAMED}.schema.properties.a.type"),
        (CHAT, {"response_format": {"type": "json_object", "schema": {"$ref": "#/x"}}}, "response_format.schema.$ref"),
        (CHAT, {"response_format": nested(name="x")}, f"{NAMED}.schema"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format.json_schema"),
        (CHAT, {"response_format": nested(schema={}, strict=1)}, f"{NAMED}.strict"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"guided_json": "{"}, "guided_json"),
        (CHAT, {"guided_json": WRONG}, "guided_json.properties.a.type"),
        (CHAT, {"guided_regex": "(a"}, "guided_regex"),
        (CHAT, {"guided_regex": 5}, "guided_regex"),
        (CHAT, {"guided_choice": []}, "guided_choice"),
        (CHAT, {"grammar": "root ::= nothing"}, "grammar"),
        (CHAT, {"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        (CHAT, {"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        (CHAT, {"json_schema": {"not": {}}}, "json_schema.not"),
        (CHAT, {"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        (CHAT, {"response_format": NESTED, "grammar": "start: \"a\""}, "grammar"),
        (COMPLETION, {"guided_json": WRONG}, "guided_json.properties.a.type"),
        (RESPONSES, {"text": {"format": flat(WRONG)}}, "text.format.schema.properties.a.type"),
        (OLLAMA, {"format": WRONG}, "format.properties.a.type"),
        (OLLAMA, {"format": "xml"}, "format"),
        (GENERATE, {"format": {"pattern": "^a(b$"}}, "format.pattern"),
        (GENERATE, {"format": {"not": {}}, "raw": True}, "format.not"),
        (MESSAGES, {"output_format": flat(WRONG)}, "output_format.schema.properties.a.type"),
        (MESSAGES, {"output_config": {"format": flat({"not": {}})}}, "output_config.format.schema.not"),
        (MESSAGES, {"output_config": {"format": FLAT}, "output_format": FLAT}, "output_format"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_its_field_k08(
    ask: Ask, path: str, fields: Json, param: str
) -> None:
    asked = ask(path, fields)
    assert asked.status == 400
    assert f"'{param}'" in asked.message
    if path in (CHAT, COMPLETION):
        assert asked.answer["error"]["param"] == param
    assert asked.requests == []


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


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
    """`f` of test_constraints, strict, as each API has it."""
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


def test_a_beginning_of_the_reply_and_a_format_do_not_go_together_an02(
    make_site: MakeSite, folder: Path
) -> None:
    messages = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "{"}]

    async def work() -> Any:
        async with make_site(models_dir=folder).client() as client:
            body = {"model": "plain", "output_format": FLAT, "messages": messages}
            return await client.post(MESSAGES, json=body)

    response = run(work())
    assert response.status_code == 400
    assert "'output_format.schema'" in response.json()["error"]["message"]


def test_a_budget_ends_the_thinking_and_the_answer_stays_bound_oc12(
    ask: Ask, player: Player
) -> None:
    asked = ask(
        CHAT,
        {"response_format": NESTED, "thinking_token_budget": 2, "max_tokens": 40},
        "thinks",
        "e",
    )
    first, second = (request.params.grammar for request in asked.requests)
    assert first is not None and second is not None
    assert player.accepts(first, f"<think>Hm.</think>\n\n{NUMBER}")
    assert player.accepts(first, NUMBER)
    assert not player.accepts(first, "<think>Hm.</think>Yes.")
    assert player.accepts(second, NUMBER)
    assert not player.accepts(second, f"<think>Hm.</think>{NUMBER}")


def test_without_thinking_the_answer_is_bound_from_its_start(ask: Ask, player: Player) -> None:
    grammar = ask(CHAT, {"response_format": NESTED, "think": False}, "thinks").grammar
    assert player.accepts(grammar, NUMBER)
    assert not player.accepts(grammar, f"<think>Hm.</think>{NUMBER}")


def test_choices_share_a_grammar_oc13(ask: Ask) -> None:
    asked = ask(CHAT, {"response_format": NESTED, "n": 3})
    assert asked.status == 200
    grammars = {request.params.grammar for request in asked.requests}
    assert len(asked.requests) == 3 and len(grammars) == 1 and None not in grammars


def test_no_constraint_is_no_grammar(ask: Ask) -> None:
    for path, fields in (
        (CHAT, {"response_format": {"type": "text"}, "grammar": "", "guided_json": None}),
        (CHAT, {"structured_outputs": {}, "tool_choice": "auto"}),
        (OLLAMA, {"format": ""}),
        (GENERATE, {"format": None}),
    ):
        asked = ask(path, fields)
        assert asked.status == 200
        assert [request.params.grammar for request in asked.requests] == [None]
