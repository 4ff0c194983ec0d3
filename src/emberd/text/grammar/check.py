"""Whether llguidance takes a grammar, before a worker is asked: compiled over single bytes, which is quick.

Bounded in time and memory by llguidance's own limits and by those of schema.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000, verbose_errors=False)
_LONGEST_REASON = 400
_NUM_STEPS = 24
"""Bytes that are tried: a grammar may be too complex only behind its first ones."""

_TRIED = b"{[" + bytes(range(0x21, 0x7F))  # what nests first
_PLACE = re.compile(r"(at )?\d+\(\d+\): (failed to compile JSON schema: )?")


class Checker:
    """For the vocabulary of one model: of its tokens only control tokens matter. Safe in several threads."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        vocabulary = _Bytes(controls)
        self._tokenizer = LLTokenizer(vocabulary, slices=[])  # type: ignore[arg-type]
        self._token_ids = [vocabulary.tokens.index(bytes([byte])) for byte in range(256)]
        self._tried = [self._token_ids[byte] for byte in _TRIED]
        self.fault = lru_cache(maxsize=64)(self._fault)

    def accepted(self, grammar: str, values: Sequence[Any]) -> list[bool]:
        """Of each value, whether its JSON is one that a grammar ends with."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        found = []
        for value in values:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            token_ids = [self._token_ids[byte] for byte in text.encode("utf-8", "replace")]
            taken = matcher.try_consume_tokens(token_ids)
            found.append(taken == len(token_ids) and matcher.is_accepting())
            matcher.rollback(taken)
        return found

    def _fault(self, grammar: str) -> str:
        """Why it is no grammar that can be followed; "" where it is one."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        for _ in range(_NUM_STEPS):
            if matcher.is_error() or matcher.is_stopped():
                break
            mask = matcher.compute_bitmask()
            allowed = [
                token_id for token_id in self._tried if mask[token_id // 8] >> token_id % 8 & 1
            ]
            if not allowed:
                break
            matcher.consume_token(allowed[0])
        if not matcher.is_error():
            return ""
        reason = matcher.get_error().replace("<non-verbose/>", "").strip()
        if reason == "NoExtensionBias":
            return "nothing can satisfy it"
        return _PLACE.sub("", reason.split("\n   ")[0])[:_LONGEST_REASON]


class _Bytes:
    """As LLTokenizer wants it: control tokens at their ids, single bytes at ids that are free."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, controls: Mapping[str, int]) -> None:
        names = {token_id: name for name, token_id in controls.items()}
        size = max(names, default=0) + 258
        free = [token_id for token_id in range(size) if token_id not in names]
        self.tokens = [
            names.get(token_id, "").encode("utf-8", "surrogateescape") for token_id in range(size)
        ]
        for byte, token_id in enumerate(free[:256]):
            self.tokens[token_id] = bytes([byte])
        self.eos_token_id = free[256]
        self.special_token_ids = sorted([*names, self.eos_token_id])

    def __call__(self, text: str) -> list[int]:
        return []
