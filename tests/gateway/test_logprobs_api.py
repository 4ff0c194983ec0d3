"""Log-probabilities and biases on every route (K17, K18, OC-13, OC-26, OK-01, OL-11)."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain_models import write_choices
from emberd.gateway.logprobs import told
from emberd.protocol import GenerateRequest
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
THREE = [-0.40761, -1.40761, -2.40761]  # of logits 2, 1, 0


class Three:
    """Sites, a new one each time, with `tiny` and `three`: there, whatever came last, "a", "b" and "c" follow
    with logits 2, 1, 0."""

    def __init__(self, make_site: MakeSite, models_dir: Path) -> None:
        self._make, self._folder = make_site, models_dir
        self.sites: list[Site] = []

    def site(self) -> Site:
        self.sites.append(self._make(models_dir=self._folder))
        return self.sites[-1]

    @property
    def requests(self) -> list[GenerateRequest]:
        return [r for site in self.sites for worker in site.workers for r in worker.requests]


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logprobs")
    shutil.copy(tiny_model, path)
    write_choices(path / "three.gguf", [2.0, 1.0, 0.0])
    return path


@pytest.fixture
def three(make_site: MakeSite, folder: Path) -> Three:
    return Three(make_site, folder)


def ask(three: Three, path: str, **fields: Any) -> tuple[int, Json, list[Json]]:
    """Status, the whole answer, and the values of the same request's stream."""
    body: Json = {"model": "three", **fields}
    if path in (CHAT, "/api/chat"):
        body |= {"messages": [{"role": "user", "content": fields.pop("prompt", "x")}]}
        body.pop("prompt", None)
    else:
        body.setdefault("prompt", "x")

    site = three.site()

    async def work() -> tuple[int, Json, list[Json]]:
        async with site.client() as client:
            whole = await client.post(path, json={**body, "stream": False})
            streamed = await client.post(path, json={**body, "stream": True})
            lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
            if whole.status_code != 200:
                return whole.status_code, whole.json(), [streamed.json()]
            return 200, whole.json(), [json.loads(line) for line in lines if line != "[DONE]"]

    return run(work())


def chat_content(values: list[Json]) -> list[Json]:
    return [
        entry
        for value in values
        for choice in value["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]


def columns(values: list[Json]) -> Json:
    told = [c["logprobs"] for value in values for c in value["choices"] if c["logprobs"]]
    return {name: [one for columns in told for one in columns[name]] for name in told[0]}


def test_logprobs_of_chat_k18_oc26(three: Three) -> None:
    _, answer, chunks = ask(three, CHAT, logprobs=True, top_logprobs=3, max_tokens=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "a"]
    for entry in content:
        assert entry["logprob"] == pytest.approx(THREE[0], abs=1e-3)
        assert entry["bytes"] == [97]
        assert [top["token"] for top in entry["top_logprobs"]] == ["a", "b", "c"]
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(THREE, abs=1e-3)
        assert [top["bytes"] for top in entry["top_logprobs"]] == [[97], [98], [99]]
    assert chat_content(chunks) == content
    pairs = [(c["delta"].get("content", ""), c["logprobs"]) for v in chunks for c in v["choices"]]
    for text, logprobs in pairs:  # each piece of text has its own tokens beside it
        assert text == "".join(e["token"] for e in (logprobs or {"content": []})["content"])


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}])
def test_without_top_logprobs_the_list_is_empty_k18(three: Three, fields: Json) -> None:
    _, answer, _ = ask(three, CHAT, logprobs=True, max_tokens=1, **fields)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["top_logprobs"] == []


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_without_logprobs_there_are_none_k18(three: Three, path: str) -> None:
    _, answer, chunks = ask(three, path, max_tokens=1)
    assert answer["choices"][0]["logprobs"] is None
    assert [c["logprobs"] for v in chunks for c in v["choices"]] == [None] * len(chunks)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"logprobs": 2}, "logprobs"),
        (COMPLETION, {"logprobs": 6}, "logprobs"),
        (COMPLETION, {"logprobs": -1}, "logprobs"),
        (COMPLETION, {"logprobs": True}, "logprobs"),
        ("/api/chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/api/chat", {"top_logprobs": 2}, "top_logprobs"),
        ("/api/generate", {"logprobs": "yes"}, "logprobs"),
    ],
)
def test_wrong_wishes_are_refused_k18(three: Three, path: str, fields: Json, param: str) -> None:
    status, whole, (streamed,) = ask(three, path, **fields)
    assert status == 400
    assert whole == streamed
    assert f"'{param}'" in (
        whole["error"] if path.startswith("/api") else whole["error"]["message"]
    )


def test_logprobs_of_completions_k18_ok01(three: Three) -> None:
    _, answer, chunks = ask(three, COMPLETION, logprobs=2, max_tokens=3)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "a", "a"]
    assert logprobs["token_logprobs"] == pytest.approx([THREE[0]] * 3, abs=1e-3)
    assert (
        logprobs["top_logprobs"]
        == [pytest.approx(dict(zip("ab", THREE, strict=False)), abs=1e-3)] * 3
    )
    assert logprobs["text_offset"] == [0, 1, 2]
    assert columns(chunks) == logprobs


def test_the_sampled_token_is_among_the_top_k18(three: Three) -> None:
    fields: Json = {"logit_bias": {"99": 50}, "logprobs": 1, "max_tokens": 1}
    _, answer, _ = ask(three, COMPLETION, **fields)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["c"]
    assert logprobs["token_logprobs"] == pytest.approx(
        [THREE[2]], abs=1e-3
    )  # of the model's own logits
    assert set(logprobs["top_logprobs"][0]) == {"a", "c"}


def test_bytes_of_half_characters_are_true_k18(three: Three) -> None:
    _, answer, chunks = ask(three, CHAT, model="tiny", prompt="c", logprobs=True)
    content = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == "🙂!".encode()
    assert [entry["token"] for entry in content] == ["\\xf0", "\\x9f", "\\x99", "\\x82", "!"]
    assert chat_content(chunks) == content
    _, answer, chunks = ask(three, COMPLETION, model="tiny", prompt="c", logprobs=0)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x99", "bytes:\\x82", "!"]
    assert logprobs["text_offset"] == [0, 0, 0, 0, 1]
    assert columns(chunks) == logprobs


@pytest.mark.parametrize(
    ("stop", "tokens"),
    [
        ("D E", ["A B", " C D"]),  # a token of which something is shown is told
        ("E F", ["A B", " C D", " E F"]),
        (" C", ["A B"]),
        ("A B", []),
        ("F G H", ["A B", " C D", " E F", " G"]),  # held back, and then no stop string
    ],
)
def test_held_text_and_its_tokens_stay_together_k18_k04(
    three: Three, stop: str, tokens: list[str]
) -> None:
    _, answer, chunks = ask(three, CHAT, model="tiny", prompt="b", logprobs=True, stop=stop)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == tokens
    assert chat_content(chunks) == content
    assert "".join(tokens).startswith(answer["choices"][0]["message"]["content"])
    _, answer, chunks = ask(three, COMPLETION, model="tiny", prompt="b", logprobs=0, stop=stop)
    assert answer["choices"][0]["logprobs"]["tokens"] == tokens
    if tokens:
        assert columns(chunks) == answer["choices"][0]["logprobs"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_logprobs_of_ollama_ol11(three: Three, path: str) -> None:
    options = {"num_predict": 2}
    _, answer, lines = ask(three, path, logprobs=True, top_logprobs=2, options=options)
    assert [entry["token"] for entry in answer["logprobs"]] == ["a", "a"]
    for entry in answer["logprobs"]:
        assert entry["logprob"] == pytest.approx(THREE[0], abs=1e-3)
        assert entry["bytes"] == [97]
        assert [top["token"] for top in entry["top_logprobs"]] == ["a", "b"]
    assert [e for line in lines for e in line.get("logprobs", [])] == answer["logprobs"]
    assert "logprobs" not in ask(three, path, options=options)[1]


def test_echo_tells_the_prompt_ok01(three: Three) -> None:
    _, answer, chunks = ask(three, COMPLETION, prompt="aéc", echo=True, max_tokens=2)
    assert answer["choices"][0]["text"] == "aécaa"
    assert "".join(c["text"] for v in chunks for c in v["choices"]) == "aécaa"
    assert answer["choices"][0]["logprobs"] is None
    assert ask(three, COMPLETION, prompt=[97, 98], echo=True, max_tokens=0)[1]["choices"][0] == {
        "index": 0,
        "text": "ab",
        "logprobs": None,
        "finish_reason": "length",
    }


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_logprobs_scores_the_prompt_ok01(three: Three, max_tokens: int) -> None:
    fields: Json = {"echo": True, "logprobs": 1, "max_tokens": max_tokens}
    _, answer, chunks = ask(three, COMPLETION, prompt="xbéa", **fields)
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "xbéa" + "a" * max_tokens
    assert choice["finish_reason"] == "length"
    tokens = ["x", "b", "bytes:\\xc3", "bytes:\\xa9", "a", *["a"] * max_tokens]
    assert logprobs["tokens"] == tokens
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1] == pytest.approx(THREE[1], abs=1e-3)
    assert logprobs["token_logprobs"][4] == pytest.approx(THREE[0], abs=1e-3)
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3, *[4] * max_tokens]
    greedy = [
        value == max(top.values())
        for value, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        if top
    ]
    assert greedy == [False, False, False, True, *[True] * max_tokens]  # as lm-eval looks at it
    assert columns(chunks) == logprobs
    assert "".join(c["text"] for v in chunks for c in v["choices"]) == choice["text"]
    assert answer["usage"]["completion_tokens"] == max_tokens


def test_echo_counts_the_token_that_ends_the_reply(three: Three) -> None:
    """lm-eval takes the last entry for the one that was sampled."""
    fields: Json = {"model": "tiny", "prompt": " world", "echo": True, "logprobs": 1}
    _, answer, _ = ask(three, COMPLETION, max_tokens=1, **{**fields, "prompt": [257]})
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [" world", "<|eos|>"]
    assert logprobs["text_offset"] == [0, 6]
    assert answer["choices"][0]["text"] == " world"


def test_several_prompts_and_choices_are_scored_each(three: Three) -> None:
    prompts = [[120, 97], [120, 98, 99]]
    fields: Json = {"echo": True, "logprobs": 0, "max_tokens": 0, "n": 2}
    _, answer, chunks = ask(three, COMPLETION, prompt=prompts, **fields)
    texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    assert texts == [(0, "xa"), (1, "xa"), (2, "xbc"), (3, "xbc")]
    for choice in answer["choices"]:
        told = [v for v in chunks if v["choices"][0]["index"] == choice["index"]]
        assert columns(told) == choice["logprobs"]


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"echo": False, "max_tokens": 0}])
def test_no_tokens_and_no_echo_is_nothing_k05(three: Three, fields: Json) -> None:
    status, answer, _ = ask(three, COMPLETION, **fields)
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_biases_choose_the_token_k17_oc13(three: Three, path: str) -> None:
    for bias, text in (
        ({"97": -100}, "b"),
        ({"98": 100}, "b"),
        ({"99": 2.5}, "c"),
        ({}, "a"),
        (None, "a"),
    ):
        _, answer, _ = ask(three, path, logit_bias=bias, max_tokens=1)
        choice = answer["choices"][0]
        assert (choice["message"]["content"] if path == CHAT else choice["text"]) == text
    biases = {request.params.logit_bias for request in three.requests}
    assert ((97, -100.0),) in biases and () in biases


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(
    "bias",
    [
        {"999999": 1},
        {"512": 1},
        {"-1": 1},
        {"9" * 30: 1},
        {"a": 1},
        {"": 1},
        {"1.5": 1},
        {" 97": 1},
        {"٩٧": 1},
        {"97": "1"},
        {"97": None},
        {"97": True},
        {"97": 100.5},
        {"97": -101},
        {"97": [1]},
        [97, 1],
        "97",
    ],
)
def test_wrong_biases_are_refused_k17(three: Three, path: str, bias: Any) -> None:
    status, answer, _ = ask(three, path, logit_bias=bias)
    assert status == 400
    assert answer["error"]["param"] == "logit_bias"
    assert "'logit_bias'" in answer["error"]["message"]
    assert not three.requests


def test_no_infinity_reaches_json() -> None:
    assert told(-math.inf) == -9999.0
