"""Commands as a person types them: help, tables, JSON, errors in one line."""

from __future__ import annotations

import json
import os
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cli_harness import Emberd, ScriptedDaemon, assert_one_clear_line

from emberd import __version__
from emberd.cli.app import app
from emberd.cli.models import _moment
from emberd.cli.output import size_words, time_words
from emberd.cli.serve import _hint
from emberd.cli.settings import flag_of
from emberd.config import Config, settings
from emberd.models.store import ModelStore
from tiny_encoder import encoder_model
from tiny_gguf import chain_model, random_model

COMMANDS = sorted(
    command.name or command.callback.__name__  # type: ignore[union-attr]
    for command in app.registered_commands
)
TAG = {
    "name": "tiny:latest",
    "model": "tiny:latest",
    "size": 98_362_432,
    "modified_at": "2026-01-02T03:04:05.123456789Z",
    "digest": "a" * 64,
    "details": {"family": "llama", "parameter_size": "135M", "quantization_level": "Q4_1"},
}


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "models"  # where conftest points EMBERD_MODELS_DIR
    folder.mkdir()
    return folder


def test_commands_are_those_of_the_issues() -> None:
    named = "serve run pull create cp rm list ps show stop batch cancel explain fit devices verify bench"
    assert COMMANDS == sorted(named.split())


def test_version(emberd_cli: Emberd) -> None:
    assert emberd_cli("--version").out == f"emberd {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_and_shows_examples(emberd_cli: Emberd, command: str) -> None:
    result = emberd_cli(command, "--help")
    assert result.code == 0
    assert "Examples:" in result.out and f"emberd {command}" in result.out


def test_serve_takes_every_setting_as_a_flag_and_names_its_variable(emberd_cli: Emberd) -> None:
    text = " ".join(emberd_cli("serve", "--help").out.split())
    for setting in settings():
        assert f"{flag_of(setting)} " in text
        assert f"[{setting.env}; default:" in text


def test_unknown_flag_is_a_usage_error(emberd_cli: Emberd) -> None:
    assert emberd_cli("list", "--nonsense").code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "nothing"), ("nothing", "not found")),
        (("show", "/nowhere/x.gguf"), ("/nowhere/x.gguf", "no such file")),
        (("ps",), ("no emberd daemon", "emberd serve")),
        (("stop", "x"), ("no emberd daemon",)),
        (("serve", "--port", "many"), ("--port", "many")),
        (("serve", "--model", "/nowhere/x.gguf"), ("/nowhere/x.gguf",)),
        (("bench", "x", "--streams", "1,,2"), ("--streams", "1,,2")),
        (("bench", "x", "--ctx", "10"), ("--ctx 10", "--prompt-tokens 128", "--new-tokens 64")),
        (("verify", "x", "--device", "cpu"), ("reference",)),
        (("devices", "--device", "no-such-adapter"), ("no-such-adapter",)),
    ],
)
def test_domain_errors_are_one_line_and_exit_code_1(
    emberd_cli: Emberd, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_clear_line(emberd_cli(*arguments), *words)


@pytest.mark.parametrize("cut", [4, 200])
def test_serve_ends_at_once_where_a_model_cannot_be_read(
    emberd_cli: Emberd, models_dir: Path, cut: int
) -> None:
    """K28: one line, no address, no line to try."""
    file = chain_model(models_dir / "tiny.gguf", {})
    file.write_bytes(file.read_bytes()[:cut])
    result = emberd_cli("serve", "--model", str(file), "--port", "0")
    assert_one_clear_line(result, "tiny.gguf")
    assert result.out == ""


def test_readme_shows_the_line_that_serve_prints(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    chain_model(tmp_path / "smollm2.gguf", {})
    store = ModelStore(tmp_path, tmp_path / "cache")
    hint = _hint(Config(), store, ["smollm2:latest"], "http://127.0.0.1:11434")
    assert hint.startswith("try: ") and '"temperature": 0' in hint
    assert f"\n{hint}\n" in (root / "README.md").read_text()
    quickstart = (root / "docs" / "quickstart.md").read_text()
    assert f"\n{hint.removeprefix('try: ')}\n" in quickstart


def test_the_line_to_try_names_a_model_that_can_do_it(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, tmp_path / "cache")
    encoder_model(tmp_path / "encoder.gguf")
    hint = _hint(Config(), store, [], "http://a")
    assert hint.startswith("try: curl http://a/v1/embeddings -d") and '"input"' in hint
    chain_model(tmp_path / "old.gguf", {})
    os.utime(tmp_path / "old.gguf", (1, 1))
    assert '"model": "old", "messages"' in _hint(Config(), store, [], "http://a")


def test_bad_variable_is_named(emberd_cli: Emberd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_KV_MEMORY", "lots")
    assert_one_clear_line(emberd_cli("serve"), "EMBERD_KV_MEMORY", "lots")


@pytest.mark.parametrize(
    "command", [("list",), ("show", "x"), ("serve", "--model", "x"), ("run", "x", "hi")]
)
def test_a_file_in_place_of_the_models_folder_is_refused(
    emberd_cli: Emberd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    file = str(chain_model(tmp_path / "chain.gguf", {}))
    assert_one_clear_line(emberd_cli(*command, "--models-dir", file), "--models-dir", file)
    monkeypatch.setenv("EMBERD_MODELS_DIR", file)
    assert_one_clear_line(emberd_cli(*command), "EMBERD_MODELS_DIR", file)


def test_list_reads_the_folder_where_no_daemon_runs(emberd_cli: Emberd, models_dir: Path) -> None:
    assert "no models" in emberd_cli("list").out
    chain_model(models_dir / "tiny.gguf", {})
    (models_dir / "pair").mkdir()
    random_model(models_dir / "pair" / "q8.gguf")
    (models_dir / "broken.gguf").write_bytes(b"GGUF")
    rows = emberd_cli("list", "--json").json
    assert {row["name"] for row in rows} == {"tiny:latest", "pair:q8"}
    assert set(rows[0]) == {
        "name",
        "architecture",
        "parameters",
        "type",
        "size",
        "modified",
        "digest",
    }
    assert "pair:q8" in emberd_cli("list").out


def test_list_asks_a_running_daemon(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.gets["/api/tags"] = {"models": [TAG]}
    lines = emberd_cli("list").out.splitlines()
    assert lines[0].split() == ["NAME", "ARCHITECTURE", "PARAMETERS", "TYPE", "SIZE", "MODIFIED"]
    assert lines[1].split()[:6] == ["tiny:latest", "llama", "135M", "Q4_1", "98.4", "MB"]
    assert emberd_cli("list", "--json").json[0]["name"] == "tiny:latest"


def test_another_server_on_the_port_is_not_taken_for_emberd(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon
) -> None:
    scripted_daemon.gets["/api/version"] = {"version": "0.12.0"}
    assert_one_clear_line(emberd_cli("ps"), "no emberd daemon")


def test_ps(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.gets["/api/ps"] = {"models": []}
    assert emberd_cli("ps").out == "no model is loaded\n"
    loaded = TAG | {
        "size_vram": 0,
        "context_length": 4096,
        "expires_at": (datetime.now(timezone.utc) + timedelta(minutes=4, seconds=30)).isoformat(),
    }
    scripted_daemon.gets["/api/ps"] = {"models": [loaded]}
    assert emberd_cli("ps").out.splitlines()[1].split() == (
        "tiny:latest 98.4 MB cpu 4096 in 4 minutes".split()
    )
    assert emberd_cli("ps", "--json").json == [loaded]
    own = {"verification": "not checked", "draft": {"file": "small.gguf", "bytes": 20_000_000}}
    scripted_daemon.gets["/api/ps"] = {"models": [loaded | {"emberd": own}]}
    shown = emberd_cli("ps").out.splitlines()[2:]
    assert shown == ["tiny:latest: small.gguf guesses, 20.0 MB of that memory"]


def test_stop_unloads_by_keep_alive_0(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.gets["/api/ps"] = [{"models": [TAG]}, {"models": []}]
    scripted_daemon.posts["/api/generate"] = (200, [{"done": True, "done_reason": "unload"}])
    assert emberd_cli("stop", "tiny").out == "tiny is unloaded\n"
    assert scripted_daemon.asked == [
        ("/api/generate", {"model": "tiny", "keep_alive": 0, "stream": False})
    ]
    scripted_daemon.gets["/api/ps"] = {"models": [TAG]}  # it replies to somebody
    assert emberd_cli("stop", "tiny").out == "tiny leaves when its replies have ended\n"
    assert emberd_cli("stop", "other").out == "other was not loaded\n"
    scripted_daemon.posts["/api/generate"] = (404, [{"error": "model 'x' not found"}])
    assert_one_clear_line(emberd_cli("stop", "x"), "model 'x' not found")


def test_show_a_file_and_a_name(emberd_cli: Emberd, models_dir: Path) -> None:
    path = random_model(models_dir / "tiny.gguf", architecture="qwen3")
    facts = emberd_cli("show", "tiny", "--json").json
    assert (facts["architecture"], facts["layers"]) == ("qwen3", 2)
    assert facts["metadata"]["general.architecture"] == "qwen3"
    assert facts["size"] == path.stat().st_size
    assert "architecture    qwen3" in emberd_cli("show", str(path)).out
    assert emberd_cli("show", "tiny", "--template").out.strip() == facts["chat_template"]


def test_show_says_what_is_not_computed_with_as_it_is(emberd_cli: Emberd, models_dir: Path) -> None:
    random_model(models_dir / "plain.gguf", quant="Q2_K", layers=1)
    random_model(models_dir / "small.gguf", quant="IQ2_S", embedding_quant="IQ4_XS", layers=1)
    assert "loading         as they are" in emberd_cli("show", "plain").out
    assert "type IQ2_S become Q8_0" in emberd_cli("show", "small", "--json").json["loading"]


def test_show_of_what_a_terminal_or_json_could_not_take(
    emberd_cli: Emberd, models_dir: Path
) -> None:
    odd = {"general.name": "a\x1b[2Jb", "a.number": float("nan")}
    random_model(models_dir / "odd.gguf", metadata=odd, layers=1)
    assert "name            a\ufffd[2Jb" in emberd_cli("show", "odd").out
    result = emberd_cli("show", "odd", "--json")
    assert "NaN" not in result.out
    assert result.json["metadata"]["a.number"] is None
    assert result.json["name"] == odd["general.name"]


def test_fit_refuses_what_could_not_be_served(emberd_cli: Emberd, models_dir: Path) -> None:
    path = random_model(models_dir / "odd.gguf", layers=1, metadata={"tokenizer.ggml.pre": "frob"})
    for name in ("odd", str(path)):
        assert_one_clear_line(emberd_cli("fit", name), "odd.gguf: tokenizer.ggml.pre is 'frob'")


def test_show_refuses_a_damaged_file(emberd_cli: Emberd, models_dir: Path) -> None:
    (models_dir / "broken.gguf").write_bytes(b"GGUF")
    assert_one_clear_line(emberd_cli("show", "broken"), "broken.gguf")


def test_devices_json_says_what_would_be_chosen(emberd_cli: Emberd) -> None:
    answer = emberd_cli("devices", "--device", "cpu", "--json").json
    assert all({"memory", "class"} <= adapter.keys() for adapter in answer["adapters"])
    assert answer["choice"]["chosen"] == "cpu" and answer["choice"]["reason"]
    assert isinstance(answer["adapters"], list)


@pytest.mark.slow
def test_bench_ends_in_one_json_line(emberd_cli: Emberd, tmp_path: Path) -> None:
    path = random_model(tmp_path / "tiny.gguf")
    arguments = ("--device", "cpu", "--prompt-tokens", "5", "--new-tokens", "3")
    result = emberd_cli("bench", str(path), "--streams", "1,3", *arguments)
    assert result.code == 0, result.err
    facts = json.loads(result.out.splitlines()[-1])
    assert [row["streams"] for row in facts["results"]] == [1, 3]
    assert all(row["prefill_tok_s"] > 0 and row["decode_tok_s"] > 0 for row in facts["results"])
    draft = shutil.copy(path, tmp_path / "draft.gguf")
    more = ("--device", "cpu", "--new-tokens", "40", "--draft", str(draft), "--json")
    facts = emberd_cli("bench", str(path), *more).json
    assert (facts["model"], facts["draft"]) == ("tiny.gguf", "draft.gguf")
    assert facts["results"][0]["drafted"] >= facts["results"][0]["accepted"] > 0


def test_bench_says_when_the_streams_do_not_fit(emberd_cli: Emberd, tmp_path: Path) -> None:
    path = random_model(tmp_path / "tiny.gguf")
    sizes = ("--streams", "64", "--prompt-tokens", "60", "--new-tokens", "4")
    result = emberd_cli("bench", str(path), "--device", "cpu", "--kv-memory", "256K", *sizes)
    assert_one_clear_line(result, "--kv-memory", "4096")


@pytest.mark.parametrize(
    ("nbytes", "words"), [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (2e12, "2.0 TB")]
)
def test_size_words(nbytes: float, words: str) -> None:
    assert size_words(nbytes) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "now"),
        (-1, "1 second ago"),
        (-200, "3 minutes ago"),
        (3600, "in 1 hour"),
        (4e9, "never"),
    ],
)
def test_time_words(seconds: float, words: str) -> None:
    now = datetime.now(timezone.utc)
    assert time_words(now + timedelta(seconds=seconds), now) == words


def test_moments_with_nanoseconds_are_read() -> None:
    assert _moment("2026-01-02T03:04:05.123456789Z").microsecond == 123456
    assert _moment("2026-01-02T03:04:05+02:00").utcoffset() == timedelta(hours=2)


@pytest.mark.slow
def test_fit_tells_a_verdict_and_figures_without_loading(
    emberd_cli: Emberd, models_dir: Path
) -> None:
    random_model(models_dir / "tiny.gguf")
    flags = ("--device", "cpu", "--ctx", "64", "--max-sequences", "2")
    told = emberd_cli("fit", "tiny", "--json", *flags).json
    assert told["verdict"] == "fits" and told["context"]["served"] == 64
    assert {figure["source"] for figure in told["memory"].values()} == {"estimated"}
    table = emberd_cli("fit", "tiny", "--memory", "1MiB", *flags).out
    assert "does not fit" in table and "largest matrix" in table
    assert_one_clear_line(emberd_cli("fit", "nothing"), "nothing")
