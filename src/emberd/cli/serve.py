"""Command serve: the daemon itself, in the foreground."""

from __future__ import annotations

import json
import logging

from .. import __version__, logs
from ..config import Config
from ..keys import readable_by_others
from ..models.drafts import check_drafts
from ..models.names import short_name
from ..models.store import ModelStore
from .settings import with_settings

logger = logging.getLogger(__name__)


@with_settings()
def serve(config: Config) -> None:
    """Serve models over HTTP: the OpenAI, Ollama and Anthropic APIs on one port.

    Models named here are loaded at the start and stay; others are loaded by the first request for them. The
    first Ctrl-C lets running replies end, the second does not.
    """
    logs.setup(config.log_level, config.log_format)
    if config.api_key_file is not None and readable_by_others(config.api_key_file):
        logger.warning("every user of this machine may read the key file; chmod 600 it")
    store = ModelStore(config.models_dir, config.cache_dir, config.places)
    store.pulled.tidy()
    names = [store.register(entry) for entry in config.models]
    for name in names:
        store.find(name)  # a file that cannot be served is said now, not by the first request
    check_drafts(config, store)
    if config.device not in ("auto", "cpu"):
        from ..runtime.device import choose_adapter

        choose_adapter(config.device)  # said now, not by the first request

    from ..gateway.server import run_server

    def ready(place: str) -> None:
        try:
            print(f"emberd {__version__} listens on {place}")
            print(_hint(config, store, names, place), flush=True)
        except OSError as error:  # who calls the daemon does not read its output
            logger.warning("standard output cannot be written: %s", error.strerror)

    run_server(config, store, names, ready)


def _hint(config: Config, store: ModelStore, names: list[str], place: str) -> str:
    """A line to try at once, or where to put a model when there is none."""
    models = [store.find(name) for name in names] or store.models()
    if not models:
        return f"no models yet: emberd pull brings one, or put GGUF files into {store.models_dir}"
    answering = next((one for one in models if "completion" in one.facts.capabilities), None)
    question, route = "Name the capital of France.", "chat/completions"
    body: dict[str, object] = {"model": short_name((answering or models[0]).name)}
    if answering is not None:
        body |= {"messages": [{"role": "user", "content": question}], "temperature": 0}
    else:
        body["input"], route = question, "embeddings"
    where = f"--unix-socket {place} http://localhost" if config.socket else place
    key = '-H "Authorization: Bearer $KEY" ' if config.keys() else ""
    return f"try: curl {key}{where}/v1/{route} -d '{json.dumps(body)}'"
