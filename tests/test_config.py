"""Config: defaults, variables, flags, Ollama's variables, and what a bad value says."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from emberd.config import Config, settings
from emberd.errors import ConfigError
from emberd.values import keep_alive_seconds, parse_duration, parse_size


def test_defaults_need_no_environment() -> None:
    config = Config.from_env({})
    assert (config.host, config.port, config.device) == ("127.0.0.1", 11434, "auto")
    assert config.keep_alive == 300.0
    assert config.models_dir.name == "models"
    assert config.url == "http://127.0.0.1:11434"


def test_every_field_has_a_variable_a_flag_and_help() -> None:
    assert [setting.name for setting in settings()] == [f.name for f in dataclasses.fields(Config)]
    for setting in settings():
        assert setting.env.startswith("EMBERD_")
        assert setting.flag.startswith("--")
        assert setting.help.endswith(".")
        assert setting.default


def test_variables_are_read_and_overrides_win() -> None:
    environ = {
        "EMBERD_PORT": "8080",
        "EMBERD_KV_MEMORY": "2GiB",
        "EMBERD_KEEP_ALIVE": "-1",
        "EMBERD_MODELS": "a, b:q4 ,",
        "EMBERD_MODELS_DIR": "/tmp/models",
        "EMBERD_CTX": "",
    }
    config = Config.from_env(environ, port=9, ctx=None, shutdown_grace="1m", host="::1")
    assert config.port == 9
    assert config.kv_memory == 2 * 1024**3
    assert config.keep_alive == math.inf
    assert config.models == ("a", "b:q4")
    assert config.models_dir == Path("/tmp/models")
    assert config.ctx is None
    assert config.shutdown_grace == 60.0
    assert config.url == "http://[::1]:9"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EMBERD_PORT", "70000"),
        ("EMBERD_PORT", "x"),
        ("EMBERD_KV_MEMORY", "2 parsecs"),
        ("EMBERD_KV_MEMORY", "0"),
        ("EMBERD_KEEP_ALIVE", "soon"),
        ("EMBERD_SHUTDOWN_GRACE", "-3s"),
        ("EMBERD_LOG_LEVEL", "loud"),
        ("EMBERD_CTX", "0"),
        ("OLLAMA_HOST", "a b"),
        ("OLLAMA_HOST", "127.0.0.1:port"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Config.from_env({name: value})


def test_a_bad_flag_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        Config.from_env({}, kv_memory="much")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", 11434),
        ("1.2.3.4:99", "1.2.3.4", 99),
        (":8000", "127.0.0.1", 8000),
        ("http://box.local:5000/", "box.local", 5000),
        ("http://box.local", "box.local", 80),
        ("https://box.local", "box.local", 443),
        ("[::1]:77", "::1", 77),
        ("::1", "::1", 11434),
        ('"10.0.0.1:1"', "10.0.0.1", 1),
    ],
)
def test_ollama_host_is_honoured(address: str, host: str, port: int) -> None:
    config = Config.from_env({"OLLAMA_HOST": address})
    assert (config.host, config.port) == (host, port)


def test_our_variables_win_over_those_of_ollama() -> None:
    environ = {"OLLAMA_HOST": "1.2.3.4:5", "OLLAMA_ORIGINS": "http://a", "EMBERD_PORT": "6"}
    config = Config.from_env(environ)
    assert (config.host, config.port, config.origins) == ("1.2.3.4", 6, ("http://a",))


@pytest.mark.parametrize(
    ("text", "size"),
    [("10", 10), ("1K", 1024), ("1kb", 1000), ("1.5GiB", 3 * 1024**3 // 2), (" 2 MB ", 2_000_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("300ms", 0.3),
        ("7", 7),
        ("-1m", -60),
        ("1.5s", 1.5),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "abc", "5 m", "m", "1h30", "5mm", "--5m"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(-1, math.inf), ("-1", math.inf), ("-1m", math.inf), (0, 0), ("0", 0), ("0s", 0), (5, 5)],
)
def test_keep_alive_values_k31(value: float | str, seconds: float) -> None:
    assert keep_alive_seconds(value) == seconds


def test_aliases_are_pairs_of_names() -> None:
    config = Config.from_env({"EMBERD_ALIASES": "claude-* = qwen:7b, gpt=a/b ,"})
    assert config.aliases == (("claude-*", "qwen:7b"), ("gpt", "a/b"))
    for wrong in ("gpt", "=qwen", "gpt=", "a=b,c"):
        with pytest.raises(ConfigError, match=r"EMBERD_ALIASES.*NAME=MODEL"):
            Config.from_env({"EMBERD_ALIASES": wrong})


@pytest.mark.parametrize("setting", ["models_dir", "cache_dir"])
def test_a_folder_is_one_or_not_there_yet(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "a-file"
    file.write_bytes(b"GGUF")
    for path in (tmp_path, tmp_path / "later"):
        assert getattr(Config.from_env({}, **{setting: str(path)}), setting) == path
    with pytest.raises(ConfigError, match=f"'{file}' is a file and not a folder"):
        Config.from_env({}, **{setting: str(file)})


def test_ollamas_kv_cache_type_stands_in_where_ours_is_not_set() -> None:
    assert Config.from_env({"OLLAMA_KV_CACHE_TYPE": "q8_0"}).kv_type == "q8_0"
    both = {"OLLAMA_KV_CACHE_TYPE": "q8_0", "EMBERD_KV_TYPE": "auto"}
    assert Config.from_env(both).kv_type == "auto"
    with pytest.raises(ConfigError, match="OLLAMA_KV_CACHE_TYPE: 'q4_0'"):
        Config.from_env({"OLLAMA_KV_CACHE_TYPE": "q4_0"})


def test_a_share_is_above_nothing_and_up_to_all() -> None:
    assert Config.from_env({"EMBERD_PROMPT_SHARE": "1"}).prompt_share == 1.0
    for text in ("0", "1.01", "-1", "nan", "half", "1e999"):
        with pytest.raises(ConfigError, match=r"EMBERD_PROMPT_SHARE.*share"):
            Config.from_env({"EMBERD_PROMPT_SHARE": text})


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:8080", "http://localhost", "localhost:80", "a b", "[::1]:80", "::1::2", "a/b"],
)
def test_a_host_is_a_name_or_an_address_alone(text: str) -> None:
    with pytest.raises(ConfigError, match=r"EMBERD_HOST.*--port"):
        Config.from_env({"EMBERD_HOST": text})


@pytest.mark.parametrize(
    ("text", "url"),
    [("[::1]", "http://[::1]:9"), ("::1", "http://[::1]:9"), (" pi.local ", "http://pi.local:9")],
)
def test_a_host_in_a_url(text: str, url: str) -> None:
    assert Config.from_env({"EMBERD_HOST": text, "EMBERD_PORT": "9"}).url == url
