"""EmbeddingGemma from a real daemon by the real SDKs, on the CPU device and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from numpy.typing import NDArray

from daemon import Daemon, running_daemon
from tiny_bidirectional import CONTEXT, WIDTH, TinyBidirectional, bidirectional_model
from tiny_gguf import BOS, EOS

TEXTS = ["hello world", "a", "task: search result | query: Straße", "z" * 100]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> TinyBidirectional:
    return bidirectional_model(folder / "gemma.gguf")


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.device)])
def embedder(
    request: pytest.FixtureRequest,
    folder: Path,
    tiny: TinyBidirectional,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Daemon]:
    work = tmp_path_factory.mktemp("embedder")
    env = {"EMBERD_VERIFY": "1"}
    with running_daemon(folder, work, env=env, device=request.param) as started:
        yield started


def ids_of(text: str) -> list[int]:
    """A byte is a token here, and a space is spelled U+2581."""
    return [BOS, *text.replace(" ", "\u2581").encode()[: CONTEXT - 2], EOS]


def expected(tiny: TinyBidirectional, text: str) -> NDArray[np.float64]:
    """The whole vector."""
    return tiny.vector(ids_of(text))


def near(found: Any, wanted: NDArray[np.float64]) -> bool:
    return bool(np.linalg.norm(np.asarray(found) - wanted) < 1e-3 * np.linalg.norm(wanted))


def test_vectors_are_right_through_both_sdks(embedder: Daemon, tiny: TinyBidirectional) -> None:
    wanted = [expected(tiny, text) for text in TEXTS]
    units = [vector / np.linalg.norm(vector) for vector in wanted]
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="gemma", input=TEXTS)
        assert answer.usage.prompt_tokens == sum(len(ids_of(text)) for text in TEXTS)
        for item, vector in zip(answer.data, units, strict=True):
            assert len(item.embedding) == WIDTH and near(item.embedding, vector)
        first = client.embeddings.create(model="gemma", input=TEXTS[0], dimensions=32)
        short = wanted[0][:32]
        assert near(first.data[0].embedding, short / np.linalg.norm(short))
    with ollama.Client(host=embedder.url) as local:
        found = local.embed("gemma", TEXTS).embeddings
        older = local.embeddings("gemma", TEXTS[0]).embedding
    assert all(near(one, vector) for one, vector in zip(found, units, strict=True))
    assert near(older, wanted[0])


def test_a_text_is_cut_only_where_that_is_asked_for(
    embedder: Daemon, tiny: TinyBidirectional
) -> None:
    body = {"model": "gemma", "input": "y" * 300}
    refused = embedder.http.post("/v1/embeddings", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    cut = embedder.http.post("/v1/embeddings", json=body | {"truncate": True}).json()
    wanted = expected(tiny, "y" * 300)
    assert near(cut["data"][0]["embedding"], wanted / np.linalg.norm(wanted))


def test_what_it_is_and_what_it_takes_is_told(embedder: Daemon) -> None:
    shown = embedder.http.post("/api/show", json={"model": "gemma"}).json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["details"]["family"] == "gemma-embedding"
    assert shown["model_info"]["gemma-embedding.embedding_length"] == WIDTH
    fit = embedder.http.get("/api/fit", params={"model": "gemma"}).json()
    assert fit["verdict"] == "fits" and "no KV cache" in fit["reason"]
    assert embedder.http.post("/api/embed", json={"model": "gemma", "input": "a"}).is_success
    (loaded,) = embedder.http.get("/api/ps").json()["models"]
    assert loaded["context_length"] == CONTEXT
    for route, prompt in (("/v1/completions", {"prompt": "a"}), ("/api/generate", {"prompt": "a"})):
        answer = embedder.http.post(route, json={"model": "gemma", **prompt})
        assert answer.status_code == 400 and "does not support generate" in answer.text
