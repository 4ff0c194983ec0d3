"""Config: every setting of the daemon, once. Flags, environment variables and the docs table derive from it.

A frozen dataclass; each field's metadata carries its variable, its help and its parser. Knows nothing of
what the settings do.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional
from urllib.parse import urlsplit

import platformdirs

from . import values
from .errors import ConfigError
from .keys import ApiKey, parse_keys, read_keys
from .values import keep_alive_seconds as keep_alive_seconds

KVType = Literal["f16", "q8_0", "auto"]
Scaling = tuple[Literal["linear", "yarn"], Optional[float]]  # noqa: UP045 - read at run time
_LOG_LEVELS = ("debug", "info", "warning", "error")


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

    host: str = _setting("Address to listen on, or to ask at.", values.host, "127.0.0.1")
    port: int = _setting(
        "Port to listen on, or to ask at; 0 takes a free one.", values.whole(0, 65535), 11434
    )
    device: str = _setting("auto, gpu, cpu, or a part of an adapter's name.", values.word, "auto")
    models: tuple[str, ...] = _setting(
        "Models to load at the start, names or paths of GGUF files: the variable with commas, the flag once for each.",
        values.words,
        (),
    )
    models_dir: Path = _setting(  # noqa: RUF009 - a dataclasses.field
        "Folder in which models are found.",
        values.folder,
        factory=_user_data,
        shown="models, in the user's data folder",
    )
    places: tuple[str, ...] = _setting(
        "More places in which models are found and never changed: huggingface, ollama, lmstudio, home (~/models) or "
        "paths of folders, separated by commas; or none.",
        values.places,
        ("huggingface", "ollama", "lmstudio", "home"),
        shown="huggingface,ollama,lmstudio,home",
    )
    registries: tuple[str, ...] = _setting(
        "Registries that may be pulled from, separated by commas; names without a host mean the first, * is any.",
        values.registries,
        ("registry.ollama.ai", "*"),
        shown="registry.ollama.ai,*",
    )
    cache_dir: Path = _setting(  # noqa: RUF009 - a dataclasses.field
        "Folder for what can be made again, as facts of files and measured tiles.",
        values.folder,
        factory=_user_cache,
        shown="the user's cache folder",
    )
    aliases: tuple[tuple[str, str], ...] = _setting(
        "More names of models, as NAME=MODEL, separated by commas; * in a NAME is any text.",
        values.aliases,
        (),
        shown="claude-* is a model that is there",
    )
    ctx: int | None = _setting(
        "Tokens that a sequence may hold, prompt and completion.",
        values.whole(1, 1 << 30),
        None,
        shown="what the model was trained for, within what memory and the device's class allow",
    )
    rope_scaling: Scaling | None = _setting(  # noqa: RUF009 - a dataclasses.field
        "Serve a --ctx above the trained context with this rope scaling: linear or yarn, or with a factor as yarn:4.",
        values.rope_scaling,
        None,
        shown="none: the trained context is the longest",
    )
    kv_memory: int | None = _setting(
        "Memory for the KV cache of a model, as 2GiB.",
        values.positive_size,
        None,
        shown="a share of what is free, up to a bound of the device's class",
    )
    kv_ram: int = _setting(
        "Main memory, of each model, for KV blocks that find no room in the KV cache, as 4GiB; 0: none.",
        values.parse_size,
        0,
    )
    kv_disk: int = _setting(
        "Files in the cache folder, of all models together, for KV blocks, as 20GiB: prompts and replies can be told "
        "from them. 0: none.",
        values.parse_size,
        0,
    )
    kv_type: KVType = _setting(  # noqa: RUF009 - a dataclasses.field
        "Type of the KV cache: f16 (the CPU device keeps float32), q8_0, or auto: q8_0 where f16 does not fit.",
        values.one_of("f16", "q8_0", "auto"),
        "f16",
    )
    memory: int | None = _setting(
        "Memory for all loaded models together, as 20GiB: idle ones leave when another needs room.",
        values.positive_size,
        None,
        shown="85 % of the device's, where it tells",
    )
    max_sequences: int = _setting("Sequences that run at once.", values.whole(1, 4096), 32)
    max_batch_tokens: int = _setting(
        "Tokens of one step of the engine.", values.whole(1, 1 << 20), 512
    )
    speculate: Literal["auto", "ngram", "off"] = _setting(
        "Guess tokens from the text so far where that is faster: ngram, off, or auto: on the CPU device only.",
        values.one_of("auto", "ngram", "off"),
        "auto",
    )
    draft: tuple[tuple[str, str], ...] = _setting(
        "Name or path of a smaller model of the same tokens, which guesses for the others; or MODEL=DRAFT, "
        "separated by commas, where * in a MODEL is any text.",
        values.drafts,
        (),
    )
    prompt_share: float | None = _setting(
        "Share of the time that prompts get while replies run, so that these go on smoothly; 1: all they take.",
        values.share,
        None,
        shown="0.5 on GPUs, 1 on the CPU",
    )
    verify: bool | None = _setting(
        "Check a model's kernels on its own weights at its first load on a device (--no-verify: do not).",
        values.switch,
        None,
        shown="on real GPUs",
    )
    keep_alive: float = _setting(
        "How long a model stays loaded after its last reply; negative: for ever.",
        keep_alive_seconds,
        300.0,
        shown="5m",
    )
    queue_limit: int = _setting(
        "Sequences that may run or wait before new ones are told to come back.",
        values.whole(1, 1 << 20),
        512,
    )
    shutdown_grace: float = _setting(
        "How long running replies may go on after a signal to stop.",
        values.positive_duration,
        30.0,
        shown="30s",
    )
    ping: float = _setting(
        "Time between the bytes that keep a silent stream's connection alive.",
        values.positive_duration,
        10.0,
        shown="10s",
    )
    origins: tuple[str, ...] = _setting(
        "More origins whose pages may call the API, separated by commas; * is any text.",
        values.words,
        (),
    )
    allowed_hosts: tuple[str, ...] = _setting(
        "More names under which a daemon bound to loopback may be called, separated by commas.",
        values.words,
        (),
    )
    reasoning_keys: tuple[str, ...] = _setting(
        "Names of the key under which OpenAI's chat route tells reasoning: reasoning_content, reasoning, or both.",
        values.reasoning_keys,
        ("reasoning_content",),
        shown="reasoning_content",
    )
    response_memory: int = _setting(
        "Memory for the responses that /v1/responses stores; 0 stores none.",
        values.parse_size,
        64 * 1024**2,
        shown="64MiB",
    )
    socket: Path | None = _setting(  # noqa: RUF009 - a dataclasses.field
        "Unix socket to listen on, or to ask at, in place of host and port; only its owner may connect.",
        values.path,
        None,
    )
    api_keys: tuple[ApiKey, ...] = _setting(
        "Keys that callers must have, separated by commas: KEY, or KEY:infer+list with scopes.",
        parse_keys,
        (),
    )
    api_key_file: Path | None = _setting(  # noqa: RUF009 - a dataclasses.field
        "File with more such keys, one a line.", values.path, None
    )
    insecure: bool = _setting("Listen to other machines without any key.", values.switch, False)
    strict: bool = _setting(
        "Refuse request fields that do nothing, instead of listing them in a header.",
        values.switch,
        False,
    )
    max_body: int = _setting(
        "Largest request body, also once decompressed.",
        values.positive_size,
        64 * 1024**2,
        shown="64MiB",
    )
    log_level: str = _setting("debug, info, warning or error.", values.one_of(*_LOG_LEVELS), "info")
    log_format: str = _setting(
        "text or json, one line an event.", values.one_of("text", "json"), "text"
    )
    log_prompts: bool = _setting(
        "Log request bodies, with all that people wrote.", values.switch, False
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> Config:
        """Settings from the environment, `overrides` first (None: not given; text is parsed).

        OLLAMA_HOST, OLLAMA_ORIGINS and OLLAMA_KV_CACHE_TYPE stand in where EMBERD_HOST, EMBERD_PORT,
        EMBERD_ORIGINS and EMBERD_KV_TYPE are not set. An empty variable counts as not set. Raises
        ConfigError naming the variable or flag.
        """
        unknown = set(overrides) - {setting.name for setting in settings()}
        assert not unknown, f"no such settings: {sorted(unknown)}"
        found = _ollama_settings(environ)
        for setting in settings():
            text = environ.get(setting.env, "").strip()
            if text:
                found[setting.name] = setting.parse(text, setting.env)
            given = overrides.get(setting.name)
            if isinstance(given, str):
                given = setting.parse(given, setting.flag)
            if given is not None:
                found[setting.name] = given
        return cls(**found)

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
            is_switch=item.metadata["parse"] is values.switch,
        )
        for item in dataclasses.fields(Config)
    )


def _show(default: Any) -> str:
    if default is False:
        return "off"
    return "none" if default in ((), None) else str(default)


def _ollama_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """What Ollama's own variables say: OLLAMA_HOST is [scheme://]host[:port][/], OLLAMA_ORIGINS a list."""
    found: dict[str, Any] = {}
    if kv_type := environ.get("OLLAMA_KV_CACHE_TYPE", "").strip().lower():
        if kv_type not in ("f16", "q8_0"):
            raise ConfigError(f"OLLAMA_KV_CACHE_TYPE: '{kv_type}' is not f16 or q8_0")
        found["kv_type"] = kv_type
    if origins := environ.get("OLLAMA_ORIGINS", "").strip():
        found["origins"] = values.words(origins)
    address = environ.get("OLLAMA_HOST", "").strip().strip("\"'")
    if not address:
        return found
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
        found["host"] = parts.hostname
    default_port = {"http": 80, "https": 443}.get(parts.scheme)
    if (port := port if port is not None else default_port) is not None:
        found["port"] = port
    return found
