"""Sites with one model, `tiny`, and with models that write what a test is about; their files are written once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from constraints_harness import Asked, write_constrained_models
from parts_harness import Sites, write_part_models

from emberd.config import Config
from emberd.gguf.reader import GGUFFile
from emberd.text.tokenizer import Tokenizer
from grammar_player import Player
from pulling import NAME
from registry_fakes import Registry, running_registry
from site_fakes import Site, write_model
from tiny_encoder import encoder_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def make_site(tiny_model: Path) -> Callable[..., Site]:
    """Settings by name; other arguments are those of Site."""

    def make(site: dict[str, Any] | None = None, **settings: Any) -> Site:
        folders = {"models_dir": tiny_model.parent, "cache_dir": tiny_model.parent / "cache"}
        return Site(Config(**{**folders, **settings}), **(site or {}))

    return make


@pytest.fixture
def models_dir(tiny_model: Path, tmp_path: Path) -> Path:
    """A folder with the model that a test may change, for `make_site(models_dir=…)`."""
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(tiny_model, folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="session")
def embedding_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models: `tiny` generates, `encoder` embeds, `both` does both."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "tiny.gguf")
    write_model(folder / "both.gguf", metadata={"llama.pooling_type": 3})
    encoder_model(folder / "encoder.gguf")
    return folder


@pytest.fixture
def registry(tiny_model: Path) -> Iterator[Registry]:
    """A registry with the tiny model, called `small`, and a recipe."""
    with running_registry() as registry:
        registry.add(NAME, tiny_model.read_bytes(), system="Be kind. ", params={"top_k": 3})
        yield registry


@pytest.fixture
def pull_site(make_site: Callable[..., Site], registry: Registry, tmp_path: Path) -> Site:
    """A site without models that pulls from the registry."""
    return make_site(models_dir=tmp_path / "own", registries=(registry.url, "*"))


@pytest.fixture(scope="session")
def constrained_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("constraints")
    write_constrained_models(folder)
    return folder


@pytest.fixture(scope="session")
def player(constrained_models: Path) -> Player:
    """Whether a grammar takes a text, by the tokens of the constrained models."""
    file = GGUFFile(constrained_models / "plain.gguf")
    try:
        return Player(Tokenizer.from_metadata(file.metadata))
    finally:
        file.close()


@pytest.fixture
def ask(make_site: Callable[..., Site], constrained_models: Path) -> Callable[..., Asked]:
    """One request to one of the constrained models."""

    def asked(path: str, fields: dict[str, Any], model: str = "plain", last: str = "b") -> Asked:
        return Asked(make_site(models_dir=constrained_models, ctx=4096), path, fields, model, last)

    return asked


@pytest.fixture(scope="session")
def part_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    write_part_models(folder)
    return folder


@pytest.fixture
def sites(make_site: Callable[..., Site], part_models: Path) -> Sites:
    """Daemons of models that write calls and thoughts."""
    return Sites(lambda: make_site(models_dir=part_models, ctx=4096))
