"""Text to token ids and back, for BPE, SPM and WordPiece vocabularies as GGUF files hold them.

The ids are those of llama.cpp, with its habits. Knows nothing of templates, streams or the worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

from ..protocol import TokenTable
from .bpe import BytePairEncoder, spelled_bytes
from .grammar.check import Checker
from .guard import ControlGuard
from .lines import LineEncoder
from .special import SpecialTokens
from .spm import ScoredEncoder, piece_bytes
from .vocabulary import BYTE, CONTROL, NORMAL, READ_AS_CONTROL, UNKNOWN, USER_DEFINED, Vocabulary
from .wordpiece import WordPieceEncoder


class Encoder(Protocol):
    """Text without special tokens to ids."""

    def encode(self, text: str) -> list[int]: ...


_ENCODERS: dict[str, Callable[[Vocabulary], Encoder]] = {
    "gpt2": BytePairEncoder,
    "lines": LineEncoder,
    "llama": ScoredEncoder,
    "bert": WordPieceEncoder,
}
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    `stop_ids` end a reply: end of text, of turn and of message, by metadata and by well-known names.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._byte_level = vocabulary.model == "gpt2"
        self._encoder = _ENCODERS[vocabulary.model](vocabulary)
        self._bytes: dict[int, bytes] = {}  # of tokens that were asked for
        self._control = self._of_type(CONTROL, UNKNOWN)
        always = self._of_type(USER_DEFINED)
        if READ_AS_CONTROL in vocabulary.ids:
            self._control[READ_AS_CONTROL] = vocabulary.ids[READ_AS_CONTROL]
            always.pop(READ_AS_CONTROL, None)
        self._special = SpecialTokens(always, self._control, vocabulary.strip_behind)
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eot_id = vocabulary.eot_id
        self.unk_id = vocabulary.unk_id
        self.stop_ids = vocabulary.stop_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.add_space_prefix = vocabulary.add_space_prefix

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file.

        Raises `ModelFileError` where they are missing, inconsistent or name a pre-tokenizer that is not
        known, `NotSupportedError` for other kinds of tokenizer.
        """
        return cls(Vocabulary.from_metadata(metadata))

    def encode(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        protected: Collection[int] = (),
    ) -> list[int]:
        """Ids of `text`. `add_special` puts BOS and EOS where the model wants them; `parse_special` reads
        control tokens' names as those tokens, except where they cover an index in `protected`.
        Half a surrogate pair counts as U+FFFD.
        """
        vocabulary = self._vocabulary
        ids: list[int] = []
        if add_special and vocabulary.add_bos and vocabulary.bos_id is not None:
            ids.append(vocabulary.bos_id)
        after_special = True
        parts = self._special.split(
            _without_surrogates(text), control=parse_special, protected=protected
        )
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                prefix = " " if after_special and vocabulary.add_space_prefix else ""
                ids += self._encoder.encode(prefix + part)
                after_special = False
        if add_special and vocabulary.add_eos and vocabulary.eos_id is not None:
            ids.append(vocabulary.eos_id)
        return ids

    def encode_prompt(self, text: str, protected: Collection[int] = ()) -> list[int]:
        """Ids of a whole prompt to be continued: control tokens are read, and BOS, where the model wants
        it, is there once whether `text` begins with it or not. Never an EOS at the end."""
        ids = self.encode(text, add_special=False, parse_special=True, protected=protected)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], *, show_special: bool = False) -> str:
        """The text of a whole sequence: without control tokens unless shown, and without the space that
        encoding put in front. Bytes that are no UTF-8 become U+FFFD."""
        pieces = [
            self.token_text(i).encode("utf-8", "surrogateescape")
            if show_special and self.is_control(i)
            else self.token_bytes(i)
            for i in ids
        ]
        data = b"".join(pieces)
        if self.add_space_prefix and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; none for control, unknown and unused tokens and for ids
        outside the vocabulary (models pad their embeddings)."""
        data = self._bytes.get(token_id)
        if data is None:
            if not 0 <= token_id < self.vocab_size:
                return b""
            data = self._bytes[token_id] = self._bytes_of(token_id)
        return data

    def _bytes_of(self, token_id: int) -> bytes:
        token, kind = self._vocabulary.tokens[token_id], self._vocabulary.types[token_id]
        if kind == USER_DEFINED:
            return token.encode("utf-8", "surrogateescape")
        if kind == BYTE:
            return piece_bytes(token, BYTE) if _BYTE_TOKEN.fullmatch(token) else b""
        if kind == NORMAL:
            return spelled_bytes(token) if self._byte_level else piece_bytes(token, NORMAL)
        return b""

    def token_text(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token, "" outside the vocabulary."""
        return self._vocabulary.tokens[token_id] if 0 <= token_id < self.vocab_size else ""

    def is_control(self, token_id: int) -> bool:
        """Whether a token is for the model only, never part of a text."""
        return 0 <= token_id < self.vocab_size and self._vocabulary.types[token_id] in (
            CONTROL,
            UNKNOWN,
        )

    def controls(self, names: Iterable[str]) -> dict[str, int]:
        """Those of `names` that are control tokens, with their ids."""
        return {name: self._control[name] for name in names if name in self._control}

    @property
    def control_names(self) -> Mapping[str, int]:
        """All control tokens with their ids."""
        return self._control

    @cached_property
    def grammar_checker(self) -> Checker:
        """Tells whether a grammar can be followed."""
        return Checker(self._control)

    def token_table(self) -> TokenTable:
        """The vocabulary as a grammar sees it. Takes a while for large ones."""
        ids = range(self.vocab_size)
        control = [i for i in ids if self.is_control(i)]
        pieces = [self.token_bytes(i) for i in ids]
        for i in control:
            pieces[i] = self.token_text(i).encode("utf-8", "surrogateescape")
        return TokenTable(tuple(pieces), tuple(control), tuple(sorted(self.stop_ids)))

    @cached_property
    def control_guard(self) -> ControlGuard:
        """Finds the names of control tokens in text from outside."""
        return ControlGuard(self._control)

    def _of_type(self, *kinds: int) -> dict[str, int]:
        types = enumerate(self._vocabulary.types)
        return {self._vocabulary.tokens[i]: i for i, kind in types if kind in kinds}


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)
    return text
