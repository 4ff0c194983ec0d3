"""Streams over real sockets: their bytes (K01, K02, OC-27..32, OL-01), keep-alive bytes, hang-ups (K13), death."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT = "/v1/chat/completions"


def chat_body(trigger: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": trigger}]
    return {"model": "tiny", "messages": messages, "stream": True, **fields}


def stream(site: Site, path: str, body: Json) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.http() as client:
            return await client.post(path, json=body)

    return run(work())


def events(text: str) -> list[Any]:
    """The data of each event; anything that is not exactly `data: …` and a blank line fails."""
    assert text.endswith("\n\n")
    parts = text[:-2].split("\n\n")
    assert all(re.fullmatch(r"data: [^\n]+", part) for part in parts), parts
    assert not any(part.startswith("data: data:") for part in parts)
    datas = [part.removeprefix("data: ") for part in parts]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def lines(text: str) -> list[Json]:
    assert text.endswith("\n")
    parts = text[:-1].split("\n")
    assert all(parts), "a blank line"
    return [json.loads(part) for part in parts]


def normal(text: str) -> str:
    """A stream without what differs from run to run."""
    text = re.sub(r'"id":"[a-z]+-[0-9a-f]{24}"', '"id":"ID"', text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    text = re.sub(r'"(created_at)":"[^"]+"', r'"\1":"T"', text)
    text = re.sub(r'"(\w+_(?:duration|ms|per_second))":[\d.e+-]+', r'"\1":1', text)
    return re.sub(r"emberd-[\d.a-z+]+", "emberd-V", text)


def test_the_bytes_of_a_chat_stream_oc28(make_site: MakeSite) -> None:
    response = stream(make_site({"delay": 0.005}), CHAT, chat_body("a"))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]
    head = (
        'data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny",'
        '"system_fingerprint":"emberd-V","choices":[{"index":0,"delta":'
    )
    rest = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert normal(response.text) == (
        f'{head}{{"role":"assistant","content":""}}{rest}'
        f'{head}{{"content":"Hello"}}{rest}'
        f'{head}{{"content":" world"}}{rest}'
        f'{head}{{}},"logprobs":null,"finish_reason":"stop"}}],'
        '"timings":{"prompt_n":0,"cache_n":1,"prompt_ms":1,"prompt_per_second":1,'
        '"predicted_n":3,"predicted_ms":1,"predicted_per_second":1}}\n\n'
        "data: [DONE]\n\n"
    )


def test_the_bytes_of_generate_and_chat_lines_ol01(make_site: MakeSite) -> None:
    tail = (
        '"done":true,"done_reason":"stop","total_duration":1,"load_duration":1,"prompt_eval_count":1,'
        '"prompt_eval_duration":1,"eval_count":3,"eval_duration":1,"emberd":{"cached_tokens":1}'
    )
    head = '{"model":"tiny","created_at":"T",'
    response = stream(
        make_site({"delay": 0.005}), "/api/generate", {"model": "tiny", "prompt": "a"}
    )
    assert response.headers["content-type"] == "application/x-ndjson"
    assert normal(response.text) == (
        f'{head}"response":"Hello","done":false}}\n'
        f'{head}"response":" world","done":false}}\n'
        f'{head}"response":"",{tail},"context":[97,256,257,510]}}\n'
    )
    message = '"message":{"role":"assistant","content":'
    response = stream(make_site({"delay": 0.005}), "/api/chat", chat_body("a"))
    assert normal(response.text) == (
        f'{head}{message}"Hello"}},"done":false}}\n'
        f'{head}{message}" world"}},"done":false}}\n'
        f'{head}{message}""}},{tail}}}\n'
    )


def test_usage_comes_once_at_the_end_and_equals_that_of_the_whole_answer_k02(
    make_site: MakeSite,
) -> None:
    body = chat_body("b", stream_options={"include_usage": True, "include_obfuscation": True})
    *chunks, closing, usage, done = events(stream(make_site(), CHAT, body).text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert closing["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in (*chunks, closing))
    assert len({(c["id"], c["created"], c["model"]) for c in (*chunks, closing, usage)}) == 1
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert [("role" in c["choices"][0]["delta"]) for c in chunks] == [True] + [False] * (
        len(chunks) - 1
    )
    assert not any("error" in chunk for chunk in chunks)
    whole = stream(make_site(), CHAT, chat_body("b", stream=False)).json()
    assert usage["usage"] == whole["usage"]


def test_streams_of_several_choices_and_prompts(make_site: MakeSite) -> None:
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "stream": True}
    *chunks, done = events(stream(make_site(), "/v1/completions", body).text)
    assert done == "[DONE]"
    texts = ["", "", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert chunk["object"] == "text_completion"
        texts[choice["index"]] += choice["text"]
    assert texts == ["Hello world", "Hello world", "A B C D E F G", "A B C D E F G"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons.count("stop") == 4


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
def test_no_half_character_and_no_part_of_a_stop_string_is_sent_k03_k04(
    make_site: MakeSite, path: str
) -> None:
    site = make_site({"delay": 0.002})
    text = stream(site, path, chat_body("c")).text
    assert "🙂" in text
    assert "\ufffd" not in text
    stop = {"stop": ["D E"], "options": {"stop": ["D E"]}}
    text = stream(make_site({"delay": 0.002}), path, chat_body("b", **stop)).text
    assert "D" not in re.sub("DONE", "", text)


def test_silence_is_filled_with_bytes_of_the_dialect_ht13(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, ping=0.05)
    came = {CHAT: "", "/api/chat": ""}

    async def read(client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("POST", path, json=chat_body("a")) as reply:
            async for text in reply.aiter_text():
                came[path] += text

    async def work() -> None:
        async with site.http() as client:
            openai = asyncio.ensure_future(read(client, CHAT))
            ollama = asyncio.ensure_future(read(client, "/api/chat"))
            await site.until(
                lambda: min(came[CHAT].count(": ping\n\n"), len(came["/api/chat"])) > 1
            )
            site.workers[0].prefilled.set()
            await asyncio.gather(openai, ollama)
            assert events(came[CHAT].replace(": ping\n\n", ""))[-1] == "[DONE]"
            first, *_, last = lines(came["/api/chat"])
            assert first["message"]["content"] == ""
            assert first["done"] is False
            assert last["done"] is True

    run(work())


def test_headers_come_before_the_prompt_is_read_ht11(make_site: MakeSite) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.http() as client:
            for path in (CHAT, "/api/chat"):
                async with client.stream("POST", path, json=chat_body("a")) as response:
                    assert response.status_code == 200
            await site.until(lambda: len(site.workers[0].cancelled) == 2)

    run(work())


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
def test_a_hang_up_during_prefill_cancels_c8(
    make_site: MakeSite, path: str, streamed: bool
) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.http() as client:
            waiting = asyncio.ensure_future(client.post(path, json=chat_body("e", stream=streamed)))
            await site.until(lambda: site.service.num_sequences == 1)
            waiting.cancel()
            await site.until(lambda: site.workers[0].cancelled)
            await site.until(lambda: site.service.num_sequences == 0)
            (model,) = site.manager.loaded()
            assert model.active == 0

    run(work())


def test_a_hang_up_while_the_model_loads_leaves_nothing_held(make_site: MakeSite) -> None:
    async def work() -> None:
        site = make_site({"load_gate": asyncio.Event()})
        async with site.http() as client:
            waiting = asyncio.ensure_future(client.post(CHAT, json=chat_body("a")))
            await site.until(lambda: site.manager._loading)
            listed = await asyncio.wait_for(client.get("/v1/models"), 1)  # C1
            assert listed.status_code == 200
            waiting.cancel()
            await site.until(lambda: not site.manager._loading)  # nobody waits for it any more
            assert not site.manager.loaded()
            site.load_gate.set()
            again = await client.post(CHAT, json=chat_body("a"))
            assert again.status_code == 200
            assert [model.active for model in site.manager.loaded()] == [0]

    run(work())


@pytest.mark.slow
def test_hanging_up_a_hundred_times_leaves_the_counts_where_they_were_k13(
    make_site: MakeSite,
) -> None:
    site = make_site({"delay": 0.001})

    async def hang_up(client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("POST", path, json=chat_body("e", max_tokens=2000)) as response:
            seen = 0
            async for _ in response.aiter_lines():
                seen += 1
                if seen == 3:
                    return

    async def work() -> None:
        process = psutil.Process()
        async with site.http() as client:
            await hang_up(client, CHAT)
            await site.until(lambda: site.service.num_sequences == 0)
            before = process.num_fds()
            for path in (CHAT, "/api/chat") * 50:
                await hang_up(client, path)
            await site.until(lambda: site.service.num_sequences == 0)
            worker = site.workers[0]
            assert not worker.running
            assert len(worker.cancelled) == 101
            await site.until(lambda: process.num_fds() <= before)
            assert site.manager.loaded()[0].active == 0

    run(work())


def test_a_gone_client_does_not_end_the_replies_of_others_ht14(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.002})

    async def work() -> None:
        async with site.http() as client:
            others = [
                asyncio.ensure_future(client.post(CHAT, json=chat_body("e", max_tokens=40)))
                for _ in range(3)
            ]
            gone = asyncio.ensure_future(client.post(CHAT, json=chat_body("e")))
            await site.until(lambda: site.service.num_sequences == 4)
            gone.cancel()
            for response in await asyncio.gather(*others):
                closing, done = events(response.text)[-2:]
                assert done == "[DONE]"
                assert closing["choices"][0]["finish_reason"] == "length"

    run(work())


def test_the_worker_dies_in_the_middle_oc30_ol12(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.002})

    async def work() -> None:
        async with site.http() as client:
            replies = [
                asyncio.ensure_future(client.post(path, json=chat_body("e", stream=streamed)))
                for path in (CHAT, "/api/chat")
                for streamed in (True, False)
            ]
            await site.until(lambda: site.service.num_sequences == 4)
            await site.until(lambda: site.workers[0].num_tokens >= 40)
            site.workers[0].alive = False
            sse, openai, ndjson, ollama = await asyncio.gather(*replies)
            *chunks, error = events(sse.text)
            assert len(chunks) > 1
            assert error["error"]["type"] == "api_error"
            assert "worker of 'fake' ended" in error["error"]["message"]
            assert set(error["error"]) == {"message", "type", "param", "code"}
            assert lines(ndjson.text)[-1] == {"error": error["error"]["message"]}
            assert openai.status_code == ollama.status_code == 500
            assert openai.json()["error"] == error["error"]
            again = await client.post(CHAT, json=chat_body("a", stream=False))
            assert again.status_code == 200
            assert len(site.workers) == 2

    run(work())


def test_text_that_is_there_at_once_goes_out_in_one_chunk(make_site: MakeSite) -> None:
    async def work() -> None:
        site = make_site({"prefill": False})
        async with site.client() as client:
            waiting = asyncio.ensure_future(client.post(CHAT, json=chat_body("b", stream=False)))
            await site.until(lambda: site.service.num_sequences == 1)
            (generation,) = site.service._generations
            site.workers[0].prefilled.set()
            await site.until(lambda: not site.workers[0].running)
            assert (await waiting).json()["choices"][0]["message"]["content"] == "A B C D E F G"
            assert await generation.take(0.01) == []

    run(work())
