"""llama.cpp's and vLLM's small routes: tokens, texts, templates, properties (CL-18)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from site_fakes import CONTEXT, Site, run, write_model
from tiny_gguf import BOS, EOS

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT = [{"role": "user", "content": "a"}]


def ask(site: Site, *requests: tuple[str, Json | None]) -> list[httpx.Response]:
    async def work() -> list[httpx.Response]:
        async with site.client() as client:
            return [
                await (client.get(path) if body is None else client.post(path, json=body))
                for path, body in requests
            ]

    return run(work())


def tokenize(site: Site, **body: Any) -> Json:
    (response,) = ask(site, ("/tokenize", body))
    assert response.status_code == 200, response.text
    return response.json()


def test_llama_cpps_spelling_cl18(make_site: MakeSite) -> None:
    site = make_site()
    assert tokenize(site, content="ab<|eos|>")["tokens"] == [97, 98, EOS]
    assert tokenize(site, content="<|eos|>", parse_special=False)["tokens"] == [*b"<|eos|>"]
    assert tokenize(site, content="")["tokens"] == []
    assert tokenize(site, content="aé", with_pieces=True)["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]
    assert not site.workers  # nothing was loaded


def test_vllms_spelling(make_site: MakeSite) -> None:
    assert tokenize(make_site(), model="tiny", prompt="ab", return_token_strs=True) == {
        "tokens": [97, 98],
        "count": 2,
        "max_model_len": CONTEXT,
        "token_strs": ["a", "b"],
    }
    assert tokenize(make_site(), model="tiny", prompt="ab")["token_strs"] is None
    assert tokenize(make_site(), model="tiny", messages=CHAT)["tokens"] == [97]


def test_special_tokens_are_put_around_a_text_on_wish(
    make_site: MakeSite, models_dir: Path
) -> None:
    write_model(models_dir / "bos.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    for body, ids in (
        ({"content": "a"}, [97]),
        ({"content": "a", "add_special": True}, [BOS, 97]),
        ({"prompt": "a"}, [BOS, 97]),
        ({"prompt": "a", "add_special_tokens": False}, [97]),
        ({"messages": CHAT}, [BOS, 97]),
    ):
        assert tokenize(make_site(models_dir=models_dir), model="bos", **body)["tokens"] == ids


def test_text_comes_back(make_site: MakeSite) -> None:
    (response,) = ask(make_site(), ("/detokenize", {"tokens": [97, 0xC3, 0xA9, EOS]}))
    assert response.json() == {"content": "aé<|eos|>", "prompt": "aé<|eos|>"}


def test_templates_are_shown(make_site: MakeSite, models_dir: Path) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}:{% endif %}{{ x }}"
    write_model(models_dir / "bracket.gguf", metadata={"tokenizer.chat_template": template})
    body: Json = {"model": "bracket", "messages": CHAT}
    first, second, third = ask(
        make_site(models_dir=models_dir),
        ("/apply-template", body),
        ("/apply-template", {**body, "add_generation_prompt": False}),
        ("/apply-template", {**body, "chat_template_kwargs": {"x": "y"}}),
    )
    prompts = [response.json()["prompt"] for response in (first, second, third)]
    assert prompts == ["[a]:", "[a]", "[a]:y"]


@pytest.mark.parametrize(
    ("for_tools", "prompt"),
    [
        ("T{{ tools[0].function.name }}{{ messages[0].content }}", "Tfa"),
        ("no variable of that name", None),
    ],
)
def test_a_template_that_a_file_has_for_tools_is_used_with_tools(
    for_tools: str, prompt: str | None, make_site: MakeSite, models_dir: Path
) -> None:
    """As Hermes 2 Pro and Command R have one, whose other template knows none."""
    metadata = {
        "tokenizer.chat_template": "[{{ messages[0].content }}]",
        "tokenizer.chat_template.tool_use": for_tools,
    }
    write_model(models_dir / "two.gguf", metadata=metadata)
    body: Json = {"model": "two", "messages": CHAT}
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain, with_tools = ask(
        make_site(models_dir=models_dir),
        ("/apply-template", body),
        ("/apply-template", {**body, "tools": tools}),
    )
    assert plain.json()["prompt"] == "[a]"
    found = with_tools.json()["prompt"]
    assert found == prompt if prompt else '"name": "f"' in found  # else a prompt of ours


PAST: Json = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1, "b": "x"}'}}] * 2,
}


@pytest.mark.parametrize(
    ("mark", "calls"),
    [
        ("<|tool_call|>", '<|tool_call|>[{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "f", '
         '"arguments": {"a": 1, "b": "x"}}]'),
        ("<|tool_list_start|>", "<|tool_call_start|>[f(a=1, b='x'), f(a=1, b='x')]<|tool_call_end|>"),
        ("tool_calls", ""),
    ],
)  # fmt: skip
def test_past_calls_that_a_template_leaves_out_are_written_in_its_notation(
    mark: str, calls: str, make_site: MakeSite, models_dir: Path
) -> None:
    """As Granite's and LFM2's do, which know tools and results only."""
    template = (
        "{# "
        + mark
        + " #}{% if tools %}T{% endif %}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    )
    write_model(models_dir / "past.gguf", metadata={"tokenizer.chat_template": template})
    for tools in ([{"type": "function", "function": {"name": "f"}}], None):
        messages = [*CHAT, PAST, {"role": "tool", "tool_call_id": "1", "content": "r"}]
        body: Json = {"model": "past", "messages": messages, "tools": tools}
        (response,) = ask(make_site(models_dir=models_dir), ("/apply-template", body))
        told = f"I look.\n{calls}" if calls else "I look."
        assert response.json()["prompt"] == ("T" if tools else "") + f"[a][{told}][r]"


def test_props_tell_what_is_served_cl18(make_site: MakeSite) -> None:
    site = make_site(ctx=64)
    (response,) = ask(site, ("/props", None))
    answer = response.json()
    assert answer["default_generation_settings"]["n_ctx"] == 64
    assert answer["total_slots"] == site.config.max_sequences
    assert answer["chat_template"].startswith("{% for m in messages %}")
    assert (answer["bos_token"], answer["eos_token"]) == ("<|bos|>", "<|eos|>")
    assert answer["model_path"] == "tiny.gguf"  # no path of this machine
    assert not site.workers


def test_which_model_is_meant_must_be_clear(make_site: MakeSite, models_dir: Path) -> None:
    write_model(models_dir / "other.gguf")
    paths: list[tuple[str, Json | None]] = [("/props", None), ("/tokenize", {"content": "a"})]
    for response in ask(make_site(models_dir=models_dir), *paths):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "model"
    responses = ask(
        make_site(models_dir=models_dir),
        ("/props?model=other", None),
        ("/v1/chat/completions", {"model": "tiny", "messages": CHAT}),
        ("/props", None),
        ("/props?model=nothing", None),
    )
    names = [response.json().get("model_alias") for response in (responses[0], responses[2])]
    assert names == ["other:latest", "tiny:latest"]
    assert responses[3].status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "with_pieces": "yes"}, "with_pieces"),
        ("/tokenize", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [512]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
    ],
)
def test_wrong_bodies_are_refused_by_field_k36(
    make_site: MakeSite, path: str, body: Json, param: str
) -> None:
    (response,) = ask(make_site(), (path, body))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
