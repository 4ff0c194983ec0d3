"""Every kernel at the shapes of real models: right first, then its GPU time against the device's limits.

    python benchmarks/kernels.py                        shapes of 1B and 8B models (tiny on software)
    python benchmarks/kernels.py --ops matmul --tokens 1,32 --types Q4_K,Q8_0 --variants

A run is a chain of dispatches in one pass, over copies of the weights that no cache holds together; its time
includes what one dispatch waits for the one before. A case whose result is off is not timed, and ends in exit 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import common
from common import Spread
from emberd.errors import DeviceError
from emberd.runtime.device import Device, open_device
from emberd.verify.bench import Workbench
from gate_up_cases import gate_up_cases
from gpu_clock import GpuClock, dot4_rate, read_bandwidth, repeated
from kernel_case import SHAPES, Case
from op_cases import op_cases
from product_cases import embedding_case, product_cases

LEAST_SECONDS = 0.003
"""A timed pass lasts about this long."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case's outcome. The rates are of the median; `limit_share` is of the nearer limit."""

    op: str
    type: str
    shape: str
    variant: str
    kernels: str
    error: float | None
    passed: bool
    microseconds: Spread | None = None
    gb_s: float | None = None
    tera_ops: float | None = None
    limit_share: float | None = None
    best: bool = False  # the fastest of the variants of this shape


@dataclass(frozen=True, slots=True)
class Limits:
    """What the device can do, measured in the same run."""

    read_gb_s: Spread
    dot4_tera_ops: Spread


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        device = open_device(options.device)
        clock = GpuClock(device)
    except DeviceError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    software = device.info.is_software
    names = options.models or (["tiny"] if software else ["1b", "8b"])
    tokens = options.tokens or ((1, 4, 20) if software else (1, 8, 32, 512))
    facts = common.conditions(
        device=device.name,
        driver=device.info.driver,
        repeats=options.repeats,
        commit=options.commit,
        shapes=names,
        subgroup_size=device.subgroup_size,
    )
    common.print_conditions(facts)
    limits = _limits(device, clock, options.repeats)
    print(
        f"limits: read {limits.read_gb_s} GB/s, dot4I8Packed {limits.dot4_tera_ops} TOP/s\n",
        flush=True,
    )
    rows: list[Row] = []
    for name in names:
        bench = Workbench(device)
        for group in _cases(bench, name, tokens, options):
            found = _best(
                [_measure(device, clock, case, limits, options.repeats) for case in group]
            )
            _print(found)
            rows += found
    common.finish("kernels", facts, {"limits": limits, "kernels": rows}, options.out)
    wrong = [row for row in rows if not row.passed]
    for row in wrong:
        print(f"wrong: {row.kernels} {row.shape}: error {row.error}", file=sys.stderr)
    device.close()
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("GPU time of each kernel, checked against the reference first", 5)
    parser.add_argument("--device", default="gpu", help="gpu, or a part of an adapter's name")
    parser.add_argument("--models", type=_shapes, help=f"shapes: {','.join(SHAPES)}")
    parser.add_argument("--ops", type=_words, help="only ops whose names contain one of these")
    parser.add_argument("--tokens", type=common.numbers, help="numbers of tokens, as 1,8,32,512")
    parser.add_argument("--types", type=_words, help="tensor types of the products, as Q4_K,Q8_0")
    parser.add_argument("--roles", type=_words, help="matrices, as qkv,gate_up,down")
    parser.add_argument(
        "--variants", action="store_true", help="every tile that could serve a product"
    )
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


def _shapes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(SHAPES):
        raise argparse.ArgumentTypeError(f"no shapes {unknown}; there are {set(SHAPES)}")
    return names


def _cases(
    bench: Workbench, name: str, tokens: Sequence[int], options: argparse.Namespace
) -> Iterator[list[Case]]:
    """The cases that the options leave, those to compare with one another together."""
    shape = SHAPES[name]

    def wanted(op: str) -> bool:
        return options.ops is None or any(word in op for word in options.ops)

    if wanted("matmul"):
        yield from product_cases(
            bench, shape, tokens, options.types or (), options.roles, options.variants
        )
    if wanted("gate_up_quantize"):
        yield from gate_up_cases(bench, shape, tokens, options.types or (), options.variants)
    if wanted("embedding"):
        yield [embedding_case(bench, shape, 1)]
        yield [embedding_case(bench, shape, max(tokens))]
    for case in op_cases(bench, shape, tokens, wanted):
        yield [case]


def _limits(device: Device, clock: GpuClock, repeats: int) -> Limits:
    def scaled(spread: Spread, unit: float) -> Spread:
        return Spread(spread.median / unit, spread.low / unit, spread.high / unit, spread.n)

    return Limits(
        scaled(read_bandwidth(device, clock, repeats), 1e9),
        scaled(dot4_rate(device, clock, repeats), 1e12),
    )


def _measure(device: Device, clock: GpuClock, case: Case, limits: Limits, repeats: int) -> Row:
    error = case.check()
    names = (case.op, case.type, case.shape, case.variant, case.kernels)
    if not error <= case.tolerance:  # also where it is NaN
        return Row(*names, error=error if error == error else None, passed=False)
    steps = [step for chain in case.chains for step in clock.prepare(chain)]
    least = 0.0 if device.info.is_software else LEAST_SECONDS
    chain = repeated(clock, steps, least, repeats)
    copies = len(case.chains)
    taken = Spread(chain.median / copies, chain.low / copies, chain.high / copies, chain.n)
    gb_s, tera_ops = case.nbytes / taken.median / 1e9, case.ops / taken.median / 1e12
    shares = [gb_s / limits.read_gb_s.median]
    if case.integer:
        shares.append(tera_ops / limits.dot4_tera_ops.median)
    return Row(
        *names,
        error=error,
        passed=True,
        microseconds=Spread(1e6 * taken.median, 1e6 * taken.low, 1e6 * taken.high, taken.n),
        gb_s=gb_s,
        tera_ops=tera_ops or None,
        limit_share=max(shares),
    )


def _best(rows: list[Row]) -> list[Row]:
    """The rows with the fastest one marked, where there are several."""
    timed = [row for row in rows if row.microseconds is not None]
    if len(rows) < 2 or not timed:
        return rows
    best = min(timed, key=lambda row: row.microseconds.median if row.microseconds else 0.0)
    return [replace(row, best=row is best) for row in rows]


def _print(rows: Sequence[Row]) -> None:
    """A line a case, as soon as it is known."""
    for row in rows:
        if row.microseconds is None:
            figures = f"WRONG, error {row.error}"
        else:
            figures = (
                f"{row.microseconds.median:10,.2f} µs  {row.gb_s:8,.1f} GB/s  "
                f"{row.tera_ops or 0:7.2f} TOP/s  {row.limit_share or 0:5.0%}  error {row.error:.1e}"
            )
        mark = "  ← fastest" if row.best else ""
        name = row.variant or row.op
        print(f"{row.op:18} {row.type:5} {row.shape:40} {name:34} {figures}{mark}", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
