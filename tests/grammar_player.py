"""Plays a grammar as a worker would, without a model: random tokens out of those that it allows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from emberd.engine.grammar import Grammars
from emberd.text.reply import ReplyFormat
from emberd.text.tokenizer import Tokenizer

Json = dict[str, Any]
_LIKELY = b'"}]),0\n'


class Player:
    """Of one vocabulary. Replies are kept short: ends, what closes a text, and tokens of several bytes are
    likelier."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        table = tokenizer.token_table()
        self._tokenizer = tokenizer
        self._grammars = Grammars(table)
        self._ends = set(table.end_ids)
        likely = [len(piece) > 1 or piece in _LIKELY for piece in table.pieces]
        self._weights = np.where(likely, 30.0, 1.0)

    def play(self, grammar: str, seed: int, max_tokens: int = 1500) -> tuple[list[int], bool]:
        """Token ids, and whether the reply ended by itself."""
        rng = np.random.default_rng(seed)
        matcher = self._grammars.matcher(grammar)
        ids: list[int] = []
        while not matcher.is_over and len(ids) < max_tokens:
            bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
            weights = np.where(bits[: len(self._weights)], self._weights, 0)
            token_id = int(rng.choice(len(weights), p=weights / weights.sum()))
            if token_id in self._ends:
                return ids, True
            matcher.take(token_id)
            ids.append(token_id)
        return ids, matcher.is_over

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether a text is one that the grammar may end with. Control tokens are read by name."""
        matcher = self._grammars.matcher(grammar)
        for token_id in self._tokenizer.encode(text, add_special=False, parse_special=True):
            words = matcher.mask()
            if not words[token_id // 32] >> (token_id % 32) & 1:
                return False
            matcher.take(token_id)
        if matcher.is_over:
            return True
        words = matcher.mask()
        return any(words[end // 32] >> (end % 32) & 1 for end in self._ends)

    def text(self, ids: list[int], form: ReplyFormat) -> str:
        """As the parser of a reply gets it."""
        shown = {i: n.encode() for n, i in self._tokenizer.controls(form.marks).items()}
        pieces = (shown.get(i, self._tokenizer.token_bytes(i)) for i in ids)
        return b"".join(pieces).decode("utf-8", "replace")


def calls_of(parts: list[Any]) -> list[tuple[str, Json]]:
    """Names and arguments of the calls among a reply's parts."""
    calls: dict[int, list[str]] = {}
    for part in parts:
        if hasattr(part, "name"):
            calls[part.index] = [part.name, ""]
        elif hasattr(part, "fragment"):
            calls[part.index][1] += part.fragment
    return [(name, json.loads(arguments)) for name, arguments in calls.values()]
