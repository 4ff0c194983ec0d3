"""Small rules of the wire that belong to no one route's tests (HT-16, OC-05, OL-28)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from emberd.config import Config
from emberd.gateway.ollama.shape import MAX_CONTEXT_BYTES
from site_fakes import Site, run, write_model

MakeSite = Callable[..., Site]


def test_silence_is_shorter_than_clients_wait_ht16() -> None:
    assert 0 < Config().ping <= 15


def test_names_of_tools_are_looked_up_by_their_call_oc05(
    make_site: MakeSite, models_dir: Path
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.name }}]{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{{ m.content or '' }}{% endfor %}"
    )
    write_model(models_dir / "tools.gguf", metadata={"tokenizer.chat_template": template})
    function = {"name": "w", "arguments": '{"p": "q"}'}
    messages = [
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]},
        {"role": "user", "content": "a"},
    ]
    site = make_site(models_dir=models_dir)

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "tools", "messages": messages}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

    run(work())
    assert bytes(site.workers[0].requests[0].token_ids) == b"w[w]ra"


def test_a_context_too_long_for_a_line_is_left_out_ol28(
    make_site: MakeSite, models_dir: Path
) -> None:
    write_model(models_dir / "long.gguf", metadata={"llama.context_length": 16384})
    site = make_site(models_dir=models_dir, ctx=16384)

    async def contexts() -> list[Any]:
        async with site.client() as client:
            answers = []
            for length in (5000, 10000):  # "120," is four bytes
                body = {"model": "long", "prompt": "x" * length + "a", "stream": False}
                answers.append((await client.post("/api/generate", json=body)).json())
            return [answer.get("context") for answer in answers]

    short, long = run(contexts())
    assert len(short) == 5004 and 4 * len(short) < MAX_CONTEXT_BYTES
    assert long is None
