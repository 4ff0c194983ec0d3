"""Progress of a prompt in streams that ask for it, and none in those that do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from emberd.gateway import generate
from emberd.inspection import BatchStatus, SequenceStatus
from site_fakes import FakeWorker, Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
_CHAT: Json = {"messages": [{"role": "user", "content": "a"}]}
ROUTES: dict[str, Json] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {"prompt": "a"},
    "/api/chat": _CHAT,
    "/api/generate": {"prompt": "a"},
}
SEEN = [(0, 1), (0, 0), (16, None), (16, None), (48, None)]  # computed tokens and position


def streamed(site: Site, path: str, **fields: Any) -> list[Json]:
    """The stream's values; the prompt is done once all of SEEN was seen."""
    body = {"model": "tiny", "stream": True, **ROUTES[path], **fields}

    async def work() -> str:
        async with site.client() as client:
            reply = asyncio.ensure_future(client.post(path, json=body))
            await site.until(lambda: site.workers)
            worker = site.workers[0]
            if fields.get("return_progress"):
                await site.until(lambda: worker.num_looks >= len(SEEN) + 2)
            worker.prefilled.set()
            answer: httpx.Response = await reply
            return answer.text

    lines = [line.removeprefix("data: ") for line in run(work()).splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def inspect(self: Any, whole: bool = True) -> BatchStatus:
        computed, position = SEEN[min(self.num_looks, len(SEEN) - 1)]
        self.num_looks += 1
        state = "prefill" if position is None else "waiting"
        return BatchStatus(
            tuple(
                SequenceStatus(name, state, position, 50, computed, 16 if computed else 0, 0, 4, 0)
                for name in sorted(self.running)
            )
        )

    monkeypatch.setattr(FakeWorker, "num_looks", 0, raising=False)
    monkeypatch.setattr(FakeWorker, "inspect", inspect)
    monkeypatch.setattr(generate, "PROGRESS_SECONDS", 0.005)


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_tells_how_far_its_prompt_is(make_site: MakeSite, path: str) -> None:
    values = streamed(make_site({"prefill": False}), path, return_progress=True)
    at = [n for n, one in enumerate(values) if "prompt_progress" in (one.get("emberd") or one)]
    found = [(values[n].get("emberd") or values[n])["prompt_progress"] for n in at]
    assert [(one["processed"], one["position"]) for one in found] == [
        (0, 1), (0, 0), (16, None), (48, None),
    ]  # fmt: skip
    assert [(one["total"], one["cache"]) for one in found] == [(50, 0)] * 2 + [(50, 16)] * 2
    times = [one["time_ms"] for one in found]
    assert times == sorted(times)
    texts = [n for n, one in enumerate(values) if "Hello" in json.dumps(one)]
    assert max(at) < min(texts)
    for n in at:
        choices = values[n].get("choices")
        assert choices is None or (len(choices) == 1 and not choices[0].get("text"))
        assert values[n].get("done") is not True


@pytest.mark.parametrize("path", ROUTES)
def test_nobody_else_is_told(make_site: MakeSite, path: str) -> None:
    site = make_site({"prefill": False})
    assert "prompt_progress" not in json.dumps(streamed(site, path))
    assert getattr(site.workers[0], "num_looks", 0) == 0
