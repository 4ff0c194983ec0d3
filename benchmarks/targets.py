"""What we want of one GPU against what one run gave, beside the peer of the same run and the hardware's limit.

    python benchmarks/targets.py --versus 1B.json 8B.json --engine 8B.json --out results/targets.json

Takes results of `versus.py` for the shapes of Llama-3.2-1B and 3.1-8B and of `engine.py` for the latter (loading and
long context), all of one commit and one device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common

Json = dict[str, Any]

BANDWIDTH_GB_S = 3540
"""What a kernel of ours reads a second at most on an H200."""

INTEGER_TOP_S = 118
"""What `dot4I8Packed` reaches there."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model-shaped file: what a step must read, and multiply for each token."""

    name: str
    step_gb: float  # of weights, each read once a step
    layer_weights: float
    head_weights: float

    def operations(self, with_head: bool) -> float:
        """Integer operations of one token."""
        return 2 * (self.layer_weights + (self.head_weights if with_head else 0))


SHAPES = (
    Shape("1B", 0.79986, 0.97308e9, 0.26267e9),
    Shape("8B", 4.6174, 6.9793e9, 0.52534e9),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A figure of a shape. `limit` says which of the hardware's limits it is held against."""

    shape: str
    figure: str  # as versus.py names it
    wanted: float
    limit: str
    cuda: float | None = None  # llama.cpp's CUDA backend, measured earlier on such a card


TARGETS = (
    Target("1B", "decode, 1 streams", 1600, "bandwidth", 809),
    Target("8B", "decode, 1 streams", 400, "bandwidth", 248),
    Target("1B", "decode, 32 streams", 12000, "products", 8933),
    Target("8B", "decode, 32 streams", 3500, "products", 3211),
    Target("1B", "prefill, 512 tokens", 25000, "products", 35900),
    Target("8B", "prefill, 512 tokens", 4500, "products", 8600),
)

HTTP_SHARE, LOAD_GB_S, LONG_CONTEXT = 0.85, 2.0, 0.7


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `share` is of the limit, None where there is none."""

    figure: str
    wanted: float
    emberd: float
    low: float
    high: float
    peer: float | None
    ratio: float | None
    cuda: float | None
    share: float | None
    limit: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Targets against what one run gave")
    parser.add_argument("--versus", type=Path, nargs=2, required=True, help="of 1B and of 8B")
    parser.add_argument("--engine", type=Path, required=True, help="of 8B, with long contexts")
    parser.add_argument("--out", type=Path, help="result file (default: benchmarks/results/…)")
    options = parser.parse_args(arguments)
    versus = [json.loads(path.read_text(encoding="utf-8")) for path in options.versus]
    engine = json.loads(options.engine.read_text(encoding="utf-8"))
    try:
        facts = _common_facts([*versus, engine])
    except ValueError as error:
        print(f"targets: {error}", file=sys.stderr)
        return 1
    rows = made(dict(zip(("1B", "8B"), versus, strict=True)), engine)
    common.print_table(
        ("FIGURE", "WANTED", "EMBERD", "PEER", "OF LIMIT"),
        [(row.figure, row.wanted, row.emberd, row.peer, row.share) for row in rows],
    )
    common.finish("targets", facts, {"rows": rows}, options.out)
    return 0


def made(versus: dict[str, Json], engine: Json) -> list[Row]:
    """The rows, from results of versus.py by shape and of engine.py for 8B. KeyError for a figure that is missing."""
    rows = []
    for target in TARGETS:
        found = _figures(versus[target.shape])[target.figure]
        shape = next(shape for shape in SHAPES if shape.name == target.shape)
        mine = found["emberd"]
        rows.append(
            Row(
                f"{target.shape} {target.figure}, tok/s",
                target.wanted,
                mine["median"],
                mine["low"],
                mine["high"],
                found["peer"]["median"],
                found["ratio"]["median"],
                target.cuda,
                _share(target, shape, mine["median"]),
                target.limit,
            )
        )
    for name, record in versus.items():
        share = record["results"]["http_share_of_engine"]["32"]
        rows.append(_own(f"{name} over HTTP, 32 streams, of the engine's own", HTTP_SHARE, share))
    results = engine["results"]
    load = results["load"]["gb_s"]
    rows.append(_own("8B file to the first token, GB/s", LOAD_GB_S, load))
    speeds = {
        row["prompt_tokens"]: row["decode_tok_s"]["median"]
        for row in results["rows"]
        if row["what"] == "context"
    }
    kept = speeds[16384] / speeds[256]
    rows.append(_own("8B decode at 16,384 tokens against 256", LONG_CONTEXT, kept))
    return rows


def _own(figure: str, wanted: float, value: float) -> Row:
    return Row(figure, wanted, value, value, value, None, None, None, None, "")


def _share(target: Target, shape: Shape, tok_s: float) -> float:
    """Of the limit that `target` is held against. Steps of several streams read weights once for all."""
    if target.limit == "bandwidth":
        return shape.step_gb * tok_s / BANDWIDTH_GB_S
    return shape.operations("decode" in target.figure) * tok_s / (INTEGER_TOP_S * 1e12)


def _figures(record: Json) -> dict[str, Json]:
    return {row["figure"]: row for row in record["results"]["rows"]}


def _common_facts(records: Sequence[Json]) -> Json:
    """The first one's conditions, less the model. ValueError where the others were taken elsewhere."""
    told = [record["conditions"] for record in records]
    for name in ("device", "driver", "commit"):
        if len({facts[name] for facts in told}) > 1:
            raise ValueError(f"the results differ in {name}")
    return {
        name: value
        for name, value in told[0].items()
        if name not in ("model", "model_bytes", "sha256")
    }


if __name__ == "__main__":
    sys.exit(main())
