"""Tool calls on the wire of two APIs, with scripted models (K06, K07, OC-11, OC-22, OC-23, OC-28, OC-29, OL-22,
OL-24)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parts_harness import (
    CHAT,
    MESSAGES,
    OLLAMA,
    TOOL,
    Json,
    Sites,
    body,
    joined,
    ollama,
    ollama_lines,
    streamed,
    whole,
)

from site_fakes import CONTEXT, Site, run
from tiny_gguf import script_model

SOLAR_NAMES = (
    *("content", "end", "begin", "tool_calls", "tool_call:begin", "tool_call:name"),
    *("tool_call:args", "tool_call:end", "calls", "flush"),
)
MakeSite = Callable[..., Site]


def test_calls_of_a_whole_reply_k06_oc22_oc23(sites: Sites) -> None:
    answers = [whole(sites, "calls", "c", tools=[TOOL]) for _ in range(2)]
    choice = answers[0]["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Sure."
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["w", "w"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"p": "a"}, {"p": "b"}]
    assert [call["type"] for call in calls] == ["function"] * 2
    ids = {call["id"] for a in answers for call in a["choices"][0]["message"]["tool_calls"]}
    assert len(ids) == 4
    assert all(id.startswith("call_") and len(id) == 29 for id in ids)


def test_calls_of_a_stream_k06_oc28_oc29(sites: Sites) -> None:
    chunks = streamed(sites, "calls", "c", tools=[TOOL])
    deltas = [delta for c in chunks for delta in c["choices"][0]["delta"].get("tool_calls", [])]
    first = [delta for delta in deltas if "id" in delta]
    assert [(d["index"], d["function"]["name"], d["type"]) for d in first] == [
        (0, "w", "function"),
        (1, "w", "function"),
    ]
    assert first[0]["id"] != first[1]["id"]
    assert all(d["function"]["arguments"] == "" for d in first)
    assert not any("name" in d["function"] for d in deltas if "id" not in d)
    arguments = [
        "".join(d["function"]["arguments"] for d in deltas if d["index"] == i) for i in (0, 1)
    ]
    assert [json.loads(text) for text in arguments] == [{"p": "a"}, {"p": "b"}]
    assert sum(d["index"] == 0 for d in deltas) > 2  # arguments come as they are made
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "tool_calls"
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert text == "Sure."
    final = joined(chunks).choices[0].message
    assert [json.loads(call.function.arguments) for call in final.tool_calls] == [
        {"p": "a"},
        {"p": "b"},
    ]


def test_calls_of_ollama_k06_ol22(sites: Sites) -> None:
    answer = ollama(sites, "calls", "c", tools=[TOOL])
    assert answer["done_reason"] == "stop"
    lines = ollama_lines(sites, "calls", "c", tools=[TOOL])
    in_stream = [c for line in lines for c in line["message"].get("tool_calls", [])]
    for calls in (answer["message"]["tool_calls"], in_stream):
        assert [call["function"] for call in calls] == [
            {"index": 0, "name": "w", "arguments": {"p": "a"}},
            {"index": 1, "name": "w", "arguments": {"p": "b"}},
        ]
        assert calls[0]["id"] != calls[1]["id"]
    assert answer["message"]["content"] == "Sure."
    assert "".join(line["message"]["content"] for line in lines) == "Sure."
    assert lines[-1]["done"] and lines[-1]["done_reason"] == "stop"


def test_prose_like_a_call_arrives_whole_k07(sites: Sites) -> None:
    text = "A <tool_box> is no <tool_call> at all."
    choice = whole(sites, "calls", "p", tools=[TOOL])["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]
    final = joined(streamed(sites, "calls", "p", tools=[TOOL])).choices[0]
    assert (final.message.content, final.finish_reason) == (text, "stop")
    assert ollama(sites, "calls", "p", tools=[TOOL])["message"]["content"] == text


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_without_tools_tags_are_text_k07(sites: Sites, fields: Json) -> None:
    """Also OC-11: `none` makes no call, and the model is not told of tools."""
    choice = whole(sites, "calls", "c", **fields)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith('Sure. <tool_call>{"name"')
    assert sites.prompt == "c"


def test_a_call_that_the_token_limit_cuts_ends_by_length_oc22(sites: Sites) -> None:
    choice = whole(sites, "calls", "c", tools=[TOOL], max_tokens=5)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"p"'
    answer = ollama(sites, "calls", "c", tools=[TOOL], options={"num_predict": 5})
    assert answer["done_reason"] == "length"
    assert answer["message"] == {"role": "assistant", "content": "Sure."}


def test_parallel_calls_can_be_turned_off_oc11(sites: Sites) -> None:
    choice = whole(sites, "calls", "c", tools=[TOOL], parallel_tool_calls=False)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert [c["function"]["arguments"] for c in choice["message"]["tool_calls"]] == ['{"p": "a"}']


def test_a_model_whose_template_knows_no_tools_gets_a_prompt_ol24(sites: Sites) -> None:
    choice = whole(sites, "generic", "c", tools=[TOOL])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 2
    assert json.dumps(TOOL["function"]) in sites.prompt and sites.prompt.endswith("c")
    call = {"id": "x1", "type": "function", "function": {"name": "w", "arguments": '{"p": "a"}'}}
    history = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x1", "content": "r"},
        {"role": "user", "content": "p"},
    ]
    (answer,) = sites.post(CHAT, {"model": "generic", "messages": history})
    assert answer.status_code == 200
    assert sites.prompt == (
        'u<tool_call>\n{"name": "w", "arguments": {"p": "a"}}\n</tool_call>Result of w:\nrp'
    )


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": 5}}, "tools[0].function.name"),
        (
            {"type": "function", "function": {"name": "w", "parameters": []}},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_tool_that_is_none_is_refused_by_path(sites: Sites, tool: Json, path: str) -> None:
    for route in (CHAT, OLLAMA):
        (answer,) = sites.post(route, body("calls", "c", tools=[tool]))
        assert answer.status_code == 400
        assert path in answer.text


@pytest.mark.parametrize(
    ("mark", "controls", "script"),
    [
        ("[TOOL_CALLS]", ["[TOOL_CALLS]", "[ARGS]"], ["Sure.", 0, "w", 1, '{"p": "a"}']),
        (
            "<|channel|><|message|>",
            ["<|channel|>", "<|message|>", "<|call|>"],
            [0, "commentary to=functions.w json", 1, '{"p": ', '"a"}', 2],
        ),
        (">>>${recipient}", [], ["all\nSure.", ">>>w\n", '{"p": "a"}']),
        (
            "<atem:function_calls>",
            ["<|message|>"],
            [
                *(" to=w", 0, '<atem:invoke name="w"><atem:parameter name="p">a'),
                "</atem:parameter></atem:invoke>",
            ],
        ),
        (
            "<|begin|>assistant<|think|>",
            [f"<|{name}|>" for name in SOLAR_NAMES],
            [0, "Sure.", 1, 2, "assistant", 3, 4, "a1b2", 5, "w", 6, '{"p": ', '"a"}', 7],
        ),
    ],
)
def test_tags_that_are_control_tokens_k07(
    make_site: MakeSite, tmp_path: Path, mark: str, controls: list[str], script: list[Any]
) -> None:
    """They have no text of their own, but calls are found by them; without tools they stay hidden."""
    num_pieces = sum(isinstance(item, str) and len(item) > 1 for item in script)
    items = [256 + num_pieces + item if isinstance(item, int) else item for item in script]
    metadata = {"tokenizer.chat_template": f"{{# {mark} #}}{{% if tools %}}{{% endif %}}{MESSAGES}"}
    script_model(
        tmp_path / "m.gguf",
        {"c": items},
        control=controls,
        context_length=CONTEXT,
        metadata=metadata,
    )
    sites = Sites(lambda: make_site(models_dir=tmp_path))
    choice = whole(sites, "m", "c", tools=[TOOL])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "w", "arguments": '{"p": "a"}'}
    assert choice["message"]["content"] == ("Sure." if "Sure." in str(script) else None)
    assert "<|" not in (text := whole(sites, "m", "c")["choices"][0]["message"]["content"])
    assert "[" not in text


def test_calls_and_results_of_glm_4(make_site: MakeSite, tmp_path: Path) -> None:
    template = (
        "{# 在调用上述函数时，请使用 Json 格式 #}{% if tools %}T{% endif %}{% for m in messages %}<|{{ m.role }}|>"
        "{{ m.get('metadata', '') }}\n{{ m.content if m.role in ['user', 'assistant', 'observation'] }}"
        "{% endfor %}{# 'observation' #}<|assistant|>"
    )
    script_model(
        tmp_path / "m.gguf",
        {">": ["w\n", '{"p": "a"}']},
        context_length=CONTEXT,
        metadata={"tokenizer.chat_template": template},
    )
    sites = Sites(lambda: make_site(models_dir=tmp_path))
    call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"p": "b"}'}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]
    (answer,) = sites.post(CHAT, {"model": "m", "messages": messages, "tools": [TOOL]})
    assert answer.status_code == 200, answer.text
    assert sites.prompt == ('T<|user|>\nu<|assistant|>w\n{"p": "b"}<|observation|>\nr<|assistant|>')
    (made,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert made["function"] == {"name": "w", "arguments": '{"p": "a"}'}


def test_a_reply_that_is_begun_stands_in_its_section(make_site: MakeSite, tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template": f"{{# >>>${{recipient}} #}}{MESSAGES}>>>"}
    script_model(tmp_path / "m.gguf", {"a": ["yes"]}, context_length=CONTEXT, metadata=metadata)
    sites = Sites(lambda: make_site(models_dir=tmp_path))
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "La"}]
    request = {"model": "m", "max_tokens": 9, "messages": messages}
    (answer,) = sites.post("/v1/messages", request)
    assert answer.status_code == 200, answer.text
    assert sites.prompt == "u>>>all\nLa"
    assert answer.json()["content"] == [{"type": "text", "text": "yes"}]


def test_ids_fit_templates_that_want_nine_characters(make_site: MakeSite, tmp_path: Path) -> None:
    """Mistral's templates refuse others: call and result keep the same one."""
    template = (
        "{% for m in messages %}{% set i = m.tool_call_id or (m.tool_calls or [{}])[0].id or '.' * 9 %}"
        "{% if i | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ i }}{{ m.content }}{% endfor %}"
    )
    metadata = {"tokenizer.chat_template": template}
    script_model(tmp_path / "m.gguf", {"a": ["x"]}, context_length=CONTEXT, metadata=metadata)
    sites = Sites(lambda: make_site(models_dir=tmp_path))
    call = {
        "id": "call_" + "x" * 24,
        "type": "function",
        "function": {"name": "w", "arguments": "{}"},
    }
    messages = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": call["id"]},
        {"role": "user", "content": "a"},
    ]
    (answer,) = sites.post(CHAT, {"model": "m", "messages": messages})
    assert answer.status_code == 200, answer.text
    system, asked, result, user = (sites.prompt[i : i + 10] for i in range(0, 40, 10))
    assert (system, user) == (".........s", ".........a")
    assert asked[:9] == result[:9] and asked[9] + result[9] == "br"


def test_stop_strings_are_not_looked_for_in_thoughts_and_calls(sites: Sites) -> None:
    message = whole(sites, "thinks", "t", stop=["well", "es"])["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, well.", "Y")
    choice = whole(sites, "calls", "c", tools=[TOOL], stop=["name"])["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 2


def test_capabilities_tell_what_the_template_can(make_site: MakeSite, part_models: Path) -> None:
    site = make_site(models_dir=part_models)

    async def work() -> Json:
        async with site.client() as client:
            listed = (await client.get("/api/tags")).json()["models"]
            shown = (await client.post("/api/show", json={"model": "thinks"})).json()
            assert ".Tools" in shown["template"]
            assert shown["capabilities"] == ["completion", "tools", "thinking"]
            data = (await client.get("/v1/models")).json()["data"]
            assert {m["id"]: m["capabilities"] for m in data}["thinks"] == shown["capabilities"]
            return {model["name"]: model["capabilities"] for model in listed}

    assert run(work()) == {
        "calls:latest": ["completion", "tools"],
        "generic:latest": ["completion", "tools"],
        "thinks:latest": ["completion", "tools", "thinking"],
    }
