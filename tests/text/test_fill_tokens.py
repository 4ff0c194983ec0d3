"""Which tokens a model fills in the middle with, and prompts made of them."""

from __future__ import annotations

from typing import Any

import pytest

from emberd.text.fill import FillTokens, fill_ids, fill_tokens
from emberd.text.tokenizer import Tokenizer
from tiny_gguf import BOS, byte_vocab

QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]


def metadata(control: list[str], **keys: Any) -> dict[str, Any]:
    return byte_vocab(control=control).metadata() | {
        f"tokenizer.ggml.{k}": v for k, v in keys.items()
    }


@pytest.mark.parametrize(
    "names",
    [
        QWEN,
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ],
)
def test_tokens_are_known_by_their_names(names: list[str]) -> None:
    others = (259, 260) if names is QWEN else (None, None)
    assert fill_tokens(metadata(names)) == FillTokens(256, 257, 258, *others)


def test_tokens_are_known_by_keys_which_come_first() -> None:
    keys = {"fim_pre_token_id": 1, "fim_suf_token_id": 2, "fim_mid_token_id": 3}
    assert fill_tokens(metadata([], **keys)) == FillTokens(1, 2, 3)
    older = {"prefix_token_id": 1, "suffix_token_id": 2, "middle_token_id": 3}
    assert fill_tokens(metadata([], **older)) == FillTokens(1, 2, 3)
    assert fill_tokens(metadata(QWEN[:3], fim_pre_token_id=7)) == FillTokens(7, 257, 258)


@pytest.mark.parametrize("keys", [{"fim_mid_token_id": 1 << 30}, {"fim_mid_token_id": True}, {}])
def test_without_all_three_there_are_none(keys: dict[str, Any]) -> None:
    assert fill_tokens(metadata(QWEN[:2], **keys)) is None
    assert fill_tokens({}) is None


def test_prompts() -> None:
    facts = metadata(QWEN)
    tokenizer, tokens = Tokenizer.from_metadata(facts), fill_tokens(facts)
    assert tokens is not None
    a, b, c = b"abc"
    assert fill_ids(tokenizer, tokens, "a", "b") == [256, a, 257, b, 258]
    assert fill_ids(tokenizer, tokens, [a, c], "") == [256, a, c, 257, 258]
    typed = fill_ids(tokenizer, tokens, "<|fim_middle|>", "<|eos|>")
    assert typed == [256, *b"<|fim_middle|>", 257, *b"<|eos|>", 258]
    files = [("f.py", "a"), ("g.py", "b")]
    assert fill_ids(tokenizer, tokens, "c", "", files) == [
        259, *b"repository\n", 260, *b"f.py\na", 260, *b"g.py\nb", 260, *b"file\n", 256, c, 257, 258
    ]  # fmt: skip


def test_bos_and_files_where_there_are_no_tokens_for_them() -> None:
    facts = metadata(QWEN[:3], add_bos_token=True)
    tokenizer, tokens = Tokenizer.from_metadata(facts), fill_tokens(facts)
    assert tokens is not None
    ids = fill_ids(tokenizer, tokens, "a", "b", [("f.py", "x")])
    assert ids == [BOS, *b"x\n\n", 256, *b"a", 257, *b"b", 258]
