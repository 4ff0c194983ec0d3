"""Model files as a daemon meets them: K24, K25 and K28 of bug_kinds.md, and every file of cases/gguf."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon import Daemon, running_daemon
from dialects import CHAT, COMPLETION, ROUTES, ask, body, refused
from tiny_gguf import VOCAB_SIZE, random_model, script_model, split_gguf

pytestmark = pytest.mark.slow

WIDTH = 256
MAX_GROWTH = 100 << 20
"""Bytes by which refusing a file may raise the daemon's peak memory."""
STRING, UINT32, UINT64, ARRAY = 8, 4, 10, 9


def peak_memory(pid: int) -> int:
    """Bytes; Linux."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


# K24


def test_k24_a_split_model_answers_as_the_whole(daemon: Daemon, models_dir: Path) -> None:
    """K24: listed once, the text of the single file, and a missing part is named before anything is loaded."""
    random_model(models_dir / "whole.gguf")
    for name in ("split", "torn"):
        shutil.copy(models_dir / "whole.gguf", models_dir / f"{name}.gguf")
        parts = split_gguf(models_dir / f"{name}.gguf", max_tensors=8)
    parts[1].unlink()
    shutil.copy(models_dir / "whole.gguf", models_dir / "best-of-breed.gguf")
    listed = [model["name"] for model in daemon.http.get("/api/tags").json()["models"]]
    assert listed.count("split:latest") == 1 and "torn:latest" not in listed
    assert "best-of-breed:latest" in listed
    texts = [
        ask(daemon.http, COMPLETION, name, "tell me", max_tokens=16).text
        for name in ("whole", "split")
    ]
    assert texts[0] == texts[1]
    for route in ROUTES:
        said = refused(daemon.http, route, body(route, "torn", "hi", stream=False))
        assert f"{parts[1].name} is missing" in said
    assert "torn" not in daemon.loaded()


# K25


def test_k25_shared_embeddings(daemon: Daemon, models_dir: Path, rng: np.random.Generator) -> None:
    """K25: without output.weight the embedding serves, counted once; with it, that one serves."""
    embedding, other = rng.normal(0, 0.1, (2, VOCAB_SIZE, WIDTH)).astype(np.float32)
    for name, output in (("shared", None), ("copied", embedding), ("different", other)):
        random_model(
            models_dir / f"{name}.gguf",
            tensors={"token_embd.weight": embedding, "output.weight": output},
        )
    texts = {
        name: ask(daemon.http, COMPLETION, name, "tell me", max_tokens=16).text
        for name in ("shared", "copied", "different")
    }
    assert texts["shared"] == texts["copied"] != texts["different"]
    sizes = {name: model["size"] for name, model in daemon.loaded().items()}
    assert sizes["copied"] == sizes["different"] == sizes["shared"] + embedding.nbytes


@pytest.mark.parametrize(
    "tensor", ["token_embd.weight", "blk.1.attn_k.weight", "output_norm.weight"]
)
def test_k25_any_other_tensor_missing_is_named(
    daemon: Daemon, models_dir: Path, tensor: str
) -> None:
    """K25."""
    name = f"without-{tensor.replace('.', '-')}"
    random_model(models_dir / f"{name}.gguf", tensors={tensor: None})
    for route in ROUTES:
        assert tensor in refused(daemon.http, route, body(route, name, "hi", stream=False))


# K28


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(num_tensors: int = 0, num_keys: int = 1, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


ARCHITECTURE = entry(b"general.architecture", STRING, string(b"llama"))


def aligned(alignment: int) -> bytes:
    number = struct.pack("<I", alignment)
    return header(0, 2) + ARCHITECTURE + entry(b"general.alignment", UINT32, number)


def tensor(*dims: int, kind: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, 0)
    return header(1, 1) + ARCHITECTURE + string(b"token_embd.weight") + sizes + bytes(256)


HOSTILE = {
    "key-count-2p63": header(0, 1 << 63),
    "tensor-count-2p63": header(1 << 63, 1) + ARCHITECTURE,
    "key-length-2p63": header() + struct.pack("<Q", 1 << 63) + b"general",
    "string-length-2p63": header() + entry(b"a", STRING, struct.pack("<Q", 1 << 63) + b"x"),
    "array-length-2p62": header() + entry(b"a", ARRAY, struct.pack("<IQ", UINT64, 1 << 62)),
    "string-array-2p62": header() + entry(b"a", ARRAY, struct.pack("<IQ", STRING, 1 << 62)),
    "arrays-1000-deep": header()
    + entry(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 999 + struct.pack("<IQ", UINT32, 0)),
    "sizes-overflow": tensor(1 << 33, 1 << 33),
    "sizes-wrap-to-little": tensor((1 << 62) + 16, 4),
    "nine-dimensions": tensor(*[2] * 9),
    "alignment-3": aligned(3),
    "alignment-2p30": aligned(1 << 30),
    "empty-key": header(0, 2) + ARCHITECTURE + entry(b"", UINT32, bytes(4)),
    "tensor-type-200": tensor(16, 4, kind=200),
    "key-type-13": header() + entry(b"a", 13, bytes(8)),
    "version-99": header(version=99) + ARCHITECTURE,
    "version-0": header(version=0) + ARCHITECTURE,
}


@pytest.fixture(scope="module")
def file_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon with one good model, loaded, and its folder for bad ones."""
    folder = tmp_path_factory.mktemp("files")
    models = folder / "models"
    models.mkdir()
    script_model(models / "good.gguf", {"1": ["yes"]})
    with running_daemon(models, folder / "daemon", kv_memory="8MiB") as started:
        assert ask(started.http, CHAT, "good", "1").text == "yes"
        yield started, models


def assert_good_still_serves(daemon: Daemon) -> None:
    listed = [model["id"] for model in daemon.http.get("/v1/models").json()["data"]]
    tags = [model["name"] for model in daemon.http.get("/api/tags").json()["models"]]
    assert listed == ["good"] and tags == ["good:latest"]
    assert ask(daemon.http, CHAT, "good", "1").text == "yes"


@pytest.mark.parametrize("name", HOSTILE)
def test_k28_hostile_headers(file_daemon: tuple[Daemon, Path], name: str) -> None:
    """K28: refused with a reason on both APIs, in little memory, with the other models listed."""
    daemon, models = file_daemon
    path = models / f"bad-{name}.gguf"
    path.write_bytes(HOSTILE[name])
    before = peak_memory(daemon.pid)
    for route in ROUTES:
        message = refused(daemon.http, route, body(route, path.stem, "1", stream=False))
        assert path.name in message and str(models) not in message and len(message) < 500
    assert daemon.http.post("/api/show", json={"model": path.stem}).status_code == 400
    assert_good_still_serves(daemon)
    assert peak_memory(daemon.pid) - before < MAX_GROWTH
    path.unlink()


def test_k28_a_good_header_cut_anywhere(
    file_daemon: tuple[Daemon, Path], rng: np.random.Generator
) -> None:
    """K28: twenty places in the header, and one in the tensors' data."""
    daemon, models = file_daemon
    good = (models / "good.gguf").read_bytes()
    size_of_header = good.index(b"output_norm.weight")
    cuts = {0, 3, 4, 23, 24, len(good) - 1, *rng.integers(25, size_of_header, 15).tolist()}
    for cut in sorted(cuts):
        path = models / f"cut-{cut}.gguf"
        path.write_bytes(good[:cut])
        assert path.name in refused(daemon.http, CHAT, body(CHAT, path.stem, "1", stream=False))
    assert_good_still_serves(daemon)
    for path in models.glob("cut-*.gguf"):
        path.unlink()


# cases/gguf


@pytest.fixture(scope="module")
def case_daemon(
    cases_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Daemon, list[dict[str, Any]]]]:
    """A daemon whose folder holds all the case files and one good model."""
    folder = tmp_path_factory.mktemp("cases")
    models = folder / "models"
    shutil.copytree(cases_dir / "gguf", models)
    script_model(models / "good.gguf", {"1": ["yes"]})
    cases = json.loads((cases_dir / "gguf" / "cases.json").read_text())
    with running_daemon(models, folder / "daemon", kv_memory="8MiB") as started:
        assert ask(started.http, CHAT, "good", "1").text == "yes"
        yield started, cases


@pytest.mark.cases
def test_case_files_that_must_be_refused(
    case_daemon: tuple[Daemon, list[dict[str, Any]]],
) -> None:
    """Each with a reason, whichever route asks, and no more than a header is read for it."""
    daemon, cases = case_daemon
    before = peak_memory(daemon.pid)
    wanted = [case["id"] for case in cases if case["expect"] == "refuse"]
    assert len(wanted) > 20
    for i, name in enumerate(wanted):
        for route in (ROUTES[i % 2], ROUTES[2 + i % 2]):
            message = refused(daemon.http, route, body(route, name, "hi", stream=bool(i % 3)))
            assert f"{name}.gguf" in message and "Traceback" not in message
    assert ask(daemon.http, CHAT, "good", "1").text == "yes"
    assert peak_memory(daemon.pid) - before < MAX_GROWTH
    listed = {model["id"] for model in daemon.http.get("/v1/models").json()["data"]}
    assert "good" in listed and not listed & set(wanted)


@pytest.mark.cases
def test_case_files_that_may_load(case_daemon: tuple[Daemon, list[dict[str, Any]]]) -> None:
    """Valid ones generate; of the others a refusal is fine, a 500 is not; raw prompts do without a template."""
    daemon, cases = case_daemon
    for case in cases:
        if case["expect"] == "refuse":
            continue
        for route in ROUTES:
            request = body(route, case["id"], "hi", stream=False, max_tokens=4)
            response = daemon.http.post(route, json=request)
            allowed = {200} if case["expect"] == "load" else {200, 400}
            if case["group"] == "template" and route == COMPLETION:
                allowed = {200}
            assert response.status_code in allowed, (case["id"], route, response.text)
    assert ask(daemon.http, CHAT, "good", "1").text == "yes"
