"""A site with one model, `tiny`, whose file is written once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emberd.config import Config
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
