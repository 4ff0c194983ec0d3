"""Patterns, choices and grammars on answers, and the thinking that may come first."""

from __future__ import annotations

from typing import Any

import pytest
from text_vocabularies import byte_level

from emberd.errors import BadRequestError
from emberd.text.grammar.answer import Constraint
from emberd.text.grammar.check import Checker
from emberd.text.grammar.reply import ReplyRules, bound
from emberd.text.parts import ReasoningDelta, TextDelta
from emberd.text.reasoning import CHANNELS, thinking_of
from emberd.text.reply import PLAIN, ReplyFormat
from emberd.text.tokenizer import Tokenizer
from grammar_player import Player

TAGS = ("<think>", "</think>")
YES = Constraint("choice", ["yes", "no"], "guided_choice")


def tokenizer(*control: str) -> Tokenizer:
    return Tokenizer.from_metadata(byte_level(control=["<eos>", *control], eos_token_id="<eos>"))


PLAIN_TOKENIZER = tokenizer()


def grammars(
    constraint: Constraint, form: ReplyFormat = PLAIN, vocabulary: Tokenizer = PLAIN_TOKENIZER
) -> ReplyFormat:
    return bound(form, ReplyRules(constraint.expression, param=constraint.param), vocabulary)


def accepts(constraint: Constraint, *texts: str) -> list[bool]:
    player, grammar = Player(PLAIN_TOKENIZER), grammars(constraint).grammar
    assert grammar is not None
    return [player.accepts(grammar, text) for text in texts]


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"a|bc", "bc", "abc"),
        (r"\d{3}", "123", "1234"),
        (r"^[a-z]+$", "abc", "ABC"),
        (r"a/b", "a/b", "ab"),
        ("a\nb", "a\nb", "anb"),
        (r"é\.", "é.", "éa"),
        (r"(?i)yes", "YeS", "no"),
        (r"\\", "\\", "\\\\"),
    ],
)
def test_a_pattern_fits_the_whole_answer(pattern: str, right: str, wrong: str) -> None:
    assert accepts(Constraint("regex", pattern, "guided_regex"), right, wrong) == [True, False]


def test_a_choice_is_one_of_the_texts() -> None:
    choices = ["a", "ab", 'say "hi"\n', "größe", "\\d", "<eos>"]
    texts = [*choices[:-1], "b", "abab", "1", ""]
    found = accepts(Constraint("choice", choices, "guided_choice"), *texts)
    assert found == [True] * 5 + [False] * 4


LARK = 'start: "a" start | b // start\nb: /start/ | "start"\n'
GBNF = 'root ::= "a" item+ | "b"\nitem ::= [0-9] "," # more\n'


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [(LARK, "aastart", "b"), (GBNF, "a1,2,", "a1"), ("start: /x+/\n%ignore / /", "xx", "y")],
)
def test_grammars_in_lark_and_gbnf(source: str, right: str, wrong: str) -> None:
    assert accepts(Constraint("grammar", source, "grammar"), right, wrong) == [True, False]


@pytest.mark.parametrize(
    ("kind", "value", "param"),
    [
        ("regex", "(a", "p"),
        ("regex", "", "p"),
        ("regex", "(?=a)", "p"),
        ("regex", 5, "p"),
        ("regex", "a" * 100_001, "p"),
        ("choice", [], "p"),
        ("choice", "yes", "p"),
        ("choice", ["a", 5], "p[1]"),
        ("choice", ["a", ""], "p[1]"),
        ("choice", ["a"] * 1001, "p"),
        ("grammar", "start: (", "p"),
        ("grammar", "start: nothing", "p"),
        ("grammar", "start: start", "p"),
        ("grammar", 'root ::= "a', "p"),
        ("grammar", 'item ::= "a"', "p"),
        ("grammar", "root ::= nothing", "p"),
        ("grammar", "(" * 5000, "p"),
        ("grammar", "start: <no_such_token>", "p"),
    ],
)
def test_what_is_no_pattern_choice_or_grammar_is_refused(kind: Any, value: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        grammars(Constraint(kind, value, "p"))
    assert refused.value.param == param
    assert f"'{param}'" in str(refused.value)
    assert len(str(refused.value)) < 600


def thinking(*, inside: bool = False, budget: int | None = None) -> ReplyFormat:
    found = thinking_of("{{ '</think>' }}")
    assert found is not None
    return ReplyFormat(thinking=found.tags, inside_thinking=inside, thinking_budget=budget)


@pytest.mark.parametrize("control", [(), TAGS])
@pytest.mark.parametrize(
    ("inside", "right", "wrong"),
    [
        (False, ["yes", "<think>no? {\n</think>yes", "<think></think>\n\nno"], ["<think>yes", "</think>yes", "\nyes"]),
        (True, ["hm\n</think>\n\nyes", "</think>no"], ["yes", "no</think>", "<think>yes", "a</think>maybe"]),
    ],
)  # fmt: skip
def test_the_answer_is_bound_behind_the_thinking(
    control: tuple[str, ...], inside: bool, right: list[str], wrong: list[str]
) -> None:
    vocabulary = tokenizer(*control)
    form = grammars(YES, thinking(inside=inside, budget=5), vocabulary)
    player = Player(vocabulary)
    assert form.grammar and form.grammar_behind_thinking
    assert [text for text in right if not player.accepts(form.grammar, text)] == []
    assert [text for text in wrong if player.accepts(form.grammar, text)] == []
    assert player.accepts(form.grammar_behind_thinking, "\nyes")
    assert not player.accepts(form.grammar_behind_thinking, "<think>a</think>yes")


def test_without_thinking_the_answer_comes_at_once() -> None:
    form = grammars(YES, thinking(budget=0))
    player = Player(PLAIN_TOKENIZER)
    assert form.grammar and form.grammar_behind_thinking is None
    assert player.accepts(form.grammar, "yes")
    assert not player.accepts(form.grammar, "<think>a</think>yes")


@pytest.mark.parametrize("control", [(), ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")])
def test_the_answer_is_bound_in_its_channel(control: tuple[str, ...]) -> None:
    vocabulary = tokenizer(*control)
    form = grammars(YES, ReplyFormat(thinking=CHANNELS, thinking_budget=9), vocabulary)
    player = Player(vocabulary)
    assert form.grammar and form.grammar_behind_thinking
    final = "<|channel|>final<|message|>yes"
    analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    for text in (final, analysis + final):
        assert player.accepts(form.grammar, text)
        parts = form.parser(vocabulary.controls(form.marks)).push(text)
        assert [p for p in parts if not isinstance(p, ReasoningDelta)][-1] == TextDelta("yes")
    for text in ("yes", analysis, analysis + final[:-1], final.replace("yes", "maybe")):
        assert not player.accepts(form.grammar, text)
    assert player.accepts(form.grammar_behind_thinking, "yes")


@pytest.mark.parametrize("seed", range(10))
def test_random_replies_think_and_then_fit(seed: int) -> None:
    vocabulary = tokenizer(*TAGS)
    form = grammars(Constraint("regex", "[a-c]{2,5}", "guided_regex"), thinking(), vocabulary)
    player = Player(vocabulary)
    assert form.grammar
    ids, ended = player.play(form.grammar, seed)
    assert ended
    parser = form.parser(vocabulary.controls(form.marks))
    parts = parser.push(player.text(ids, form)) + parser.finish(cut=False)
    texts = [part.text for part in parts if isinstance(part, TextDelta)]
    assert len("".join(texts)) in range(2, 6) and set("".join(texts)) <= set("abc")


def test_a_callers_grammar_is_bound_behind_the_thinking_too() -> None:
    form = grammars(Constraint("grammar", LARK, "grammar"), thinking(inside=True))
    player = Player(PLAIN_TOKENIZER)
    assert form.grammar
    assert player.accepts(form.grammar, "start</think>\nastart")
    assert not player.accepts(form.grammar, "a</think>\nb")


def test_names_of_control_tokens_may_be_no_text() -> None:
    checker = Checker({"<|a|>": 3, "\udcff\udcfe": 300})
    assert checker.fault('start: "a" <[300]>') == ""
    assert checker.fault("start: %") != ""
