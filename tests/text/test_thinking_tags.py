"""Replies of models whose thinking stands between other tags than most: the answer has none of them."""

from __future__ import annotations

import numpy as np
import pytest
from text_replies import cuts, read

from emberd.text.reasoning import thinking_of
from emberd.text.reply import ReplyFormat

APRIEL = "Here are my reasoning steps:\n[BEGIN FINAL RESPONSE]"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("template", "opening", "behind"),
    [
        (APRIEL, "Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\nYes [or] no."),
        (
            APRIEL,
            "Here are my reasoning steps:\n",
            "\n[BEGIN FINAL RESPONSE]\nYes [or] no.\n[END FINAL RESPONSE]",
        ),
        ("<mm:think></mm:think>", "<mm:think>", "</mm:think>Yes [or] no."),
        ("'</think{}>'", "<think:opensource>", "</think:opensource>Yes [or] no."),
        (
            "<think></think> <|extra_0|>",  # Hunyuan's
            "<think>",
            "\n</think>\n<answer>\nYes [or] no.\n</answer>",
        ),
        (
            "<think></think> <answer></answer>",
            "<think>",
            "\n</think>\n<answer>\nYes [or] no.\n</answer>",
        ),
    ],
)
def test_thinking_is_told_apart(
    template: str, opening: str, behind: str, inside: bool, rng: np.random.Generator
) -> None:
    thinking = thinking_of(template)
    assert thinking is not None
    form = ReplyFormat(thinking.tags, inside_thinking=inside)
    reply = ("" if inside else opening) + "Is it [BEGIN]? No." + behind
    for pieces in cuts(reply, rng):
        found = read(form, pieces)
        assert (found.reasoning, found.text.strip()) == ("Is it [BEGIN]? No.", "Yes [or] no.")


def test_an_answer_without_thinking_is_whole() -> None:
    thinking = thinking_of(APRIEL)
    assert thinking is not None
    assert read(ReplyFormat(thinking.tags), ["Here ", "it is."]).text == "Here it is."


def test_an_effort_is_told_where_a_template_does_not_think_without_one() -> None:
    words = "{% if reasoning_effort in ['high', 'low', 'no_think'] %}{{ '<think{}></think{}>' }}{% endif %}"
    thinking = thinking_of(words)
    assert thinking is not None and thinking.efforts == ("low", "high")
    found = [thinking.variables(*wish).get("reasoning_effort") for wish in WISHES]
    assert found == [None, "high", "no_think", "low", "low"]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("</think>Yes.", "Yes."),
        ("\n</think>\n\nYes.</think>", "Yes.</think>"),
        ("</thin", "</thin"),
        ("</thing>", "</thing>"),
        (" \n", " \n"),
    ],
)
def test_a_closing_tag_at_the_beginning_is_not_shown(
    reply: str, text: str, rng: np.random.Generator
) -> None:
    """MiniMax M3's replies begin with one where it does not think."""
    thinking = thinking_of("<think></think>")
    assert thinking is not None
    for pieces in cuts(reply, rng):
        assert read(ReplyFormat(thinking.tags), pieces).text == text, pieces


def test_thinking_is_turned_on_and_off_by_words_too() -> None:
    thinking = thinking_of("{% if thinking_mode == 'disabled' %}{% endif %}<mm:think></mm:think>")
    assert thinking is not None
    modes = [thinking.variables(mode, None) for mode in (None, True, False)]
    assert modes == [{}, {"thinking_mode": "enabled"}, {"thinking_mode": "disabled"}]


WISHES = ((None, None), (True, None), (False, None), (True, "minimal"), (None, "low"))
