"""Replies in sections: reasoning, answers and calls told apart, however the reply is cut, and answers bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from text_replies import cuts, read
from text_vocabularies import byte_level

from emberd.text.grammar.answer import Constraint
from emberd.text.grammar.reply import ReplyRules, bound
from emberd.text.parts import ReasoningDelta, TextDelta
from emberd.text.reasoning import thinking_of
from emberd.text.reply import ReplyFormat
from emberd.text.sections import FUNCTIONARY, KIMI, MUSE, SOLAR, Sections, sections_of
from emberd.text.tokenizer import Tokenizer
from grammar_player import Player

TURN = "<|end|><|begin|>assistant"
NEXT = "<|eom|><|start|>assistant"
ANSWER = "<|close|>think<|sep|><|open|>response<|sep|>"
CLOSED = "<|close|>response<|sep|><|close|>message<|sep|>"


def form_of(sections: Sections, *, inside: bool = False) -> ReplyFormat:
    thinking = thinking_of(f"{{# {sections.mark} #}}")
    assert sections_of(f"{{# {sections.mark} #}}") is sections
    return ReplyFormat(thinking.tags if thinking else None, inside, sections=sections)


@pytest.mark.parametrize(
    ("sections", "inside", "reply", "reasoning", "text"),
    [
        (FUNCTIONARY, False, "all\n>> Yes.\n>>> 1", "", ">> Yes.\n>>> 1"),
        (FUNCTIONARY, False, "allright", "", "allright"),
        (FUNCTIONARY, False, "", "", ""),
        (MUSE, False, f" to=self<|message|>Hm.\n{NEXT} to=user<|message|>\nYes.<|eot|>", "Hm.", "Yes."),
        (MUSE, False, " to=user<|message|>Yes", "", "Yes"),
        (MUSE, False, "Yes to=", "", "Yes to="),
        (KIMI, True, f"Hm. \n{ANSWER}Yes.{CLOSED}", "Hm.", "Yes."),
        (KIMI, False, f"Yes, the response<|open|>.{CLOSED}", "", "Yes, the response<|open|>."),
        (KIMI, False, f"<|open|>think<|sep|>{ANSWER}Yes.", "", "Yes."),
        (KIMI, True, "Only thoughts <|close|>th", "Only thoughts <|close|>th", ""),
        (SOLAR, False, f"<|think|>Hm.{TURN}<|content|> Yes.<|end|>", "Hm.", "Yes."),
        (SOLAR, False, "<|content|>Yes.", "", "Yes."),
        (SOLAR, False, "Yes.<|flush|>", "", "Yes."),
    ],
)  # fmt: skip
def test_sections_are_told_apart(
    sections: Sections,
    inside: bool,
    reply: str,
    reasoning: str,
    text: str,
    rng: np.random.Generator,
) -> None:
    """Without tools too, which templates write for all the same."""
    form = form_of(sections, inside=inside)
    for pieces in cuts(reply, rng) if reply else [[""]]:
        found = read(form, pieces)
        assert (found.reasoning, found.text) == (reasoning, text), pieces


def test_the_reply_thinks_where_its_section_is_reasoning() -> None:
    parser = form_of(SOLAR).parser()
    states = [
        (parser.push(text), parser.thinking)[1] for text in ("<|thi", "nk|>", "Hm", "<|end|>")
    ]
    assert states == [False, True, True, False]


def test_names_of_control_tokens_are_not_shown() -> None:
    found = read(form_of(SOLAR), ["<|content|>", "a<|begin|>", "b"], controls=["<|begin|>"])
    assert found.text == "ab"


def test_text_that_may_become_a_tag_is_held() -> None:
    parser = form_of(FUNCTIONARY).parser()
    assert parser.push("al") == [] and parser.held == "al"
    assert parser.push("so") == [TextDelta("also")] and parser.held == ""
    assert parser.push(">>>al") == [] and parser.held == ">>>al"
    assert parser.finish(cut=True) == [TextDelta(">>>al")]


@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(
    ("sections", "inside", "right", "wrong"),
    [
        (FUNCTIONARY, False, ["all\nyes"], ["yes", "all\nmaybe"]),
        (
            MUSE,
            False,
            [" to=user<|message|>no", f" to=self<|message|>Hm.{NEXT} to=user<|message|>yes"],
            ["yes", f" to=self<|message|>Hm.{NEXT}yes"],
        ),
        (KIMI, True, [f"Hm.{ANSWER}yes"], ["yes", "Hm.<|close|>think<|sep|>yes"]),
        (KIMI, False, ["yes", f"<|open|>think<|sep|>Hm.{ANSWER}no"], [f"Hm.{ANSWER}yes"]),
        (SOLAR, False, ["<|content|>yes", f"<|think|>Hm.{TURN}<|content|>no"], ["yes", f"<|think|>{TURN}yes"]),
    ],
)  # fmt: skip
def test_answers_are_bound_in_their_section(
    sections: Sections, inside: bool, right: list[str], wrong: list[str], control: bool
) -> None:
    names = sections.tokens if control else ()
    metadata = byte_level(control=["<eos>", *names], eos_token_id="<eos>")
    vocabulary = Tokenizer.from_metadata(metadata)
    choice = Constraint("choice", ["yes", "no"], "guided_choice")
    form = replace(form_of(sections, inside=inside), thinking_budget=5)
    form = bound(form, ReplyRules(choice.expression, param=choice.param), vocabulary)
    player = Player(vocabulary)
    assert form.grammar is not None
    assert [text for text in wrong if player.accepts(form.grammar, text)] == []
    for text in right:
        assert player.accepts(form.grammar, text), text
        parts = form.parser(vocabulary.controls(form.marks)).push(text)
        told = "".join(p.text for p in parts if not isinstance(p, ReasoningDelta))
        assert text.endswith(told) and told in ("yes", "no")
    if form.grammar_behind_thinking is not None:
        assert player.accepts(form.grammar_behind_thinking, sections.answer + "yes")
