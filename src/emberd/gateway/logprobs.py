"""Log-probabilities as the dialects write them, and biases as they are sent.

Knows tokens and their bytes, nothing of routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadRequestError
from ..protocol import TokenLogprobs
from ..text.tokenizer import Tokenizer

Json = dict[str, Any]
MAX_TOP = 20
MAX_BIAS = 100.0
_LEAST = -9999.0  # JSON has no infinity
_TOKEN_ID = re.compile(r"-?[0-9]{1,18}")


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What the token writes, even half a character; of control tokens their name."""
    return tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode(
        "utf-8", "surrogateescape"
    )


def token_name(data: bytes) -> str:
    """Bytes as text; those that are no text by themselves as OpenAI writes them, `\\xf0\\x9f`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)


def told(value: float) -> float:
    return max(value, _LEAST)


def entries(tokenizer: Tokenizer, logprobs: Iterable[TokenLogprobs]) -> list[Json]:
    """One object a token, with the likeliest ones at its place."""
    return [
        _entry(tokenizer, one.token_id, one.logprob)
        | {"top_logprobs": [_entry(tokenizer, token_id, value) for token_id, value in one.top]}
        for one in logprobs
    ]


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> Json:
    data = token_bytes(tokenizer, token_id)
    return {"token": token_name(data), "logprob": told(logprob), "bytes": list(data)}


def read_bias(bias: Mapping[str, Any] | None) -> tuple[tuple[int, float], ...] | None:
    """OpenAI's `logit_bias`. Whether the tokens are there only the model knows. Raises BadRequestError."""
    if not bias:
        return None
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not _TOKEN_ID.fullmatch(key):
            raise _refused(f"{key[:64]!r} is no token id")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refused(f"the bias of token {key} is no number")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise _refused(f"the bias of token {key} is {value:.6g}; it goes from -100 to 100")
        result[int(key)] = float(value)
    return tuple(result.items())


def _refused(reason: str) -> BadRequestError:
    return BadRequestError(f"'logit_bias': {reason}", "logit_bias")
