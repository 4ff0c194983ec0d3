"""Any Runner against llama.cpp's runs of real models: the rules of the cases' README, as functions.

As a command it runs all cases of one model and prints a line for each:

    python -m tests.reference_cases --model PATH [--device cpu|gpu|ADAPTER] [--no-decode]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from numpy.typing import NDArray

from batches import GREEDY, Row, make_batch
from emberd.gguf.spec import open_model
from emberd.protocol import FROM_LAST_STEP, Runner, WorkerOptions
from emberd.runtime.activations import is_fine

CONTEXT = 1024
"""Tokens that the longest case needs, continuation included."""

MOST_LOGITS = 64
"""Logits of so many tokens are asked for in one step."""


@dataclass(frozen=True)
class Tolerance:
    """Allowed differences in natural-log probability from the F32 run."""

    first: float  # each of the five likeliest first tokens
    tie: float  # two candidates this near each other may change places
    scored_mean: float
    scored_single: float


FLOAT = Tolerance(first=0.03, tie=0.03, scored_mean=0.005, scored_single=0.05)
EIGHT_BIT = Tolerance(first=0.45, tie=0.45, scored_mean=0.03, scored_single=0.6)


@dataclass
class Outcome:
    """What one case measured, and the rules it broke."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def hold(self, what: str, value: float, limit: float) -> None:
        self.figures[what] = max(value, self.figures.get(what, 0.0))
        if not value <= limit:
            self.faults.append(f"{what} {value:.4f} > {limit}")

    def __str__(self) -> str:
        figures = "  ".join(f"{what} {value:.4f}" for what, value in self.figures.items())
        return f"{self.name:12} {'FAIL' if self.faults else 'ok':4}  {figures}" + "".join(
            f"\n{'':18}{fault}" for fault in self.faults
        )


def load_cases(folder: Path, model_path: Path) -> dict[str, Any]:
    """The case file made with exactly this model file, found by its digest."""
    sha256 = hashlib.sha256(np.memmap(model_path, mode="r")).hexdigest()
    for path in sorted(folder.glob("*.json")):
        cases: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if cases["gguf_sha256"] == sha256:
            return cases
    raise LookupError(f"{model_path.name} is none of the models that {folder} has cases for")


def logprobs_at(runner: Runner, ids: list[int], places: list[int]) -> NDArray[np.float64]:
    """Log-probabilities (len(places), vocab) after the tokens at `places`, from prefill in chunks."""
    blocks = range(-(-len(ids) // runner.block_size))
    parts: list[NDArray[np.float64]] = []
    start = 0
    while start < len(ids):
        end = min(start + runner.max_batch_tokens, len(ids))
        wanted = [place - start for place in places if start <= place < end]
        if len(wanted) > MOST_LOGITS:
            wanted = wanted[:MOST_LOGITS]
            end = start + wanted[-1] + 1
        row = Row(0, ids[start:end], start, blocks, False, GREEDY if start == 0 else None)
        runner.submit(make_batch([row], runner.block_size, wanted or None))
        output = runner.collect()
        if wanted:
            assert output.logits is not None
            parts.append(_log_softmax(output.logits))
        start = end
    return np.concatenate(parts)


def greedy(runner: Runner, ids: list[int], count: int, stop_id: int | None) -> list[int]:
    """The runner's own greedy continuation: prefill in chunks, then decode steps."""
    blocks = range(-(-(len(ids) + count) // runner.block_size))
    tokens: list[int] = []
    for start in range(0, len(ids), runner.max_batch_tokens):
        end = min(start + runner.max_batch_tokens, len(ids))
        admit = GREEDY if start == 0 else None
        row = Row(0, ids[start:end], start, blocks, end == len(ids), admit)
        runner.submit(make_batch([row], runner.block_size))
        output = runner.collect()
    tokens.append(int(output.token_ids[0]))
    while len(tokens) < count and tokens[-1] != stop_id:
        row = Row(0, [FROM_LAST_STEP], len(ids) + len(tokens) - 1, blocks)
        runner.submit(make_batch([row], runner.block_size))
        tokens.append(int(runner.collect().token_ids[0]))
    return tokens


def check_prompt(runner: Runner, case: dict[str, Any], tolerance: Tolerance) -> Outcome:
    """Rules 2 and 4 in one prefill: the F32 run's own tokens are fed, and every position compared."""
    outcome = Outcome(f"prompt {case['index']}")
    f32 = case["f32"]
    ids, tokens = case["prompt_ids"], f32["tokens"]
    places = list(range(len(ids) - 1, len(ids) - 1 + len(tokens)))
    logprobs = logprobs_at(runner, ids + tokens[:-1], places)

    for token, wanted in f32["first_top20"][:5]:
        outcome.hold("first", abs(logprobs[0, token] - wanted), tolerance.first)
    path = [
        abs(row[token] - dict(map(tuple, top))[token])
        for row, token, top in zip(logprobs, tokens, f32["top_logprobs"], strict=True)
    ]
    outcome.figures["path max"] = max(path)
    outcome.figures["differing"] = 0.0
    for place, row in enumerate(logprobs):
        if (own := int(np.argmax(row))) != tokens[place]:
            outcome.figures["differing"] += 1
            _hold_tie(outcome, own, tokens[place], f32["top_logprobs"][place], tolerance)
    return outcome


def check_decode(runner: Runner, case: dict[str, Any], tolerance: Tolerance) -> Outcome:
    """Rule 4 with decode steps: the runner's own greedy text up to the first difference."""
    outcome = Outcome(f"decode {case['index']}")
    f32 = case["f32"]
    wanted = f32["tokens"]
    stop_id = wanted[-1] if len(wanted) < 48 else None
    tokens = greedy(runner, case["prompt_ids"], len(wanted), stop_id)
    pairs = enumerate(zip(tokens, wanted, strict=False))
    first = next((place for place, (own, token) in pairs if own != token), None)
    outcome.figures["same tokens"] = len(wanted) if first is None else first
    if first is not None:
        _hold_tie(outcome, tokens[first], wanted[first], f32["top_logprobs"][first], tolerance)
    return outcome


def check_scored(
    runner: Runner, number: int, case: dict[str, Any], tolerance: Tolerance
) -> Outcome:
    """Rule 3: a given text, token by token."""
    outcome = Outcome(f"scored {number}")
    ids = case["ids"]
    logprobs = logprobs_at(runner, ids, list(range(len(ids) - 1)))
    wanted = [score["logprob"] for score in case["f32_scores"]]
    pairs = [
        (float(row[token]), score)
        for row, token, score in zip(logprobs, ids[1:], wanted, strict=True)
        if score is not None
    ]
    difference = np.array([own - score for own, score in pairs])
    outcome.hold("mean", abs(float(difference.mean())), tolerance.scored_mean)
    outcome.hold("single", float(np.abs(difference).max()), tolerance.scored_single)
    return outcome


def _hold_tie(
    outcome: Outcome, own: int, token: int, top: list[list[float]], tolerance: Tolerance
) -> None:
    likely = {int(candidate): logprob for candidate, logprob in top}
    if own not in likely:
        outcome.faults.append(f"token {own} for {token}: not among the five likeliest")
        return
    outcome.hold("margin of a difference", likely[token] - likely[own], tolerance.tie)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def open_runner(model_path: Path, device: str) -> Runner:
    options = WorkerOptions(str(model_path), device=device, context_length=CONTEXT, max_sequences=4)
    if device == "cpu":
        from emberd.reference.runner import CpuRunner

        return CpuRunner.load(options)
    from emberd.runtime.runner import GpuRunner

    return GpuRunner.load(options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="one of the cases' GGUF files")
    parser.add_argument("--device", default="cpu", help="cpu, gpu or an adapter")
    parser.add_argument("--no-decode", action="store_true", help="prefill only: fewer steps")
    arguments = parser.parse_args()
    root = Path(__file__).parents[1]
    folder = Path(os.environ.get("EMBERD_CASES", root.parent / "shared" / "cases"))
    try:
        cases = load_cases(folder / "reference", arguments.model)
    except (LookupError, OSError) as error:
        parser.error(str(error))
    opened = open_model(arguments.model)
    near = arguments.device == "cpu" or is_fine(opened.spec.hidden_size)
    opened.close()
    tolerance = FLOAT if near else EIGHT_BIT

    runner = open_runner(arguments.model, arguments.device)
    print(f"{cases['model']} on {runner.info().device}", flush=True)
    start = time.perf_counter()
    outcomes: list[Outcome] = []
    for case in cases["cases"]:
        outcomes.append(check_prompt(runner, case, tolerance))
        print(outcomes[-1], flush=True)
        if not arguments.no_decode:
            outcomes.append(check_decode(runner, case, tolerance))
            print(outcomes[-1], flush=True)
    for number, case in enumerate(cases["scored"]):
        outcomes.append(check_scored(runner, number, case, tolerance))
        print(outcomes[-1], flush=True)
    runner.close()
    failed = sum(bool(outcome.faults) for outcome in outcomes)
    seconds = time.perf_counter() - start
    print(f"{len(outcomes) - failed} of {len(outcomes)} within {tolerance}; {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
