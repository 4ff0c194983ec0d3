"""WordPiece: words cut greedily into the longest pieces of the vocabulary, as BERT encoders read text.

Works on stretches without special tokens. A piece that begins a word has U+2581 in front, as GGUF files spell it.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from .vocabulary import Vocabulary

_WORD_START = "\u2581"
_IDEOGRAPHS = (  # each is a word of its own
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000").union(
    map(chr, range(0x2000, 0x200B))
)
_WORD_CACHE = 1 << 15  # words whose ids are kept
_LONGEST_KEPT = 64
_CHARACTER_CACHE = 1 << 13


class WordPieceEncoder:
    """Text to ids. A word with a stretch that no piece covers is the unknown token as a whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._unknown = [] if vocabulary.unk_id is None else [vocabulary.unk_id]
        self._lengths = sorted({len(token) for token in vocabulary.tokens}, reverse=True)
        self._lowercase = vocabulary.lowercase
        self._strip_accents = vocabulary.strip_accents
        self._word_ids = lru_cache(_WORD_CACHE)(self._cut)

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in split_words(text, self._lowercase, self._strip_accents):
            if word:
                ids += self._word_ids(word) if len(word) <= _LONGEST_KEPT else self._cut(word)
        return ids

    def _cut(self, word: str) -> list[int]:
        word, at, found = _WORD_START + word, 0, list[int]()
        while at < len(word):
            for length in self._lengths:
                token_id = self._ids.get(word[at : at + length])
                if token_id is not None and at + length <= len(word):
                    found.append(token_id)
                    at += length
                    break
            else:
                return self._unknown
        return found


def split_words(text: str, lowercase: bool = True, strip_accents: bool = True) -> list[str]:
    """Words, in lower case and without accents unless told otherwise; punctuation marks and ideographs are words of
    their own.

    The rules are llama.cpp's, whose ids are the wanted result: of a character that decomposes, its
    first part stays (of a Hangul syllable the first letter), and typed marks are dropped.
    """
    return "".join(_spelled(character, lowercase, strip_accents) for character in text).split(" ")


@lru_cache(_CHARACTER_CACHE)
def _spelled(character: str, lowercase: bool, strip_accents: bool) -> str:
    """What a character is to words: itself, nothing, a space, or a word between spaces."""
    if character in _SPACES:
        return " "
    first = unicodedata.normalize("NFD", character)[0] if strip_accents else character
    kind = unicodedata.category(first)
    if first in "\0\ufffd" or kind in ("Cc", "Cf", "Co", "Cs"):
        return ""
    if strip_accents and kind[0] == "M":
        return ""
    spelled = first.lower()[0] if lowercase else first  # U+0130 becomes two: i and a mark
    alone = kind[0] == "P" or (kind[0] == "S" and first < "\x7f") or _is_ideograph(first)
    return f" {spelled} " if alone else spelled


def _is_ideograph(character: str) -> bool:
    return any(low <= ord(character) <= high for low, high in _IDEOGRAPHS)
