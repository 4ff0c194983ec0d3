"""What a KV cache in q8_0 changes: next-token distributions of a text, against those with the cache in float32.

    python benchmarks/kv_quality.py MODEL.gguf... --text docs/architecture.md --tokens 512

On the CPU device, where nothing else rounds. KL is that of the q8_0 run from the float32 run, in nats a token. It
measures no time.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import common
from emberd.errors import EmberdError
from emberd.gguf.reader import GGUFFile
from emberd.protocol import Batch, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.text.tokenizer import Tokenizer

CHUNK = 128


def main() -> int:
    parser = common.parser("Next-token distributions with a KV cache in q8_0", 1)
    parser.add_argument("models", type=Path, nargs="+", help="GGUF files")
    parser.add_argument("--text", type=Path, required=True, help="a text file")
    parser.add_argument("--tokens", type=common.positive, default=512)
    options = parser.parse_args()
    try:
        results = [_compared(model, options) for model in options.models]
    except EmberdError as error:
        print(error.message, file=sys.stderr)
        return 1
    headers = ("model", "tokens", "mean KL", "largest KL", "same top token", "perplexity, change")
    common.print_table(headers, [_cells(result) for result in results])
    facts = common.conditions(
        device="CPU", driver="", repeats=1, commit=options.commit, text=options.text.name
    )
    common.finish("kv_quality", facts, results, options.out)
    return 0


def _compared(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    with GGUFFile(model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        text = options.text.read_text(encoding="utf-8")
        ids = tokenizer.encode(text, add_special=True, parse_special=False)[: options.tokens]
    settings = WorkerOptions(
        str(model), "cpu", context_length=len(ids), kv_memory=1 << 40, max_sequences=1
    )
    plain = _log_probabilities(settings, ids)
    packed = _log_probabilities(replace(settings, kv_type="q8_0"), ids)
    kl = np.sum(np.exp(plain) * (plain - packed), axis=1)
    following = np.asarray(ids[1:])
    places = np.arange(len(following))
    losses = [-float(np.mean(run[places, following])) for run in (plain, packed)]
    return {
        "model": model.name,
        "tokens": len(ids),
        "mean_kl": float(kl.mean()),
        "largest_kl": float(kl.max()),
        "same_top": float(np.mean(plain.argmax(axis=1) == packed.argmax(axis=1))),
        "perplexity": float(np.exp(losses[0])),
        "perplexity_change": float(np.exp(losses[1] - losses[0]) - 1),
    }


def _log_probabilities(options: WorkerOptions, ids: list[int]) -> NDArray[np.float64]:
    """(tokens, vocabulary) of what follows each token."""
    runner = CpuRunner.load(options)
    blocks = np.arange(-(-len(ids) // runner.block_size), dtype=np.int32)[None]
    parts = []
    for first in range(0, len(ids), CHUNK):
        part = np.asarray(ids[first : first + CHUNK], np.int32)
        places = np.arange(first, first + len(part), dtype=np.int32)
        batch = Batch(
            token_ids=part,
            positions=places,
            slot_mapping=places,  # blocks lie in order
            query_start=np.array([0, len(part)], np.int32),
            context_lens=np.array([first + len(part)], np.int32),
            block_tables=blocks,
            sequence_index=np.zeros(1, np.int32),
            sample=np.zeros(1, np.bool_),
            logits_at=np.arange(len(part), dtype=np.int32),
        )
        runner.submit(batch)
        logits = runner.collect().logits
        assert logits is not None
        z = logits.astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        parts.append(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))
    runner.close()
    return np.concatenate(parts)


def _cells(result: dict[str, Any]) -> list[Any]:
    shares = (f"{100 * result['same_top']:.1f} %", f"{100 * result['perplexity_change']:+.2f} %")
    return [result[name] for name in ("model", "tokens", "mean_kl", "largest_kl")] + [*shares]


if __name__ == "__main__":
    raise SystemExit(main())
