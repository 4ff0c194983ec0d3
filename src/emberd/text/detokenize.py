"""Token ids of a reply to text, as they come: never half a character.

Knows nothing of stop strings, and nothing of tokens that end a reply: control tokens add no text.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from .tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence of ids.

    `whole`: the ids are a text from its start, so the space that SPM encoding put in front of it is left
    out; else they continue a prompt, and a space in front is the model's own. `shown`: control tokens whose
    names count as text.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, whole: bool = False, shown: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = frozenset(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = whole and tokenizer.add_space_prefix

    def push(self, ids: Iterable[int]) -> str:
        """Text that these ids complete. Bytes of an unfinished character are held; bytes that can be part
        of none become U+FFFD."""
        data = b"".join(map(self.bytes_of, ids))
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is still to be shown when no more ids come: an unfinished character is not."""
        self._decoder.reset()
        return ""

    @property
    def num_held(self) -> int:
        """Bytes of an unfinished character."""
        return len(self._decoder.getstate()[0])

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds."""
        if token_id in self._shown:
            return self._tokenizer.token_text(token_id).encode("utf-8", "replace")
        return self._tokenizer.token_bytes(token_id)
