"""Tags around an answer, however its text is cut (K07): Granite writes <think>…</think><response>…</response>."""

from __future__ import annotations

import pytest

from emberd.text.parts import ReasoningDelta, TextDelta
from emberd.text.reasoning import thinking_of
from emberd.text.reply import ReplyFormat

TEMPLATE = (
    "Think in <think></think> and answer in <response></response>.{% if thinking %}{% endif %}"
)
REPLIES = [
    ("<think>Hm.</think><response>Yes.</response>", "Yes."),
    ("<think>Hm.</think>\n<response>\nYes.</response>\n", "Yes.\n"),
    ("<think>Hm.</think>Yes <response>.", "Yes <response>."),
    ("<think>Hm.</think><respon", "<respon"),
    ("<think>Hm.</think><response>a </respons", "a </respons"),
    ("<think>Hm.</think><response>a</response> b </response>", "a b </response>"),
    ("<think>Hm.</think><responses>", "<responses>"),
    ("<think>Hm.</think><response></response>", ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(("reply", "answer"), REPLIES)
def test_tags_around_an_answer_are_no_part_of_it_k07(reply: str, answer: str, size: int) -> None:
    thinking = thinking_of(TEMPLATE)
    assert thinking is not None and thinking.switches == ("thinking",)
    parser = ReplyFormat(thinking=thinking.tags).parser()
    parts = [
        part
        for start in range(0, len(reply), size)
        for part in parser.push(reply[start : start + size])
    ]
    parts += parser.finish(cut=False)
    assert "".join(p.text for p in parts if isinstance(p, TextDelta)) == answer
    assert "".join(p.text for p in parts if isinstance(p, ReasoningDelta)) == "Hm."
    assert all(p.text for p in parts if isinstance(p, TextDelta))


def test_other_templates_leave_such_tags_alone() -> None:
    thinking = thinking_of("<think></think>")
    assert thinking is not None and thinking.tags.answer is None
    parser = ReplyFormat(thinking=thinking.tags).parser()
    text = "<response>x</response>"
    assert [*parser.push(text), *parser.finish(cut=False)] == [TextDelta(text)]
