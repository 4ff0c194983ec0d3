"""The digest of a model's files: of all bytes, and kept for files that do not change."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from emberd.gguf import digest
from emberd.gguf.digest import model_digest


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that are opened for their bytes."""
    opened: list[str] = []
    plain = Path.open

    def counted(self: Path, mode: str = "r", *args: object, **more: object) -> object:
        if mode == "rb":
            opened.append(self.name)
        return plain(self, mode, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", counted)
    return opened


def test_every_byte_counts_and_is_read_once(
    tmp_path: Path, rng: np.random.Generator, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_CHUNK", 1000)
    path, cache = tmp_path / "m.gguf", tmp_path / "cache"
    content = bytearray(rng.bytes(4321))
    path.write_bytes(content)
    first = model_digest(path, cache)
    assert len(first) == 32 and model_digest(path, cache) == first
    assert reads == ["m.gguf"]
    content[int(rng.integers(len(content)))] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # so that a coarse clock does not hide the change
    assert model_digest(path, cache) != first and len(reads) == 2
    for kept in cache.rglob("*.json"):
        kept.write_text('{"file": 1}')
    model_digest(path, cache)
    assert len(reads) == 3, "what is kept and broken counts as nothing"


def test_all_parts_of_a_split_model_count(tmp_path: Path, rng: np.random.Generator) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(rng.bytes(100))
    first = model_digest(parts[0], tmp_path / "cache")
    assert model_digest(parts[1], tmp_path / "cache") == first
    parts[1].write_bytes(rng.bytes(101))
    assert model_digest(parts[0], tmp_path / "cache") != first
