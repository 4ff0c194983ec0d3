"""The ollama package against a real daemon and a registry of the test: pull, create, copy, delete, show, list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from daemon import running_daemon
from hub_fakes import running_hub
from registry_fakes import Registry, running_registry
from tiny_gguf import script_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "w.gguf"
    return script_model(path, {"1": ["A B", " C D", " E F", " G"]})


@pytest.fixture(scope="module")
def registry(weights: Path) -> Iterator[Registry]:
    with running_registry() as registry:
        registry.add("library/script:latest", weights.read_bytes(), params={"temperature": 0})
        yield registry


@pytest.fixture(scope="module")
def client(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ollama.Client]:
    folder = tmp_path_factory.mktemp("daemon")
    with (
        running_daemon(folder / "models", folder, registries=registry.url) as daemon,
        ollama.Client(host=daemon.url) as client,
    ):
        yield client


def names(client: ollama.Client) -> set[str]:
    return {str(model.model) for model in client.list().models}


def test_pull_then_chat_ol38(client: ollama.Client, registry: Registry) -> None:
    lines = list(client.pull("script", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    weights = [line for line in lines if line.digest and line.total and line.total > 10_000]
    assert weights[-1].completed == weights[-1].total
    assert names(client) == {"script:latest"}
    reply = client.chat("script", [{"role": "user", "content": "1"}])
    assert reply.message.content == "A B C D E F G"
    assert client.pull("script").status == "success"  # it is there: nothing is fetched
    assert registry.num_weights() == 1


def test_a_pull_that_fails_raises_ol38(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.pull("nobody")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="not found"):
        list(client.pull("nobody", stream=True))


def test_create_copy_show_delete_ol39_ol40(client: ollama.Client, weights: Path) -> None:
    client.pull("script")
    made = client.create(
        "mario", from_="script", system="You are Mario.", parameters={"top_k": 7}, stream=False
    )
    assert made.status == "success"
    shown = client.show("mario")
    assert shown.parameters is not None and "top_k" in shown.parameters
    assert shown.details is not None and shown.details.parent_model == "script:latest"
    assert client.copy("mario", "luigi").status == "success"
    digest = client.create_blob(weights)
    statuses = [
        line.status for line in client.create("mine", files={"w.gguf": digest}, stream=True)
    ]
    assert statuses[-1] == "success"
    assert names(client) == {f"{name}:latest" for name in ("script", "mario", "luigi", "mine")}
    for name in ("mario", "luigi", "mine"):
        assert client.delete(name).status == "success"
    assert names(client) == {"script:latest"}
    with pytest.raises(ollama.ResponseError) as caught:
        client.delete("mario")
    assert caught.value.status_code == 404


def test_push_is_not_supported_ol40(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not supported") as caught:
        client.push("script")
    assert caught.value.status_code == 501


def test_pull_from_the_hub_that_the_environment_names_ol02(
    weights: Path, tmp_path: Path, registry: Registry
) -> None:
    with running_hub() as hub:
        hub.token = "hf_mine"
        hub.add("owner/script-GGUF", **{"script-Q4_K_M.gguf": weights.read_bytes()})
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_mine"}
        with (
            running_daemon(
                tmp_path / "models", tmp_path, env=env, registries=registry.url
            ) as daemon,
            ollama.Client(host=daemon.url) as client,
        ):
            assert client.pull("hf.co/owner/script-GGUF:Q4_K_M").status == "success"
            assert names(client) == {"hf.co/owner/script-GGUF:Q4_K_M"}
            reply = client.generate(
                "hf.co/owner/script-GGUF:Q4_K_M", "1", options={"temperature": 0}
            )
            assert reply.response == "A B C D E F G"
            assert client.delete("hf.co/owner/script-GGUF:Q4_K_M").status == "success"
