"""Every pre-tokenizer against llama.cpp's own ids, over a vocabulary that joins whatever is not cut apart."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from text_vocabularies import random_text
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from emberd.gguf.reader import GGUFFile
from emberd.text.pretokenizers import PRETOKENIZERS
from emberd.text.spm import SPACE
from emberd.text.tokenizer import Tokenizer
from oracle import expected_ids
from tiny_gguf import Vocab, byte_spelling, byte_vocab, random_model

pytestmark = pytest.mark.slow

WRITTEN = (
    *("", " ", "\n", " \n \n ", "\t\t x", "\r\n\r\n", "a\n\n  b", "a  \n", "   x", "x   "),
    *(
        "I'm you're WE'LL they'd",
        "''s ''ll 's",
        "O'Neil",
        "1234567890",
        "1,234.5",
        "１２３４",
        "٣٤٥٦",
    ),
    *(
        "1234567a 12345_ 98765é 1234",
        "เ๑๒๓๔ ៣១ a12 é1234567",
        "中a文'S 〇x々 're’s l'Ll it'sx",
        "x\nzqvx zqvx",
    ),
    *("½ ² Ⅳ", "abc123def", "Ünïcödé Straße", "e\u0301 n\u0303\u0303", "CamelCase XMLHttp ALL"),
    *(
        "日本語テスト",
        "한국어123텍스트",
        "Привет, мир!",
        "مرحبا ،",
        "हिन्दी में",
        "ไทย",
        "👨\u200d👩\u200d👧 🇩🇪",
    ),
    *(
        "\u00a0x\u3000y",
        "\u200b\ufeff",
        "\x00a\x7f",
        "…—“quotes”",
        "!?.,;:",
        "()[]{}<>|`~^",
        "。，！？",
    ),
    *("def f(x):\n    return x\n", "a/b//c", "$100 €50 +-*/=", "IMGIMGABCZ<sentinel:12>", " " * 40),
)
DISTINCT = {pre: name for name, pre in PRETOKENIZERS.items() if not pre.lines}
LINES = {pre: name for name, pre in PRETOKENIZERS.items() if pre.lines}


def hard_texts(rng: np.random.Generator, count: int) -> list[str]:
    lengths = (2, 5, 10, 30)
    return [*WRITTEN, *(random_text(rng, lengths[i % len(lengths)]) for i in range(count))]


@pytest.fixture(scope="module")
def vocabulary() -> tuple[Vocab, list[str]]:
    """Pieces that reach over every kind of border, and their merges."""
    whole = Library(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = [byte_spelling(bytes([byte])) for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    whole.train_from_iterator(hard_texts(np.random.default_rng(0), 400), trainer)
    merges = [" ".join(pair) for pair in json.loads(whole.to_str())["model"]["merges"]]
    pieces = dict.fromkeys(merge.replace(" ", "") for merge in merges)
    assert "zqvx" not in pieces
    pieces["zqvx"] = None  # no merge makes it: only where words are taken whole
    vocab = byte_vocab(control=["<ctl>"], size=512 + len(pieces))
    # Fillers make room: ids of special tokens stay where they are.
    places = (i for i, token in enumerate(vocab.tokens) if token.startswith("filler"))
    for place, piece in zip(islice(places, len(pieces)), pieces, strict=True):
        vocab.tokens[place] = piece
    return vocab, merges


@pytest.mark.parametrize("name", DISTINCT.values())
def test_ids_are_those_of_llama_cpp(
    name: str, vocabulary: tuple[Vocab, list[str]], tmp_path: Path, rng: np.random.Generator
) -> None:
    vocab, merges = vocabulary
    path = random_model(
        tmp_path / "model.gguf",
        width=32,
        ffn=32,
        heads=1,
        kv_heads=1,
        head_dim=32,
        layers=1,
        vocab=vocab,
        metadata={"tokenizer.ggml.pre": name, "tokenizer.ggml.merges": merges},
    )
    texts = hard_texts(rng, 150)
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    for text, ids in zip(texts, expected_ids(path, texts), strict=True):
        found = tokenizer.encode(text, add_special=False, parse_special=False)
        assert found == ids, (text, [tokenizer.token_text(i) for i in found])


@pytest.fixture(scope="module")
def line_vocabulary() -> tuple[Vocab, list[str]]:
    """Pieces of lines, and their merges; characters that are rare have no token."""
    whole = Library(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), behavior="isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=2000, limit_alphabet=90, min_frequency=1, show_progress=False
    )
    texts = [text.replace(" ", SPACE) for text in hard_texts(np.random.default_rng(0), 400)]
    whole.train_from_iterator(texts, trainer)
    trained = json.loads(whole.to_str())["model"]
    merges = [" ".join(pair) for pair in trained["merges"]]
    vocab = byte_vocab(control=["<ctl>"], size=512 + len(trained["vocab"]), style="spm")
    pieces = [*trained["vocab"], "\n\n\n"]
    places = (i for i, token in enumerate(vocab.tokens) if token.startswith("filler"))
    for place, piece in zip(islice(places, len(pieces)), pieces, strict=True):
        vocab.tokens[place] = piece
    return vocab, merges


@pytest.mark.parametrize("model", ["gpt2", "gemma4"])
@pytest.mark.parametrize("name", LINES.values())
def test_ids_over_lines_are_those_of_llama_cpp(
    name: str,
    model: str,
    line_vocabulary: tuple[Vocab, list[str]],
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    vocab, merges = line_vocabulary
    metadata = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.merges": merges,
    }
    path = random_model(
        tmp_path / "model.gguf",
        width=32,
        ffn=32,
        heads=1,
        kv_heads=1,
        head_dim=32,
        layers=1,
        vocab=vocab,
        metadata=metadata,
    )
    texts = ["\n\n\n", "a\n\n\nb\n\n", "  two  words \n", *hard_texts(rng, 150)]
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    for text, ids in zip(texts, expected_ids(path, texts, add_special=True), strict=True):
        found = tokenizer.encode(text, add_special=True, parse_special=False)
        assert found == ids, (text, [tokenizer.token_text(i) for i in found])
        plain = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(plain) == text
