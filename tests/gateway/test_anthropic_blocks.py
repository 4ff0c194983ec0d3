"""Anthropic's content blocks and prompts as pure functions: blocks (AN-07, AN-09, AN-10, AN-20, AN-21), messages
(AN-04, AN-05), tools (AN-06)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from emberd.errors import BadRequestError
from emberd.gateway.anthropic.blocks import Blocks
from emberd.gateway.anthropic.messages import continued_text, template_messages
from emberd.gateway.anthropic.schema import Message, Tool, ToolChoice
from emberd.gateway.anthropic.tools import read_tools
from emberd.gateway.events import (
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)

Json = dict[str, Any]


def put_together(events: list[Json]) -> list[Json]:
    """The blocks of a stream as clients put them together, who see one open block at a time."""
    content: list[Json] = []
    raw = ""
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(content)
            content.append(dict(event["content_block"]))
            is_open, raw = True, ""
        assert is_open and event["index"] == len(content) - 1
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            match delta["type"]:
                case "text_delta":
                    content[-1]["text"] += delta["text"]
                case "thinking_delta":
                    content[-1]["thinking"] += delta["thinking"]
                case "signature_delta":
                    assert content[-1]["signature"] == ""
                    content[-1]["signature"] = delta["signature"]
                case "input_json_delta":
                    raw += delta["partial_json"]
        if event["type"] == "content_block_stop":
            is_open = False
            if raw:
                content[-1]["input"] = json.loads(raw)
    assert not is_open
    return content


def blocks_of(*events: Event, **options: Any) -> tuple[list[Json], list[Json]]:
    """Whole blocks, and stream events."""
    blocks = Blocks(**options)
    stream = [value for event in events for value in blocks.push(event)]
    return blocks.content, stream


def call(index: int, arguments: str) -> list[Event]:
    half = len(arguments) // 2
    return [
        ToolCallStart(index, f"id{index}", "w"),
        ToolCallArguments(index, arguments[:half]),
        ToolCallArguments(index, arguments[half:]),
    ]


def test_a_reply_with_everything_gives_blocks_in_order() -> None:
    content, stream = blocks_of(
        ReasoningDelta("Let"),
        ReasoningDelta(" me"),
        TextDelta("Sure"),
        TextDelta("."),
        *call(0, '{"p":"a"}'),
        *call(1, '{"p":"b"}'),
        Finish("tool_calls"),
    )
    signature = content[0].pop("signature")
    assert signature
    assert content == [
        {"type": "thinking", "thinking": "Let me"},
        {"type": "text", "text": "Sure."},
        {"type": "tool_use", "id": "toolu_id0", "name": "w", "input": {"p": "a"}},
        {"type": "tool_use", "id": "toolu_id1", "name": "w", "input": {"p": "b"}},
    ]
    content[0]["signature"] = signature
    assert put_together(stream) == content
    starts = [e["content_block"] for e in stream if e["type"] == "content_block_start"]
    assert starts[:3] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_id0", "name": "w", "input": {}},
    ]


def test_streams_build_up_the_whole_blocks(rng: np.random.Generator) -> None:
    for _ in range(200):
        events: list[Event] = []
        num_calls = 0
        for _ in range(rng.integers(0, 8)):
            text = str(rng.choice(["a", " ", "\n\n", " b ", "🙂"]))
            kind = rng.integers(0, 3)
            if kind == 2:
                events += call(num_calls, json.dumps({"p": text}))
                num_calls += 1
            else:
                events.append(TextDelta(text) if kind else ReasoningDelta(text))
        content, stream = blocks_of(*events, Finish("stop"), show_thinking=bool(rng.integers(2)))
        assert put_together(stream) == content, events


def test_blanks_are_a_block_only_where_they_are_all_there_is() -> None:
    assert blocks_of(TextDelta(" \n"), Finish("stop"))[0] == [{"type": "text", "text": " \n"}]
    content, _ = blocks_of(
        TextDelta("\n"),
        *call(0, "{}"),
        TextDelta("\n"),
        *call(1, "{}"),
        TextDelta("\n"),
        Finish("stop"),
    )
    assert [block["type"] for block in content] == ["tool_use", "tool_use"]
    content, _ = blocks_of(TextDelta(" "), TextDelta(" x"), TextDelta(" "), Finish("stop"))
    assert content == [{"type": "text", "text": "  x "}]
    assert blocks_of(Finish("stop")) == ([], [])


def test_hidden_thinking_keeps_its_signature() -> None:
    content, stream = blocks_of(
        ReasoningDelta("secret"), TextDelta("a"), Finish("stop"), show_thinking=False
    )
    assert content[0]["thinking"] == "" and content[0]["signature"]
    assert "secret" not in json.dumps(stream)
    assert content == put_together(stream)


@pytest.mark.parametrize("arguments", ["", '{"p": ', "[]"])
def test_the_input_of_a_call_is_always_an_object(arguments: str) -> None:
    content, _ = blocks_of(*call(0, arguments), Finish("length"))
    assert content[0]["input"] == {}


def said(*messages: tuple[str, Any], system: Any = None) -> list[Json]:
    made = [Message(role=role, content=content) for role, content in messages]  # type: ignore[arg-type]
    return template_messages(system, made)


def text(value: str) -> Json:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def use(id: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": f"tool-{id}", "input": arguments}


def result(id: str, content: Any, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def test_turns_of_neighbours_merge_and_results_go_before_text() -> None:
    messages = said(
        ("user", "one"),
        ("user", [text("two")]),
        ("assistant", [{"type": "thinking", "thinking": "hm", "signature": "x"}, text("I ")]),
        ("assistant", [text("call"), use("1", p="a"), use("2")]),
        ("user", [text("and"), result("1", "ra"), result("2", [text("rb"), text("rc")])]),
        ("user", "then"),
    )
    parts = [{"type": "text", "text": value} for value in ("one", "two")]
    calls = [
        {"type": "function", "id": "1", "function": {"name": "tool-1", "arguments": {"p": "a"}}},
        {"type": "function", "id": "2", "function": {"name": "tool-2", "arguments": {}}},
    ]
    results = [{"type": "text", "text": value} for value in ("rb", "rc")]
    assert messages == [
        {"role": "user", "content": parts},
        {
            "role": "assistant",
            "content": "I call",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "1", "name": "tool-1", "content": "ra"},
        {"role": "tool", "tool_call_id": "2", "name": "tool-2", "content": results},
        {"role": "user", "content": [{"type": "text", "text": v} for v in ("and", "then")]},
    ]


def test_a_failed_tool_is_told_from_one_that_gave_a_result() -> None:
    failed = said(("user", [result("9", "no file", is_error=True)]))[0]
    assert failed == {
        "role": "tool",
        "tool_call_id": "9",
        "content": [{"type": "text", "text": "Error:"}, {"type": "text", "text": "no file"}],
    }
    assert said(("user", [result("9", None)]))[0]["content"] == ""


def test_what_only_anthropic_can_read_is_left_out_and_its_tools_history_is_kept() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    found = [{"type": "web_search_result", "title": "T", "encrypted_content": "SECRET"}]
    messages = said(
        ("user", "find"),
        (
            "assistant",
            [
                {"type": "redacted_thinking", "data": "SECRET"},
                text("Looking."),
                search,
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": found},
                text("Found T."),
            ],
        ),
        ("user", "go on"),
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "web_search"
    assert messages[2]["name"] == "web_search" and '"title": "T"' in messages[2]["content"]
    assert messages[3] == {"role": "assistant", "content": "Found T."}
    assert "SECRET" not in json.dumps(messages)


def test_blocks_that_hold_text_are_read() -> None:
    documents = [
        {"type": "document", "title": "D", "source": {"type": "text", "data": "body"}},
        {"type": "document", "source": {"type": "content", "content": [text("x"), text("y")]}},
        {"type": "search_result", "title": "S", "source": "url", "content": [text("z")]},
    ]
    content = said(("user", documents))[0]["content"]
    assert [part["text"] for part in content] == ["D\nbody", "x\ny", "S\nurl\nz"]


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"type": "image", "source": {"type": "url", "url": "http://x"}}, "messages[0].content[1]"),
        (
            {"type": "document", "source": {"type": "base64", "data": "x"}},
            "messages[0].content[1].source",
        ),
        ({"type": "container_upload", "file_id": "f"}, "messages[0].content[1]"),
        ({"text": "no type"}, "messages[0].content[1]"),
        ({"type": "text"}, "messages[0].content[1].text"),
        (result("1", [{"type": "image"}]), "messages[0].content[1].content[0]"),
        (result("1", 5), "messages[0].content[1].content"),
        ({"type": "tool_result", "content": "x"}, "messages[0].content[1].tool_use_id"),
    ],
)
def test_blocks_that_are_no_text_are_refused_by_path_k23(block: Json, path: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        said(("user", [text("a"), block]))
    assert refused.value.param == path and path in refused.value.message


def test_wrong_tool_uses_are_refused_by_path() -> None:
    for block, path in (
        ({"type": "tool_use", "id": "1", "name": "w", "input": "text"}, "input"),
        ({"type": "tool_use", "name": "w", "input": {}}, "id"),
        ({"type": "thinking"}, "thinking"),
    ):
        with pytest.raises(BadRequestError) as refused:
            said(("user", "x"), ("assistant", [block]))
        assert refused.value.param == f"messages[1].content[0].{path}"
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    block = {"type": "web_search_tool_result", "tool_use_id": "s", "content": deep}
    with pytest.raises(BadRequestError, match="nested deeper"):
        said(("user", "x"), ("assistant", [block]))


@pytest.mark.parametrize(
    ("system", "content"),
    [
        (None, None),
        ("", None),
        ("be brief", "be brief"),
        ([text("be brief")], "be brief"),
        (
            [text("a"), text("b")],
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        ([text("x-anthropic-billing-header: cc_version=2; cch=1a2b;"), text("a")], "a"),
        ("x-anthropic-billing-header: cch=9;\n\nbe brief", "be brief"),
        ("x-anthropic-billing-header: cch=9;", None),
        ("on x-anthropic-billing-header:", "on x-anthropic-billing-header:"),
    ],
)
def test_the_billing_header_is_no_part_of_the_prompt_an05(system: Any, content: Any) -> None:
    messages = said(("user", "x"), system=system)
    found = messages[0]["content"] if messages[0]["role"] == "system" else None
    assert found == content


def test_system_messages_may_stand_anywhere_and_the_user_has_the_last_word() -> None:
    """Claude Code sends one behind the user's first message."""
    messages = said(
        ("user", "x"), ("system", "briefly"), ("assistant", [use("1")]), ("system", "go on")
    )
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "system"]
    messages = said(("user", "x"), ("system", "briefly"), ("user", "y"))
    assert messages == [
        {"role": "system", "content": "briefly"},
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("x", "y")]},
    ]
    after_results = said(
        ("user", "x"),
        ("assistant", [use("1")]),
        ("user", [result("1", "r"), text("y")]),
        ("system", "s"),
    )
    roles = ["user", "assistant", "tool", "system", "user"]
    assert [m["role"] for m in after_results] == roles


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_reply() -> None:
    messages = said(("user", "x"), ("assistant", [text("The best"), text(" is (")]))
    assert continued_text(messages) == "The best is ("
    assert messages == [{"role": "user", "content": "x"}]
    for kept in (
        said(("user", "x")),
        said(("assistant", "alone")),
        said(("user", "x"), ("assistant", [text("a"), use("1")])),
    ):
        before = list(kept)
        assert continued_text(kept) == "" and kept == before


def tools(*made: Json, choice: Json | None = None) -> Any:
    parsed = [Tool.model_validate(tool) for tool in made]
    return read_tools(parsed, ToolChoice.model_validate(choice) if choice else None)


def test_tools_become_functions_and_those_of_servers_are_left_out() -> None:
    schema = {"type": "object", "properties": {"p": {"type": "string"}}}
    read = tools(
        {"name": "w", "description": "d", "input_schema": schema, "cache_control": {}},
        {"type": "custom", "name": "v", "input_schema": schema},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "memory_20250818", "name": "memory"},
    )
    assert read.left_out == ["tools.web_search_20250305"]
    functions = {tool["function"]["name"]: tool["function"] for tool in read.functions}
    assert functions["w"] == {"name": "w", "description": "d", "parameters": schema}
    assert functions["v"] == {"name": "v", "parameters": schema}
    assert set(functions["bash"]["parameters"]["properties"]) == {"command", "restart"}
    commands = {
        name: functions[name]["parameters"]["properties"]["command"]["enum"]
        for name in ("str_replace_based_edit_tool", "str_replace_editor", "memory")
    }
    assert "undo_edit" not in commands["str_replace_based_edit_tool"]
    assert "undo_edit" in commands["str_replace_editor"] and "rename" in commands["memory"]
    assert "insert_text" in functions["memory"]["parameters"]["properties"]


def test_no_tools_where_none_may_be_called() -> None:
    tool = {"name": "w", "input_schema": {}}
    assert tools(tool, choice={"type": "none"}).functions is None
    assert tools().functions is None
    assert read_tools(None, None).functions is None
    assert tools({"type": "web_search_20250305"}).functions is None


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"input_schema": {}}, "tools[0].name"),
        ({"name": "w"}, "tools[0].input_schema"),
        ({"name": "w", "type": "teleport_1"}, "tools[0].type"),
        ({"name": "computer", "type": "computer_20250124"}, "tools[0].type"),
    ],
)
def test_wrong_tools_are_refused(tool: Json, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        tools(tool)
    assert refused.value.param == param
