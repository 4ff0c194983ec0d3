"""Ollama's descriptions of models: items of lists, and everything that `show` tells.

Blocks on the disk where it says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ...config import Config
from ...models.facts import sampling_hints
from ...models.loaded import LoadedModel
from ...models.store import ModelStore, StoredModel
from .shape import rfc3339

Json = dict[str, Any]
NEVER = datetime(2999, 12, 31, tzinfo=timezone.utc)
TEMPLATE = "{{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}"
"""Clients look into it for .Tools and .Suffix, which are not served; prompts are made by the file's own template."""

_PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "penalty_window": "repeat_last_n",
}
_LEFT_OUT = "tokenizer.chat_template"


def list_item(stored: StoredModel, config: Config) -> Json:
    return {
        "name": stored.name,
        "model": stored.name,
        "modified_at": rfc3339(stored.modified),
        "size": stored.size,
        "digest": stored.facts.digest,
        "details": details(stored),
        "capabilities": list(stored.facts.capabilities),
        "context_length": context_length(stored, config),
    }


def running_item(model: LoadedModel) -> Json:
    size = model.info.weight_bytes + model.info.kv_bytes
    return {
        "name": model.name,
        "model": model.name,
        "size": size,
        "digest": model.stored.facts.digest,
        "details": details(model.stored),
        "expires_at": rfc3339(model.expires_at or NEVER),
        "size_vram": size if model.info.device_kind == "gpu" else 0,
        "context_length": model.context_length,
        "emberd": {
            "device": model.info.device,
            "active": model.active,
            "blocks": model.info.num_blocks,
            "blocks_free": model.worker.stats.num_free_blocks,
        },
    }


def details(stored: StoredModel) -> Json:
    facts = stored.facts
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": facts.parameter_size,
        "quantization_level": facts.quantization,
    }


def context_length(stored: StoredModel, config: Config) -> int:
    """What would be served, as far as it is known before the model is loaded."""
    trained = stored.facts.context_length
    return trained if config.ctx is None else min(trained, config.ctx)


def show(store: ModelStore, config: Config, name: str, verbose: bool) -> Json:
    """Reads the file's header. Raises ModelNotFoundError, ModelFileError, BadRequestError."""
    stored = store.find(name)
    metadata = store.metadata(stored)
    facts = stored.facts
    info: Json = {
        key: _plain(value, verbose) for key, value in metadata.items() if key != _LEFT_OUT
    }
    info["general.parameter_count"] = facts.num_parameters
    info.setdefault("general.basename", stored.path.stem)
    return {
        "license": _text(metadata.get("general.license")),
        "modelfile": f"# Found by emberd\nFROM {stored.name}\n",
        "parameters": _parameters(sampling_hints(metadata), context_length(stored, config)),
        "template": TEMPLATE,
        "details": details(stored),
        "model_info": info,
        "capabilities": list(stored.facts.capabilities),
        "modified_at": rfc3339(stored.modified),
    }


def _parameters(hints: Mapping[str, float], context: int) -> str:
    values: dict[str, object] = {"num_ctx": context}
    values |= {_PARAMETERS[name]: f"{value:.6g}" for name, value in hints.items()}
    return "\n".join(f"{name:<30} {value}" for name, value in values.items())


def _plain(value: Any, verbose: bool) -> Any:
    """Arrays only when they are asked for."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if not verbose:
        return None
    return value.tolist() if hasattr(value, "tolist") else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
