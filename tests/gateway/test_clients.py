"""The public client packages against a listening daemon: openai-python (CL-03) and ollama-python (CL-04)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import ollama
import openai
import pytest

from site_fakes import CONTEXT, Site, run

MakeSite = Callable[..., Site]
A: Any = [{"role": "user", "content": "a"}]
E: Any = [{"role": "user", "content": "e"}]


def test_openai_python_lists_chats_streams_and_completes(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with (
            site.listening() as (url, _),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ):
            assert [model.id async for model in client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny:latest")).id == "tiny:latest"

            whole = await client.chat.completions.create(model="tiny", messages=A)
            assert whole.choices[0].message.content == "Hello world"
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.total_tokens == 4
            assert whole._request_id

            text, usage, finish = "", None, None
            async for chunk in await client.chat.completions.create(
                model="tiny", messages=A, stream=True, stream_options={"include_usage": True}
            ):
                if chunk.choices:
                    text += chunk.choices[0].delta.content or ""
                    finish = chunk.choices[0].finish_reason or finish
                usage = chunk.usage or usage
            assert (text, finish) == ("Hello world", "stop")
            assert usage == whole.usage

            async with client.chat.completions.stream(model="tiny", messages=A) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "Hello world"

            completion = await client.completions.create(model="tiny", prompt="a", max_tokens=1)
            assert completion.choices[0].text == "Hello"
            assert completion.choices[0].finish_reason == "length"

    run(work())


def test_openai_python_sees_errors_and_can_stop_a_stream(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.002})

    async def work() -> None:
        async with (
            site.listening() as (url, _),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(openai.NotFoundError, match="not found"):
                await client.chat.completions.create(model="nothing", messages=A)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(model="tiny", prompt="x" * 300)
            assert caught.value.code == "context_length_exceeded"

            stream = await client.chat.completions.create(model="tiny", messages=E, stream=True)
            async for _ in stream:
                break
            await stream.close()
            await site.until(lambda: site.workers[0].cancelled)

            with pytest.raises(openai.APIError, match="worker of 'fake' ended"):
                async for _ in await client.chat.completions.create(
                    model="tiny", messages=E, stream=True
                ):
                    site.workers[0].alive = False

    run(work())


@pytest.mark.slow
def test_openai_python_retries_a_full_queue(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, queue_limit=1)
    statuses: list[int] = []

    async def answered(response: httpx.Response) -> None:
        statuses.append(response.status_code)

    async def work() -> None:
        async with (
            site.listening() as (url, _),
            openai.DefaultAsyncHttpxClient(event_hooks={"response": [answered]}) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client,
        ):
            first = asyncio.ensure_future(client.chat.completions.create(model="tiny", messages=A))
            await site.until(lambda: site.service.num_sequences == 1)
            second = asyncio.ensure_future(client.chat.completions.create(model="tiny", messages=A))
            await site.until(lambda: 429 in statuses)
            site.workers[0].prefilled.set()
            answers = await asyncio.gather(first, second)
            assert {answer.choices[0].message.content for answer in answers} == {"Hello world"}

    run(work())


def test_ollama_python_lists_shows_chats_generates_loads_and_stops(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.002})

    async def work() -> None:
        async with site.listening() as (url, _), ollama.AsyncClient(host=url) as client:
            (listed,) = (await client.list()).models
            assert listed.model == "tiny:latest"
            assert listed.details is not None
            assert listed.details.family == "llama"
            shown = await client.show("tiny")
            assert shown.modelinfo is not None
            assert shown.modelinfo["llama.context_length"] == CONTEXT
            assert shown.capabilities == ["completion", "tools"]

            answer = await client.chat("tiny", A)
            assert answer.message.content == "Hello world"
            assert answer.eval_count == 3
            text = ""
            async for part in await client.chat("tiny", A, stream=True):
                text += part.message.content or ""
            assert text == "Hello world"
            assert part.done_reason == "stop"

            generated = await client.generate("tiny", "b", options={"stop": ["D E"]})
            assert generated.response == "A B C "
            async for part in await client.generate("tiny", "e", stream=True):
                if part.response:
                    break
            await site.until(lambda: site.workers[0].cancelled)

            assert (await client.generate("tiny", "", keep_alive=-1)).done_reason == "load"
            (running,) = (await client.ps()).models
            assert running.model == "tiny:latest"
            assert running.expires_at is not None
            assert (await client.generate("tiny", "", keep_alive=0)).done_reason == "unload"
            assert (await client.ps()).models == []

            with pytest.raises(ollama.ResponseError, match="not found") as caught:
                await client.chat("nothing", A)
            assert caught.value.status_code == 404
            with pytest.raises(ollama.ResponseError, match="does not support thinking"):
                await client.chat("tiny", A, think=True)

    run(work())
