"""Texts that cannot fit, found before they are tokenized as a whole: megabytes take seconds and gigabytes.

Knows a tokenizer and a limit, nothing of conversations.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ContextOverflowError
from .tokenizer import Tokenizer

_LONG = 8
"""Characters a token from which on a prompt is looked at. Ordinary text has three to five."""

_SLICE = 1 << 15  # characters
_BORDER_TOKENS = 64
"""More tokens than a cut through a word, a run of spaces or a control token's name can add."""


def refuse_overlong(tokenizer: Tokenizer, prompt: str, context_length: int, param: str) -> None:
    """Count slice by slice while there is more text than a context usually takes.

    Raises ContextOverflowError as soon as the prompt is known to leave no room for a reply.
    """
    if len(prompt) <= _LONG * context_length:
        return
    for _, num_tokens in _counted(tokenizer, prompt):
        if num_tokens >= context_length:
            raise ContextOverflowError(num_tokens, context_length, param, at_least=True)


def beginning(tokenizer: Tokenizer, text: str, num_tokens: int) -> str:
    """`text`, or so much of it as is known to have more tokens than `num_tokens`."""
    if len(text) > _LONG * num_tokens:
        for end, counted in _counted(tokenizer, text):
            if counted > num_tokens:
                return text[:end]
    return text


def _counted(tokenizer: Tokenizer, text: str) -> Iterator[tuple[int, int]]:
    """Ends of slices, and how many tokens there are at least up to each."""
    num_tokens = 0
    for start in range(0, len(text), _SLICE):
        ids = tokenizer.encode(text[start : start + _SLICE], add_special=False, parse_special=True)
        num_tokens += max(0, len(ids) - _BORDER_TOKENS)
        yield start + _SLICE, num_tokens
