"""Byte-level BPE: a `tokenizers` pipeline built from a vocabulary's merges and its pre-tokenizer.

Works on stretches without special tokens; knows nothing of BOS, EOS or templates.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from .vocabulary import Vocabulary


def _byte_characters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones stand for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF = _byte_characters()


class BytePairEncoder:
    """Text to ids by the vocabulary's merges. Bytes that the vocabulary lacks are left out, as llama.cpp does."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.pre is not None
        ids = unicode_ids(vocabulary)
        model = merging(ids, vocabulary.merges, ignore_merges=vocabulary.pre.ignore_merges)
        self._tokenizer = Tokenizer(model)
        splits = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated")
            for pattern in vocabulary.pre.patterns
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])

    def encode(self, text: str) -> list[int]:
        # The call for batches lets other threads run meanwhile, which the one for a single text does not.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def spelled_bytes(token: str) -> bytes:
    """What a byte-level token stands for. A character outside GPT-2's spelling stands for itself."""
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:
        return b"".join(
            bytes([BYTE_OF[character]])
            if character in BYTE_OF
            else character.encode("utf-8", "surrogateescape")
            for character in token
        )


def unicode_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Ids of the tokens that the library can hold."""
    if _is_unicode(vocabulary.tokens):
        return vocabulary.ids
    return {token: index for token, index in vocabulary.ids.items() if _is_unicode([token])}


def merging(ids: dict[str, int], lines: list[str], **options: bool) -> models.BPE:
    """A merge that is malformed or leads outside the vocabulary is passed over, as llama.cpp does; the
    first of two equal ones counts. Most files have none, and checking each costs as much as the rest."""
    parted = (line.partition(" ") for line in dict.fromkeys(lines))
    pairs = [(left, right) for left, _, right in parted]
    try:
        return models.BPE(vocab=ids, merges=pairs, **options)
    except Exception:  # the library raises plain Exception
        good = [
            (left, right)
            for left, right in pairs
            if left in ids and right in ids and left + right in ids
        ]
        return models.BPE(vocab=ids, merges=good, **options)


def _is_unicode(tokens: list[str]) -> bool:
    """Whether no token has bytes outside UTF-8 (surrogate escapes), which the library cannot hold."""
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        return False
    return True
