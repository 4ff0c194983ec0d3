"""DeepSeek LLM's pre-tokenizer over runs of spaces that end no text: one pass, cut as its own expression cuts."""

from __future__ import annotations

import numpy as np
from tokenizers import Regex, pre_tokenizers

from emberd.text.pretokenizers import PRETOKENIZERS


def splits(patterns: tuple[str, ...]) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    )


def test_runs_of_spaces_are_cut_in_time(rng: np.random.Generator) -> None:
    patterns = PRETOKENIZERS["deepseek-llm"].patterns
    ours = splits(patterns)
    plain = splits(tuple(r"\s+$" if "$" in pattern else pattern for pattern in patterns))
    pieces = [
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\u3000",
        "\x85",
        "a",
        "B",
        "1",
        "一",
        "!",
        "\u0301",
        "é",
    ]
    for _ in range(2000):
        text = "".join(rng.choice(pieces, int(rng.integers(1, 14))))
        assert ours.pre_tokenize_str(text) == plain.pre_tokenize_str(text), text
    assert len(ours.pre_tokenize_str(" " * 400_000 + "1")) == 2  # minutes of the plain expression
