"""Commands pull, create, cp and rm: on the models folder where no daemon runs, else through the daemon."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import Emberd, ScriptedDaemon

from registry_fakes import Registry, running_registry
from tiny_gguf import random_model


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return random_model(tmp_path / "w.gguf", width=64, ffn=64, heads=1, kv_heads=1)


@pytest.fixture
def registry(weights: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with running_registry() as registry:
        registry.add("library/small:latest", weights.read_bytes(), system="S")
        monkeypatch.setenv("EMBERD_REGISTRIES", registry.url)
        yield registry


def listed(emberd_cli: Emberd) -> list[str]:
    return sorted(row["name"] for row in emberd_cli("list", "--json").json)


def test_pull_without_a_daemon_ol38(emberd_cli: Emberd, registry: Registry) -> None:
    result = emberd_cli("pull", "small")
    assert result.code == 0
    lines = result.out.splitlines()
    assert (lines[0], lines[-1]) == ("pulling manifest", "success")
    assert listed(emberd_cli) == ["small:latest"]
    failed = emberd_cli("pull", "nobody")
    assert failed.code == 1 and "not found" in failed.err


def test_pull_through_the_daemon(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    progress = {"status": "pulling 0123", "digest": "sha256:01", "total": 4, "completed": 4}
    lines = [{"status": "pulling manifest"}, progress, progress, {"status": "success"}]
    scripted_daemon.posts["/api/pull"] = (200, lines)
    result = emberd_cli("pull", "hf.co/o/r:Q4_0", "--insecure")
    assert result.out.splitlines() == ["pulling manifest", "pulling 0123", "success"]
    assert scripted_daemon.asked == [("/api/pull", {"model": "hf.co/o/r:Q4_0", "insecure": True})]
    scripted_daemon.posts["/api/pull"] = (200, [{"error": "no such thing"}])
    failed = emberd_cli("pull", "x")
    assert failed.code == 1 and "no such thing" in failed.err


def test_pull_of_a_url(emberd_cli: Emberd, registry: Registry, tmp_path: Path) -> None:
    digest = registry.manifests["library/small:latest"]["layers"][0]["digest"]
    url = f"{registry.url}/v2/library/small/blobs/{digest}"
    refused = emberd_cli("pull", "mine", "--url", url)
    assert refused.code == 1 and "--insecure" in refused.err
    assert emberd_cli("pull", "mine", "--url", url, "--insecure").code == 0
    assert listed(emberd_cli) == ["mine:latest"]
    registry.wrong[digest] = b"no model"
    failed = emberd_cli("pull", "other", "--url", url, "--insecure")
    assert failed.code == 1 and "error: other:latest: is not a GGUF file" in failed.err
    assert listed(emberd_cli) == ["mine:latest"]
    pulled = tmp_path / "models" / "pulled" / "blobs"
    assert [path.name for path in pulled.iterdir()] == [digest.replace(":", "-")]


def test_pull_of_a_url_that_another_pull_has_just_brought(
    emberd_cli: Emberd, weights: Path, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:1/nobody-answers.gguf"
    blobs = tmp_path / "models" / "pulled" / "blobs"
    blobs.mkdir(parents=True)
    brought = blobs / f"url-{hashlib.sha256(url.encode()).hexdigest()}"
    kept = f"sha256-{hashlib.sha256(weights.read_bytes()).hexdigest()}"
    for name in ("first", "second"):  # the second finds the file kept already
        shutil.copy(weights, brought)
        result = emberd_cli("pull", name, "--url", url, "--insecure")
        assert result.code == 0, result.err
        assert [path.name for path in blobs.iterdir()] == [kept]
    assert listed(emberd_cli) == ["first:latest", "second:latest"]


def test_create_refers_to_a_file_and_copies_nothing_ol40(
    emberd_cli: Emberd, weights: Path, tmp_path: Path
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM ./w.gguf\nSYSTEM Be brief.\nPARAMETER top_k 3\n")
    result = emberd_cli("create", "brief", "-f", str(modelfile))
    assert (result.code, result.out) == (0, "brief is created\n")
    assert listed(emberd_cli) == ["brief:latest"]
    assert not [path for path in (tmp_path / "models").rglob("*") if path.stat().st_size > 50_000]
    shown = emberd_cli("show", "brief", "--modelfile").out
    assert shown == 'FROM brief:latest\nPARAMETER top_k 3\nSYSTEM """Be brief."""\n'
    modelfile.write_text("FROM brief\nSYSTEM Be long.\n")
    assert emberd_cli("create", "long", "-f", str(modelfile)).code == 0
    assert emberd_cli("cp", "long", "longer").out == "long is also called longer\n"
    assert emberd_cli("rm", "long").out == "long is removed\n"
    assert listed(emberd_cli) == ["brief:latest", "longer:latest"]
    assert weights.is_file()


def test_what_is_wrong_is_one_line(emberd_cli: Emberd, weights: Path, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    for text, said in (("SYSTEM x", "FROM is missing"), ("FROM nobody", "'nobody' not found")):
        modelfile.write_text(text)
        result = emberd_cli("create", "x", "-f", str(modelfile))
        assert result.code == 1 and said in result.err and result.err.count("\n") == 1
    for arguments, said in (
        (("create", "x", "-f", str(tmp_path / "none")), "cannot be read"),
        (("create", "../x", "-f", str(modelfile)), "'model'"),
        (("rm", "nobody"), "not found"),
        (("cp", "nobody", "x"), "not found"),
        (("pull", "../x"), "'model'"),
    ):
        result = emberd_cli(*arguments)
        assert result.code == 1 and said in result.err


def test_what_is_no_modelfile_is_refused_without_being_read_whole(
    emberd_cli: Emberd, weights: Path, tmp_path: Path
) -> None:
    large, odd = tmp_path / "large", tmp_path / "odd"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    odd.write_bytes(b"FROM w.gguf\nSYSTEM \xff\n")
    for file, said in (
        (large, "it has over 4194304 bytes"),
        (weights, f"is a model; write a Modelfile with FROM {weights}"),
        (odd, "is not UTF-8"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        result = emberd_cli("create", "x", "-f", str(file))
        assert result.code == 1 and said in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("base", ["./none.gguf", "/none/none.gguf", "~/none.gguf", "."])
def test_a_path_behind_from_that_is_no_file_is_said(
    base: str, emberd_cli: Emberd, tmp_path: Path
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {base}\n")
    result = emberd_cli("create", "x", "-f", str(modelfile))
    assert result.code == 1 and f"FROM {base}: no such file" in result.err


def test_a_modelfile_with_the_line_ends_of_windows(
    emberd_cli: Emberd, weights: Path, tmp_path: Path
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_bytes(b"FROM ./w.gguf\r\nSYSTEM Be brief.\r\n")
    assert emberd_cli("create", "brief", "-f", str(modelfile)).code == 0
    assert 'SYSTEM """Be brief."""\n' in emberd_cli("show", "brief", "--modelfile").out


def test_a_file_of_the_user_is_not_removed(
    emberd_cli: Emberd, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    own = weights.rename(tmp_path / "models" / "own.gguf")
    result = emberd_cli("rm", "own")
    assert result.code == 1 and "only reads" in result.err
    assert own.is_file()


def test_the_daemon_is_asked_where_one_runs(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text('FROM base\nSYSTEM S\nPARAMETER stop "x"\nMESSAGE user hi\n')
    scripted_daemon.posts["/api/create"] = (200, [{"status": "success"}])
    scripted_daemon.posts["/api/copy"] = (200, [{}])
    assert emberd_cli("create", "new", "-f", str(modelfile)).code == 0
    assert emberd_cli("cp", "new", "newer").code == 0
    (_, created), copied = scripted_daemon.asked
    assert created["from"] == "base" and created["system"] == "S"
    assert created["parameters"] == {"stop": ["x"]}
    assert created["messages"] == [{"role": "user", "content": "hi"}]
    assert copied == ("/api/copy", {"source": "new", "destination": "newer"})
