"""BPE over whole lines, as Gemma 4 has it: spaces are written as SPM writes them, and what has no token is spelled by
tokens of bytes.

Works on stretches without special tokens; knows nothing of BOS, EOS or templates.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from .bpe import merging, unicode_ids
from .spm import SPACE
from .vocabulary import Vocabulary

_LINES = re.compile(r"\n+|[^\n]+")


class LineEncoder:
    """Text to ids by the vocabulary's merges. Spaces must not have been replaced yet."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.pre is not None
        ids = unicode_ids(vocabulary)
        self._whole = ids if vocabulary.pre.newlines else {}
        self._tokenizer = Tokenizer(merging(ids, vocabulary.merges, byte_fallback=True))

    def encode(self, text: str) -> list[int]:
        lines = _LINES.findall(text.replace(" ", SPACE))
        whole = [self._whole.get(line) if line[0] == "\n" else None for line in lines]
        others = [line for line, known in zip(lines, whole, strict=True) if known is None]
        encodings = iter(self._tokenizer.encode_batch_fast(others, add_special_tokens=False))
        ids: list[int] = []
        for known in whole:
            ids += next(encodings).ids if known is None else [known]
        return ids
