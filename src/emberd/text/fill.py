"""Fill in the middle: the tokens that a model has for it, and prompts made of them.

Texts are never read as control tokens: what stands in a file stays text. Names are those that llama.cpp knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only asks whether a model can do it needs no tokenizer
    from .tokenizer import Tokenizer

FILL_NAMES = {
    "pre": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
    "suf": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
    "mid": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
    "rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "sep": "<|file_sep|>",
}
_OLDER_KEYS = {"pre": "prefix", "suf": "suffix", "mid": "middle"}
_REPOSITORY, _FILE = "repository", "file"


@dataclass(frozen=True, slots=True)
class FillTokens:
    """Ids before the text, before what follows it, before the middle; before a repository's name, a file's."""

    before: int
    behind: int
    middle: int
    repository: int | None = None
    file: int | None = None


def fill_tokens(metadata: Mapping[str, Any]) -> FillTokens | None:
    """From the `tokenizer.*` keys of a GGUF file; None where the model has no tokens to fill in with."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
        return None
    names = {name for spellings in FILL_NAMES.values() for name in spellings.split(" ")}
    ids = {token: index for index, token in enumerate(tokens) if token in names}
    found = {kind: _token_id(metadata, kind, ids, len(tokens)) for kind in FILL_NAMES}
    before, behind, middle = found["pre"], found["suf"], found["mid"]
    if before is None or behind is None or middle is None:
        return None
    return FillTokens(before, behind, middle, found["rep"], found["sep"])


def fill_ids(
    tokenizer: Tokenizer,
    tokens: FillTokens,
    before: str | Sequence[int],
    behind: str,
    files: Sequence[tuple[str, str]] = (),
) -> list[int]:
    """Ids of a prompt for what stands between two texts. `files` (name, text) are others of the same project."""

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    prompt = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    if files and tokens.repository is not None:
        prompt += [tokens.repository, *ids(f"{_REPOSITORY}\n")]
    for name, text in files:
        if tokens.file is not None:
            prompt += [tokens.file, *ids(f"{name}\n{text}")]
        else:
            prompt += ids(f"{text}\n\n")
    if files and tokens.file is not None:
        prompt += [tokens.file, *ids(f"{_FILE}\n")]
    known = ids(before) if isinstance(before, str) else before
    return [*prompt, tokens.before, *known, tokens.behind, *ids(behind), tokens.middle]


def _token_id(
    metadata: Mapping[str, Any], kind: str, ids: Mapping[str, int], count: int
) -> int | None:
    for key in (f"fim_{kind}", _OLDER_KEYS.get(kind)):
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count:
            return value
    return next((ids[name] for name in FILL_NAMES[kind].split(" ") if name in ids), None)
