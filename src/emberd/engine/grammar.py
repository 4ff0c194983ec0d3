"""Grammars: which tokens may come next. The only module of the engine that knows llguidance.

It sees token ids and the bytes that they write; no text, no schemas, no logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from emberd.errors import BadRequestError
from emberd.protocol import MaskArray, TokenTable

_FREE_SPLIT = '\n%llguidance {"no_forcing": true}'
"""Without it a text that must come is allowed in one split into tokens only, and we have no tokenizer to find
the model's own. At the end, so that the lines that errors name are the grammar's."""

_NOTHING_FITS = "no token of this model fits"


class GrammarError(Exception):
    """A grammar that cannot go on with this sequence."""


class Grammars:
    """Makes matchers over one vocabulary."""

    def __init__(self, table: TokenTable) -> None:
        vocabulary = _Vocabulary(table)
        self._tokenizer = LLTokenizer(
            vocabulary,  # type: ignore[arg-type]
            eos_token=list(table.end_ids) or None,
        )
        vocabulary.tokenizer = self._tokenizer
        self._num_tokens = len(table.pieces)

    def matcher(self, grammar: str) -> Matcher:
        """Raises BadRequestError with llguidance's reason for one that it refuses."""
        limits = LLParserLimits(verbose_errors=False)
        found = LLMatcher(self._tokenizer, grammar + _FREE_SPLIT, log_level=0, limits=limits)
        if found.is_error():
            raise BadRequestError(_reason(found), "grammar")
        return Matcher(found, self._num_tokens)


class Matcher:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: LLMatcher, num_tokens: int) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens

    @property
    def is_over(self) -> bool:
        """Whether the grammar is complete and nothing may follow."""
        return self._matcher.is_stopped()

    def take(self, token_id: int) -> None:
        """Go on by a token. Raises GrammarError where the grammar does not allow it, or became too complex."""
        if not self._matcher.consume_token(token_id):
            raise GrammarError(_reason(self._matcher))

    def mask(self) -> MaskArray:
        """The tokens that may come next, as (words,). Raises GrammarError where there are none, or the
        grammar became too complex."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher))
        num_words = -(-self._num_tokens // 32)
        mask = words[:num_words].copy()
        if self._num_tokens % 32:  # llguidance adds an end of its own where the vocabulary has none
            mask[-1] &= np.uint32((1 << self._num_tokens % 32) - 1)
        if not mask.any():
            raise GrammarError(_NOTHING_FITS)
        return mask

    def num_fitting(self, token_ids: list[int]) -> int:
        """How many of `token_ids` may come next, one after the other, so that more may follow each."""
        count = self._matcher.try_consume_tokens(token_ids)
        ends = self._matcher.is_stopped()
        self._matcher.rollback(count)
        return max(0, count - ends)

    def masks_along(self, token_ids: Sequence[int]) -> list[MaskArray]:
        """Masks of the next place and of those behind `token_ids`, which fit. Raises GrammarError as `mask`."""
        masks = [self.mask()]
        for token_id in token_ids:
            self.take(token_id)
            masks.append(self.mask())
        self._matcher.rollback(len(token_ids))
        return masks


class _Vocabulary:
    """A table as LLTokenizer reads it."""

    is_tokenizer_wrapper = True
    eos_token_id = None
    bos_token_id = None
    tokenizer: LLTokenizer

    def __init__(self, table: TokenTable) -> None:
        self.tokens = table.pieces
        self.special_token_ids = table.control_ids

    def __call__(self, text: str) -> list[int]:
        """Asked where a grammar forces text after all. An exception here would end the process."""
        return self.tokenizer.greedy_tokenize(text)


def _reason(matcher: LLMatcher) -> str:
    reason = matcher.get_error().replace("<non-verbose/>", "").strip()
    return _NOTHING_FITS if reason == "NoExtensionBias" else reason
