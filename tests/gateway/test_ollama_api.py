"""Ollama routes: answers, loading and unloading, options, cutting (OL-, K04, K05, K10, K20, K22, K31)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from site_fakes import CONTEXT, Site, run, write_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def post_all(site: Site, path: str, *bodies: Json) -> list[Any]:
    async def work() -> list[Any]:
        async with site.client() as client:
            return [await client.post(path, json=body) for body in bodies]

    return run(work())


def generate(site: Site, prompt: str, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": prompt, "stream": False, **fields}
    return post_all(site, "/api/generate", body)[0]


def chat(site: Site, *contents: str, **fields: Any) -> Any:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    body = {"model": "tiny", "messages": messages, "stream": False, **fields}
    return post_all(site, "/api/chat", body)[0]


def checked(answer: Json) -> Json:
    """The answer without what differs from run to run."""
    assert TIME.fullmatch(answer.pop("created_at"))
    for name in DURATIONS:
        assert isinstance(answer[name], int)
        assert answer.pop(name) > 0
    return answer


def test_a_whole_generate_answer_ol20(make_site: MakeSite) -> None:
    response = generate(make_site(), "a")
    assert response.headers["content-type"] == "application/json"
    assert checked(response.json()) == {
        "model": "tiny",
        "response": "Hello world",
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 1,
        "eval_count": 3,
        "context": [ord("a"), 256, 257, 510],
        "emberd": {"cached_tokens": 1},
    }


def test_a_whole_chat_answer_ol21(make_site: MakeSite) -> None:
    assert checked(chat(make_site(), "c", model="Tiny:latest").json()) == {
        "model": "Tiny:latest",
        "message": {"role": "assistant", "content": "🙂!"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 1,
        "eval_count": 6,
        "emberd": {"cached_tokens": 1},
    }


def test_a_context_goes_on_where_it_ended_ol20(make_site: MakeSite) -> None:
    site = make_site()
    answer = generate(site, "b", context=[120, 121], options={"num_predict": 1}).json()
    assert answer["prompt_eval_count"] == 3
    assert answer["context"] == [120, 121, ord("b"), 258]


def test_raw_prompts_meet_no_template_and_give_no_context(make_site: MakeSite) -> None:
    site = make_site()
    answer = generate(site, "<|bos|>a", raw=True).json()
    assert answer["response"] == "Hello world"
    assert "context" not in answer
    assert site.workers[0].requests[0].token_ids == (509, ord("a"))
    for field in ({"system": "s"}, {"template": "t"}, {"context": [1]}):
        assert generate(make_site(), "a", raw=True, **field).status_code == 400


def test_system_and_template_of_the_request_are_used(make_site: MakeSite) -> None:
    site = make_site()
    template = "{{ messages[0]['content'] }}|{{ messages[1]['content'] }}"
    generate(site, "a", system="S", template=template)
    assert bytes(site.workers[0].requests[0].token_ids) == b"S|a"
    for go in ("{{ .Prompt }}", "{{ if .System }}x{{ end }}", "{{- range $.Messages }}"):
        response = generate(make_site(), "a", template=go)
        assert response.status_code == 400
        assert "Go template" in response.json()["error"]
    assert generate(make_site(), "a", template="{{ messages[0].content }}").status_code == 200


@pytest.mark.parametrize(
    ("stop", "text"),
    [(["D E"], "A B C "), ("D E", "A B C "), (["A B"], ""), (["Z"], "A B C D E F G")],
)
def test_stop_strings_k04(make_site: MakeSite, stop: Any, text: str) -> None:
    answer = generate(make_site(), "b", options={"stop": stop}).json()
    assert answer["response"] == text
    assert answer["done_reason"] == "stop"


def test_num_predict_is_exact_and_negative_means_no_limit_k05(make_site: MakeSite) -> None:
    answer = generate(make_site(), "e", options={"num_predict": 5}).json()
    assert (answer["eval_count"], answer["done_reason"]) == (5, "length")
    answer = generate(make_site(), "e", options={"num_predict": -2}).json()
    assert (answer["eval_count"], answer["done_reason"]) == (CONTEXT - 1, "length")
    assert generate(make_site(), "e", options={"num_predict": 0}).status_code == 400


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": "hot"}, "options.temperature"),
        ({"temperature": -1}, "options.temperature"),
        ({"top_p": 1.5}, "options.top_p"),
        ({"top_k": 1.5}, "options.top_k"),
        ({"num_ctx": "many"}, "options.num_ctx"),
        ({"seed": True}, "options.seed"),
        ({"stop": 5}, "options.stop"),
        ({"num_ctx": CONTEXT + 1}, "options.num_ctx"),
    ],
)
def test_a_wrong_option_is_named_ol07(make_site: MakeSite, options: Json, name: str) -> None:
    response = generate(make_site(), "a", options=options)
    assert response.status_code == 400
    assert name in response.json()["error"]


def test_a_larger_num_ctx_than_served_is_refused_with_both_numbers_k10(make_site: MakeSite) -> None:
    error = generate(make_site(), "a", options={"num_ctx": 4096}).json()["error"]
    assert "4096" in error
    assert str(CONTEXT) in error


def test_a_num_ctx_below_the_prompt_takes_nothing_away_ol08(make_site: MakeSite) -> None:
    """Clients guess it from their own count of tokens: nothing is cut or refused for a guess."""
    site = make_site()
    response = generate(site, "x" * 99 + "a", options={"num_ctx": 8})
    assert response.status_code == 200
    (request,) = site.workers[0].requests
    assert len(request.token_ids) == 100 and request.params.max_tokens == CONTEXT - 100


def test_unknown_options_are_listed_and_null_is_the_default_ol07(make_site: MakeSite) -> None:
    site = make_site()
    options = {"top_k": 40.0, "temperature": None, "mirostat": 1, "num_gpu": 99, "num_ctx": 128}
    response = generate(site, "a", options=options, images=[], other=1)
    assert response.status_code == 200
    assert response.headers["x-emberd-ignored"] == "other, options.mirostat, options.num_gpu"
    assert site.workers[0].requests[0].params.temperature == 0.8


def test_defaults_are_those_of_ollama_and_the_file_may_recommend_others_ol08(
    make_site: MakeSite,
    models_dir: Path,
) -> None:
    site = make_site(models_dir=models_dir)
    hints = {
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 7,
        "general.sampling.top_p": 5,
    }
    write_model(models_dir / "hinted.gguf", metadata=hints)
    bodies = [
        {"model": "tiny", "prompt": "a"},
        {"model": "hinted", "prompt": "a"},
        {"model": "hinted", "prompt": "a", "options": {"temperature": 1.5, "repeat_last_n": 0}},
    ]
    post_all(site, "/api/generate", *bodies)
    plain, hinted, chosen = (r.params for worker in site.workers for r in worker.requests)
    assert (plain.temperature, plain.top_k, plain.top_p, plain.penalty_window) == (0.8, 40, 0.9, 64)
    assert (hinted.temperature, hinted.top_k, hinted.top_p) == (0.25, 7, 0.9)
    assert (chosen.temperature, chosen.top_k) == (1.5, 7)
    assert (chosen.repetition_penalty, chosen.penalty_window) == (1.0, -1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"format": "xml"}, "'format' must be \"json\" or a JSON schema"),
        ({"format": {"type": "strin"}}, "'format.type': 'strin' is no type"),
        ({"think": True}, '"tiny" does not support thinking'),
        ({"think": "high"}, '"tiny" does not support thinking'),
        ({"suffix": "x"}, '"tiny" does not support insert'),
        ({"images": ["aGk="]}, '"tiny" does not support images'),
        ({"keep_alive": "abc"}, "'keep_alive'"),
        ({"keep_alive": True}, "'keep_alive'"),
        ({"model": "nothing"}, "model 'nothing' not found"),
    ],
)
def test_what_is_not_served_is_refused(make_site: MakeSite, fields: Json, said: str) -> None:
    response = generate(make_site(), "a", **fields)
    assert response.status_code == (404 if "not found" in said else 400)
    assert said in response.json()["error"]


def test_what_asks_for_nothing_is_accepted(make_site: MakeSite) -> None:
    nothing = {"format": "", "think": False, "suffix": "", "system": "", "template": ""}
    assert generate(make_site(), "a", **nothing, options=None, keep_alive=None).status_code == 200
    assert chat(make_site(), "a", format=None, tools=None).status_code == 200


def test_images_in_messages_are_refused_by_place(make_site: MakeSite) -> None:
    messages = [{"role": "user", "content": "a", "images": ["aGk="]}]
    response = chat(make_site(), messages=messages)
    assert response.status_code == 400
    assert "messages[0].images" in response.json()["error"]


def test_empty_requests_load_and_unload_ol25(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            for path, body, place in (
                ("/api/generate", {}, {"response": ""}),
                ("/api/generate", {"prompt": "", "stream": True}, {"response": ""}),
                (
                    "/api/chat",
                    {"messages": None},
                    {"message": {"role": "assistant", "content": ""}},
                ),
                ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
            ):
                response = await client.post(path, json={"model": "tiny", **body})
                assert response.headers["content-type"] == "application/json"
                answer = response.json()
                assert TIME.fullmatch(answer.pop("created_at"))
                assert answer == {"model": "tiny", **place, "done": True, "done_reason": "load"}
                running = (await client.get("/api/ps")).json()["models"]
                assert [model["name"] for model in running] == ["tiny:latest"]
                unload = {"model": "tiny", "keep_alive": 0, **body}
                assert (await client.post(path, json=unload)).json()["done_reason"] == "unload"
                assert (await client.get("/api/ps")).json() == {"models": []}
            missing = await client.post("/api/generate", json={"model": "x", "keep_alive": 0})
            assert missing.status_code == 404

    run(work())


@pytest.mark.parametrize("keep_alive", [0, "0", "0s"])
def test_zero_unloads_after_the_reply_k31(make_site: MakeSite, keep_alive: Any) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "tiny", "prompt": "a", "stream": False, "keep_alive": keep_alive}
            assert (await client.post("/api/generate", json=body)).json()["response"]
            await site.until(lambda: not site.manager.loaded())

    run(work())


def test_a_prompt_beyond_the_context_is_refused_unless_cutting_is_allowed_k10(
    make_site: MakeSite,
) -> None:
    site = make_site()
    system = [{"role": "system", "content": "S" * 20}]
    turns = [
        {"role": role, "content": letter * 50}
        for letter in "uvwx"
        for role in ("user", "assistant")
    ]
    messages = [*system, *turns, {"role": "user", "content": "y" * 20 + "a"}]
    body = {"model": "tiny", "messages": messages, "stream": False}
    refused, cut, generated, last_alone = post_all(
        site,
        "/api/chat",
        body,
        {**body, "truncate": True},
        {**body, "truncate": False},
        {**body, "truncate": True, "messages": [*system, {"role": "user", "content": "z" * 300}]},
    )
    for response in (refused, generated):
        assert response.status_code == 400
        assert "441 tokens" in response.json()["error"]
        assert "256 tokens" in response.json()["error"]
    assert last_alone.status_code == 400
    answer = cut.json()
    assert answer["message"]["content"] == "Hello world"
    assert answer["emberd"]["truncated_messages"] == 4
    assert answer["emberd"]["truncated_tokens"] == 200
    assert cut.headers["x-emberd-truncated"] == "200"
    (request,) = site.workers[0].requests
    assert bytes(request.token_ids) == b"S" * 20 + b"w" * 100 + b"x" * 100 + b"y" * 20 + b"a"
    assert generate(make_site(), "x" * 300, truncate=True).status_code == 400


def test_no_system_role_is_handled_alike_on_both_routes_k22(
    make_site: MakeSite, models_dir: Path
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    site = make_site(models_dir=models_dir)
    metadata = {"tokenizer.chat_template": template}
    write_model(models_dir / "plain.gguf", metadata=metadata)

    async def work() -> None:
        async with site.client() as client:
            system = {"role": "system", "content": "S"}
            messages = [system, {"role": "user", "content": "a"}]
            body = {"model": "plain", "messages": messages, "stream": False}
            assert (await client.post("/api/chat", json=body)).status_code == 200
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            body = {"model": "plain", "system": "S", "prompt": "a", "stream": False}
            assert (await client.post("/api/generate", json=body)).status_code == 200

    run(work())
    assert len({request.token_ids for request in site.workers[0].requests}) == 1


def test_typed_control_text_stays_text_k20(make_site: MakeSite) -> None:
    site = make_site()
    chat(site, "x<|eot|><|bos|>a")
    assert bytes(site.workers[0].requests[0].token_ids) == b"x<|eot|><|bos|>a"


def test_tool_history_reaches_the_template_ol22_ol23(make_site: MakeSite, models_dir: Path) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.p }}"
        "{% endfor %}{% if m.role == 'tool' %}[{{ m.name }}]{% endif %}{{ m.content or '' }}{% endfor %}"
    )
    site = make_site(models_dir=models_dir)
    metadata = {"tokenizer.chat_template": template}
    write_model(models_dir / "tools.gguf", metadata=metadata)
    histories = [
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "x", "function": {"name": "w", "arguments": arguments}}],
            },
            {"role": "tool", "content": "r", key: value},
            {"role": "user", "content": "a"},
        ]
        for arguments, key, value in (
            ({"p": "q"}, "tool_name", "w"),
            ('{"p": "q"}', "name", "w"),
            ({"p": "q"}, "tool_call_id", "x"),
        )
    ]
    bodies = [{"model": "tools", "messages": m, "stream": False} for m in histories]
    assert [r.status_code for r in post_all(site, "/api/chat", *bodies)] == [200] * 3
    assert {bytes(r.token_ids) for r in site.workers[0].requests} == {b"q[w]ra"}
