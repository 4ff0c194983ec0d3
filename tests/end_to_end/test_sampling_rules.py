"""K16, K17 and K18 of bug_kinds.md on a model whose three successors have the logits 2, 1, 0."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import log
from typing import Any

import numpy as np
import pytest

from daemon import Daemon
from dialects import CHAT, COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE, ROUTES, ask, body, refused

PROBABILITIES = {"a": 0.66524, "b": 0.24473, "c": 0.09003}
NUM_DRAWS, NUM_CHOICES = 250, 8  # tokens of each of the choices of one request
TOLERANCE = 0.053
"""Five standard deviations of the share of "a" in 2000 draws."""


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        *({"top_k": value} for value in (0, -1, 1)),
        *({name: value} for name in ("top_p", "min_p") for value in (0, 1)),
        {"seed": 5},
    ],
    ids=str,
)
def test_k16_temperature_zero_is_greedy(
    daemon: Daemon, route: str, options: dict[str, Any]
) -> None:
    """K16: whatever the filters are."""
    reply = ask(daemon.http, route, "three", "go", temperature=0, max_tokens=6, **options)
    assert reply.text == "aaaaaa"


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, -1])
def test_k16_temperature_one_follows_the_logits(
    daemon: Daemon, top_k: int, rng: np.random.Generator
) -> None:
    """K16: near 66.5, 24.5 and 9.0 percent."""
    options = {"temperature": 1, "top_k": top_k, "seed": int(rng.integers(1 << 31))}
    request = body(CHAT, "three", "go", stream=False, max_tokens=NUM_DRAWS, **options)
    choices = daemon.http.post(CHAT, json=request | {"n": NUM_CHOICES}).json()["choices"]
    drawn = Counter("".join(choice["message"]["content"] for choice in choices))
    assert drawn.total() == NUM_DRAWS * NUM_CHOICES
    for letter, probability in PROBABILITIES.items():
        assert abs(drawn[letter] / drawn.total() - probability) < TOLERANCE, drawn


@pytest.mark.slow
@pytest.mark.parametrize("route", [OLLAMA_CHAT, OLLAMA_GENERATE])
def test_k16_native_top_k_zero_is_off(daemon: Daemon, route: str) -> None:
    """K16: all three are drawn, so top_k 0 does not keep one only."""
    options: dict[str, Any] = {"temperature": 1, "top_p": 1, "max_tokens": NUM_DRAWS, "seed": 11}
    for top_k in (0, -1):
        text = ask(daemon.http, route, "three", "go", top_k=top_k, **options).text
        assert set(text) == {"a", "b", "c"}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("options", [{"top_p": 0}, {"top_k": 1}, {"min_p": 1}], ids=str)
def test_k16_filters_that_keep_one_token(
    daemon: Daemon, route: str, options: dict[str, Any]
) -> None:
    """K16: top_p 0 keeps one; so do top_k 1 and min_p 1."""
    reply = ask(daemon.http, route, "three", "go", temperature=1, max_tokens=30, **options)
    assert reply.text == "a" * 30


@pytest.mark.parametrize("route", [COMPLETION, OLLAMA_CHAT])
def test_k16_a_seed_does_not_change_the_temperature(daemon: Daemon, route: str) -> None:
    """K16: seeds 1 to 20 at temperature 1 do not all agree, and each agrees with itself."""

    def draw(seed: int) -> str:
        options: dict[str, Any] = {"temperature": 1, "top_k": 0, "top_p": 1, "max_tokens": 4}
        return ask(daemon.http, route, "three", "go", seed=seed, **options).text

    texts = [draw(seed) for seed in range(1, 21)]
    assert len(set(texts)) > 3
    assert draw(1) == texts[0] and draw(20) == texts[-1]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("name", "value"), [("temperature", -1), ("top_p", 1.5), ("min_p", -0.1)])
def test_k16_values_out_of_range_are_refused(
    daemon: Daemon, route: str, name: str, value: float
) -> None:
    """K16."""
    request = body(route, "three", "go", stream=False, max_tokens=1, **{name: value})
    assert name in refused(daemon.http, route, request)


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_k17_a_bias_rules_out_and_chooses(daemon: Daemon, route: str) -> None:
    """K17: -100 is never drawn, +100 always, and a neighbour in the batch is as ever."""

    def text(**options: Any) -> str:
        return ask(daemon.http, route, "three", "go", temperature=1, **options).text

    with ThreadPoolExecutor(3) as pool:
        out = pool.submit(text, logit_bias={"97": -100}, max_tokens=200, seed=1)
        sure = pool.submit(text, logit_bias={"98": 100}, max_tokens=200, seed=2)
        neighbour = pool.submit(text, max_tokens=200, seed=3)
    assert "a" not in out.result() and set(out.result()) == {"b", "c"}
    assert sure.result() == "b" * 200
    assert neighbour.result() == text(max_tokens=200, seed=3)
    for bias in ({}, None):
        assert text(logit_bias=bias, max_tokens=200, seed=3) == neighbour.result()


@pytest.mark.parametrize("bias", [{"999999": 1}, {"-1": 1}, {"x": 1}, {"97": "1"}, {"97": 101}])
@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_k17_wrong_biases_are_refused(daemon: Daemon, route: str, bias: dict[str, Any]) -> None:
    request = body(route, "three", "go", stream=False, logit_bias=bias)
    assert "'logit_bias'" in refused(daemon.http, route, request)


def test_k18_logprobs(daemon: Daemon) -> None:
    """K18: of the model's logits, whatever the sampling."""
    options = {"temperature": 0.3, "seed": 4, "logit_bias": {"97": -50}, "max_tokens": 4}
    request = body(CHAT, "three", "go", stream=False, logprobs=True, top_logprobs=3, **options)
    content = daemon.http.post(CHAT, json=request).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for entry in content:
        told = {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
        assert told == pytest.approx({n: log(p) for n, p in PROBABILITIES.items()}, abs=1e-3)
        assert entry["logprob"] == told[entry["token"]] and entry["token"] != "a"
    streamed = read_chunks(daemon, request | {"stream": True})
    assert [e for c in streamed if c["logprobs"] for e in c["logprobs"]["content"]] == content


def test_k18_completions_and_scored_prompts(daemon: Daemon) -> None:
    options: dict[str, Any] = {"logprobs": 2, "max_tokens": 1, "echo": True}
    request = body(COMPLETION, "three", "xabc", stream=False, **options)
    logprobs = daemon.http.post(COMPLETION, json=request).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["x", "a", "b", "c", "a"]
    wanted = [log(PROBABILITIES[name]) for name in "abca"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(wanted, abs=1e-3)
    assert [set(top) for top in logprobs["top_logprobs"][1:]] == [
        {"a", "b"},
        {"a", "b"},
        {"a", "b", "c"},
        {"a", "b"},
    ]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]


def read_chunks(daemon: Daemon, request: dict[str, Any]) -> list[dict[str, Any]]:
    text = daemon.http.post(CHAT, json=request).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return [c for line in lines[:-1] for c in json.loads(line)["choices"]]
