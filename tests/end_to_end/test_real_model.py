"""SmolLM2 behind a daemon on the CPU device: llama.cpp's own texts, chats over both APIs, several at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon import Daemon, running_daemon
from dialects import CHAT, COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE, ROUTES, ask, ask_async, body

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "smollm2-135m-instruct.q4_1"  # the file's stem in lower case: case does not matter
CLOSE_CALL = 0.03
"""Log-probability between two candidates below which either may be taken (cases/README.md, "float")."""
QUESTION, ANSWER = "Name the capital of France.", "The capital of France is Paris."
ROUNDING = 0.45
"""The same between an exact run and one that rounds activations to 8 bits (cases/README.md, "8-bit")."""


@pytest.fixture(scope="module")
def real(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / "models").mkdir()
    (folder / "models" / smollm2_path.name).symlink_to(smollm2_path)
    with running_daemon(folder / "models", folder / "daemon", ctx=2048) as started:
        yield started


@pytest.fixture(scope="module")
def certain(cases_dir: Path) -> list[dict[str, Any]]:
    """Reference cases of short prompts in which no choice of the exact run is a close call, shortest text first."""
    reference = json.loads((cases_dir / "reference" / "smollm2-135m.json").read_text())
    cases = [
        case
        for case in reference["cases"]
        if len(case["prompt_ids"]) < 100 and min(_gaps(case["f32"])) > CLOSE_CALL
    ]
    assert len(cases) >= 4
    return sorted(cases, key=lambda case: len(case["f32"]["tokens"]))


def _gaps(run: dict[str, Any]) -> list[float]:
    return [likeliest[0][1] - likeliest[1][1] for likeliest in run["top_logprobs"]]


@pytest.mark.cases
def test_greedy_texts_are_those_of_the_exact_reference(
    real: Daemon, certain: list[dict[str, Any]]
) -> None:
    """Raw prompts, on both routes that take them."""
    for case in certain[:3]:
        count = len(case["f32"]["tokens"])
        reply = ask(real.http, COMPLETION, MODEL, case["prompt"], max_tokens=count)
        assert reply.text == case["f32"]["text"], case["index"]
        assert reply.num_prompt_tokens == len(case["prompt_ids"])
    case = certain[0]
    request = body(OLLAMA_GENERATE, MODEL, case["prompt"], stream=False)
    request["options"]["repeat_penalty"] = 1.0
    value = real.http.post(OLLAMA_GENERATE, json=request | {"raw": True}).json()
    assert (value["response"], value["done_reason"]) == (case["f32"]["text"], "stop")


@pytest.mark.cases
def test_reference_texts_four_at_once(real: Daemon, certain: list[dict[str, Any]]) -> None:
    async def scenario() -> list[str]:
        async with real.async_http() as http:
            replies = await asyncio.gather(
                *(
                    ask_async(http, COMPLETION, MODEL, case["prompt"], stream=True, max_tokens=16)
                    for case in certain[:4]
                )
            )
        return [reply.text for reply in replies]

    for case, text in zip(certain[:4], asyncio.run(scenario()), strict=True):
        assert text and case["f32"]["text"].startswith(text), case["index"]


def test_both_apis_answer_a_chat_alike(real: Daemon) -> None:
    """The template's prompt, a greedy reply, streamed or not: one text, and it is right."""
    replies = [
        ask(real.http, route, MODEL, QUESTION, stream=stream, max_tokens=40, **alike)
        for route, alike in ((CHAT, {}), (OLLAMA_CHAT, {"repeat_penalty": 1.0}))
        for stream in (False, True)
    ]
    assert len({(reply.text, reply.reason, reply.num_prompt_tokens) for reply in replies}) == 1
    assert "Paris" in replies[0].text and replies[0].reason == "stop"
    assert len(replies[1].pieces) > 1


def test_the_answer_that_the_readme_shows_is_that_of_every_device(real: Daemon) -> None:
    """Each of its tokens leads by more than the rounding on a GPU moves it."""
    request = body(CHAT, MODEL, QUESTION, stream=False, logprobs=True, top_logprobs=2)
    (choice,) = real.http.post(CHAT, json=request).json()["choices"]
    assert choice["message"]["content"] == ANSWER
    for token in choice["logprobs"]["content"]:
        first, second = (top["logprob"] for top in token["top_logprobs"])
        assert first - second > ROUNDING, token["token"]
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"question: {QUESTION}\nanswer:   {ANSWER}\n" in readme


def test_four_chats_at_once(real: Daemon) -> None:
    """A greedy chat beside three others, on all four routes at once, gives its text."""
    alone = ask(real.http, CHAT, MODEL, QUESTION, max_tokens=16).text

    async def scenario() -> Any:
        async with real.async_http() as http:
            return await asyncio.gather(
                *(
                    ask_async(http, route, MODEL, prompt, stream=True, max_tokens=16)
                    for route, prompt in zip(ROUTES, [QUESTION, "Hi", "Why?", "Go"], strict=True)
                )
            )

    replies = asyncio.run(scenario())
    assert replies[0].text == alone
    assert all(0 < reply.num_completion_tokens <= 16 for reply in replies)
