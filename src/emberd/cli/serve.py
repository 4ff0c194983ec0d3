"""Command serve: the daemon itself, in the foreground."""

from __future__ import annotations

import json
import logging
import sys

from .. import __version__
from ..config import Config
from ..models.names import short_name
from ..models.store import ModelStore
from .settings import with_settings


@with_settings()
def serve(config: Config) -> None:
    """Serve models over HTTP: the OpenAI and Ollama APIs on one port.

    Models named here are loaded at the start and stay; others are loaded by the first request for them. The
    first Ctrl-C lets running replies end, the second does not.
    """
    logging.basicConfig(
        level=config.log_level.upper(), format="%(levelname)s %(message)s", stream=sys.stderr
    )
    for name in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    store = ModelStore(config.models_dir, config.cache_dir)
    names = [store.register(entry) for entry in config.models]
    for name in names:
        store.find(name)  # a file that cannot be served is said now, not by the first request
    if config.device not in ("auto", "cpu"):
        from ..runtime.device import choose_adapter

        choose_adapter(config.device)  # said now, not by the first request

    from ..gateway.server import run_server

    def ready(url: str) -> None:
        print(f"emberd {__version__} listens on {url}")
        print(_hint(store, names, url), flush=True)

    run_server(config, store, names, ready)


def _hint(store: ModelStore, names: list[str], url: str) -> str:
    """A line to try at once, or where to put a model when there is none."""
    known = names or [model.name for model in store.models()]
    if not known:
        return f"no models yet: put GGUF files into {store.models_dir}"
    body = json.dumps(
        {
            "model": short_name(known[0]),
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
        }
    )
    return f"try: curl {url}/v1/chat/completions -d '{body}'"
