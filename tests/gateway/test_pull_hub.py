"""`/api/pull` from the hub (OL-02, OL-38): which file is meant, split ones, tokens, the cache, what a hub may say."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from hub_fakes import REVISION, Hub, running_hub
from pulling import left, names, pull
from registry_fakes import Registry
from site_fakes import Site, run
from tiny_gguf import random_model, split_gguf

MakeSite = Callable[..., Site]
REPOSITORY = "owner/Small-GGUF"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as hub:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, bytes]:
    """Models that differ, by quantization."""
    sizes: dict[str, Any] = {"width": 64, "ffn": 64, "heads": 1, "kv_heads": 1}
    return {
        label: random_model(tmp_path / f"{label}.gguf", seed=seed, **sizes).read_bytes()
        for seed, label in enumerate(("Q2_K", "Q4_K_M", "Q8_0"))
    }


@pytest.fixture
def site(
    make_site: MakeSite, hub: Hub, contents: dict[str, bytes], registry: Registry, tmp_path: Path
) -> Site:
    files = {f"small-{label.lower()}.gguf": data for label, data in contents.items()}
    hub.add(REPOSITORY, **files, **{"mmproj-f16.gguf": b"GGUF", "README.md": b"hello"})
    return make_site(models_dir=tmp_path / "own", registries=(registry.url, "*"))


def kept(site: Site, name: str) -> bytes:
    return site.store.find(name).path.read_bytes()


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (f"hf.co/{REPOSITORY}", "Q4_K_M"),
        (REPOSITORY, "Q4_K_M"),
        (f"huggingface.co/{REPOSITORY}:latest", "Q4_K_M"),
        (f"https://hf.co/{REPOSITORY}", "Q4_K_M"),
        (f"hf.co/{REPOSITORY}:Q8_0", "Q8_0"),
        (f"{REPOSITORY}:q2_k", "Q2_K"),
        (f"{REPOSITORY}:small-q8_0.gguf", "Q8_0"),
    ],
)
def test_the_tag_chooses_the_quantization_ol02(
    site: Site, contents: dict[str, bytes], name: str, label: str
) -> None:
    async def work() -> None:
        async with site.client() as client:
            lines = await pull(client, name)
            assert lines[0] == {"status": "pulling manifest"}
            assert lines[-1] == {"status": "success"}
            told = [line for line in lines if "total" in line]
            assert told[-1]["completed"] == told[-1]["total"] == len(contents[label])
            asked = name.removeprefix("https://")
            assert kept(site, asked) == contents[label]
            tag = "" if ":" in asked else ":latest"
            assert await names(client) == [asked + tag]

    run(work())


def test_what_is_not_there_is_told_with_what_is(site: Site, hub: Hub) -> None:
    async def work() -> None:
        async with site.client() as client:
            said = (await pull(client, f"{REPOSITORY}:Q5_K_M"))[-1]["error"]
            assert "not found" in said and "Q2_K, Q4_K_M, Q8_0" in said
            assert "no such repository" in (await pull(client, "hf.co/owner/none"))[-1]["error"]
            hub.add("owner/plain", **{"model.safetensors": b"x"})
            assert "no GGUF file" in (await pull(client, "owner/plain"))[-1]["error"]
            reply = await client.post(
                "/api/pull", json={"model": "hf.co/owner/none", "stream": False}
            )
            assert reply.status_code == 404
            for name in ("hf.co/owner", "hf.co/a/b/c", "hf.co/../x", "hf.co/a/b:c:d"):
                reply = await client.post("/api/pull", json={"model": name})
                assert reply.status_code == 400, name
            assert left(site) == set()

    run(work())


def test_what_the_hub_does_not_have_may_be_in_the_registry(
    site: Site, registry: Registry, tiny_model: Path
) -> None:
    registry.add("someone/thing:latest", tiny_model.read_bytes())

    async def work() -> None:
        async with site.client() as client:
            assert (await pull(client, "someone/thing"))[-1] == {"status": "success"}
            assert await names(client) == ["someone/thing:latest"]
            assert "no such repository" in (await pull(client, "someone/else"))[-1]["error"]

    run(work())


def test_the_token_goes_to_the_hub_and_no_further(
    site: Site, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"

    async def work() -> None:
        async with site.client() as client:
            assert "HF_TOKEN" in (await pull(client, f"hf.co/{REPOSITORY}"))[-1]["error"]
            monkeypatch.setenv("HF_TOKEN", "hf_secret")
            assert (await pull(client, f"hf.co/{REPOSITORY}"))[-1] == {"status": "success"}
            assert {authorization for _, authorization in hub.seen[-2:]} == {"Bearer hf_secret"}
            assert hub.storage.authorizations == {None}

    run(work())


def test_a_gated_repository_says_what_to_do(site: Site, hub: Hub) -> None:
    hub.gated = True

    async def work() -> None:
        async with site.client() as client:
            assert "is gated" in (await pull(client, f"hf.co/{REPOSITORY}"))[-1]["error"]
            assert left(site) == set()

    run(work())


def test_offline_asks_nobody(site: Site, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    async def work() -> None:
        async with site.client() as client:
            assert "HF_HUB_OFFLINE" in (await pull(client, f"hf.co/{REPOSITORY}"))[-1]["error"]
            assert hub.seen == []

    try:
        huggingface_hub.utils._http.close_session()
        run(work())
    finally:
        monkeypatch.undo()
        huggingface_hub.utils._http.close_session()


def test_a_cut_pull_goes_on_and_wrong_bytes_are_gone_k32(
    site: Site, hub: Hub, contents: dict[str, bytes]
) -> None:
    storage, name = hub.storage, f"hf.co/{REPOSITORY}"
    largest = max(contents, key=lambda label: len(contents[label]))

    async def work() -> None:
        async with site.client() as client:
            storage.cut = 0.6
            assert "cut after" in (await pull(client, f"{name}:{largest}"))[-1]["error"]
            assert await names(client) == []
            assert (await pull(client, f"{name}:{largest}"))[-1] == {"status": "success"}
            assert str(storage.requests[-1][1]).startswith("bytes=")
            assert kept(site, f"{name}:{largest}") == contents[largest]
            before = left(site)
            storage.wrong = {digest: bytes(len(data)) for digest, data in storage.blobs.items()}
            other = next(label for label in contents if label != largest)
            assert "digest" in (await pull(client, f"{name}:{other}"))[-1]["error"]
            assert left(site) == before

    run(work())


def test_a_split_model_is_pulled_whole_k24(
    site: Site, hub: Hub, contents: dict[str, bytes], tmp_path: Path
) -> None:
    whole = tmp_path / "big-Q4_K_M.gguf"
    whole.write_bytes(contents["Q4_K_M"])
    parts = split_gguf(whole, max_tensors=8)
    hub.add("owner/big", **{f"Q4_K_M/{part.name}": part.read_bytes() for part in parts})

    async def work() -> None:
        async with site.client() as client:
            lines = await pull(client, "hf.co/owner/big:Q4_K_M")
            assert lines[-1] == {"status": "success"}
            assert len({line["digest"] for line in lines if "digest" in line}) == 3
            assert await names(client) == ["hf.co/owner/big:Q4_K_M"]
            assert {part.name for part in parts} <= left(site)
            body = {"model": "hf.co/owner/big:Q4_K_M"}
            assert (await client.request("DELETE", "/api/delete", json=body)).status_code == 200
            assert list(site.store.pulled.root.rglob("*.gguf")) == []
            del hub.repositories["owner/big"][f"Q4_K_M/{parts[1].name}"]
            said = (await pull(client, "hf.co/owner/big"))[-1]["error"]
            assert f"lacks the part Q4_K_M/{parts[1].name}" in said

    run(work())


def test_a_file_that_the_hub_keeps_in_git_is_checked_by_its_size(
    site: Site, hub: Hub, contents: dict[str, bytes]
) -> None:
    hub.in_git = set(hub.repositories[REPOSITORY])

    async def work() -> None:
        async with site.client() as client:
            lines = await pull(client, REPOSITORY)
            assert lines[-1] == {"status": "success"}
            assert {line["status"] for line in lines if "total" in line} == {
                "pulling small-q4_k_m.gguf"
            }
            assert kept(site, REPOSITORY) == contents["Q4_K_M"]

    run(work())


def test_system_and_params_files_of_a_repository_are_used(site: Site, hub: Hub) -> None:
    hub.add(
        REPOSITORY,
        system=b"You are small.",
        params=b'{"temperature": 0.1, "stop": ["<x>"]}',
        template=b"{{ .Prompt }}",
    )

    async def work() -> None:
        async with site.client() as client:
            await pull(client, REPOSITORY)
            recipe = site.store.find(REPOSITORY).recipe
            assert recipe.system == "You are small."
            assert dict(recipe.parameters) == {"temperature": 0.1, "stop": ("<x>",)}
            assert (recipe.template, recipe.go_template) == ("", "{{ .Prompt }}")

    run(work())


def test_what_lies_in_the_hugging_face_cache_is_not_fetched_again(
    make_site: MakeSite, hub: Hub, site: Site, contents: dict[str, bytes], tmp_path: Path
) -> None:
    snapshot = tmp_path / "hub" / "models--owner--Small-GGUF" / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    cached = snapshot / "small-q4_k_m.gguf"
    cached.write_bytes(contents["Q4_K_M"])
    site.store.places = ("huggingface",)

    async def work() -> None:
        async with site.client() as client:
            assert (await pull(client, f"hf.co/{REPOSITORY}"))[-1] == {"status": "success"}
            assert hub.storage.requests == []
            assert site.store.find(f"hf.co/{REPOSITORY}:latest").path == cached
            body = {"model": f"hf.co/{REPOSITORY}:latest"}
            await client.request("DELETE", "/api/delete", json=body)
            assert cached.is_file()
            shutil.rmtree(snapshot)
            site.store.forget()
            assert (await pull(client, f"hf.co/{REPOSITORY}"))[-1] == {"status": "success"}
            assert len(hub.storage.requests) == 1

    run(work())


@pytest.mark.parametrize(
    "siblings",
    [
        [{"rfilename": "../../x-Q4_0.gguf", "size": 4, "lfs": None, "blobId": "b"}],
        [{"rfilename": "a/.hidden-Q4_0.gguf", "size": 4, "lfs": None, "blobId": "b"}],
        [{"rfilename": "x\\..\\y-Q4_0.gguf", "size": 4, "lfs": None, "blobId": "b"}],
        [{"rfilename": "x.gguf", "size": -1, "lfs": None}],
        [{"rfilename": "x.gguf", "size": "big", "lfs": None}],
        [
            {
                "rfilename": "x.gguf",
                "size": 4,
                "lfs": {"size": 4, "sha256": "../x", "pointerSize": 1},
            }
        ],
        [{"size": 4}],
        [],
        None,
    ],
)
def test_what_a_hub_says_is_checked_k37(site: Site, hub: Hub, siblings: Any) -> None:
    hub.info = {"siblings": siblings}

    async def work() -> None:
        async with site.client() as client:
            reply = (await pull(client, f"hf.co/{REPOSITORY}"))[-1]
            assert "error" in reply and "internal" not in reply["error"]
            found = site.store.models_dir.parent.rglob("*x-Q4_0*")
            assert all(path.is_relative_to(site.store.pulled.root) for path in found)
            assert await names(client) == []

    run(work())


def test_a_hub_that_cannot_be_reached_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")

    async def work() -> None:
        async with site.client() as client:
            reply = await client.post("/api/pull", json={"model": "hf.co/a/b", "stream": False})
            assert reply.status_code == 502 and "hub cannot be asked" in reply.json()["error"]

    run(work())
