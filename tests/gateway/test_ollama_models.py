"""What Ollama routes tell of models: tags, show, ps, version (OL-30..37)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from site_fakes import CONTEXT, Site, run, write_model
from tiny_gguf import random_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def post_all(site: Site, path: str, *bodies: Json) -> list[Any]:
    async def work() -> list[Any]:
        async with site.client() as client:
            return [await client.post(path, json=body) for body in bodies]

    return run(work())


@pytest.mark.parametrize(
    ("keep_alive", "seconds"), [(5, 5), ("1h30m", 5400), (-1, None), ("-1m", None), (None, 300)]
)
def test_ps_tells_when_a_model_goes_ol36(
    make_site: MakeSite, keep_alive: Any, seconds: float | None
) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "tiny", "keep_alive": keep_alive}
            await client.post("/api/generate", json=body)
            (model,) = (await client.get("/api/ps")).json()["models"]
            assert (model["size"], model["size_vram"], model["context_length"]) == (
                3000,
                0,
                CONTEXT,
            )
            assert model["emberd"]["blocks"] == model["emberd"]["blocks_free"] == CONTEXT // 16
            assert model["emberd"]["step"] == {"tokens": 64, "sequences": 32}
            expires = datetime.fromisoformat(model["expires_at"].replace("Z", "+00:00"))
            left = (expires - datetime.now(expires.tzinfo)).total_seconds()
            assert left > 1e9 if seconds is None else seconds - 2 < left <= seconds

    run(work())


def test_tags_ol30(make_site: MakeSite) -> None:
    async def work() -> None:
        async with make_site().client() as client:
            (model,) = (await client.get("/api/tags")).json()["models"]
            assert model["name"] == model["model"] == "tiny:latest"
            assert TIME.fullmatch(model["modified_at"])
            assert re.fullmatch("[0-9a-f]{64}", model["digest"])
            assert model["size"] > 1_000_000
            details = model["details"]
            assert details["families"] == [details["family"]] == ["llama"]
            assert details["format"] == "gguf"
            assert all(isinstance(details[k], str) for k in details if k != "families")
            assert model["capabilities"] == ["completion", "tools"]

    run(work())


@pytest.mark.parametrize("key", ["model", "name"])
def test_show_ol31(make_site: MakeSite, models_dir: Path, key: str) -> None:
    site = make_site(models_dir=models_dir)
    hints = {"general.sampling.temp": 0.25, "general.license": "mit"}
    write_model(models_dir / "tiny.gguf", metadata=hints)
    brief, verbose, missing = post_all(
        site, "/api/show", {key: "tiny"}, {key: "tiny", "verbose": True}, {key: "nothing"}
    )
    answer = brief.json()
    info = answer["model_info"]
    assert info["general.architecture"] == "llama"
    assert info["llama.context_length"] == CONTEXT
    assert info["general.parameter_count"] > 0
    assert info["tokenizer.ggml.tokens"] is None
    assert "tokenizer.chat_template" not in info
    assert len(verbose.json()["model_info"]["tokenizer.ggml.tokens"]) == 512
    assert answer["capabilities"] == ["completion", "tools"]
    assert answer["license"] == "mit"
    assert re.search(r"^num_ctx +256$", answer["parameters"], re.MULTILINE)
    assert re.search(r"^temperature +0\.25$", answer["parameters"], re.MULTILINE)
    assert ".Suffix" not in answer["template"]
    assert str(models_dir) not in json.dumps(answer)
    assert missing.status_code == 404


@pytest.mark.parametrize("verbose", [False, True])
def test_show_of_metadata_that_json_cannot_hold(
    make_site: MakeSite, models_dir: Path, verbose: bool
) -> None:
    """NaN, lists in lists, bytes that are no UTF-8: null and U+FFFD, never a 500."""
    site = make_site(models_dir=models_dir)
    odd = {
        "general.sampling.temp": float("nan"),
        "general.license": [1, 2],
        "a.numbers": [float("inf"), 1.0],
        "a.lists": [[1, 2], [3]],
        "a.words": ["a", b"\xff"],
    }
    write_model(models_dir / "tiny.gguf", metadata=odd)
    (shown,) = post_all(site, "/api/show", {"model": "tiny", "verbose": verbose})
    assert shown.status_code == 200, shown.text
    info = shown.json()["model_info"]
    assert info["general.sampling.temp"] is None
    assert shown.json()["license"] == "[1, 2]"
    wanted = {"a.numbers": [None, 1.0], "a.lists": [[1, 2], [3]], "a.words": ["a", "\ufffd"]}
    assert {key: info[key] for key in wanted} == (wanted if verbose else dict.fromkeys(wanted))


def test_show_says_what_a_gpu_gets_as_q8_0(make_site: MakeSite, models_dir: Path) -> None:
    site = make_site(models_dir=models_dir)
    models_dir.mkdir(exist_ok=True)
    random_model(models_dir / "plain.gguf", quant="IQ4_XS", layers=1)
    random_model(models_dir / "small.gguf", quant="IQ2_S", layers=1)
    plain, small = post_all(site, "/api/show", {"model": "plain"}, {"model": "small"})
    assert "types" not in plain.json()["emberd"]
    assert "IQ2_S become Q8_0" in small.json()["emberd"]["types"]


def test_every_listing_tells_the_context_that_is_served_om01_ol30_ol35(make_site: MakeSite) -> None:
    """Of a loaded model whose KV pool holds less than the file was trained for."""
    site = make_site()

    async def told(client: Any) -> set[int]:
        (tag,) = (await client.get("/api/tags")).json()["models"]
        (card,) = (await client.get("/v1/models")).json()["data"]
        shown = (await client.post("/api/show", json={"model": "tiny"})).json()["parameters"]
        num_ctx = re.search(r"^num_ctx +(\d+)$", shown, re.MULTILINE)
        assert num_ctx
        return {tag["context_length"], card["max_model_len"], int(num_ctx[1])}

    async def work() -> None:
        async with site.client() as client:
            assert await told(client) == {CONTEXT}
            await client.post("/api/generate", json={"model": "tiny"})
            worker = site.workers[0]
            worker.info = replace(worker.info, num_blocks=5)
            assert await told(client) == {5 * worker.info.block_size}

    run(work())


def test_version_is_dotted_numbers_ol37(make_site: MakeSite) -> None:
    async def work() -> None:
        async with make_site().client() as client:
            answer = (await client.get("/api/version")).json()
            assert tuple(int(part) for part in answer["version"].split(".")) >= (0, 6, 4)
            assert answer["emberd"]

    run(work())
