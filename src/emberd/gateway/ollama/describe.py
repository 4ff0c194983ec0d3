"""Ollama's descriptions of models: items of lists, and everything that `show` tells.

Blocks on the disk where it says so.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ...models.facts import sampling_hints
from ...models.loaded import LoadedModel
from ...models.memory import taken
from ...models.modelfile import format_modelfile, parameter_lines
from ...models.names import split_tag
from ...models.recipe import Recipe
from ...models.store import ModelStore, StoredModel
from .shape import rfc3339

Json = dict[str, Any]
NEVER = datetime(2999, 12, 31, tzinfo=timezone.utc)
_SYSTEM = "{{ if .System }}{{ .System }}\n\n{{ end }}"
_SUFFIX = "{{ if .Suffix }}{{ .Prompt }}{{ .Suffix }}{{ else }}"
_TOOLS = "{{ if .Tools }}{{ .Tools }}\n\n{{ end }}"

_PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "penalty_window": "repeat_last_n",
}
_GO_TEMPLATE_NOTE = (
    "the model came with a Go template, which is not run; the file's own chat template is"
)
_NO_TEMPLATE_NOTE = (
    "the model came with a Go template, which is not run, and the file has no chat template: messages are put one "
    "after the other; create a model of it with a Jinja template"
)
_LEFT_OUT = "tokenizer.chat_template"


def list_item(stored: StoredModel, context_length: int) -> Json:
    return {
        "name": stored.name,
        "model": stored.name,
        "modified_at": rfc3339(stored.modified),
        "size": stored.size,
        "digest": stored.digest,
        "details": details(stored),
        "capabilities": list(stored.facts.capabilities),
        "context_length": context_length,
    }


def running_item(model: LoadedModel) -> Json:
    size = taken(model.info)
    return {
        "name": model.name,
        "model": model.name,
        "size": size,
        "digest": model.stored.digest,
        "details": details(model.stored),
        "expires_at": rfc3339(model.expires_at or NEVER),
        "size_vram": size if model.info.device_kind == "gpu" else 0,
        "context_length": model.context_length,
        "emberd": {
            "device": model.info.device,
            "verification": model.info.verification or "not checked",
            "active": model.active,
            "memory": {  # bytes, measured; together they are `size`
                "weights": model.info.weight_bytes,
                "kv": model.info.kv_bytes,
                "scratch": model.info.scratch_bytes,
            },
            "kv_type": model.info.kv_type,
            "step": {
                "tokens": model.info.max_batch_tokens,
                "sequences": model.info.max_sequences,
            },
            "blocks": model.info.num_blocks,
            "blocks_free": model.worker.stats.num_free_blocks,
            "tiers": _tiers(model),
            "draft": _draft(model),
        },
    }


def _draft(model: LoadedModel) -> Json | None:
    """The model that guesses; its bytes are among those of the whole."""
    info = model.info
    return {"file": info.draft, "bytes": info.draft_bytes} if info.draft else None


def _tiers(model: LoadedModel) -> Json | None:
    """KV blocks below the pool; None where no memory is given for them."""
    counts = model.worker.stats.tiers
    return None if counts is None else dataclasses.asdict(counts)


def details(stored: StoredModel) -> Json:
    facts = stored.facts
    return {
        "parent_model": stored.recipe.parent,
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": facts.parameter_size,
        "quantization_level": facts.quantization,
    }


def template(stored: StoredModel) -> str:
    """A text of Ollama's form, into which clients look for .Tools, .System and .Suffix (OL-34); prompts are made
    by the file's own template, and of its tokens to fill in with."""
    chat = f"{_SYSTEM}{_TOOLS if stored.facts.has_template else ''}{{{{ .Prompt }}}}"
    return f"{_SUFFIX}{chat}{{{{ end }}}}" if stored.facts.fills else chat


def show(store: ModelStore, stored: StoredModel, context_length: int, verbose: bool) -> Json:
    """Reads the file's header. Raises ModelFileError."""
    metadata = store.metadata(stored)
    facts = stored.facts
    info: Json = {
        key: _plain(value, verbose) for key, value in metadata.items() if key != _LEFT_OUT
    }
    info["general.parameter_count"] = facts.num_parameters
    info.setdefault("general.basename", split_tag(stored.name)[0].rpartition("/")[2])
    recipe = stored.recipe
    described: Json = {
        "license": "\n".join(recipe.license) or _text(metadata.get("general.license")),
        "modelfile": f"# Written by emberd\n{format_modelfile(recipe.parent or stored.name, recipe)}",
        "parameters": _parameters(sampling_hints(metadata), context_length, stored.recipe),
        "template": recipe.template or template(stored),
        "details": details(stored),
        "model_info": info,
        "capabilities": list(facts.capabilities),
        "modified_at": rfc3339(stored.modified),
        "emberd": {"source": stored.source},
    }
    if recipe.system:
        described["system"] = recipe.system
    if recipe.messages:
        described["messages"] = [{"role": role, "content": text} for role, text in recipe.messages]
    if facts.loading_note:
        described["emberd"]["types"] = facts.loading_note
    if recipe.go_template:
        note = _GO_TEMPLATE_NOTE if facts.has_template else _NO_TEMPLATE_NOTE
        described["emberd"]["template"] = note
    return described


def _parameters(hints: Mapping[str, float], context: int, recipe: Recipe) -> str:
    """The recipe's values, and what the file recommends where the recipe is silent."""
    given = parameter_lines(recipe)
    silent: dict[str, object] = {"num_ctx": context}
    silent |= {_PARAMETERS[name]: f"{value:.6g}" for name, value in hints.items()}
    named = {name for name, _ in given}
    lines = [*((name, text) for name, text in silent.items() if name not in named), *given]
    return "\n".join(f"{name:<30} {value}" for name, value in lines)


def _plain(value: Any, verbose: bool) -> Any:
    """Arrays only when they are asked for. What JSON cannot hold becomes null or U+FFFD."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, int) or value is None:
        return value
    if not verbose:
        return None
    items = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(item, verbose) for item in items]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(_plain(value, verbose=True))
