"""SPM: pieces joined by score, highest first and leftmost on a tie, with bytes for what has no piece.

Written out rather than mapped on a BPE model of `tokenizers`: there every pair of pieces has a rank of its
own, while here all pairs that make the same piece, and all pieces of one score, are equals taken from the
left. Whole runs of spaces depend on it. No table of merges is needed, so a vocabulary is ready at once.
"""

from __future__ import annotations

import re
from heapq import heappop, heappush

from .vocabulary import BYTE, Vocabulary

SPACE = "▁"
_MAX_CACHED_WORDS = 1 << 16
_MAX_CACHED_LENGTH = 64


class ScoredEncoder:
    """Text to ids by scores. Spaces must not have been replaced yet."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._scores = vocabulary.scores
        self._bytes = [_byte_id(vocabulary, byte) for byte in range(256)]
        self._words: dict[str, list[int]] = {}
        # No join reaches over a place that lies inside no piece, so what is left and right of it is
        # independent. Such a place is the start of a run of spaces, except after the few characters
        # that some piece has in front of a space.
        text = "\n".join(token for token in vocabulary.tokens if token != "\n")
        inner = set(re.findall(f"([^\n{SPACE}]){SPACE}", text))
        if any("\n" in token and len(token) > 1 for token in vocabulary.tokens):
            inner.add("\n")
        self._border = re.compile(f"(?<=[^{SPACE}{re.escape(''.join(sorted(inner)))}])(?={SPACE})")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._border.split(text.replace(" ", SPACE)):
            known = self._words.get(word)
            if known is None:
                known = self._join(word)
                if len(word) <= _MAX_CACHED_LENGTH and len(self._words) < _MAX_CACHED_WORDS:
                    self._words[word] = known
            ids += known
        return ids

    def _join(self, text: str) -> list[int]:
        """One queue a score, each from the left: one queue of all pairs is far slower over long texts."""
        ids, scores = self._ids, self._scores
        count = len(text)
        ends = list(
            range(1, count + 1)
        )  # of the symbol that starts at a place; 0: joined to its left
        before = list(range(-1, count - 1))  # start of the symbol to the left
        # (start, start of the right half, end): valid while both halves are as they were
        queues: dict[float, list[tuple[int, int, int]]] = {}
        order: list[float] = []  # the queues' keys, the highest score first

        def offer(left: int, right: int, end: int) -> None:
            token = ids.get(text[left:end])
            if token is None:
                return
            queue = queues.get(-scores[token])
            if queue is None:
                queues[-scores[token]] = [(left, right, end)]
                heappush(order, -scores[token])
            else:
                heappush(queue, (left, right, end))

        for left in range(count - 1):
            offer(left, left + 1, left + 2)
        while order:
            score = order[0]
            queue = queues[score]
            while queue and order[0] == score:
                left, right, end = heappop(queue)
                if ends[left] != right or ends[right] != end:
                    continue
                ends[left], ends[right] = end, 0
                if end < count:
                    before[end] = left
                    offer(left, end, ends[end])
                if before[left] >= 0:
                    offer(before[left], left, end)
            if not queue and order[0] == score:
                heappop(order)
                del queues[score]
        found: list[int] = []
        start = 0
        while start < count:
            token = ids.get(text[start : ends[start]])
            if token is not None:
                found.append(token)
            else:
                spelled = (self._bytes[byte] for byte in text[start : ends[start]].encode())
                found += [byte_id for byte_id in spelled if byte_id is not None]
            start = ends[start]
        return found


def _byte_id(vocabulary: Vocabulary, byte: int) -> int | None:
    for name in (f"<0x{byte:02X}>", chr(byte) if byte < 128 else ""):
        if name in vocabulary.ids:
            return vocabulary.ids[name]
    return vocabulary.unk_id


def piece_bytes(token: str, kind: int) -> bytes:
    """What a normal or byte piece stands for."""
    if kind == BYTE:
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE, " ").encode("utf-8", "surrogateescape")
