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
