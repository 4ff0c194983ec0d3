"""SuperBPE's pre-tokenizer in one pass over a number, against its own expression, which takes one for each digit."""

from __future__ import annotations

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
