"""Tool calls and thinking on the wire of both APIs, with scripted models (K06, K07, OC-12, OC-22 to OC-24, OC-29,
OL-10, OL-22 to OL-24).

Longer than 400 lines because the two APIs are held against the same scripts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from site_fakes import CONTEXT, FakeWorker, Site, run
from tiny_gguf import script_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT, OLLAMA = "/v1/chat/completions", "/api/chat"
MESSAGES = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
HERMES = "{# <tool_call> #}{% if tools %}T{% endif %}" + MESSAGES
THINKING = (
    "{# </think> #}{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
    "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"
    "{# 'low' 'high' #}" + MESSAGES + "{% if prefill %}<think>{{ prefill }}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "w",
        "description": "d",
        "parameters": {"type": "object", "properties": {"p": {"type": "string"}}},
    },
}
CALL_SCRIPTS = {
    "c": [
        "Sure.",
        " <tool",
        "_call>",
        '{"name": "w", "arg',
        'uments": {"p"',
        ': "a"}}',
        "\n</tool_",
        'call>\n<tool_call>{"name": "w", "arguments":',
        ' {"p": "',
        'b"}}</tool_call>',
    ],
    "p": ["A <tool", "_box> is", " no <tool_call> at", " all."],
}
THOUGHT_SCRIPTS = {
    "t": ["<thi", "nk>", "\nHm", ", well", ".\n", "</think>", "\n\n", "Yes."],
    "i": [" inside", "</think> out"],
    "n": ["Plain <think>", " text"],
    "e": ["<think>on", " and"],
    "\n": ["Closed."],  # what follows a span that was closed by force
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts")
    for name, scripts, template in (
        ("calls", CALL_SCRIPTS, HERMES),
        ("generic", CALL_SCRIPTS, MESSAGES),
        ("thinks", THOUGHT_SCRIPTS, THINKING),
    ):
        script_model(
            path / f"{name}.gguf",
            scripts,
            endless="e",
            context_length=CONTEXT,
            metadata={"tokenizer.chat_template": template},
        )
    return path


class Sites:
    """A daemon for each call of `post`; `worker` is that of the latest one."""

    def __init__(self, make: Callable[[], Site]) -> None:
        self._make = make
        self.worker = FakeWorker.__new__(FakeWorker)

    def post(self, path: str, *bodies: Json) -> list[httpx.Response]:
        site = self._make()

        async def work() -> list[httpx.Response]:
            async with site.client() as client:
                return [await client.post(path, json=one) for one in bodies]

        answers = run(work())
        if site.workers:
            self.worker = site.workers[0]
        return answers

    @property
    def prompt(self) -> str:
        """The first one that the worker was given."""
        return bytes(self.worker.requests[0].token_ids).decode()


@pytest.fixture
def site(make_site: MakeSite, folder: Path) -> Sites:
    return Sites(lambda: make_site(models_dir=folder, ctx=4096))


def body(model: str, trigger: str, **fields: Any) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": trigger}], **fields}


def whole(site: Sites, model: str, trigger: str, **fields: Any) -> Json:
    (answer,) = site.post(CHAT, body(model, trigger, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(site: Sites, model: str, trigger: str, **fields: Any) -> list[Json]:
    (answer,) = site.post(CHAT, body(model, trigger, stream=True, **fields))
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def ollama(site: Sites, model: str, trigger: str, **fields: Any) -> Json:
    (answer,) = site.post(OLLAMA, body(model, trigger, stream=False, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def ollama_lines(site: Sites, model: str, trigger: str, **fields: Any) -> list[Json]:
    (answer,) = site.post(OLLAMA, body(model, trigger, **fields))
    return [json.loads(line) for line in answer.text.splitlines()]


def joined(chunks: list[Json]) -> Any:
    """As the openai package puts chunks together."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.get_final_completion()


def test_calls_of_a_whole_reply_k06_oc22_oc23(site: Sites) -> None:
    answers = [whole(site, "calls", "c", tools=[TOOL]) for _ in range(2)]
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


def test_calls_of_a_stream_k06_oc28_oc29(site: Sites) -> None:
    chunks = streamed(site, "calls", "c", tools=[TOOL])
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


def test_calls_of_ollama_k06_ol22(site: Sites) -> None:
    answer = ollama(site, "calls", "c", tools=[TOOL])
    assert answer["done_reason"] == "stop"
    lines = ollama_lines(site, "calls", "c", tools=[TOOL])
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


def test_prose_like_a_call_arrives_whole_k07(site: Sites) -> None:
    text = "A <tool_box> is no <tool_call> at all."
    choice = whole(site, "calls", "p", tools=[TOOL])["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]
    final = joined(streamed(site, "calls", "p", tools=[TOOL])).choices[0]
    assert (final.message.content, final.finish_reason) == (text, "stop")
    assert ollama(site, "calls", "p", tools=[TOOL])["message"]["content"] == text


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_without_tools_tags_are_text_k07(site: Sites, fields: Json) -> None:
    """Also OC-11: `none` makes no call, and the model is not told of tools."""
    choice = whole(site, "calls", "c", **fields)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith('Sure. <tool_call>{"name"')
    assert site.prompt == "c"


def test_a_call_that_the_token_limit_cuts_ends_by_length_oc22(site: Sites) -> None:
    choice = whole(site, "calls", "c", tools=[TOOL], max_tokens=5)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"p"'
    answer = ollama(site, "calls", "c", tools=[TOOL], options={"num_predict": 5})
    assert answer["done_reason"] == "length"
    assert answer["message"] == {"role": "assistant", "content": "Sure."}


def test_parallel_calls_can_be_turned_off_oc11(site: Sites) -> None:
    choice = whole(site, "calls", "c", tools=[TOOL], parallel_tool_calls=False)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert [c["function"]["arguments"] for c in choice["message"]["tool_calls"]] == ['{"p": "a"}']


def test_a_model_whose_template_knows_no_tools_gets_a_prompt_ol24(site: Sites) -> None:
    choice = whole(site, "generic", "c", tools=[TOOL])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 2
    assert json.dumps(TOOL["function"]) in site.prompt and site.prompt.endswith("c")
    call = {"id": "x1", "type": "function", "function": {"name": "w", "arguments": '{"p": "a"}'}}
    history = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x1", "content": "r"},
        {"role": "user", "content": "p"},
    ]
    (answer,) = site.post(CHAT, {"model": "generic", "messages": history})
    assert answer.status_code == 200
    assert site.prompt == (
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
def test_a_tool_that_is_none_is_refused_by_path(site: Sites, tool: Json, path: str) -> None:
    for route in (CHAT, OLLAMA):
        (answer,) = site.post(route, body("calls", "c", tools=[tool]))
        assert answer.status_code == 400
        assert path in answer.text


def test_thinking_is_split_off_oc24_ol10(site: Sites) -> None:
    answer = whole(site, "thinks", "t")
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, well.", "Yes.")
    assert "reasoning" not in message
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    chunks = streamed(site, "thinks", "t")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm, well."
    assert "".join(d.get("content") or "" for d in deltas) == "Yes."
    message = ollama(site, "thinks", "t")["message"]
    assert message == {"role": "assistant", "content": "Yes.", "thinking": "Hm, well."}
    lines = ollama_lines(site, "thinks", "t")
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hm, well."
    assert "".join(line["message"]["content"] for line in lines) == "Yes."
    (generated,) = site.post("/api/generate", {"model": "thinks", "prompt": "t", "stream": False})
    assert (generated.json()["response"], generated.json()["thinking"]) == ("Yes.", "Hm, well.")


def test_an_open_tag_at_the_prompts_end_counts(site: Sites) -> None:
    variables = {"prefill": "\n  \n i"}
    message = whole(site, "thinks", "x", chat_template_kwargs=variables)["choices"][0]["message"]
    assert "reasoning_content" not in message  # the tag is not at the end
    assert message["content"] == " inside</think> out"


def test_a_reply_that_begins_inside_a_span(make_site: MakeSite, tmp_path: Path) -> None:
    template = "{# </think> #}" + MESSAGES + "<think>"
    scripts = {">": [" inside", "</think> out"]}
    metadata = {"tokenizer.chat_template": template}
    script_model(tmp_path / "m.gguf", scripts, context_length=CONTEXT, metadata=metadata)
    site = Sites(lambda: make_site(models_dir=tmp_path))
    answer = whole(site, "m", "x")
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("inside", "out")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    for fields in ({"reasoning_effort": "none"}, {"think": False}):
        whole(site, "m", "x", **fields)
        assert site.prompt == "x<think>\n</think>\n\n"


def test_text_before_a_tag_makes_it_text(site: Sites) -> None:
    message = whole(site, "thinks", "n")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Plain <think> text", "refusal": None}


def test_names_of_reasoning_are_a_setting_oc24(make_site: MakeSite, folder: Path) -> None:
    keys = ("reasoning_content", "reasoning")
    site = Sites(lambda: make_site(models_dir=folder, reasoning_keys=keys))
    message = whole(site, "thinks", "t")["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm, well."
    message = whole(site, "thinks", "t", reasoning={"exclude": True})["choices"][0]["message"]
    assert set(message) == {"role", "content", "refusal"}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "t"),
        ({"reasoning_effort": "none"}, "-t"),
        ({"reasoning_effort": "minimal"}, "lowt"),
        ({"reasoning_effort": "xhigh"}, "hight"),
        ({"reasoning": {"effort": "high"}}, "hight"),
        ({"reasoning": {"enabled": False, "effort": "high"}}, "-t"),
        ({"think": False}, "-t"),
        ({"think": "low"}, "lowt"),
        ({"thinking": {"type": "disabled"}}, "-t"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}}, "t"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "-t"),
    ],
)
def test_every_spelling_reaches_the_template_oc12(site: Sites, fields: Json, prompt: str) -> None:
    whole(site, "thinks", "t", **fields)
    assert site.prompt == prompt


@pytest.mark.parametrize(
    ("fields", "prompt"), [({"think": False}, "-t"), ({"think": "high"}, "hight"), ({}, "t")]
)
def test_ollamas_spelling_reaches_the_template_ol10(site: Sites, fields: Json, prompt: str) -> None:
    ollama(site, "thinks", "t", **fields)
    assert site.prompt == prompt


@pytest.mark.parametrize(
    "fields",
    [{"reasoning": {"max_tokens": 3}}, {"thinking_token_budget": 3}],
)
def test_a_budget_closes_the_span_oc12(site: Sites, fields: Json) -> None:
    """The endless thinker is cut after three tokens; the reply goes on behind the tag that was put there."""
    answer = whole(site, "thinks", "e", seed=5, **fields)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("on and<think>on", "Closed.")
    assert answer["choices"][0]["finish_reason"] == "stop"
    first, second = site.worker.requests
    forced = "\n</think>\n\n"
    assert bytes(second.token_ids[-len(forced) :]).decode() == forced
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert second.params.seed == first.params.seed == 5
    counts = answer["usage"]
    assert counts["completion_tokens"] == 3 + len(forced) + 2
    assert 3 <= counts["completion_tokens_details"]["reasoning_tokens"] <= 3 + len(forced)
    assert site.worker.cancelled == [first.request_id]


def test_a_budget_leaves_the_token_limit_as_it_is_oc12(site: Sites) -> None:
    answer = whole(site, "thinks", "e", thinking_token_budget=3, max_tokens=8)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] <= 8


def test_off_ends_a_span_that_the_model_opens_all_the_same(site: Sites) -> None:
    message = whole(site, "thinks", "e", think=False)["choices"][0]["message"]
    assert message["content"] == "Closed."
    assert len(message.get("reasoning_content", "")) <= len("on")


def test_stop_strings_are_not_looked_for_in_thoughts_and_calls(site: Sites) -> None:
    message = whole(site, "thinks", "t", stop=["well", "es"])["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, well.", "Y")
    choice = whole(site, "calls", "c", tools=[TOOL], stop=["name"])["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 2


def test_a_model_that_cannot_think_ol10(site: Sites) -> None:
    (refused,) = site.post(OLLAMA, body("calls", "p", think=True, stream=False))
    assert refused.status_code == 400
    assert refused.json() == {"error": '"calls" does not support thinking'}
    (refused,) = site.post(CHAT, body("calls", "p", think="high"))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "think"
    for fields in ({"think": False}, {"think": None}, {}):
        assert ollama(site, "calls", "p", **fields)["done"]
    for fields in ({"reasoning_effort": "high"}, {"thinking": {"type": "enabled"}, "user": "u"}):
        (answer,) = site.post(CHAT, body("calls", "p", **fields))
        assert answer.json()["choices"]
        assert set(answer.headers["x-emberd-ignored"].split(", ")) == set(fields)


@pytest.mark.parametrize("fields", [{"reasoning_effort": "much"}, {"think": "a bit"}])
def test_an_unknown_effort_is_refused(site: Sites, fields: Json) -> None:
    (answer,) = site.post(CHAT, body("thinks", "t", **fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in fields


def test_capabilities_tell_what_the_template_can(make_site: MakeSite, folder: Path) -> None:
    site = make_site(models_dir=folder)

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


def test_past_reasoning_reaches_the_template_under_its_own_name_oc04(
    make_site: MakeSite, tmp_path: Path
) -> None:
    for name in ("reasoning_content", "thinking"):
        template = "{% for m in messages %}{{ m." + name + " or '' }}{{ m.content }}{% endfor %}"
        metadata = {"tokenizer.chat_template": template}
        script_model(
            tmp_path / f"{name}.gguf", {"a": ["x"]}, context_length=CONTEXT, metadata=metadata
        )
    site = Sites(lambda: make_site(models_dir=tmp_path))
    for model in ("reasoning_content", "thinking"):
        for path, key in ((CHAT, "reasoning_content"), (CHAT, "reasoning"), (OLLAMA, "thinking")):
            history = [
                {"role": "assistant", "content": "b", key: "R"},
                {"role": "user", "content": "a"},
            ]
            site.post(path, {"model": model, "messages": history, "stream": False})
            assert site.prompt == "Rba"


@pytest.mark.parametrize(
    ("mark", "controls", "script"),
    [
        ("[TOOL_CALLS]", ["[TOOL_CALLS]", "[ARGS]"], ["Sure.", 0, "w", 1, '{"p": "a"}']),
        (
            "<|channel|><|message|>",
            ["<|channel|>", "<|message|>", "<|call|>"],
            [0, "commentary to=functions.w json", 1, '{"p": ', '"a"}', 2],
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
    site = Sites(lambda: make_site(models_dir=tmp_path))
    choice = whole(site, "m", "c", tools=[TOOL])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "w", "arguments": '{"p": "a"}'}
    assert choice["message"]["content"] == ("Sure." if "Sure." in script else None)
    assert "<|" not in (text := whole(site, "m", "c")["choices"][0]["message"]["content"])
    assert "[" not in text


def test_ids_fit_templates_that_want_nine_characters(make_site: MakeSite, tmp_path: Path) -> None:
    """Mistral's templates refuse others: call and result keep the same one."""
    template = (
        "{% for m in messages %}{% set i = m.tool_call_id or (m.tool_calls or [{}])[0].id or '.' * 9 %}"
        "{% if i | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ i }}{{ m.content }}{% endfor %}"
    )
    metadata = {"tokenizer.chat_template": template}
    script_model(tmp_path / "m.gguf", {"a": ["x"]}, context_length=CONTEXT, metadata=metadata)
    site = Sites(lambda: make_site(models_dir=tmp_path))
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
    (answer,) = site.post(CHAT, {"model": "m", "messages": messages})
    assert answer.status_code == 200, answer.text
    system, asked, result, user = (site.prompt[i : i + 10] for i in range(0, 40, 10))
    assert (system, user) == (".........s", ".........a")
    assert asked[:9] == result[:9] and asked[9] + result[9] == "br"
