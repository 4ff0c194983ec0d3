"""Constraints on the wire of all APIs: every spelling reaches the worker as a grammar, and what cannot be followed is
refused by its field (OC-10, OR-02, OL-09, AN-02, K08).

The fake worker follows no grammar; what a grammar allows is asked of the grammar itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from constraints_harness import (
    CHAT,
    COMPLETION,
    FLAT,
    GENERATE,
    MESSAGES,
    NESTED,
    NUMBER,
    OBJECT,
    OLLAMA,
    OTHER,
    RESPONSES,
    SCHEMA,
    Ask,
    Json,
)

from grammar_player import Player
from site_fakes import Site, run

MakeSite = Callable[..., Site]


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


def test_a_beginning_of_the_reply_and_a_format_do_not_go_together_an02(
    make_site: MakeSite, constrained_models: Path
) -> None:
    messages = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "{"}]

    async def work() -> Any:
        async with make_site(models_dir=constrained_models).client() as client:
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
