"""Responses of the background: asked for by id, cancelled, failed (OR-02)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from responses_harness import RESPONSES

from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]


def test_a_response_of_the_background_goes_on_without_its_caller_or02(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.01})

    async def work() -> None:
        async with site.client() as client:

            async def begin(text: str) -> Json:
                body = {"model": "tiny", "input": text, "background": True}
                answer: Json = (await client.post(RESPONSES, json=body)).json()
                assert (answer["status"], answer["background"]) == ("in_progress", True)
                assert answer["output"] == [] and answer["usage"] is None
                return answer

            async def look(id: str) -> Json:
                answer: Json = (await client.get(f"{RESPONSES}/{id}")).json()
                return answer

            begun = await begin("b")
            assert await look(begun["id"]) == begun
            early = {"model": "tiny", "input": "a", "previous_response_id": begun["id"]}
            assert (await client.post(RESPONSES, json=early)).status_code == 404
            while (done := await look(begun["id"]))["status"] == "in_progress":
                await asyncio.sleep(0.005)
            assert done["status"] == "completed" and done["created_at"] == begun["created_at"]
            assert done["output"][0]["content"][0]["text"] == "A B C D E F G"
            path = f"{RESPONSES}/{begun['id']}/cancel"
            assert (await client.post(path)).json() == done  # it stays as it is

            endless = await begin("e")
            await site.until(lambda: site.workers[0].running)
            cancelled = (await client.post(f"{RESPONSES}/{endless['id']}/cancel")).json()
            assert cancelled["status"] == "cancelled" and cancelled["completed_at"] is None
            assert await look(endless["id"]) == cancelled
            gone = await begin("e")
            assert (await client.delete(f"{RESPONSES}/{gone['id']}")).json()["deleted"] is True
            await site.until(lambda: not site.workers[0].running)
            assert "error" in await look(gone["id"])

            failing = await begin("e")
            site.workers[0].alive = False
            while (failed := await look(failing["id"]))["status"] == "in_progress":
                await asyncio.sleep(0.005)
            assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"

            for id, status in ((begun["id"], 200), ("resp_1", 404)):
                assert (await client.post(f"{RESPONSES}/{id}/cancel")).status_code == status

    run(work())


def test_only_responses_of_the_background_are_cancelled(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            made = (await client.post(RESPONSES, json={"model": "tiny", "input": "a"})).json()
            refused = await client.post(f"{RESPONSES}/{made['id']}/cancel")
            assert refused.status_code == 400 and "background" in refused.json()["error"]["message"]

    run(work())
