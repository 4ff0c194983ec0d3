"""Tables in README.md and docs/ that are made from result files, so that no claim differs from its measurement.

A page holds `<!-- result NAME.json -->` … `<!-- end result -->`; what lies between is made from that file of
benchmarks/results/.

    python benchmarks/claims.py            write the tables anew
    python benchmarks/claims.py --check    change nothing; exit 1 when a page differs from its results
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_CLAIM = re.compile(r"(<!-- result (\S+) -->\n)(.*?)(<!-- end result -->)", re.DOTALL)

Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tables of the docs from result files")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(arguments)
    differing = [page for page in pages(ROOT) if _update(page, ROOT, options.check)]
    for page in differing:
        print(
            f"{page.relative_to(ROOT)}: {'differs from its results' if options.check else 'written'}"
        )
    return 1 if options.check and differing else 0


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(text: str, results: Path) -> str:
    """The text with every table made anew. FileNotFoundError for a result that is not there."""

    def table(match: re.Match[str]) -> str:
        record = json.loads((results / match.group(2)).read_text(encoding="utf-8"))
        return f"{match.group(1)}{rendered(record)}{match.group(4)}"

    return _CLAIM.sub(table, text)


def rendered(record: Json) -> str:
    """A result as a line of conditions and a table. ValueError for a kind that has no table."""
    kinds: dict[str, Callable[[Any], list[list[str]]]] = {
        "engine": _engine,
        "versus": _versus,
        "breakdown": _breakdown,
        "memory": _memory,
        "kv_quality": _kv_quality,
        "speculation": _speculation,
        "reuse": _reuse,
        "fairness": _fairness,
        "overload": _overload,
        "targets": _targets,
    }
    if record["benchmark"] not in kinds:
        raise ValueError(
            f"no table for results of {record['benchmark']}; there are {sorted(kinds)}"
        )
    facts = record["conditions"]
    draft = f"draft {facts['draft']}" if facts.get("draft") else None
    told = [
        facts.get("model"),
        draft,
        facts["device"],
        facts["driver"],
        f"commit {facts['commit']}",
    ]
    head, *rows = kinds[record["benchmark"]](record["results"])
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    conditions = ", ".join(str(part) for part in told if part)
    median = f"; median of {facts['repeats']}" if facts["repeats"] > 1 else ""
    return f"{conditions}, {facts['date'][:10]}{median}.\n\n{table}\n"


def _engine(results: Json) -> list[list[str]]:
    table = [["workload", "prefill tok/s", "decode tok/s", "step ms", "of the bandwidth limit"]]
    for row in results["rows"]:
        share = row["limit_share"]
        table.append(
            [
                f"{row['streams']} × ({row['prompt_tokens']} + {row['new_tokens']}) tokens",
                _median(row["prefill_tok_s"]),
                _median(row["decode_tok_s"]),
                _median(row["step_ms"]),
                "–" if share is None else f"{share:.0%}",
            ]
        )
    return table


def _versus(results: Json) -> list[list[str]]:
    table = [["figure (tok/s unless said)", "emberd", "llama-server", "ratio"]]
    for row in results["rows"]:
        ratio = row["ratio"]
        spread = f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"
        table.append([row["figure"], _median(row["emberd"]), _median(row["peer"]), spread])
    return table


def _breakdown(results: Json) -> list[list[str]]:
    table = [["step", "dispatches", "wall ms", "GPU ms", "kernels' sum ms", "CPU submit ms"]]
    for step in results["steps"]:
        submit = step["cpu_fill"] + step["cpu_replay"]
        table.append(
            [
                step["what"],
                str(step["dispatches"]),
                _median(step["wall"]),
                _median(step["gpu_whole"]),
                f"{step['gpu_sum']:.3g}",
                f"{submit:.3g}",
            ]
        )
    return table


def _memory(results: Json) -> list[list[str]]:
    table = [["model", "device", "estimated MiB", "measured MiB", "off by"]]
    for row in results:
        sizes = [f"{row[name] / (1 << 20):,.1f}" for name in ("estimated_bytes", "measured_bytes")]
        table.append([row["model"], row["device"], *sizes, f"{row['off']:+.1%}"])
    return table


def _kv_quality(results: Json) -> list[list[str]]:
    table = [["model", "tokens", "mean KL, nats", "largest KL", "same top token", "perplexity"]]
    for row in results:
        kl = [f"{row[name]:.2g}" for name in ("mean_kl", "largest_kl")]
        shares = [f"{row['same_top']:.1%}", f"{row['perplexity_change']:+.1%}"]
        table.append([row["model"], str(row["tokens"]), *kl, *shares])
    return table


def _speculation(results: Json) -> list[list[str]]:
    table = [["workload", "plain tok/s", "guessed tok/s", "ratio", "guessed", "right", "equal"]]
    for row in results["rows"]:
        ratio = row["ratio"]
        table.append(
            [
                f"{row['what']}, {row['streams']} × {row['tokens'] // row['streams'] // ratio['n']} tokens",
                _median(row["plain_tok_s"]),
                _median(row["tok_s"]),
                f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})",
                str(row["drafted"]),
                str(row["accepted"]),
                row["equal_replies"],
            ]
        )
    return table


def _reuse(results: Json) -> list[list[str]]:
    """What was not computed twice; the third column is what it is held against."""
    shared, agent = results["shared"], results["agent"]
    what = f"{shared['chats']} chats share {shared['shared_tokens']} tokens: "
    table = [
        ["what", "measured", "against", "share"],
        [
            what + "blocks",
            f"{shared['blocks']}",
            f"{shared['blocks_expected']} shared + unique",
            f"{shared['blocks'] / shared['blocks_expected']:.0%}",
        ],
        [
            what + "MiB",
            f"{shared['mib']:,.0f}",
            f"{shared['mib_static']:,.0f} in a slot each",
            f"{shared['mib'] / shared['mib_static']:.0%}",
        ],
    ]
    names = {
        "cached": "TTFT, prompt in the pool",
        "restarted": "TTFT, prompt on disk",
        "restarted, page cache empty": "TTFT, prompt on disk, page cache empty",
    }
    for row in results["again"]:
        cells = [f"{_median(row['again_ms'])} ms", f"{_median(row['cold_ms'])} ms cold"]
        what = f"{names[row['what']]}, {row['prompt_tokens']} tokens"
        table.append([what, *cells, f"{row['ratio']:.1%}"])
    shares = {
        "all turns": "cached_share",
        "behind the first": "cached_share_later",
        "next session, same tools": "next_session_share",
    }
    total = f"{agent['prompt_tokens']:,} prompt tokens of {agent['turns']} turns"
    for words, share in shares.items():
        if share in agent:
            table.append([f"agent, {words}: cached", "", total, f"{agent[share]:.1%}"])
    for row in results["pressure"]:
        over = row["run_tokens"] - row["needed_tokens"]
        cells = [f"{over:,}", f"{row['needed_tokens']:,} needed"]
        share = f"{over / row['needed_tokens']:.1%}"
        table.append([f"preempted, {row['what']}: tokens run again", *cells, share])
    return table


def _fairness(results: list[Json]) -> list[list[str]]:
    table = [["", "gap p50 ms", "p95 ms", "longest ms", "p95 to alone", "prompt tok/s"]]
    for row in results:
        gaps = [_median(row[f"gap_{name}_ms"]) for name in ("p50", "p95", "max")]
        ratio = f"{row['gap_p95_ratio']:.2f}"
        if not row["gap_p95_ratio"]:
            gaps, ratio = ["–"] * 3, "–"
        read = _median(row["prompt_tok_s"]) if row["prompt_ratio"] else "–"
        table.append([row["what"], *gaps, ratio, read])
    return table


def _overload(results: list[Json]) -> list[list[str]]:
    head = ["load", "requests/s", "served", "refused", "goodput tok/s", "of capacity"]
    table = [[*head, "TTFT p95 ms", "refusal p95 ms"]]
    for row in results:
        asked = f"{row['load']:g} × capacity" if row["load"] else "closed loop: the capacity"
        rate = f"{row['rate']:.3g}" if row["rate"] else "–"
        counts = [str(row["done"]), str(row["refused"])]
        speed = [_figure(row["goodput_tok_s"]), f"{row['goodput_ratio']:.0%}"]
        refusal = _figure(row["refusal_p95_ms"]) if row["refused"] else "–"
        table.append([asked, rate, *counts, *speed, _figure(row["ttft_p95_ms"]), refusal])
    return table


def _targets(results: Json) -> list[list[str]]:
    """Median figures; "cuda" is of another run, so that no ratio is made of it."""
    table = [["figure", "wanted", "emberd", "peer", "ratio", "CUDA, earlier", "share of limit"]]
    for row in results["rows"]:
        mine = _figure(row["emberd"])
        if row["low"] != row["high"]:
            mine += f" ({_figure(row['low'])}–{_figure(row['high'])})"
        table.append(
            [
                row["figure"],
                _figure(row["wanted"]),
                f"**{mine}**" if row["emberd"] < row["wanted"] else mine,
                *("–" if row[name] is None else _figure(row[name]) for name in _BESIDE),
                "–" if row["share"] is None else f"{row['share']:.0%} of {row['limit']}",
            ]
        )
    return table


_BESIDE = ("peer", "ratio", "cuda")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _median(spread: Json | None) -> str:
    if spread is None:
        return "–"
    return _figure(spread["median"])


def _update(page: Path, root: Path, check: bool) -> bool:
    """Whether the page differed; it is written anew unless `check`."""
    text = page.read_text(encoding="utf-8")
    made = filled(text, root / "benchmarks" / "results")
    if made != text and not check:
        page.write_text(made, encoding="utf-8")
    return made != text


if __name__ == "__main__":
    sys.exit(main())
