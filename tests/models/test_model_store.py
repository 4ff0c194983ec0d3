"""Names to files: discovery, tags, case, registered paths, what is refused (K37), what is left out (K28)."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from emberd.errors import BadRequestError, ConfigError, ModelFileError, ModelNotFoundError
from emberd.models.facts import ModelFacts, content_digest, file_marks, read_facts, size_label
from emberd.models.names import full_name, name_key, short_name
from emberd.models.store import ModelStore
from tiny_gguf import random_model


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(
        tmp_path_factory.mktemp("small") / "small.gguf", width=64, ffn=64, heads=1, kv_heads=1
    )


@pytest.fixture
def store(tmp_path: Path, small: Path) -> ModelStore:
    folder = tmp_path / "models"
    for name in ("Alpha.gguf", "beta/Q4.gguf", "beta/q8.gguf", "hf.co/owner/gamma/F16.gguf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(small, folder / name)
    (folder / "notes.txt").write_text("not a model")
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    return ModelStore(folder, tmp_path / "cache")


def test_models_are_found_and_named_by_file_and_folder(store: ModelStore) -> None:
    names = {model.name for model in store.models()}
    assert names == {"Alpha:latest", "beta:Q4", "beta:q8", "hf.co/owner/gamma:F16"}


def test_what_is_left_out_is_said_once(
    store: ModelStore, small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(small, store.models_dir / "a:b.gguf")
    for _ in range(2):
        assert "a:b" not in str([model.name for model in store.models()])
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2
    assert "a:b.gguf" in said[0] and "rename" in said[0]
    assert "broken.gguf" in said[1]


def test_newest_first(store: ModelStore) -> None:
    newest = store.models_dir / "beta" / "q8.gguf"
    os.utime(newest, (4e9, 4e9))
    assert store.models()[0].name == "beta:q8"


@pytest.mark.parametrize("seconds", [1e15, -1e15])
def test_a_time_that_no_date_holds_hides_no_model(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    def marks(path: Path) -> tuple[tuple[int, int], ...]:
        ((size, modified),) = file_marks(path)
        return ((size, int(seconds * 1e9) if path.name == "q8.gguf" else modified),)

    monkeypatch.setattr("emberd.models.store.file_marks", marks)
    listed = [model.name for model in store.models()]
    assert len(listed) == 4 and listed[0 if seconds > 0 else -1] == "beta:q8"
    assert store.find("beta:q8").modified.astimezone(timezone(timedelta(hours=14))).year in (
        9999,
        1970,
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("alpha", "Alpha:latest"),
        ("ALPHA:LATEST", "Alpha:latest"),
        (" Alpha ", "Alpha:latest"),
        ("beta:q4", "beta:Q4"),
        ("q8", "beta:q8"),  # a file stem that one model alone has
        ("hf.co/Owner/gamma:f16", "hf.co/owner/gamma:F16"),
    ],
)
def test_lookup_minds_neither_case_nor_latest(store: ModelStore, asked: str, found: str) -> None:
    assert store.find(asked).name == found


def test_unknown_names_are_not_found(store: ModelStore) -> None:
    for name in ("delta", "beta", "beta:q5", "alpha:q4", "C:/x"):
        with pytest.raises((ModelNotFoundError, BadRequestError)):
            store.find(name)
    with pytest.raises(ModelNotFoundError, match="model 'delta' not found"):
        store.find("delta")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/../../b",
        "/etc/passwd",
        "\\\\server\\share",
        "C:\\models\\x",
        "a\0b",
        "x" * 5000,
        "",
        "  ",
        "./a",
        "a//b",
        "a:b:c",
        "a\nb",
    ],
)
def test_what_no_model_is_called_is_refused_without_being_repeated_k37(
    store: ModelStore, name: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        store.find(name)
    assert not name.strip() or name not in caught.value.message
    assert caught.value.param == "model"


def test_a_broken_file_is_left_out_and_says_why_when_asked_for(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert "broken:latest" not in {model.name for model in store.models()}
    assert "broken.gguf" in caplog.text
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        store.find("broken")


def test_links_that_lead_nowhere_hide_nothing(store: ModelStore) -> None:
    for name in ("around", "round.gguf", "beta/around"):
        (store.models_dir / name).symlink_to(store.models_dir / name)
    (store.models_dir / "gone.gguf").symlink_to(store.models_dir / "nothing.gguf")
    assert len(store.models()) == 4 and store.find("beta:q8").name == "beta:q8"
    with pytest.raises(ModelNotFoundError):
        store.find("round")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_folders_that_may_not_be_read_hide_nothing(store: ModelStore) -> None:
    closed = store.models_dir / "closed"
    (closed / "deep").mkdir(parents=True)
    (store.models_dir / "into.gguf").symlink_to(closed / "deep")
    closed.chmod(0)
    assert len(store.models()) == 4


def test_tokens_that_are_no_strings_are_the_fault_of_that_file_alone(store: ModelStore) -> None:
    odd = {"tokenizer.ggml.tokens": [["a"], ["b"]]}
    random_model(store.models_dir / "odd.gguf", layers=1, metadata=odd)
    assert len(store.models()) == 4
    with pytest.raises(ModelFileError, match="tokens' is not a list of strings"):
        store.find("odd")


@pytest.mark.parametrize(
    ("key", "value"), [("model", "t5"), ("model", None), ("pre", "frob"), ("token_type", [1, 1])]
)
def test_a_vocabulary_that_cannot_be_served_is_a_fault_of_the_file(
    store: ModelStore, key: str, value: Any
) -> None:
    """It is not listed, and says why before anything is loaded."""
    odd = {f"tokenizer.ggml.{key}": value}
    random_model(store.models_dir / "odd.gguf", layers=1, metadata=odd)
    assert len(store.models()) == 4
    with pytest.raises(ModelFileError, match=rf"^odd\.gguf: tokenizer\.ggml\.{key} "):
        store.find("odd")


def test_what_nobody_foresaw_in_a_file_is_the_fault_of_that_file_alone(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(path: Path, cache_dir: Path) -> ModelFacts:
        if path.name == "q8.gguf":
            raise OverflowError("of a kind nobody thought of")
        return read_facts(path, cache_dir)

    monkeypatch.setattr("emberd.models.store.read_facts", stumble)
    for _ in range(2):
        assert len(store.models()) == 3
    assert caplog.text.count("reading the header of") == 1
    for ask in (
        lambda: store.find("beta:q8"),
        lambda: store.check_file(store.models_dir / "beta/q8.gguf"),
    ):
        with pytest.raises(ModelFileError, match=r"q8\.gguf: its header holds what cannot be"):
            ask()


def test_registered_files_are_served_under_their_stem(
    store: ModelStore, small: Path, tmp_path: Path
) -> None:
    path = tmp_path / "Else Where.gguf"
    shutil.copy(small, path)
    assert store.register(str(path)) == "Else Where:latest"
    assert store.find("else where").path == path.resolve()
    assert store.register("beta:q4") == "beta:Q4"
    with pytest.raises(ConfigError, match="no such file"):
        store.register(str(tmp_path / "missing.gguf"))


def test_a_changed_file_is_read_again(store: ModelStore, tmp_path: Path) -> None:
    before = store.find("alpha")
    random_model(store.models_dir / "Alpha.gguf", layers=1, width=64, ffn=64, heads=1, kv_heads=1)
    after = store.find("alpha")
    assert before.facts.digest != after.facts.digest
    assert before.facts.num_parameters > after.facts.num_parameters


def test_facts_come_from_the_cache_the_second_time(small: Path, tmp_path: Path) -> None:
    first = read_facts(small, tmp_path)
    (cached,) = (tmp_path / "models").iterdir()
    assert read_facts(small, tmp_path) == first
    cached.write_text("{")
    assert read_facts(small, tmp_path) == first


def test_a_cache_that_cannot_be_written_costs_only_time(small: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert len(read_facts(small, blocked).digest) == 64


def test_the_digest_follows_the_content_and_not_the_name(small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(small, copy)
    assert content_digest(copy) == content_digest(small)
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert content_digest(copy) != content_digest(small)


def test_a_missing_folder_holds_no_models(tmp_path: Path) -> None:
    assert ModelStore(tmp_path / "nowhere", tmp_path).models() == []


def test_names() -> None:
    assert full_name("a/b") == "a/b:latest"
    assert full_name("host:1/a") == "host:1/a:latest"
    assert short_name("a:latest") == "a"
    assert short_name("a:q4") == "a:q4"
    assert name_key("A/B") == name_key("a/b:LATEST")
    assert [size_label(n) for n in (134_515_008, 7_000_000_000, 999)] == ["134.5M", "7B", "999"]
