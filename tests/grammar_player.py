"""Plays a grammar as a worker would, without a model: random tokens out of those that it allows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from emberd.text.reply import ReplyFormat
from emberd.text.tokenizer import Tokenizer

Json = dict[str, Any]
_LIKELY = b'"}],0<'


class Player:
    """Of one vocabulary. Texts are kept short: what closes them is likelier."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._controls = tokenizer.control_names
        ids = range(tokenizer.vocab_size)
        names = {token_id: name.encode() for name, token_id in self._controls.items()}
        self.tokens = [names.get(i) or tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = sorted(self._controls.values())
        self.end_id = min(tokenizer.stop_ids)
        self.bos_token_id, self.eos_token_id = None, self.end_id
        self.is_tokenizer_wrapper = True
        self._ll = LLTokenizer(self, slices=[])  # type: ignore[arg-type]
        weights = [30.0 if token and token[:1] in _LIKELY else 1.0 for token in self.tokens]
        weights[self.end_id] = 30.0
        self._weights = np.array(weights)

    def __call__(self, text: str) -> list[int]:
        return []

    def play(self, grammar: str, seed: int, max_tokens: int) -> tuple[list[int], bool]:
        """Token ids, and whether the reply ended by itself."""
        rng = np.random.default_rng(seed)
        matcher = LLMatcher(self._ll, grammar, log_level=0)
        ids: list[int] = []
        while not matcher.is_stopped() and len(ids) < max_tokens:
            words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(words, bitorder="little")[: len(self.tokens)].astype(bool)
            assert not matcher.is_error(), matcher.get_error()
            weights = np.where(allowed, self._weights, 0)
            token_id = int(rng.choice(len(weights), p=weights / weights.sum()))
            if token_id == self.end_id:
                return ids, True
            assert matcher.consume_token(token_id)
            ids.append(token_id)
        assert not matcher.is_error(), matcher.get_error()
        return ids, matcher.is_stopped()

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether a text is one that the grammar ends with. Control tokens are read by name."""
        matcher = LLMatcher(self._ll, grammar, log_level=0)
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def text(self, ids: list[int], form: ReplyFormat) -> str:
        """As the parser of a reply gets it."""
        shown = {i: n.encode() for n, i in self._tokenizer.controls(form.marks).items()}
        return b"".join(shown.get(i, self._tokenizer.token_bytes(i)) for i in ids).decode(
            "utf-8", "replace"
        )


def calls_of(parts: list[Any]) -> list[tuple[str, Json]]:
    """Names and arguments of the calls among a reply's parts."""
    calls: dict[int, list[str]] = {}
    for part in parts:
        if hasattr(part, "name"):
            calls[part.index] = [part.name, ""]
        elif hasattr(part, "fragment"):
            calls[part.index][1] += part.fragment
    return [(name, json.loads(arguments)) for name, arguments in calls.values()]
