"""A model's vocabulary, read from GGUF metadata and checked: pieces, their types, special ids, rules.

Knows nothing of how text is cut into pieces. Names and defaults follow llama.cpp, whose ids are the
wanted result.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..errors import ModelFileError, NotSupportedError
from .fill import FILL_NAMES
from .pretokenizers import PRETOKENIZERS, Pretokenizer

MAX_TOKEN = 4096  # characters
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

TURN_END_NAMES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<end_of_utterance>",
)
END_NAMES = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|>"
    " <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|>"
    " <|tool_response> <｜end▁of▁sentence｜> [e~[".split(" ")
)
"""Tokens that end a reply, whatever the metadata says of them."""
READ_AS_CONTROL = "</s>"
"""llama.cpp counts this one among them. Where it is not EOS it is a piece of HTML to the model, so here it
is only read as llama.cpp reads it, not hidden from replies and no end."""
FILL_END_NAMES = frozenset(
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO>"
    " <reponame> <|file_sep|>".split(" ")
)
"""Fill-in-the-middle tokens behind which a model has nothing more to say."""


Model = Literal["gpt2", "lines", "llama", "bert"]
_MODELS: dict[str, Model] = {"gpt2": "gpt2", "gemma4": "lines", "llama": "llama", "bert": "bert"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces by id, and what the metadata says about putting text together.

    `types` holds a GGUF token type for each piece; tokens with a well-known name of an end are
    control tokens even where the file forgot to say so. Ids are None where the model has none.
    """

    model: Model
    pre: Pretokenizer | None  # BPE only, byte-level or over lines
    tokens: list[str]
    types: list[int]
    scores: list[float]  # SPM only
    merges: list[str]  # BPE only
    ids: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    unk_id: int | None
    stop_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    lowercase: bool  # WordPiece only, as is the next
    strip_accents: bool
    strip_behind: frozenset[str]  # special tokens that take the white space behind them

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> Vocabulary:
        """Raises `ModelFileError` for missing or inconsistent keys, `NotSupportedError` for other kinds."""
        keys = _Keys(metadata)
        name = keys.text("model")
        model = _MODELS.get(name)
        if model is None:
            raise NotSupportedError(
                f"tokenizer.ggml.model is {reprlib.repr(name)}; this build knows 'gpt2' (byte-level BPE), "
                "'gemma4' (BPE over lines), 'llama' (SPM) and 'bert' (WordPiece)."
            )
        pre = PRETOKENIZERS["gemma4"] if model == "lines" else None
        if model == "gpt2":
            pre = _pretokenizer(keys.text("pre", "default"))
            model = "lines" if pre.lines else model
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(keys.strings("tokens"))]
        if not tokens:
            raise ModelFileError("tokenizer.ggml.tokens is empty: the file has no vocabulary.")
        if (longest := max(map(len, tokens))) > MAX_TOKEN:
            raise ModelFileError(
                f"tokenizer.ggml.tokens holds a token of {longest} characters; at most {MAX_TOKEN} are allowed."
            )
        types = keys.numbers("token_type", len(tokens), NORMAL)
        scores = keys.numbers("scores", len(tokens), 0.0)
        ids = {token: index for index, token in enumerate(tokens)}
        for name in END_NAMES | FILL_END_NAMES:
            if name in ids:
                types[ids[name]] = CONTROL
        for part in ("pre", "suf", "mid"):
            named_so = (name for name in FILL_NAMES[part].split(" ") if name in ids)
            if not keys.given(f"fim_{part}_token_id") and (name := next(named_so, "")):
                types[ids[name]] = CONTROL

        spm = model == "llama"
        # What SPM files that name no special tokens have had from the start: <unk> <s> </s>.
        usual = {i for i in (0, 1, 2) if spm and types[i : i + 1] == [CONTROL if i else UNKNOWN]}
        bos_id = keys.token_id("bos_token_id", len(tokens), 1 if 1 in usual else None)
        eos_id = keys.token_id("eos_token_id", len(tokens), 2 if 2 in usual else None)
        bert = model == "bert"
        if bert:  # texts stand between these two, whatever the flags say
            first, last = (bos_id, ids.get("[CLS]")), (eos_id, ids.get("[SEP]"))
            bos_id = keys.token_id("cls_token_id", len(tokens), _first_given(*first))
            eos_id = keys.token_id("seperator_token_id", len(tokens), _first_given(*last))
        turn_end = next((ids[name] for name in TURN_END_NAMES if name in ids), None)
        eot_id = keys.token_id("eot_token_id", len(tokens), turn_end)
        lowercase = keys.flag("normalizer.lowercase", True)
        named = {ids[name] for name in END_NAMES | FILL_END_NAMES if name in ids}
        given = {
            keys.token_id(f"{name}_token_id", len(tokens))
            for name in ("eom", "fim_pad", "fim_rep", "fim_sep")
        }
        listed = {i for i in keys.integers("eos_token_ids") if 0 <= i < len(tokens)}
        stop_ids = {i for i in named | given | listed | {eos_id, eot_id} if i is not None}
        return Vocabulary(
            model=model,
            pre=pre,
            tokens=tokens,
            types=types,
            scores=scores if spm else [],
            merges=keys.strings("merges") if pre is not None else [],
            ids=ids,
            bos_id=bos_id,
            eos_id=eos_id,
            eot_id=eot_id,
            unk_id=keys.token_id(
                "unknown_token_id", len(tokens), 0 if 0 in usual else ids.get("[UNK]")
            ),
            stop_ids=_without_message_end(stop_ids, tokens),
            add_bos=(bert or _wants_bos(keys, pre, spm)) and bos_id is not None,
            add_eos=(bert or keys.flag("add_eos_token", False)) and eos_id is not None,
            add_space_prefix=bert or (spm and keys.flag("add_space_prefix", True)),
            lowercase=lowercase,
            strip_accents=keys.flag("normalizer.strip_accents", lowercase),
            strip_behind=_strip_behind(metadata.get("general.name"), tokens, types),
        )


_Number = TypeVar("_Number", int, float)


class _Keys:
    """Typed access to `tokenizer.ggml.*`."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def _get(self, name: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise ModelFileError(
                f"tokenizer.ggml.{name} is {'missing' if value is None else 'no text'}; "
                "without it text cannot be turned into tokens."
            )
        return value

    def strings(self, name: str) -> list[str]:
        value = self._get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelFileError(f"tokenizer.ggml.{name} is not an array of strings.")
        return value

    def numbers(self, name: str, count: int, default: _Number) -> list[_Number]:
        """One number a token, of the default's type."""
        value = self._get(name)
        if value is None:
            return [default] * count
        convert = type(default)
        try:
            values = value.tolist() if hasattr(value, "tolist") else value
            numbers = [convert(number) for number in values[:count]]
            if any(map(math.isnan, numbers)):
                numbers = []
        except (TypeError, ValueError, OverflowError):
            numbers = []
        if len(numbers) < count:
            raise ModelFileError(
                f"tokenizer.ggml.{name} does not hold a number for each of the {count} tokens."
            )
        return numbers

    def integers(self, name: str) -> list[int]:
        value = self._get(name)
        values = value.tolist() if hasattr(value, "tolist") else value
        return [i for i in values if isinstance(i, int)] if isinstance(values, list) else []

    def token_id(self, name: str, count: int, default: int | None = None) -> int | None:
        """An id outside the vocabulary counts as not given, as llama.cpp has it."""
        value = self._get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count:
            return value
        return default

    def given(self, name: str) -> bool:
        return self._get(name) is not None

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, int):
            raise ModelFileError(
                f"tokenizer.ggml.{name} is {reprlib.repr(value)}; it must be true or false."
            )
        return bool(value)


def _first_given(*ids: int | None) -> int | None:
    return next((i for i in ids if i is not None), None)


def _wants_bos(keys: _Keys, pre: Pretokenizer | None, spm: bool) -> bool:
    if pre is not None and pre.always_bos:
        return True
    return keys.flag("add_bos_token", spm or (pre is not None and pre.add_bos))


def _pretokenizer(name: str) -> Pretokenizer:
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {reprlib.repr(name)}, a pre-tokenizer that this build does not know; with "
            "another one the model would be given wrong tokens."
        ) from None


def _strip_behind(name: Any, tokens: list[str], types: list[int]) -> frozenset[str]:
    """No key tells it: llama.cpp knows Phi 3 by the model's name, whose template writes line breaks there that the
    model was trained without."""
    if not isinstance(name, str) or not re.search("phi-?3", name, re.IGNORECASE):
        return frozenset()
    special = (CONTROL, UNKNOWN, USER_DEFINED)
    found = {token for token, kind in zip(tokens, types, strict=True) if kind in special}
    return frozenset(found | {"</s>"}) - {"<unk>", "<s>", "<|endoftext|>"}


def _without_message_end(stop_ids: set[int], tokens: list[str]) -> frozenset[int]:
    """Models that close a reply by <|return|> or <|flush|> use <|end|> between its parts."""
    names = {tokens[i]: i for i in stop_ids}
    calls = "<|call|>" in names or "<|calls|>" in names
    if calls and ("<|return|>" in names or "<|flush|>" in names) and "<|end|>" in names:
        return frozenset(stop_ids - {names["<|end|>"]})
    return frozenset(stop_ids)
