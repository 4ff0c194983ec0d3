"""How choices of the completions route are written: text, and log-probabilities as parallel lists."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocol import TokenLogprobs
from ...text.tokenizer import Tokenizer
from ..events import Piece, PromptLogprobs, Reply, TextDelta
from ..logprobs import token_bytes, token_name, told

Json = dict[str, Any]


class Columns:
    """Lists of one choice, token by token. Offsets count characters of the choice's text, whatever was told so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of_prompt(self, ids: Sequence[int], entries: Sequence[TokenLogprobs], text: str) -> Json:
        """Of a prompt that is told as `text`: nothing is known of its first token."""
        columns = _columns()
        first, rest = ids[:1], zip(ids[1:], entries, strict=True)
        for token_id in first:
            name = token_bytes(self._tokenizer, token_id)
            unseen = token_id == self._tokenizer.bos_id and not text.startswith(token_name(name))
            self._add(columns, token_id, None, None, b"" if unseen else name)
        for token_id, entry in rest:
            seen = token_bytes(self._tokenizer, token_id)
            self._add(columns, token_id, told(entry.logprob), self._top(entry), seen)
        self._decoder.reset()
        self._offset = len(text)
        return columns

    def of_reply(self, entries: Iterable[TokenLogprobs]) -> Json:
        columns = _columns()
        for entry in entries:
            seen = self._tokenizer.token_bytes(entry.token_id)  # control tokens write nothing
            self._add(columns, entry.token_id, told(entry.logprob), self._top(entry), seen)
        return columns

    def starts_behind(self, text: str) -> None:
        self._offset = len(text)

    def _add(
        self, columns: Json, token_id: int, logprob: float | None, top: Json | None, seen: bytes
    ) -> None:
        columns["tokens"].append(self._name(token_id))
        columns["token_logprobs"].append(logprob)
        columns["top_logprobs"].append(top)
        columns["text_offset"].append(self._offset)
        self._offset += len(self._decoder.decode(seen))

    def _top(self, entry: TokenLogprobs) -> Json:
        """The likeliest ones, and the token itself. Of tokens with one name the likelier one is told."""
        top: Json = {}
        likeliest = dict(entry.top) | {entry.token_id: entry.logprob}
        for token_id, logprob in likeliest.items():
            top.setdefault(self._name(token_id), told(logprob))
        return top

    def _name(self, token_id: int) -> str:
        data = token_bytes(self._tokenizer, token_id)
        name = token_name(data)
        return name if name.encode() == data else f"bytes:{name}"


def _columns() -> Json:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


@dataclass(slots=True)
class CompletionShape:
    """`echoed`: prompt ids of each choice whose prompt is told. `texts`: prompts as they were sent; None: as ids."""

    echoed: Sequence[Sequence[int]] | None
    texts: Sequence[str | None]
    with_logprobs: bool
    tokenizer: Tokenizer
    prefix: str = "cmpl"
    object: str = "text_completion"
    chunk_object: str = "text_completion"
    _columns: dict[int, Columns] = field(default_factory=dict)

    def opening(self, index: int) -> Json | None:
        if self.echoed is None or self._waits(index):
            return None
        text = self._prompt(index)
        self._of(index).starts_behind(text)
        first = self._of_prompt(index, text, ()) if self.with_logprobs else {}
        return {"text": text} | first

    def piece(self, piece: Piece, tokenizer: Tokenizer) -> Json | None:
        event = piece.event
        if isinstance(event, PromptLogprobs):
            if self.echoed is None or not self._waits(piece.sequence):
                return None
            text = self._prompt(piece.sequence)
            return {"text": text} | self._of_prompt(piece.sequence, text, event.entries)
        text = event.text if isinstance(event, TextDelta) else ""
        if piece.logprobs:
            return {"text": text, "logprobs": self._of(piece.sequence).of_reply(piece.logprobs)}
        return {"text": text} if text else None

    def closing(self) -> Json:
        return {"text": ""}

    def whole(self, index: int, reply: Reply, tokenizer: Tokenizer) -> Json:
        text = "" if self.echoed is None else self._prompt(index)
        if not self.with_logprobs:
            return {"text": text + reply.text}
        columns = _columns()
        if self.echoed is not None:
            columns = self._of_prompt(index, text, reply.prompt_logprobs)["logprobs"]
        for name, values in self._of(index).of_reply(reply.logprobs).items():
            columns[name] += values
        return {"text": text + reply.text, "logprobs": columns}

    def _waits(self, index: int) -> bool:
        """The prompt is told once its log-probabilities are there; a single token has none."""
        return self.with_logprobs and self.echoed is not None and len(self.echoed[index]) > 1

    def _prompt(self, index: int) -> str:
        assert self.echoed is not None
        text = self.texts[index]
        return (
            self.tokenizer.decode(self.echoed[index], show_special=True) if text is None else text
        )

    def _of_prompt(self, index: int, text: str, entries: Sequence[TokenLogprobs]) -> Json:
        assert self.echoed is not None
        return {"logprobs": self._of(index).of_prompt(self.echoed[index], entries, text)}

    def _of(self, index: int) -> Columns:
        return self._columns.setdefault(index, Columns(self.tokenizer))
