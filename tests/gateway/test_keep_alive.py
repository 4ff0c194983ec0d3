"""K31 on every route that loads a model: what keep_alive may be, and that it counts from the reply's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
_CHAT = {"messages": [{"role": "user", "content": "a"}]}
ROUTES: dict[str, Json] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": _CHAT,
    "/api/chat": _CHAT | {"stream": False},
    "/api/generate": {"prompt": "a", "stream": False},
}


@pytest.mark.parametrize("path", ROUTES)
def test_values_of_keep_alive_on_every_route_k31(make_site: MakeSite, path: str) -> None:
    site = make_site()
    values = [
        (-1, inf),
        ("-1", inf),
        ("-1m", inf),
        (5, 5),
        ("5m", 300),
        ("1h30m", 5400),
        (None, 300),
        (7, 7),
        ("", 300),
    ]

    async def work() -> None:
        async with site.client() as client:
            for value, seconds in values:
                body = {"model": "tiny", **ROUTES[path], "keep_alive": value}
                assert (await client.post(path, json=body)).status_code == 200
                (model,) = site.manager.loaded()
                assert (model.keep_alive, model.active) == (seconds, 0), value

    run(work())
    assert len(site.workers) == 1


@pytest.mark.parametrize("path", ROUTES)
def test_zero_unloads_once_the_reply_is_there_k31(make_site: MakeSite, path: str) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            for value in (0, "0", "0s"):
                body = {"model": "tiny", **ROUTES[path], "keep_alive": value}
                assert (await client.post(path, json=body)).status_code == 200
                assert site.manager.loaded() == []

    run(work())
    assert len(site.workers) == 3


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("value", ["abc", "5 parsecs", True, [5], {}])
def test_what_is_no_time_is_refused_k31(make_site: MakeSite, path: str, value: Any) -> None:
    site = make_site()

    async def work() -> Any:
        async with site.client() as client:
            body = {"model": "tiny", **ROUTES[path], "keep_alive": value}
            return await client.post(path, json=body)

    response = run(work())
    assert response.status_code == 400 and "keep_alive" in response.text
    assert not site.workers


@pytest.mark.parametrize("path", ROUTES)
def test_a_running_reply_is_not_cut_and_the_latest_value_counts_k31(
    make_site: MakeSite, path: str
) -> None:
    site = make_site()
    site.prefill = False

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "tiny", **ROUTES[path]}
            first = asyncio.ensure_future(client.post(path, json={**body, "keep_alive": 0}))
            await site.until(lambda: site.workers and site.workers[0].running)
            second = asyncio.ensure_future(client.post(path, json={**body, "keep_alive": 60}))
            await site.until(lambda: len(site.workers[0].running) == 2)
            site.workers[0].prefilled.set()
            assert [(await one).status_code for one in (first, second)] == [200, 200]
            (model,) = site.manager.loaded()
            assert model.keep_alive == 60

    run(work())
