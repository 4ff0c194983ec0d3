"""What was found of a request's prompts, and the token at which each parts from the nearest one before it.

Knows no route. Texts are for those who may see the requests that they are of (see control.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..inspection import PrefixFinding
from ..text.tokenizer import Tokenizer

Json = dict[str, Any]

_BEFORE, _BEHIND = 24, 12
"""Tokens of the prompt that are kept around the place where it parts."""


@dataclass(frozen=True, slots=True)
class PromptStory:
    """Of one prompt, what outlives its request: counts, and a few of its tokens."""

    sequence: int
    num_prompt_tokens: int
    num_cached_tokens: int
    takes_part: bool  # in the prefix cache
    finding: PrefixFinding | None  # None: it takes no part, or has not run yet
    before: tuple[int, ...] = ()  # up to the place where it parts
    behind: tuple[int, ...] = ()  # from there on

    @classmethod
    def of(
        cls,
        sequence: int,
        token_ids: Sequence[int],
        num_cached_tokens: int,
        takes_part: bool,
        finding: PrefixFinding | None,
    ) -> PromptStory:
        at = finding.num_known if finding is not None else 0
        around = (tuple(token_ids[max(0, at - _BEFORE) : at]), tuple(token_ids[at : at + _BEHIND]))
        return cls(
            sequence,
            len(token_ids),
            num_cached_tokens,
            takes_part,
            finding,
            *(around if at else ((), ())),
        )

    @property
    def nearest_id(self) -> str | None:
        """The sequence of whose path it goes along furthest."""
        return self.finding.request_id if self.finding is not None else None

    def told(self, tokenizer: Tokenizer | None, sees_nearest: bool) -> Json:
        """What callers see. `tokenizer`: None where the model is gone, so that texts are. `sees_nearest`: the
        caller may see the request of the nearest path; else that, and where they part, is not told."""
        told: Json = {
            "sequence": self.sequence,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "gone_tokens": 0,
            "outcome": self._outcome(sees_nearest),
            "nearest": None,
            "difference": None,
        }
        finding = self.finding
        if finding is None:
            return told
        told["gone_tokens"] = finding.num_gone
        if not finding.num_known or not sees_nearest:
            return told
        told["nearest"] = {
            "request": finding.request_id and finding.request_id.partition("-")[0],
            "tokens": finding.num_known,
        }
        if finding.theirs:
            write = _writer(tokenizer)
            told["difference"] = {
                "position": finding.num_known,
                "before": write(self.before),
                "token": {"id": self.behind[0], "text": write(self.behind[:1])},
                "after": write(self.behind[1:]),
                "nearest_token": {"id": finding.theirs[0], "text": write(finding.theirs[:1])},
                "nearest_after": write(finding.theirs[1:]),
            }
        return told

    def _outcome(self, sees_nearest: bool) -> str:
        finding = self.finding
        if not self.takes_part:
            return "off"
        if finding is None:
            return "pending"
        if not finding.num_known:
            return "new"
        if not sees_nearest:
            return "withheld"
        if finding.num_known >= self.num_prompt_tokens:
            return "known"
        return "parted" if finding.theirs else "longer"


def _writer(tokenizer: Tokenizer | None) -> Callable[[Sequence[int]], str | None]:
    """Token ids to text, control tokens by their names."""

    def write(token_ids: Sequence[int]) -> str | None:
        if tokenizer is None:
            return None
        pieces = [
            tokenizer.token_text(one).encode("utf-8", "replace")
            if tokenizer.is_control(one)
            else tokenizer.token_bytes(one)
            for one in token_ids
        ]
        return b"".join(pieces).decode("utf-8", "replace")

    return write
