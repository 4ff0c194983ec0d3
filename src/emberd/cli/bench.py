"""Command bench: prefill and decode speed of a model on a device, without HTTP."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import secrets
from typing import Annotated

import typer

from .. import __version__
from ..config import Config
from ..errors import BadRequestError, ConfigError
from ..protocol import EncoderRunner, WorkerOptions
from .local import model_and_draft
from .output import print_table, size_words
from .settings import with_settings

_COLUMNS = (
    "STREAMS",
    "PROMPT",
    "NEW",
    "PREFILL tok/s",
    "DECODE tok/s",
    "TOTAL tok/s",
    "STEP ms",
    "WEIGHTS GB/s",
    "GUESSED",
    "RIGHT",
)


@with_settings("device", "ctx", "kv_memory", "kv_type", "max_batch_tokens", "models_dir", "draft")
def bench(
    config: Config,
    model: Annotated[str, typer.Argument(help="A model's name, or the path of a GGUF file.")],
    streams: Annotated[str, typer.Option(help="Numbers of streams, with commas.")] = "1",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt of each stream.")] = 128,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens each stream generates.")] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print only the JSON line.")] = False,
) -> None:
    """Measure prefill and decode tok/s of any model that generates text; ends in one JSON line.

    Prompts are random token ids and sampling is greedy, so only the speed means something. WEIGHTS GB/s is
    the size of the weights over the time of a decode step: hold it against the memory's bandwidth. Without
    --ctx the context holds the prompt and the new tokens of a stream, beyond the trained one too. With
    --draft that model guesses, and what it guesses depends on what the models say after all.
    """
    from ..bench import Workload, longest, measure
    from ..gguf.spec import open_model
    from ..worker.process import load_runners

    workload = Workload(_numbers(streams), prompt_tokens, new_tokens)
    if config.ctx and config.ctx < prompt_tokens + new_tokens:
        raise BadRequestError(
            f"--ctx {config.ctx} does not hold --prompt-tokens {prompt_tokens} and --new-tokens {new_tokens}"
        )
    path, draft = model_and_draft(config, model)
    opened = open_model(path)
    vocab_size = opened.spec.vocab_size
    opened.close()
    options = WorkerOptions(
        model_path=str(path),
        device=config.device,
        context_length=config.ctx or prompt_tokens + new_tokens,
        rope_scaling=("linear", None),  # beyond the trained context too: only the speed counts
        kv_memory=config.kv_memory,
        kv_type=config.kv_type,
        max_sequences=max(*workload.streams, 32 if draft is not None else 0),
        max_batch_tokens=config.max_batch_tokens,
        cache_dir=str(config.cache_dir),
        draft_path=None if draft is None else str(draft),
    )
    runner, beside = load_runners(options, lambda _: None)
    assert not isinstance(runner, EncoderRunner), "opening the file has refused encoders"
    try:
        info = runner.info()
        slots, needed = info.num_blocks * info.block_size, longest(runner, workload)
        if needed > slots:
            raise ConfigError(
                f"{needed} tokens of KV cache are needed and {slots} fit; raise --kv-memory, or lower "
                "--streams, --prompt-tokens or --new-tokens"
            )
        results = []
        guesser = None if beside is None else beside.model()
        for speed in measure(runner, vocab_size, workload, secrets.randbits(32), draft=guesser):
            results.append(dataclasses.asdict(speed))
    finally:
        if beside is not None:
            beside.runner.close()
        runner.close()
    if not json:
        print(
            f"{path.name} on {info.device}: weights {size_words(info.weight_bytes)}, "
            f"loaded in {info.load_seconds:.1f} s, tiles tuned for {info.tuned_products} products"
        )
        print_table(_COLUMNS, [tuple(row.values()) for row in results])
    facts = {
        "emberd": __version__,
        "model": path.name,
        "device": info.device,
        "device_kind": info.device_kind,
        "weight_bytes": info.weight_bytes,
        "load_seconds": round(info.load_seconds, 2),
        "tuned_products": info.tuned_products,
        "max_batch_tokens": config.max_batch_tokens,
        "draft": None if draft is None else draft.name,
        "results": results,
    }
    print(jsonlib.dumps(facts))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise BadRequestError(f"--streams: '{text}' is not a list of numbers, as 1,8,32")
    return found
