"""Embeddings from real daemons by the real SDKs: a tiny encoder, generative models with a pooling, MiniLM."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from numpy.typing import NDArray

from daemon import Daemon, running_daemon
from emberd.gguf.reader import GGUFFile
from emberd.text.tokenizer import Tokenizer
from tiny_encoder import TinyEncoder, encoder_model
from tiny_gguf import random_model

ORACLE = Path(__file__).parent.parent / "reference" / "minilm_oracle.json"
TEXTS = ["hello world", "the unable", "a, b and c?", "no"]


def unit(vector: Any) -> NDArray[np.float64]:
    array = np.asarray(vector, np.float64)
    result: NDArray[np.float64] = array / np.linalg.norm(array)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedding-models")
    random_model(folder / "both.gguf", "qwen3", width=64, metadata={"qwen3.pooling_type": 3})
    random_model(folder / "mean.gguf", "llama", width=64, metadata={"llama.pooling_type": 1})
    return folder


@pytest.fixture(scope="module")
def tiny(folder: Path) -> TinyEncoder:
    return encoder_model(folder / "encoder.gguf")


@pytest.fixture(scope="module")
def embedder(
    folder: Path, tiny: TinyEncoder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    with running_daemon(
        folder, tmp_path_factory.mktemp("embedder"), ctx=256, max_batch_tokens=64
    ) as started:
        yield started


def expected(tiny: TinyEncoder, text: str) -> NDArray[np.float64]:
    with GGUFFile(tiny.path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    ids = tokenizer.encode(text, add_special=True, parse_special=True)
    return unit(tiny.states(ids).mean(0))


def test_vectors_of_an_encoder_are_right_through_both_sdks(
    embedder: Daemon, tiny: TinyEncoder
) -> None:
    wanted = [expected(tiny, text) for text in TEXTS]
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="encoder", input=TEXTS)
        for item, vector in zip(answer.data, wanted, strict=True):
            assert np.allclose(item.embedding, vector, atol=1e-5)
    with ollama.Client(host=embedder.url) as local:
        found = [*local.embed("encoder", TEXTS).embeddings]
        older = unit(local.embeddings("encoder", TEXTS[0]).embedding)
    for one, vector in zip([*found, older], [*wanted, wanted[0]], strict=True):
        assert np.allclose(one, vector, atol=1e-5)


def test_many_requests_at_once_get_their_own_vectors(embedder: Daemon, tiny: TinyEncoder) -> None:
    """As a web page does that cuts a document into chunks and sends one request for each."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = [
        f"{a} the {b} {'hello ' * (i % 40)}"
        for i, (a, b) in enumerate(zip(letters, letters[::-1], strict=True))
    ]

    async def work() -> list[Any]:
        async with embedder.async_http() as http:

            async def ask(text: str) -> Any:
                body = {"model": "encoder", "input": text}
                answer = await http.post("/v1/embeddings", json=body)
                return answer.json()["data"][0]["embedding"]

            return await asyncio.gather(*map(ask, texts))

    for text, found in zip(texts, asyncio.run(work()), strict=True):
        assert np.allclose(found, expected(tiny, text), atol=1e-5), text


@pytest.mark.parametrize("model", ["both", "mean"])
def test_a_generative_model_embeds_while_it_generates(embedder: Daemon, model: str) -> None:
    """Texts longer than a step among them: chunks, company and the order of texts change nothing."""
    texts = ["a", "hello " * 40, "hello " * 39 + "hellp ", "z" * 200]

    def embed(inputs: list[str]) -> list[NDArray[np.float64]]:
        answer = embedder.http.post("/v1/embeddings", json={"model": model, "input": inputs})
        assert answer.status_code == 200, answer.text
        return [np.array(item["embedding"]) for item in answer.json()["data"]]

    alone = [embed([text])[0] for text in texts]
    body = {"model": model, "prompt": "b", "max_tokens": 100, "ignore_eos": True, "temperature": 0}

    async def together() -> tuple[Any, Any]:
        async with embedder.async_http() as http:
            first = asyncio.ensure_future(http.post("/v1/completions", json=body))
            answer = await http.post("/v1/embeddings", json={"model": model, "input": texts})
            return answer.json(), (await first).json()

    embedded, reply = asyncio.run(together())
    assert reply["usage"]["completion_tokens"] == 100
    for item, vector in zip(embedded["data"], alone, strict=True):
        assert np.allclose(item["embedding"], vector, atol=1e-4)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert np.abs(alone[1] - alone[2]).max() > 1e-3
    assert embedder.http.post("/v1/completions", json=body).json()["choices"] == reply["choices"]


def test_what_a_model_cannot_do_is_said_without_loading_it(embedder: Daemon) -> None:
    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="does not support generate"):
            client.chat.completions.create(
                model="encoder", messages=[{"role": "user", "content": "hello"}]
            )
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="encoder", input="hello " * 100)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.model
def test_minilm_from_a_daemon_is_sentence_transformers(minilm_path: Path, tmp_path: Path) -> None:
    """The issue's bar is a cosine of 0.999; the oracle's file says how it was made."""
    models = tmp_path / "minilm"
    models.mkdir()
    (models / "minilm.gguf").symlink_to(minilm_path)
    oracle = json.loads(ORACLE.read_text(encoding="utf-8"))
    with (
        running_daemon(models, tmp_path / "daemon") as started,
        openai.OpenAI(base_url=f"{started.url}/v1", api_key="none") as client,
    ):
        answer = client.embeddings.create(model="minilm", input=oracle["texts"])
    assert answer.usage.prompt_tokens == sum(map(len, oracle["ids"]))
    for item, vector in zip(answer.data, oracle["vectors"], strict=True):
        wanted = np.frombuffer(base64.b64decode(vector), "<f2")
        assert unit(item.embedding) @ unit(wanted) > 0.9999
