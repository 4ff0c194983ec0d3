"""The benchmark scripts run and count right; how fast anything was is never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_gguf import random_model

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(script: str, *arguments: object) -> Any:
    """Run a script; its last line, which is JSON."""
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_spread_of_repeats(load: Any) -> None:
    spread = load("common").Spread.of([3.0, 1.0, 7.0, 2.0])
    assert (spread.median, spread.low, spread.high, spread.n) == (2.5, 1.0, 7.0, 4)


def test_result_file_equals_the_last_line(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = load("common")
    facts = common.conditions(device="Some GPU (2)", driver="7", repeats=3, commit="abc", extra=1)
    spread = common.Spread.of([1 / 3])
    path = common.finish("kind", facts, [{"speed": spread}], tmp_path / "a" / "result.json")
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line == json.loads(path.read_text())
    assert line["results"] == [
        {"speed": {"median": 0.333333, "low": 0.333333, "high": 0.333333, "n": 1}}
    ]
    assert line["conditions"] | {"commit": "abc", "repeats": 3, "extra": 1} == line["conditions"]
    assert common.RESULTS.name == "results"


def test_table_lines_up_its_columns(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load("common").print_table(("WHAT", "N"), [("a", 5), ("longer", 12345.6), ("b", None)])
    assert capsys.readouterr().out.splitlines() == [
        "WHAT         N",
        "a            5",
        "longer  12,346",
        "b            -",
    ]


@pytest.mark.slow
def test_engine_measures_a_tiny_model_on_the_cpu(tmp_path: Path) -> None:
    model = random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)
    sizes = ("--prompt-tokens", 5, "--new-tokens", 3, "--prefill", 9, "--context", 20)
    record = run(
        *("engine.py", model, "--device", "cpu", "--streams", "1,3", "--repeats", 2),
        *(*sizes, "--out", tmp_path / "out.json"),
    )
    rows = record["results"]["rows"]
    found = [(row["what"], row["streams"], row["prompt_tokens"]) for row in rows]
    assert found == [("prefill", 1, 9), ("streams", 1, 5), ("streams", 3, 5), ("context", 1, 20)]
    assert all(row["total_tok_s"]["n"] == 2 and row["prefill_tok_s"]["low"] > 0 for row in rows)
    assert record["conditions"]["model_bytes"] == model.stat().st_size
    assert record == json.loads((tmp_path / "out.json").read_text())


@pytest.mark.slow
def test_fairness_runs_every_case(tmp_path: Path) -> None:
    model = random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)
    sizes = ("--prompt-tokens", 200, "--reply-prompt-tokens", 9, "--new-tokens", 40)
    record = run(
        *("fairness.py", model, "--device", "cpu", "--replies", 2, "--repeats", 1),
        *(*sizes, "--out", tmp_path / "out.json"),
    )
    alone, prompts, *both = record["results"]
    assert len(both) == 3 and alone["gap_p95_ratio"] == 1 and prompts["prompt_ratio"] == 1
    assert alone["prompt_tok_s"]["high"] == 0 == prompts["gap_p50_ms"]["high"]
    for row in both:
        assert 0 < row["gap_p50_ms"]["median"] <= row["gap_p95_ms"]["median"]
        assert row["gap_p95_ms"]["median"] <= row["gap_max_ms"]["median"]
        assert row["prompt_tok_s"]["low"] > 0


@pytest.mark.slow
def test_memory_holds_estimates_against_what_a_worker_takes(tmp_path: Path) -> None:
    model = random_model(tmp_path / "tiny.gguf", layers=1)
    flags = ("--devices", "cpu", "--ctx", 32, "--out", tmp_path / "out.json")
    (row,) = run("memory.py", model, *flags)["results"]
    assert row["model"] == model.name
    assert row["estimated_bytes"] > 0 and row["measured_bytes"] != 0


@pytest.mark.slow
def test_kv_quality_compares_distributions(tmp_path: Path) -> None:
    model = random_model(tmp_path / "tiny.gguf", layers=1)
    (tmp_path / "text").write_text("some text " * 9, encoding="utf-8")
    flags = ("--text", tmp_path / "text", "--tokens", 40, "--out", tmp_path / "out.json")
    (row,) = run("kv_quality.py", model, *flags)["results"]
    assert row["tokens"] == 40 and 0 < row["mean_kl"] <= row["largest_kl"] < 0.1


@pytest.mark.slow
def test_reuse_counts_what_is_cached(tmp_path: Path) -> None:
    model = random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)
    sizes = ("--shared", 70, "--prompt", 1024, "--turns", 3, "--first-turn", 40, "--most-news", 9)
    record = run(
        *("reuse.py", model, "--device", "cpu", "--repeats", 1, "--vocabulary", 200),
        *(*sizes, "--folder", tmp_path, "--out", tmp_path / "out.json"),
    )
    results = record["results"]
    shared = results["shared"]
    assert shared["blocks_expected"] == 4 + 16 * (11 - 4)
    # The chat that computes the beginning is ahead of the others, and ends before they are at their longest.
    assert 0.8 * shared["blocks_expected"] < shared["blocks"] <= shared["blocks_expected"]
    assert [one["cached_tokens"] for one in results["again"]] == [1008] * 3
    agent = results["agent"]
    assert 0 < agent["cached_share"] < agent["cached_share_later"] < 1
    # Behind each reply the rest of its last block, and its last token, which no step has run.
    assert 2 <= agent["computed_again"] <= 2 * 16
    assert agent["next_session_share"] > agent["cached_share"]
    plain, parked = results["pressure"]
    assert plain["promoted_blocks"] == 0 and plain["run_tokens"] > plain["needed_tokens"]
    assert parked["run_tokens"] <= plain["run_tokens"]


@pytest.mark.device
def test_kernels_are_checked_and_timed(tmp_path: Path, device: object) -> None:
    only = ("--ops", "matmul,gate_up,rms_norm,attention_decode", "--roles", "o", "--tokens", 3)
    record = run(
        *("kernels.py", "--models", "tiny", "--repeats", 1, *only),
        *("--types", "Q4_0", "--out", tmp_path / "out.json"),
    )
    rows = record["results"]["kernels"]
    names = {"matmul", "gate_up_quantize", "rms_norm_quantize", "attention_decode"}
    assert {row["op"] for row in rows} == names
    assert all(row["passed"] and row["microseconds"]["median"] > 0 for row in rows)
    assert record["results"]["limits"]["read_gb_s"]["median"] > 0


@pytest.mark.device
def test_breakdown_tells_every_dispatch_of_a_step(tmp_path: Path, device: object) -> None:
    model = random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)
    sizes = ("--prompt", 9, "--context", 5, "--new-tokens", 4)
    record = run(
        *("breakdown.py", model, "--streams", "1,2", "--repeats", 1, *sizes),
        *("--out", tmp_path / "out.json"),
    )
    prefill, *decodes = record["results"]["steps"]
    assert [step["what"].split(",")[0] for step in decodes] == [
        "decode 1 streams",
        "decode 2 streams",
    ]
    for step, attention in ((prefill, "attention_prefill"), (decodes[0], "attention_decode")):
        kernels = step["kernels"]
        assert sum(kernel["calls"] for kernel in kernels) == step["dispatches"]
        assert any(kernel["kernel"].startswith(attention) for kernel in kernels)
        assert sum(kernel["share"] for kernel in kernels) == pytest.approx(1, abs=1e-3)
        total = sum(kernel["microseconds"] for kernel in kernels)
        assert total == pytest.approx(1e3 * step["gpu_sum"], rel=1e-3)


def test_rounds_take_turns_and_leave_the_first_out(load: Any) -> None:
    order: list[str] = []

    def side(name: str, *speeds: float) -> Any:
        left = iter(speeds)

        def measured() -> dict[str, float]:
            order.append(name)
            return {"speed": next(left)}

        return measured

    (row,) = load("versus")._rounds(side("a", 1000, 30, 40), side("b", 1, 10, 20), 2)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert (row.emberd.median, row.peer.median) == (35, 15)
    assert (row.ratio.low, row.ratio.high) == (2, 3)  # of pairs from one round


def test_a_server_that_ends_tells_its_last_words(load: Any) -> None:
    peer = load("peer")
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match=r"(?s)ended \(3\).*no such model"):
        with peer.Server("some-server", command, {}, peer.free_port()):
            pass


def _record(kind: str, results: Any) -> dict[str, Any]:
    facts = {"device": "GPU", "driver": "1", "commit": "abc", "date": "2026-01-02T03", "repeats": 5}
    return {"benchmark": kind, "conditions": facts, "results": results}


def test_claims_are_made_from_results_and_differences_show(load: Any, tmp_path: Path) -> None:
    claims, spread = load("claims"), {"median": 12.34, "low": 10.0, "high": 14.0, "n": 5}
    row = {"figure": "decode", "emberd": spread, "peer": spread, "ratio": spread}
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "v.json").write_text(json.dumps(_record("versus", {"rows": [row]})))
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- result v.json -->\n| decode | 99 |\n<!-- end result -->\nafter\n")

    assert claims._update(page, tmp_path, check=True)
    assert claims._update(page, tmp_path, check=False)
    text = page.read_text()
    assert "| decode | 12.3 | 12.3 | 12.34 (10.00–14.00) |" in text and "99" not in text
    assert text.startswith("before\n") and text.endswith("-->\nafter\n")
    assert not claims._update(page, tmp_path, check=True)


@pytest.mark.device
@pytest.mark.usefixtures("device")
def test_agreement_follows_the_state_through_a_step(load: Any, tmp_path: Path) -> None:
    """A device with one kernel for one row and for three gives the same bits; another prompt does not."""
    from emberd.protocol import WorkerOptions
    from emberd.runtime.runner import GpuRunner

    agreement = load("agreement")
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=2)
    runner = GpuRunner.load(WorkerOptions(str(path), "gpu", 64, max_sequences=3))
    changes = agreement._changes(runner, list(range(5, 25)), 3)
    assert all(change.difference < 0.05 for change in changes)
    states = agreement._states(runner, agreement._batch(runner, [[25]], 20))
    assert len(states) == 1 + 2 * 2 and states[0][0].startswith("embedding")
    others = agreement._states(runner, agreement._batch(runner, [[26]], 20))
    assert not any(np.array_equal(a, b) for (_, a), (_, b) in zip(states, others, strict=True))
    runner.close()


def test_targets_take_their_figures_from_results_of_one_run(load: Any) -> None:
    targets, claims = load("targets"), load("claims")
    spread = {"median": 2000.0, "low": 1900.0, "high": 2100.0, "n": 2}
    rows = [
        {"figure": target.figure, "emberd": spread, "peer": spread | {"median": 500.0}}
        | {"ratio": spread | {"median": 4.0}}
        for target in targets.TARGETS
    ]
    versus = _record("versus", {"rows": rows, "http_share_of_engine": {"32": 0.8}})
    contexts = [
        {"what": "context", "prompt_tokens": tokens, "decode_tok_s": {"median": speed}}
        for tokens, speed in ((256, 400.0), (16384, 300.0))
    ]
    engine = _record("engine", {"rows": contexts, "load": {"gb_s": 3.0}})
    made = {row.figure: row for row in targets.made({"1B": versus, "8B": versus}, engine)}
    assert made["8B decode at 16,384 tokens against 256"].emberd == 0.75
    one = made["8B decode, 1 streams, tok/s"]
    assert one.share == pytest.approx(4.6174 * 2000 / 3540) and one.ratio == 4.0
    many = made["1B prefill, 512 tokens, tok/s"]
    assert many.share == pytest.approx(2 * 0.97308e9 * 2000 / 118e12)

    table = load("common").plain({"rows": list(made.values())})
    text = claims.rendered(_record("targets", table))
    assert "| 1B decode, 1 streams, tok/s | 1,600 | 2,000 (1,900–2,100) | 500 | 4 | 809 |" in text
    assert "| 1B over HTTP, 32 streams, of the engine's own | 0.85 | **0.8** | – |" in text
    with pytest.raises(ValueError, match="commit"):
        targets._common_facts([versus, {"conditions": versus["conditions"] | {"commit": "d"}}])


def test_the_docs_claim_what_the_results_say(load: Any) -> None:
    assert load("claims").main(["--check"]) == 0


def test_growth_is_told_of_the_later_half(load: Any) -> None:
    growth = load("steady").growth
    assert growth([4.0, 4.0, 9.0, 5.0, 5.0, 5.0]) == 0.25
    assert growth([2.0]) == 0


@pytest.mark.slow
def test_speculation_guesses_more_of_a_made_up_edit_than_of_prose(tmp_path: Path) -> None:
    model = random_model(tmp_path / "tiny.gguf", quant="F32", layers=1)
    flags = ("--made-up", "--device", "cpu", "--streams", 2, "--new-tokens", 60, "--repeats", 1)
    edit, prose = run("speculation.py", model, *flags, "--out", tmp_path / "out.json")["results"][
        "rows"
    ]
    assert edit["equal_replies"] == prose["equal_replies"] == "2 of 2"
    # How many depends on whether they paid, by the clock.
    assert edit["accepted"] > prose["accepted"]
