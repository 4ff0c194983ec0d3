"""What llama.cpp says of a model file: log-probabilities of every token behind each part of a prompt, embeddings, ids
of texts.

Through `xllamacpp`, which is llama.cpp as a Python package. It shares nothing with emberd.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

VOCAB = 512


def expected_logprobs(
    path: Path, token_ids: Sequence[int], lengths: Sequence[int], *, context: int = 256
) -> NDArray[np.float64]:
    """(len(lengths), VOCAB): after the first n tokens, for each n of `lengths`; float32 throughout.

    It tells nothing where it takes a token that ends the text or is part of a character, so it must not take one;
    that changes what it takes and not the log-probabilities.
    """
    xllamacpp = _xllamacpp()
    params = _params(xllamacpp, path, context)
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    rows = np.full((len(lengths), VOCAB), np.nan)
    for row, length in zip(rows, lengths, strict=True):
        answer = server.handle_completions(
            {
                "prompt": list(map(int, token_ids[:length])),
                "n_predict": 1,
                "n_probs": VOCAB,
                "temperature": 0,
                "cache_prompt": False,
                "ignore_eos": False,
                "logit_bias": [[token, False] for token in (*range(128, 256), *range(508, 512))],
            }
        )
        told = answer["choices"][0]["logprobs"]
        for entry in told["content"][0]["top_logprobs"] if told else ():
            row[entry["id"]] = entry["logprob"]
    return rows


def expected_ids(
    path: Path, texts: Iterable[str], *, add_special: bool = False, parse_special: bool = False
) -> list[list[int]]:
    """Token ids of each text."""
    xllamacpp = _xllamacpp()
    params = _params(xllamacpp, path, 256)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        params.port = free.getsockname()[1]
    server = xllamacpp.Server(params)  # listens on that port until it is let go
    asked = {"add_special": add_special, "parse_special": parse_special}
    with httpx.Client(base_url=server.listening_address, trust_env=False) as http:
        answers = [http.post("/tokenize", json={"content": text, **asked}) for text in texts]
    return [answer.raise_for_status().json()["tokens"] for answer in answers]


def expected_vectors(
    path: Path, inputs: Sequence[str | Sequence[int]], *, context: int = 256
) -> list[NDArray[np.float64]]:
    """The embedding of each text, or of token ids as they are, not normalised."""
    xllamacpp = _xllamacpp()
    params = _params(xllamacpp, path, context)
    params.n_batch = params.n_ubatch = context
    params.embedding, params.embd_normalize = True, -1
    server = xllamacpp.Server(params)
    answers = [
        server.handle_embeddings({"input": one if isinstance(one, str) else list(map(int, one))})
        for one in inputs
    ]
    return [np.array(answer["data"][0]["embedding"]) for answer in answers]


def _xllamacpp() -> Any:
    return pytest.importorskip("xllamacpp", reason="llama.cpp (xllamacpp) is not installed")


def _params(xllamacpp: Any, path: Path, context: int) -> Any:
    """One text at a time, on one thread of the CPU, in float32."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
    params.warmup, params.fit_params = False, False
    params.cpuparams.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params
