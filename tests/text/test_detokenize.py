"""Replies come out in whole characters, whatever the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from text_vocabularies import CONTROL, byte_level, random_text, spm

from emberd.text.detokenize import Detokenizer
from emberd.text.tokenizer import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(byte_level(["a b"], ["<|end|>"]))


def ids_of(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One id a byte."""
    by_bytes = {tokenizer.token_bytes(i): i for i in range(256)}
    return [by_bytes[bytes([byte])] for byte in data]


@pytest.mark.parametrize("text", ["🙂!", "é", "한", "👨\u200d👩\u200d👧"])
def test_k03_characters_of_several_tokens(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push([i]) for i in ids_of(tokenizer, text.encode())]
    assert "".join(deltas) + detokenizer.finish() == text
    assert all("\ufffd" not in delta for delta in deltas)


def test_any_cut_gives_the_same_text(tokenizer: Tokenizer, rng: np.random.Generator) -> None:
    text = random_text(rng, 60)
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    detokenizer = Detokenizer(tokenizer)
    shown, start = "", 0
    while start < len(ids):
        end = start + int(rng.integers(0, 5))
        shown += detokenizer.push(ids[start:end])
        assert text.startswith(shown)
        start = end
    assert shown == text


def test_bytes_of_no_character_show_at_once(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids_of(tokenizer, b"a\xff")) == "a\ufffd"
    assert detokenizer.push(ids_of(tokenizer, b"\xf0\x9f")) == ""
    assert detokenizer.push(ids_of(tokenizer, b"b")) == "\ufffdb"


def test_an_unfinished_character_at_the_end_is_not_shown(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids_of(tokenizer, "x🙂".encode()[:-1])) == "x"
    assert detokenizer.finish() == ""


def test_control_tokens_add_nothing_even_inside_a_character(tokenizer: Tokenizer) -> None:
    first, second = ids_of(tokenizer, "é".encode())
    end = tokenizer.vocab_size - 1
    assert Detokenizer(tokenizer).push([end, first, end, second, end, tokenizer.vocab_size]) == "é"


def test_k21_the_space_in_front_is_encoding_s_only_at_a_text_s_start() -> None:
    pieces = {"▁": -1.0, "a": -1.0, "▁a": 0.0}
    tokenizer = Tokenizer.from_metadata(spm(pieces, {"<pad>": CONTROL}))
    pad, ids = (
        tokenizer.encode("<pad>a a", add_special=False, parse_special=True),
        [3 + 256 + 3] * 2,
    )
    assert pad[1:] == ids
    assert Detokenizer(tokenizer).push(ids) == " a a"
    whole = Detokenizer(tokenizer, whole=True)
    assert [whole.push([i]) for i in pad] == ["", "a", " a"]
