"""Commands about models: list, ps, show, stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import Config
from .client import Daemon, running_daemon
from .local import local_store, model_path
from .output import JsonOption, print_json, print_table, printable, size_words, time_words
from .settings import with_settings

if TYPE_CHECKING:
    from ..models.store import StoredModel

NOT_CHECKED = "not checked"
"""As /api/ps says it."""

ModelArgument = Annotated[str, typer.Argument(help="A model's name, or the path of a GGUF file.")]


@with_settings("host", "port", "socket", "models_dir", "places")
def list_models(config: Config, json: JsonOption = False) -> None:
    """List the models that can be served.

    Asks the running daemon, which may know more files than the models folder holds; reads the folder and the
    places when none runs.
    """
    daemon = Daemon(config)
    try:
        if daemon.answers():
            rows = [_from_tag(tag) for tag in daemon.get("/api/tags")["models"]]
        else:
            rows = [_from_store(model) for model in local_store(config).models()]
    finally:
        daemon.close()
    if json:
        print_json(rows)
    elif rows:
        print_table(
            ("NAME", "ARCHITECTURE", "PARAMETERS", "TYPE", "SIZE", "MODIFIED"), _cells(rows)
        )
    else:
        print(f"no models; emberd pull brings one, or put GGUF files into {config.models_dir}")


def _from_tag(tag: dict[str, Any]) -> dict[str, Any]:
    details = tag["details"]
    return {
        "name": tag["name"],
        "architecture": details["family"],
        "parameters": details["parameter_size"],
        "type": details["quantization_level"],
        "size": tag["size"],
        "modified": tag["modified_at"],
        "digest": tag["digest"],
    }


def _from_store(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "architecture": model.facts.architecture,
        "parameters": model.facts.parameter_size,
        "type": model.facts.quantization,
        "size": model.size,
        "modified": model.modified.isoformat(),
        "digest": model.facts.digest,
    }


def _cells(rows: Iterable[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    for row in rows:
        yield (
            row["name"],
            row["architecture"],
            row["parameters"],
            row["type"],
            size_words(row["size"]),
            time_words(_moment(row["modified"])),
        )


def _moment(text: str) -> datetime:
    """RFC 3339 as the daemon writes it; Python 3.10 reads neither Z nor nanoseconds."""
    text = text.replace("Z", "+00:00")
    head, dot, tail = text.partition(".")
    if dot:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
    return datetime.fromisoformat(text)


@with_settings("host", "port", "socket")
def ps(config: Config, json: JsonOption = False) -> None:
    """List the models that are loaded, and until when."""
    with running_daemon(config) as daemon:
        loaded = daemon.get("/api/ps")["models"]
    if json:
        print_json(loaded)
        return
    rows = [
        (
            model["name"],
            size_words(model["size"]),
            "cpu" if not model["size_vram"] else "gpu",
            model["context_length"],
            time_words(_moment(model["expires_at"])),
        )
        for model in loaded
    ]
    if rows:
        print_table(("NAME", "MEMORY", "DEVICE", "CONTEXT", "UNLOADED"), rows)
        for model in loaded:
            if _is_checked(model):
                print(f"{model['name']}: {model['emberd']['verification']}")
            if draft := model.get("emberd", {}).get("draft"):
                told = f"{draft['file']} guesses, {size_words(draft['bytes'])} of that memory"
                print(f"{model['name']}: {told}")
    else:
        print("no model is loaded")


def _is_checked(model: dict[str, Any]) -> bool:
    return bool(model.get("emberd", {}).get("verification", NOT_CHECKED) != NOT_CHECKED)


@with_settings("host", "port", "socket", "models_dir", "places")
def show(
    config: Config,
    model: ModelArgument,
    json: JsonOption = False,
    template: Annotated[bool, typer.Option("--template", help="Print the chat template.")] = False,
    modelfile: Annotated[
        bool,
        typer.Option(
            "--modelfile", help="Print its own system text, parameters and so on as a Modelfile."
        ),
    ] = False,
) -> None:
    """Show what a model file holds: architecture, sizes, tensor types; with --json its metadata too.

    Where a daemon has it loaded, also what checking its kernels found.
    """
    from ..gguf.encoder import EncoderSpec
    from ..gguf.loaded import loading_note
    from ..gguf.spec import describe, open_any
    from ..models.modelfile import format_modelfile

    if modelfile:
        stored = local_store(config).find(model)
        print(format_modelfile(stored.recipe.parent or stored.name, stored.recipe), end="")
        return
    path = model_path(config, model)
    opened = open_any(path)
    try:
        metadata = {
            key: value
            for key, value in opened.file.metadata.items()
            if isinstance(value, (str, int, float, bool))
        }
        types = Counter(info.type.name for info in opened.file.tensors.values())
        note = loading_note(opened.file.tensors.values())
        spec, size, described = opened.spec, opened.file.size, describe(opened)
    finally:
        opened.close()
    chat_template = str(metadata.pop("tokenizer.chat_template", ""))
    if template:
        print(chat_template)
        return
    facts: dict[str, Any] = {
        "path": str(path),
        "size": size,
        "name": spec.name,
        "architecture": spec.architecture,
        "parameters": described.num_parameters,
        "type": described.quantization,
        "tensor types": dict(types),
        "loading": note or "as they are",
        "context length": spec.context_length,
        "layers": spec.num_layers,
        "hidden size": spec.hidden_size,
        "ffn size": spec.ffn_size,
        "heads": spec.num_heads,
        "kv heads": spec.num_heads if isinstance(spec, EncoderSpec) else spec.num_kv_heads,
        "head dim": spec.head_dim,
        "vocabulary": spec.vocab_size,
        "chat template": bool(chat_template),
        "kernels": _kernels_of(config, model),
    }
    if json:
        facts = {key.replace(" ", "_"): value for key, value in facts.items()}
        print_json(facts | {"chat_template": chat_template, "metadata": metadata})
        return
    facts["size"] = size_words(size)
    facts["tensor types"] = ", ".join(f"{name} ×{count}" for name, count in types.items())
    facts["chat template"] = "yes" if chat_template else "no"
    for key, value in facts.items():
        print(f"{key:<15} {printable(str(value))}")


def _kernels_of(config: Config, name: str) -> str:
    """What the daemon says of a loaded model's kernels."""
    from ..models.names import name_key

    daemon = Daemon(config)
    try:
        loaded = daemon.get("/api/ps")["models"] if daemon.answers() else []
    finally:
        daemon.close()
    for model in loaded:
        if name_key(model["name"]) == name_key(name) and _is_checked(model):
            return str(model["emberd"]["verification"])
    return NOT_CHECKED


@with_settings("host", "port", "socket")
def stop(config: Config, model: Annotated[str, typer.Argument(help="A model's name.")]) -> None:
    """Unload a model from the running daemon: at once, or when its running replies have ended."""
    from ..models.names import name_key

    def loaded() -> set[str]:
        return {name_key(item["name"]) for item in daemon.get("/api/ps")["models"]}

    with running_daemon(config) as daemon:
        before = loaded()
        daemon.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
        after = loaded()
    if name_key(model) not in before:
        print(f"{model} was not loaded")
    elif name_key(model) in after:
        print(f"{model} leaves when its replies have ended")
    else:
        print(f"{model} is unloaded")
