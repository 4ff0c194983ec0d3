"""WordPiece: the rules one at a time, and the `tokenizers` library's own BERT pipeline over random text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from emberd.errors import NotSupportedError
from emberd.text.tokenizer import Tokenizer
from emberd.text.wordpiece import split_words
from tiny_encoder import CLS, SEP, SPECIAL, TOKENS

METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
}


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(METADATA)


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    given = {"add_special": False, "parse_special": False} | options
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, **given)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the hello", ["▁the", "▁hello"]),
        ("unable", ["▁un", "able"]),
        ("theing ing", ["▁the", "ing", "▁ing"]),
        ("HÉLLO  Wörld\n", ["▁hello", "▁world"]),
        ("no-one", ["▁n", "o", "▁-", "▁o", "n", "e"]),
        ("中中a", ["▁中", "▁中", "▁a"]),
        ("a字b", ["▁a", "[UNK]", "▁b"]),
        ("the ab€cd the", ["▁the", "[UNK]", "▁the"]),
        ("zero\u200bwidth", ["▁z", "e", "r", "o", "w", "i", "d", "t", "h"]),
        ("", []),
        (" \t\u3000", []),
        ("\ufffd\0", []),
    ],
)
def test_words_are_cut_into_the_longest_pieces(
    tokenizer: Tokenizer, text: str, wanted: list[str]
) -> None:
    assert pieces(tokenizer, text) == wanted


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "wanted"),
    [
        (None, None, ["hello", "!"]),
        (False, None, ["Héllo\u0301", "!"]),
        (False, True, ["Hello", "!"]),
        (True, False, ["héllo\u0301", "!"]),
    ],
)
def test_case_and_accents_stay_where_the_file_says_so(
    lowercase: bool | None, strip_accents: bool | None, wanted: list[str]
) -> None:
    """As llama.cpp: without a word about accents they follow case."""
    tokens = [*TOKENS, "▁Hello", "▁Héllo\u0301", "▁héllo\u0301"]
    keys = {"lowercase": lowercase, "strip_accents": strip_accents}
    given = {f"tokenizer.ggml.normalizer.{k}": v for k, v in keys.items() if v is not None}
    types = [*METADATA["tokenizer.ggml.token_type"], 1, 1, 1]
    more = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer.from_metadata(METADATA | more | given)
    assert pieces(tokenizer, "Héllo\u0301!") == [f"▁{word}" for word in wanted]
    assert pieces(tokenizer, "\u0130ng") == ["[UNK]" if lowercase is False else "▁ing"]


def test_a_text_stands_between_cls_and_sep(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the", add_special=True, parse_special=True)
    assert ids == [CLS, TOKENS.index("▁the"), SEP]
    assert tokenizer.encode("", add_special=True, parse_special=True) == [CLS, SEP]


def test_names_of_special_tokens_are_read_only_on_wish(tokenizer: Tokenizer) -> None:
    assert pieces(tokenizer, "a[MASK]b", parse_special=True) == ["▁a", "[MASK]", "▁b"]
    assert "[MASK]" not in pieces(tokenizer, "a[MASK]b")


def test_ids_become_text_again(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hello, unable world", add_special=True, parse_special=True)
    assert tokenizer.decode(ids) == "hello , unable world"


def test_special_ids_are_found_by_key_by_the_older_keys_and_by_name() -> None:
    size = len(TOKENS)
    given = {"tokenizer.ggml.cls_token_id": size - 1, "tokenizer.ggml.seperator_token_id": size - 2}
    older = {"tokenizer.ggml.bos_token_id": size - 1, "tokenizer.ggml.eos_token_id": size - 2}
    for keys, wanted in (
        (given, (size - 1, size - 2)),
        (older, (size - 1, size - 2)),
        ({}, (2, 3)),
    ):
        tokenizer = Tokenizer.from_metadata(METADATA | keys)
        assert (tokenizer.bos_id, tokenizer.eos_id) == wanted
        assert tokenizer.unk_id == TOKENS.index("[UNK]")


def test_unigram_is_still_refused() -> None:
    with pytest.raises(NotSupportedError, match="WordPiece"):
        Tokenizer.from_metadata(METADATA | {"tokenizer.ggml.model": "t5"})


def test_ids_are_the_librarys(tokenizer: Tokenizer, rng: np.random.Generator) -> None:
    """Over characters on which llama.cpp and the original agree: no symbols outside ASCII, no Hangul."""
    vocab = {
        token if token in SPECIAL else token.removeprefix("▁") if "▁" in token else f"##{token}": i
        for i, token in enumerate(TOKENS)
    }
    library = Library(
        models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=10**6)  # type: ignore[call-arg]
    )
    library.normalizer = normalizers.BertNormalizer(lowercase=True)  # type: ignore[assignment]
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    alphabet = [*"abcdeABC019 .,!?-'~$\t\néÄñœ中文字жα", "the ", "hello", "able", "ing"]
    for _ in range(300):
        text = "".join(rng.choice(alphabet, int(rng.integers(1, 30))))
        ours = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ours == library.encode(text, add_special_tokens=False).ids, repr(text)


def test_long_text_of_one_word_takes_no_long_time(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a" * 100_000, add_special=False, parse_special=False)
    assert len(ids) == 100_000
    assert len(split_words("é" * 100_000)[0]) == 100_000
