"""Command fit: what a model would take, and whether this machine has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from ..config import Config
from .local import local_store, model_and_draft
from .models import ModelArgument
from .output import JsonOption, print_json, print_table, size_words
from .settings import with_settings

_MEANING = {
    "weights": "as the device is given them",
    "kv": "the KV cache of all sequences together",
    "scratch": "activations, tables, logits",
    "kv_ram": "more, in main memory, for KV blocks that left the cache (--kv-ram)",
    "optional": "more, once requests ask for penalties, biases, masks or log-probabilities",
}


@with_settings(
    "device",
    "ctx",
    "rope_scaling",
    "kv_memory",
    "kv_ram",
    "kv_type",
    "memory",
    "max_sequences",
    "max_batch_tokens",
    "draft",
    "models_dir",
    "places",
)
def fit(config: Config, model: ModelArgument, json: JsonOption = False) -> None:
    """Say whether a model fits, with which context, and what each part of it takes.

    Reads the file's header and asks the device for its limits; nothing is loaded. `GET /api/fit` of a running
    daemon tells the same, measured where the model is loaded.
    """
    from ..models.fit import judge, question_of
    from ..worker.client import WorkerClient

    path, draft = model_and_draft(config, model)
    local_store(config).check_file(path)
    made = asyncio.run(WorkerClient.estimate(question_of(config, path, draft)))
    told = judge(made, config).description()
    if json:
        print_json({"model": model, **told})
        return
    for key, text in _facts(told):
        print(f"{key:<16} {text}")
    rows = [
        (name, size_words(figure["bytes"]), figure["source"], _MEANING.get(name, ""))
        for name, figure in told["memory"].items()
    ]
    print_table(("MEMORY", "SIZE", "SOURCE", "WHAT"), rows)


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    device, context, matrix = told["device"], told["context"], told["largest_matrix"]
    yield "verdict", f"{told['verdict']}: {told['reason']}"
    memory = device["memory"]
    known = "does not tell its memory" if memory is None else size_words(memory)
    usable = "" if device["usable"] is None else f", {size_words(device['usable'])} may be used"
    yield "device", f"{device['name']}: {known}{usable} (class {device['tier']})"
    yield (
        "context",
        f"{context['served']} served of {context['wanted']} wanted; trained for {context['trained']}, "
        f"default {context['default']}",
    )
    for kind, tokens in context["largest"].items():
        yield f"largest, {kind}", f"{tokens} tokens"
    step = told["step"]
    yield "a step", f"{step['tokens']} tokens of {step['sequences']} sequences at most"
    split = "in one binding" if matrix["parts"] == 1 else f"split into {matrix['parts']} bindings"
    limit = device["max_binding"]
    bound = "" if limit is None else f", of which each may have {size_words(limit)}"
    yield "largest matrix", f"{matrix['name']}, {size_words(matrix['bytes'])}, {split}{bound}"
