"""The log-probabilities of a prompt's tokens, gathered chunk by chunk."""

from __future__ import annotations

from emberd.protocol import Logprobs, TokenIds, TokenLogprobs


class PromptScores:
    """Those of one prompt, its first token left out: nothing comes before it."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._found: list[TokenLogprobs] = []

    def add(self, token_ids: TokenIds, scores: Logprobs, first: int) -> None:
        """The next tokens, which have the places of `scores` from `first` on."""
        self._found += [
            scores.told(first + place, token_id, self._num_top)
            for place, token_id in enumerate(token_ids)
        ]

    def take(self) -> tuple[TokenLogprobs, ...]:
        """All that was found, once; then nothing."""
        found, self._found = tuple(self._found), []
        return found
