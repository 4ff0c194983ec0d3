"""Config: every setting of the daemon, once. Flags, environment variables and the docs table derive from it.

A frozen dataclass; each field's metadata carries its variable, its help and its parser. Knows nothing of
what the settings do.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from .errors import ConfigError
from .keys import ApiKey, parse_keys, read_keys

_UNITS_OF_SIZE = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS_OF_SIZE |= {_letter: 1024**_power, f"{_letter}IB": 1024**_power}
    _UNITS_OF_SIZE[f"{_letter}B"] = 1000**_power
_UNITS_OF_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_REASONING_KEYS = ("reasoning_content", "reasoning")
_PLACES = ("huggingface", "ollama", "lmstudio", "home")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS = ("text", "json")
_SWITCH = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_MAX_SECONDS = 1e10  # longer, as a century's worth of seconds, is the same as never


def parse_size(text: str) -> int:
    """Bytes from "2GiB", "512M", "1.5GB" or a bare number. K, M, G, T and KiB.. count in 1024, KB.. in 1000."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS_OF_SIZE.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"'{text}' is not a size; write a number of bytes, or as 512MiB or 2GiB")
    return int(float(match[1]) * unit)


def parse_duration(text: str) -> float:
    """Seconds from a Go duration ("5m", "1h30m", "300ms") or bare digits; may be negative."""
    body = text.strip()
    sign = -1.0 if body.startswith("-") else 1.0
    body = body[1:] if body[:1] in ("-", "+") else body
    parts = _DURATION_PART.findall(body)
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", body):
        seconds = float(body)
    elif parts and "".join(number + unit for number, unit in parts) == body:
        seconds = sum(float(number) * _UNITS_OF_TIME[unit] for number, unit in parts)
    else:
        raise ValueError(f"'{text:.64}' is not a duration; write seconds, or as 30s, 5m or 1h30m")
    return sign * seconds


def keep_alive_seconds(value: float | str) -> float:
    """How long a model stays loaded after a reply: seconds, `math.inf` for never unloading (negative)."""
    seconds = parse_duration(value) if isinstance(value, str) else float(value)
    if math.isnan(seconds):
        raise ValueError("not a number is not a duration")
    return math.inf if seconds < 0 or seconds > _MAX_SECONDS else seconds


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"'{text}' is not a whole number from {low} to {high}")
        return int(text)

    return parse


def _positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"'{text}' must be longer than zero")
    return seconds


def _positive_size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError(f"'{text}' must be more than zero bytes")
    return size


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _places(text: str) -> tuple[str, ...]:
    words = _words(text)
    if unknown := [word for word in words if word not in _PLACES and "/" not in word]:
        if words == ("none",):
            return ()
        raise ValueError(
            f"'{unknown[0]}' is not one of {', '.join(_PLACES)}, none or the path of a folder"
        )
    return words


def _aliases(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in _words(text):
        alias, _, model = (part.strip() for part in word.partition("="))
        if not alias or not model:
            raise ValueError(f"'{word}' is not an alias; write NAME=MODEL")
        pairs.append((alias, model))
    return tuple(pairs)


def _word(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be empty")
    return text.strip()


def _path(text: str) -> Path:
    return Path(_word(text)).expanduser()


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(f"'{text}' is not one of {', '.join(words)}")
        return text.strip().lower()

    return parse


def _switch(text: str) -> bool:
    value = _SWITCH.get(text.strip().lower())
    if value is None:
        raise ValueError(f"'{text}' is not 1 or 0")
    return value


def _reasoning_keys(text: str) -> tuple[str, ...]:
    words = _words(text)
    if unknown := set(words) - set(_REASONING_KEYS):
        raise ValueError(f"'{min(unknown)}' is not one of {', '.join(_REASONING_KEYS)}")
    return words


def _user_data() -> Path:
    return Path(platformdirs.user_data_dir("emberd", appauthor=False)) / "models"


def _user_cache() -> Path:
    return Path(platformdirs.user_cache_dir("emberd", appauthor=False))


def _setting(
    help: str,
    parse: Callable[[str], Any],
    default: Any = dataclasses.MISSING,
    *,
    factory: Any = dataclasses.MISSING,
    shown: str | None = None,
) -> Any:
    metadata = {"help": help, "parse": parse, "shown": shown}
    if factory is not dataclasses.MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. `EMBERD_` + the field's name in capitals is its environment variable."""

    host: str = _setting("Address to listen on.", _word, "127.0.0.1")
    port: int = _setting("Port to listen on; 0 takes a free one.", _whole(0, 65535), 11434)
    device: str = _setting("auto, gpu, cpu, or a part of an adapter's name.", _word, "auto")
    models: tuple[str, ...] = _setting(
        "Models to load at the start: names or paths of GGUF files, separated by commas.",
        _words,
        (),
    )
    models_dir: Path = _setting(  # noqa: RUF009 - a dataclasses.field
        "Folder in which models are found.",
        _path,
        factory=_user_data,
        shown="models, in the user's data folder",
    )
    places: tuple[str, ...] = _setting(
        "More places in which models are found and never changed: huggingface, ollama, lmstudio, home (~/models) or "
        "paths of folders, separated by commas; or none.",
        _places,
        ("huggingface", "ollama", "lmstudio", "home"),
        shown="huggingface,ollama,lmstudio,home",
    )
    cache_dir: Path = _setting(  # noqa: RUF009 - a dataclasses.field
        "Folder for what can be made again, as built tokenizers.",
        _path,
        factory=_user_cache,
        shown="the user's cache folder",
    )
    aliases: tuple[tuple[str, str], ...] = _setting(
        "More names of models, as NAME=MODEL, separated by commas; * in a NAME is any text.",
        _aliases,
        (),
        shown="claude-* is a model that is there",
    )
    ctx: int | None = _setting(
        "Tokens that a sequence may hold, prompt and completion.",
        _whole(1, 1 << 30),
        None,
        shown="what the model was trained for and memory allows",
    )
    kv_memory: int | None = _setting(
        "Memory for the KV cache of a model, as 2GiB.",
        _positive_size,
        None,
        shown="a share of what is free",
    )
    max_sequences: int = _setting("Sequences that run at once.", _whole(1, 4096), 32)
    max_batch_tokens: int = _setting("Tokens of one step of the engine.", _whole(1, 1 << 20), 512)
    keep_alive: float = _setting(
        "How long a model stays loaded after its last reply; negative: for ever.",
        keep_alive_seconds,
        300.0,
        shown="5m",
    )
    queue_limit: int = _setting(
        "Sequences that may run or wait before new ones are told to come back.",
        _whole(1, 1 << 20),
        512,
    )
    shutdown_grace: float = _setting(
        "How long running replies may go on after a signal to stop.",
        _positive_duration,
        30.0,
        shown="30s",
    )
    ping: float = _setting(
        "Time between the bytes that keep a silent stream's connection alive.",
        _positive_duration,
        10.0,
        shown="10s",
    )
    origins: tuple[str, ...] = _setting(
        "More origins whose pages may call the API, separated by commas; * is any text.", _words, ()
    )
    allowed_hosts: tuple[str, ...] = _setting(
        "More names under which a daemon bound to loopback may be called, separated by commas.",
        _words,
        (),
    )
    reasoning_keys: tuple[str, ...] = _setting(
        "Names of the key under which OpenAI's chat route tells reasoning: reasoning_content, reasoning, or both.",
        _reasoning_keys,
        ("reasoning_content",),
        shown="reasoning_content",
    )
    response_memory: int = _setting(
        "Memory for the responses that /v1/responses stores; 0 stores none.",
        parse_size,
        64 * 1024**2,
        shown="64MiB",
    )
    socket: Path | None = _setting(  # noqa: RUF009 - a dataclasses.field
        "Unix socket to listen on, in place of host and port; only its owner may connect.",
        _path,
        None,
    )
    api_keys: tuple[ApiKey, ...] = _setting(
        "Keys that callers must have, separated by commas: KEY, or KEY:infer+list with scopes.",
        parse_keys,
        (),
    )
    api_key_file: Path | None = _setting(  # noqa: RUF009 - a dataclasses.field
        "File with more such keys, one a line.", _path, None
    )
    insecure: bool = _setting("Listen to other machines without any key.", _switch, False)
    strict: bool = _setting(
        "Refuse request fields that do nothing, instead of listing them in a header.",
        _switch,
        False,
    )
    max_body: int = _setting(
        "Largest request body, also once decompressed.",
        _positive_size,
        64 * 1024**2,
        shown="64MiB",
    )
    log_level: str = _setting("debug, info, warning or error.", _one_of(*_LOG_LEVELS), "info")
    log_format: str = _setting("text or json, one line an event.", _one_of(*_LOG_FORMATS), "text")
    log_prompts: bool = _setting("Log request bodies, with all that people wrote.", _switch, False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> Config:
        """Settings from the environment, `overrides` first (None: not given; text is parsed).

        OLLAMA_HOST and OLLAMA_ORIGINS stand in where EMBERD_HOST, EMBERD_PORT and EMBERD_ORIGINS are
        not set. An empty variable counts as not set. Raises ConfigError naming the variable or flag.
        """
        unknown = set(overrides) - {setting.name for setting in settings()}
        assert not unknown, f"no such settings: {sorted(unknown)}"
        values = _ollama_settings(environ)
        for setting in settings():
            text = environ.get(setting.env, "").strip()
            if text:
                values[setting.name] = setting.parse(text, setting.env)
            given = overrides.get(setting.name)
            if isinstance(given, str):
                given = setting.parse(given, setting.flag)
            if given is not None:
                values[setting.name] = given
        return cls(**values)

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the daemon."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def keys(self) -> tuple[ApiKey, ...]:
        """Every key that opens something: the setting's, then the file's. Raises ConfigError."""
        more = read_keys(self.api_key_file) if self.api_key_file is not None else ()
        return (*self.api_keys, *more)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of Config, as flags and docs need it."""

    name: str
    env: str
    flag: str
    help: str
    default: str  # for people
    parser: Callable[[str], Any]
    is_switch: bool = False  # its flag takes no value

    def parse(self, text: str, source: str) -> Any:
        try:
            return self.parser(text)
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from None


def settings() -> tuple[Setting, ...]:
    """Every setting, in the order of Config."""
    return tuple(
        Setting(
            name=item.name,
            env=f"EMBERD_{item.name.upper()}",
            flag=f"--{item.name.replace('_', '-')}",
            help=item.metadata["help"],
            default=item.metadata["shown"] or _show(item.default),
            parser=item.metadata["parse"],
            is_switch=isinstance(item.default, bool),
        )
        for item in dataclasses.fields(Config)
    )


def _show(default: Any) -> str:
    if default is False:
        return "off"
    return "none" if default in ((), None) else str(default)


def _ollama_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """What Ollama's own variables say: OLLAMA_HOST is [scheme://]host[:port][/], OLLAMA_ORIGINS a list."""
    values: dict[str, Any] = {}
    if origins := environ.get("OLLAMA_ORIGINS", "").strip():
        values["origins"] = _words(origins)
    address = environ.get("OLLAMA_HOST", "").strip().strip("\"'")
    if not address:
        return values
    if address.count(":") > 1 and "[" not in address and "://" not in address:
        address = f"[{address}]"  # a bare IPv6 address
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port
        if re.search(r"\s", address):
            raise ValueError("it holds a space")
    except ValueError as error:
        raise ConfigError(f"OLLAMA_HOST: '{address}' is not a host and port: {error}") from None
    if parts.hostname:
        values["host"] = parts.hostname
    default_port = {"http": 80, "https": 443}.get(parts.scheme)
    if (port := port if port is not None else default_port) is not None:
        values["port"] = port
    return values
