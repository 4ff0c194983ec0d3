"""Split files (K24): any part opens the whole; a missing or foreign part is named before anything else is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from emberd.errors import ModelFileError
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import open_model
from tiny_gguf import random_model, split_gguf

SMALL = {"width": 64, "ffn": 64, "heads": 1, "kv_heads": 1}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return random_model(tmp_path / "whole" / "small.gguf", **SMALL)  # type: ignore[arg-type]


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    copy = tmp_path / "small.gguf"
    shutil.copy(whole, copy)
    parts = split_gguf(copy, max_tensors=8)
    assert [part.name for part in parts] == [f"small-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    return parts


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()


def test_any_part_opens_the_whole_model_k24(whole: Path, parts: list[Path]) -> None:
    with GGUFFile(whole) as single:
        for part in parts:
            with GGUFFile(part) as split:
                assert split.metadata["llama.block_count"] == single.metadata["llama.block_count"]
                assert split.tensors.keys() == single.tensors.keys()
                for name, info in single.tensors.items():
                    assert np.array_equal(split.data(split.tensors[name]), single.data(info)), name
                assert split.size == sum(part.stat().st_size for part in parts)


def test_a_split_model_has_the_spec_and_the_name_of_the_whole_k24(
    whole: Path, parts: list[Path]
) -> None:
    single, split = open_model(whole), open_model(parts[1])
    assert split.spec == single.spec
    single.close()
    split.close()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named_k24(parts: list[Path], missing: int) -> None:
    parts[missing].unlink()
    for part in parts:
        with pytest.raises(ModelFileError, match=f"{parts[missing].name} is missing"):
            GGUFFile(part)


def test_a_part_of_another_model_is_refused_k24(parts: list[Path]) -> None:
    shutil.copy(parts[2], parts[1])
    with pytest.raises(ModelFileError, match=r"is in another part too|says that it is part 3"):
        GGUFFile(parts[0])


def test_a_part_under_a_name_of_its_own_says_what_it_is_k24(parts: list[Path]) -> None:
    alone = parts[0].with_name("alone.gguf")
    shutil.copy(parts[0], alone)
    with pytest.raises(ModelFileError, match=r"alone\.gguf: is one of 3 parts"):
        GGUFFile(alone)


@pytest.mark.parametrize(
    "name",
    [
        "best-of-breed.gguf",
        "small-00001-of-00001.gguf",
        "a-00004-of-00003.gguf",
        "a-1-of-3.gguf",
    ],
)
def test_names_that_are_no_part_k24(tmp_path: Path, name: str) -> None:
    path = random_model(tmp_path / name, **SMALL)  # type: ignore[arg-type]
    GGUFFile(path).close()
