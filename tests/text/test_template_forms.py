"""Conversations and tools as clients send them, made to fit templates that expect more than that."""

from __future__ import annotations

from typing import Any

import pytest

from emberd.errors import BadRequestError
from emberd.text.messages import linked
from emberd.text.template import ChatTemplate

Json = dict[str, Any]
SAYS = "[{{ m.role }}]{{ m.content }}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
TOOLS = (
    "{% for tool in tools %}{{ tool.function.name + ': ' + tool.function.description }}"
    "{% for name, one in tool.function.parameters.properties.items() %} {{ name + one.description }}{% endfor %}"
    "{% endfor %}{% for m in messages %}" + SAYS + "{% endfor %}"
)
HI: Json = {"role": "user", "content": "Hi"}


def tool(**function: Any) -> Json:
    return {"type": "function", "function": {"name": "f", **function}}


def test_a_template_that_takes_only_parts_gets_texts_as_such() -> None:
    """As those of models that see: a text would be iterated by characters, and lost."""
    conversation = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        HI,
    ]
    prompt = ChatTemplate(PARTS).render(conversation)
    assert prompt == "[system]Be kind.[user]ab[assistant][user]Hi"


def test_a_template_that_takes_both_gets_texts() -> None:
    both = (
        "{% for m in messages %}{% if m.content is string %}T{% else %}type{% endif %}{% endfor %}"
    )
    assert ChatTemplate(both).render([HI]) == "T"


@pytest.mark.parametrize(
    ("tools", "prompt"),
    [
        ([tool(description="d", parameters={"properties": {"a": {"description": "e"}}})], "f: d ae[user]Hi"),
        ([tool()], "f: [user]Hi"),
        ([tool(parameters=None)], "f: [user]Hi"),
        ([tool(description="d", parameters={"properties": {"a": {"type": "null"}, "b": True}})], None),
        ([tool(description="d", parameters={"properties": {"a": {"type": "null"}}})], "f: d a[user]Hi"),
        (None, "[user]Hi"),
    ],
)  # fmt: skip
def test_tools_have_what_templates_read_of_them(tools: list[Json] | None, prompt: str) -> None:
    template = ChatTemplate(TOOLS)
    if prompt is not None:
        assert template.render([HI], tools) == prompt
        return
    with pytest.raises(BadRequestError):
        template.render([HI], tools)


def test_tools_are_as_sent_where_that_renders() -> None:
    assert ChatTemplate("{{ tools | tojson }}").render([HI], [tool()]) == (
        '[{"type": "function", "function": {"name": "f"}}]'
    )


def test_objects_among_the_arguments_have_a_schema_of_their_values() -> None:
    """Command R+'s template reads it."""
    template = ChatTemplate(
        "{% for name, one in tools[0].function.parameters.properties.items() %}"
        "{{ name + one.description }}{{ one.additionalProperties.type }}{% endfor %}"
    )
    schema = {"type": "object", "properties": {"a": {"type": "object", "description": "d"}}}
    assert template.render([HI], [tool(description="d", parameters=schema)]) == "ad"


NINE = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
    "{{ raise_exception('nine') }}{% endif %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('either') }}"
    "{% endif %}<{{ m.thinking }}|{{ m.content }}>{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (NINE, '{"a": 1}'),  # Mistral's: the arguments are no text for it
        (NO_SYSTEM, 'S\n\nHiLook.{"a": 1}'),
        (EITHER, "<|S><|Hi><Hm.\n\nLook.|>"),  # gpt-oss's
        (NINE + NO_SYSTEM, '{"a": 1}S\n\nHiLook.{"a": 1}'),
    ],
)
def test_no_more_is_changed_than_a_template_needs(source: str, prompt: str) -> None:
    message = called("f", ids=("call_" + "x" * 24,))
    message["tool_calls"][0]["function"]["arguments"] = '{"a": 1}'
    message |= {"content": "Look.", "thinking": "Hm."}
    conversation = [{"role": "system", "content": "S"}, HI, message]
    assert ChatTemplate(source).render(conversation) == prompt
    assert message["content"] == "Look."


def test_a_template_that_takes_calls_only_as_text_gets_them_so() -> None:
    as_text = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}{{ '!' + call.function.arguments }}"
        "{% endfor %}{% endfor %}"
    )
    message = called("f", ids=("1",))
    message["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    assert ChatTemplate(as_text).render([HI, message]) == '!{"a": 1}'


@pytest.mark.parametrize("calls", [[], None])
def test_no_calls_are_no_calls(calls: Any) -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if 'tool_calls' in m %}[{{ m.tool_calls[0].function.name }}]{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}"
    )
    conversation = [HI, {"role": "assistant", "content": "Yes.", "tool_calls": calls}]
    assert template.render(conversation) == "HiYes."


def test_a_refusal_on_purpose_is_told_in_the_template_s_words() -> None:
    template = ChatTemplate(
        "{% for tool in tools %}{% if not tool.function.description %}{{ raise_exception('Describe it!') }}"
        "{% endif %}{% endfor %}"
    )
    with pytest.raises(BadRequestError, match="Describe it!"):
        template.render([HI], [tool()])


def called(*names: str, ids: tuple[str, ...] = ()) -> Json:
    calls: list[Json] = [{"type": "function", "function": {"name": name}} for name in names]
    for call, id in zip(calls, ids, strict=False):
        call["id"] = id
    return {"role": "assistant", "tool_calls": calls}


def result(**fields: Any) -> Json:
    return {"role": "tool", "content": "r", **fields}


def test_calls_without_ids_get_some_and_results_those_of_their_call() -> None:
    messages = [
        HI,
        called("f", "g", "f"),
        result(name="g"),
        result(name="f"),
        result(),
        called("g"),
        result(name="other"),
        result(name="f"),
    ]
    given = linked(messages)
    ids = [call["id"] for message in (given[1], given[5]) for call in message["tool_calls"]]
    assert len(set(ids)) == 4 and all(len(id) == 9 and id.isalnum() for id in ids)
    first, second, third, last = ids
    told = [(m.get("tool_call_id"), m.get("name")) for m in given if m["role"] == "tool"]
    assert told == [(second, "g"), (first, "f"), (third, "f"), (last, "other"), (None, "f")]
    assert linked(messages[:4]) == given[:4]  # what comes later changes nothing of it
    assert linked(given) == given


def test_ids_that_were_sent_stay() -> None:
    messages = [called("f", "g", ids=("a", "b")), result(tool_call_id="b"), result()]
    given = linked(messages)
    assert given[:2] == messages[:2]
    assert given[2]["tool_call_id"] == "a"
