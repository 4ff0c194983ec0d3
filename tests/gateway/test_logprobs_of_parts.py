"""Log-probabilities of calls and thoughts: of every token that was sampled, beside what it tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emberd.gateway.events import Logprobs, Piece, ReasoningDelta, TextDelta, Told, merged, pieces
from emberd.protocol import TokenLogprobs
from site_fakes import CONTEXT, Site, run
from tiny_gguf import script_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
MESSAGES = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
HERMES = "{# <tool_call> #}{% if tools %}{% endif %}" + MESSAGES
CALL = ["Sure.", " <tool", "_call>", '{"name": "w", "arg', 'uments": {"p": 1}}', "\n</tool_call>"]
THOUGHT = ["<think>", "Hm", ".", "</thi", "nk>\n\n", "Yes."]
TOOL = {"type": "function", "function": {"name": "w"}}


def ask(site: Site, **fields: Any) -> tuple[Json, list[Json]]:
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "parts", "messages": messages, "logprobs": True, **fields}

    async def work() -> tuple[Json, list[Json]]:
        async with site.client() as client:
            whole = (await client.post("/v1/chat/completions", json=body)).json()
            streamed = await client.post("/v1/chat/completions", json={**body, "stream": True})
            lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
            return whole["choices"][0], [json.loads(line)["choices"][0] for line in lines[:-1]]

    return run(work())


def tokens(choices: list[Json]) -> list[str]:
    return [e["token"] for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]


def write(folder: Path, script: list[str], template: str) -> None:
    metadata = {"tokenizer.chat_template": template}
    script_model(folder / "parts.gguf", {"x": script}, context_length=CONTEXT, metadata=metadata)


def test_of_calls(make_site: MakeSite, models_dir: Path) -> None:
    write(models_dir, CALL, HERMES)
    choice, chunks = ask(make_site(models_dir=models_dir), tools=[TOOL])
    assert choice["message"]["content"] == "Sure."
    assert choice["finish_reason"] == "tool_calls"
    assert tokens([choice]) == tokens(chunks) == CALL
    beside_text = [chunk for chunk in chunks if chunk["delta"].get("content")]
    assert tokens(beside_text) == ["Sure."]


def test_of_thoughts(make_site: MakeSite, models_dir: Path) -> None:
    write(models_dir, THOUGHT, "{# </think> #}{{ enable_thinking }}" + MESSAGES)
    for fields in ({}, {"reasoning": {"exclude": True}}):
        choice, chunks = ask(make_site(models_dir=models_dir), **fields)
        assert choice["message"]["content"] == "Yes."
        assert tokens([choice]) == tokens(chunks) == THOUGHT
        assert "Yes." in tokens([chunk for chunk in chunks if chunk["delta"].get("content")])


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -1.0)


def test_events_are_merged_and_paired() -> None:
    one, two, three = map(entry, (1, 2, 3))
    events = [
        Logprobs((one,)),
        TextDelta("a"),
        Logprobs((two,)),
        TextDelta("b"),
        Logprobs((three,)),
        ReasoningDelta("c"),
    ]
    joined = merged(events)
    assert joined == [
        Logprobs((one,)),
        TextDelta("ab"),
        Logprobs((two, three)),
        ReasoningDelta("c"),
    ]
    news = [Told(0, event) for event in joined] + [Told(1, Logprobs((one,)))]
    assert list(pieces(news)) == [
        Piece(0, None, (one,)),
        Piece(0, TextDelta("ab"), (two, three)),
        Piece(0, ReasoningDelta("c")),
        Piece(1, None, (one,)),
    ]
