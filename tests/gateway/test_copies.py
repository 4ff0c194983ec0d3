"""Copies of a model beside it (OL-39), and names of files in a body that makes one (K37)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from site_fakes import Site, run


@pytest.fixture
def site(make_site: Callable[..., Site], models_dir: Path) -> Site:
    return make_site(models_dir=models_dir)


async def generate(client: httpx.AsyncClient, model: str, **body: Any) -> None:
    answer = await client.post("/api/generate", json={"model": model, **body})
    assert answer.status_code == 200, answer.text


async def delete(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.request("DELETE", "/api/delete", json={"model": name})


def test_deleting_a_copy_leaves_the_original_loaded_ol39(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            for name in ("unused", "used"):
                copied = await client.post(
                    "/api/copy", json={"source": "tiny", "destination": name}
                )
                assert copied.status_code == 200
            await generate(client, "tiny", keep_alive=-1)
            assert (await delete(client, "unused")).status_code == 200
            assert [model.name for model in site.manager.loaded()] == ["tiny:latest"]
            await generate(client, "tiny", keep_alive=0)
            await generate(client, "used")
            assert (await delete(client, "used")).status_code == 200
            assert site.manager.loaded() == []  # it was loaded as this

    run(work())


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "a\\x", "C:x", "", ".", "a\0"])
def test_files_of_a_body_have_no_way_out_k37(site: Site, name: str) -> None:
    async def work() -> None:
        async with site.client() as client:
            files = {name: "sha256:" + "a" * 64}
            answer = await client.post("/api/create", json={"model": "new", "files": files})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"].startswith("'files': a name is not a path")

    run(work())
