"""Pre-tokenizers that cut numbers in threes from their end, in one pass over a number; SuperBPE's against its own
expression, which takes one for each digit."""

from __future__ import annotations

import itertools
import time

import numpy as np
from tokenizers import Regex, pre_tokenizers

from emberd.text.pretokenizers import PRETOKENIZERS


def test_long_numbers_are_cut_in_threes_from_their_end_in_time(rng: np.random.Generator) -> None:
    plain = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in (r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))")
        ]
    )
    ours = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in PRETOKENIZERS["superbpe"].patterns
        ]
    )
    pieces = ["1", "23", "456", "7890", "٣", "²", "Ⅷ", "a", "é", " ", "\n"]
    for _ in range(2000):
        text = "".join(rng.choice(pieces, int(rng.integers(1, 14))))
        assert ours.pre_tokenize_str(text) == plain.pre_tokenize_str(text), text
    began = time.perf_counter()
    assert len(ours.pre_tokenize_str("1" * 20000)) == 6667
    assert time.perf_counter() - began < 1  # of the plain expression 5


def test_numbers_in_threes_and_the_text_before_them_in_time(rng: np.random.Generator) -> None:
    pattern = PRETOKENIZERS["afmoe"].patterns[0]
    ours = pre_tokenizers.Split(Regex(pattern), "isolated")
    pieces = ["1", "23", "456", "7890", "٣", "²", "Ⅷ", "a", "é", " ", "\n"]
    for _ in range(2000):
        text = "".join(rng.choice(pieces, int(rng.integers(1, 14))))
        assert [piece for piece, _ in ours.pre_tokenize_str(text)] == in_threes(text), text
    began = time.perf_counter()
    assert len(ours.pre_tokenize_str("1" * 20000)) == 6667
    assert len(ours.pre_tokenize_str("a" * 200_000)) == 1
    assert time.perf_counter() - began < 1


def in_threes(text: str) -> list[str]:
    """Stretches of text, each with the first digits of the number behind it; then the number's threes."""
    found, before = [], ""
    for is_number, run in itertools.groupby(text, str.isnumeric):
        part = "".join(run)
        if not is_number:
            before = part
            continue
        head = len(part) % 3 or 3
        found += [before + part[:head], *(part[i : i + 3] for i in range(head, len(part), 3))]
        before = ""
    return [*found, before] if before else found
