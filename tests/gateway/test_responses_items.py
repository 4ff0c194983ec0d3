"""Items of /v1/responses to messages for the template (OR-01, OR-03)."""

from __future__ import annotations

from typing import Any

import pytest

from emberd.errors import BadRequestError
from emberd.gateway.openai.responses.items import template_messages
from emberd.gateway.openai.responses.tools import read_tools

Json = dict[str, Any]


def read(*items: Json, instructions: str | None = None) -> list[Json]:
    """The messages of items."""
    placed = [(f"input[{index}]", item) for index, item in enumerate(items)]
    return template_messages(instructions, placed, read_tools(None, None))[0]


def call(id: str, name: str = "w", arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


def output(id: str, text: Any = "r") -> Json:
    return {"type": "function_call_output", "call_id": id, "output": text}


def called(*ids: str, **more: Any) -> Json:
    calls = [
        {"type": "function", "id": id, "function": {"name": "w", "arguments": "{}"}} for id in ids
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def result(id: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": "r", "name": "w"}


def test_messages_of_every_form_or01() -> None:
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]
    said = {"type": "output_text", "text": "z", "annotations": [], "logprobs": []}
    assert read(
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": parts},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [said],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": []},
        {"role": "assistant", "content": None},
        instructions="i",
    ) == [
        {"role": "system", "content": "i"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": t} for t in "xy"]},
        {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("z", "no")]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
    ]


def test_what_the_assistant_did_in_a_row_is_one_turn_or03() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    said = {"role": "assistant", "content": "s"}
    user = {"role": "user", "content": "u"}
    assert read(user, thought, said, call("1"), call("2"), output("1"), output("2"), user) == [
        user,
        {**called("1", "2", reasoning_content="hm"), "content": "s"},
        result("1"),
        result("2"),
        user,
    ]
    assert read(call("1"), output("1"), thought, call("2"), output("2"), said) == [
        called("1"),
        result("1"),
        called("2", reasoning_content="hm"),
        result("2"),
        said,
    ]


def test_a_message_between_a_call_and_its_output_breaks_nothing_or03() -> None:
    user = {"role": "user", "content": "u"}
    assert read(call("1"), call("2"), user, output("2"), output("1")) == [
        called("1", "2"),
        result("2"),
        result("1"),
        user,
    ]
    lonely = {**output("9"), "name": "v"}  # its call has been left out
    assert read(user, lonely) == [
        user,
        {"role": "tool", "tool_call_id": "9", "content": "r", "name": "v"},
    ]


def test_calls_and_outputs_of_other_kinds_or01() -> None:
    ran = {"type": "exec", "command": ["ls"], "env": {}}
    parts = [{"type": "input_text", "text": "r"}]
    messages = read(
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "+x"},
        {
            "type": "local_shell_call",
            "call_id": "2",
            "id": "s",
            "action": ran,
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "1", "output": parts},
        {"type": "local_shell_call_output", "id": "2", "output": "r"},
    )
    functions = [one["function"] for one in messages[0]["tool_calls"]]
    assert functions == [
        {"name": "patch", "arguments": {"input": "+x"}},
        {"name": "local_shell", "arguments": ran},
    ]
    assert [message["content"] for message in messages[1:]] == ["r", "r"]


def test_reasoning_comes_back_in_each_of_its_forms_or01() -> None:
    assert read(
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "emberd.aG3DqQ=="},
        {"type": "reasoning", "summary": [{"text": "s"}], "encrypted_content": "gAAAAA-not-ours"},
        {"type": "reasoning", "summary": [], "encrypted_content": "emberd.%%"},
    ) == [{"role": "assistant", "content": "", "reasoning_content": "c\nhmé\ns"}]


@pytest.mark.parametrize(
    ("content", "kept"), [("plain", True), (5, False), (True, False), ({}, False)]
)
def test_reasoning_of_no_known_form_is_left_out_or01(content: Any, kept: bool) -> None:
    answer = {"role": "assistant", "content": "a"}
    thought = {"type": "reasoning", "summary": [], "content": content}
    (message,) = read(thought, answer)
    assert message == (answer | {"reasoning_content": "plain"} if kept else answer)


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"role": "king", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": ["x"]}]}, "input[0].content[0]"),
        ({"type": "function_call", "call_id": "1"}, "input[0].name"),
        ({"type": "function_call", "name": "w"}, "input[0].call_id"),
        ({"type": "custom_tool_call", "call_id": "1", "name": "w"}, "input[0].input"),
        (output("1", None), "input[0].output"),
        (output("1", [{"type": "input_image"}]), "input[0].output[0]"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
    ],
    ids=str,
)
def test_bad_items_are_refused_by_path(item: Json, path: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        read(item)
    assert refused.value.param == path and path in refused.value.message
