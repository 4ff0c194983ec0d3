"""Thinking on the wire of two APIs, with scripted models (OC-04, OC-12, OC-24, OL-10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from parts_harness import (
    CHAT,
    MESSAGES,
    OLLAMA,
    Json,
    Sites,
    body,
    ollama,
    ollama_lines,
    streamed,
    whole,
)

from site_fakes import CONTEXT, Site
from tiny_gguf import script_model

MakeSite = Callable[..., Site]


def test_thinking_is_split_off_oc24_ol10(sites: Sites) -> None:
    answer = whole(sites, "thinks", "t")
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, well.", "Yes.")
    assert "reasoning" not in message
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    chunks = streamed(sites, "thinks", "t")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm, well."
    assert "".join(d.get("content") or "" for d in deltas) == "Yes."
    message = ollama(sites, "thinks", "t")["message"]
    assert message == {"role": "assistant", "content": "Yes.", "thinking": "Hm, well."}
    lines = ollama_lines(sites, "thinks", "t")
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hm, well."
    assert "".join(line["message"]["content"] for line in lines) == "Yes."
    (generated,) = sites.post("/api/generate", {"model": "thinks", "prompt": "t", "stream": False})
    assert (generated.json()["response"], generated.json()["thinking"]) == ("Yes.", "Hm, well.")


def test_an_open_tag_at_the_prompts_end_counts(sites: Sites) -> None:
    variables = {"prefill": "\n  \n i"}
    message = whole(sites, "thinks", "x", chat_template_kwargs=variables)["choices"][0]["message"]
    assert "reasoning_content" not in message  # the tag is not at the end
    assert message["content"] == " inside</think> out"


def test_a_reply_that_begins_inside_a_span(make_site: MakeSite, tmp_path: Path) -> None:
    template = "{# </think> #}" + MESSAGES + "<think>"
    scripts = {">": [" inside", "</think> out"]}
    metadata = {"tokenizer.chat_template": template}
    script_model(tmp_path / "m.gguf", scripts, context_length=CONTEXT, metadata=metadata)
    sites = Sites(lambda: make_site(models_dir=tmp_path))
    answer = whole(sites, "m", "x")
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("inside", "out")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    for fields in ({"reasoning_effort": "none"}, {"think": False}):
        whole(sites, "m", "x", **fields)
        assert sites.prompt == "x<think>\n</think>\n\n"


def test_text_before_a_tag_makes_it_text(sites: Sites) -> None:
    message = whole(sites, "thinks", "n")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Plain <think> text", "refusal": None}


def test_names_of_reasoning_are_a_setting_oc24(make_site: MakeSite, part_models: Path) -> None:
    keys = ("reasoning_content", "reasoning")
    sites = Sites(lambda: make_site(models_dir=part_models, reasoning_keys=keys))
    message = whole(sites, "thinks", "t")["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm, well."
    message = whole(sites, "thinks", "t", reasoning={"exclude": True})["choices"][0]["message"]
    assert set(message) == {"role", "content", "refusal"}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "t"),
        ({"reasoning_effort": "none"}, "-t"),
        ({"reasoning_effort": "minimal"}, "lowt"),
        ({"reasoning_effort": "xhigh"}, "hight"),
        ({"reasoning": {"effort": "high"}}, "hight"),
        ({"reasoning": {"enabled": False, "effort": "high"}}, "-t"),
        ({"think": False}, "-t"),
        ({"think": "low"}, "lowt"),
        ({"thinking": {"type": "disabled"}}, "-t"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}}, "t"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "-t"),
    ],
)
def test_every_spelling_reaches_the_template_oc12(sites: Sites, fields: Json, prompt: str) -> None:
    whole(sites, "thinks", "t", **fields)
    assert sites.prompt == prompt


@pytest.mark.parametrize(
    ("fields", "prompt"), [({"think": False}, "-t"), ({"think": "high"}, "hight"), ({}, "t")]
)
def test_ollamas_spelling_reaches_the_template_ol10(
    sites: Sites, fields: Json, prompt: str
) -> None:
    ollama(sites, "thinks", "t", **fields)
    assert sites.prompt == prompt


@pytest.mark.parametrize(
    "fields",
    [{"reasoning": {"max_tokens": 3}}, {"thinking_token_budget": 3}],
)
def test_a_budget_closes_the_span_oc12(sites: Sites, fields: Json) -> None:
    """The endless thinker is cut after three tokens; the reply goes on behind the tag that was put there."""
    answer = whole(sites, "thinks", "e", seed=5, **fields)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("on and<think>on", "Closed.")
    assert answer["choices"][0]["finish_reason"] == "stop"
    first, second = sites.worker.requests
    forced = "\n</think>\n\n"
    assert bytes(second.token_ids[-len(forced) :]).decode() == forced
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert second.params.seed == first.params.seed == 5
    counts = answer["usage"]
    assert counts["completion_tokens"] == 3 + len(forced) + 2
    assert 3 <= counts["completion_tokens_details"]["reasoning_tokens"] <= 3 + len(forced)
    assert sites.worker.cancelled == [first.request_id]


def test_a_budget_leaves_the_token_limit_as_it_is_oc12(sites: Sites) -> None:
    answer = whole(sites, "thinks", "e", thinking_token_budget=3, max_tokens=8)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] <= 8


def test_off_ends_a_span_that_the_model_opens_all_the_same(sites: Sites) -> None:
    message = whole(sites, "thinks", "e", think=False)["choices"][0]["message"]
    assert message["content"] == "Closed."
    assert len(message.get("reasoning_content", "")) <= len("on")


def test_a_model_that_cannot_think_ol10(sites: Sites) -> None:
    (refused,) = sites.post(OLLAMA, body("calls", "p", think=True, stream=False))
    assert refused.status_code == 400
    assert refused.json() == {"error": '"calls" does not support thinking'}
    (refused,) = sites.post(CHAT, body("calls", "p", think="high"))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "think"
    for fields in ({"think": False}, {"think": None}, {}):
        assert ollama(sites, "calls", "p", **fields)["done"]
    for fields in ({"reasoning_effort": "high"}, {"thinking": {"type": "enabled"}, "user": "u"}):
        (answer,) = sites.post(CHAT, body("calls", "p", **fields))
        assert answer.json()["choices"]
        assert set(answer.headers["x-emberd-ignored"].split(", ")) == set(fields)


@pytest.mark.parametrize("fields", [{"reasoning_effort": "much"}, {"think": "a bit"}])
def test_an_unknown_effort_is_refused(sites: Sites, fields: Json) -> None:
    (answer,) = sites.post(CHAT, body("thinks", "t", **fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in fields


def test_past_reasoning_reaches_the_template_under_its_own_name_oc04(
    make_site: MakeSite, tmp_path: Path
) -> None:
    for name in ("reasoning_content", "thinking"):
        template = "{% for m in messages %}{{ m." + name + " or '' }}{{ m.content }}{% endfor %}"
        metadata = {"tokenizer.chat_template": template}
        script_model(
            tmp_path / f"{name}.gguf", {"a": ["x"]}, context_length=CONTEXT, metadata=metadata
        )
    sites = Sites(lambda: make_site(models_dir=tmp_path))
    for model in ("reasoning_content", "thinking"):
        for path, key in ((CHAT, "reasoning_content"), (CHAT, "reasoning"), (OLLAMA, "thinking")):
            history = [
                {"role": "assistant", "content": "b", key: "R"},
                {"role": "user", "content": "a"},
            ]
            sites.post(path, {"model": model, "messages": history, "stream": False})
            assert sites.prompt == "Rba"
