"""An example of every route: a body that it takes, and what the answer looks like. The API document shows them.

A route without an entry here is missing in the document, which a test notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Stream = Literal["text/event-stream", "application/x-ndjson"]
SSE: Stream = "text/event-stream"
LINES: Stream = "application/x-ndjson"
MODEL = "my-model"
_USER = [{"role": "user", "content": "Name the capital of France."}]
_ANSWER = "The capital of France is Paris."
_USAGE = {"prompt_tokens": 14, "completion_tokens": 8, "total_tokens": 22}


@dataclass(frozen=True, slots=True)
class Example:
    """`answer`: of the whole answer, parts; a text is the answer as it is. `stream`: how it comes piece by piece."""

    summary: str
    answer: Json | str
    body: Json | None = None
    stream: Stream | None = None


_OPENAI_MODEL = {"id": MODEL, "object": "model", "created": 1750000000, "owned_by": "emberd"}
_RESPONSE = {
    "id": "resp_0123456789abcdef",
    "object": "response",
    "status": "completed",
    "model": MODEL,
    "output": [
        {
            "type": "message",
            "id": "msg_0123456789abcdef",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": _ANSWER, "annotations": []}],
        }
    ],
}
_OLLAMA_MODEL = {"name": f"{MODEL}:latest", "model": f"{MODEL}:latest", "size": 98000000}

_ACTIVE: Json = {
    "id": "req_0123456789abcdef01234567",
    "path": "/api/chat",
    "model": f"{MODEL}:latest",
    "state": "decode",
    "position": None,
    "age_seconds": 0.25,
    "prompt_tokens": 14,
    "completion_tokens": 8,
}

EXAMPLES: dict[str, Example] = {
    "GET /": Example(
        "Says that the daemon runs, in the words that Ollama's clients look for",
        "Ollama is running",
    ),
    "GET /health": Example("Whether the daemon answers", {"status": "ok"}),
    "GET /metrics": Example(
        "Counts and times for Prometheus", "# HELP emberd_http_requests_total ...\n"
    ),
    "GET /docs": Example(
        "This page: every route with its body and an example", "<!doctype html>..."
    ),
    "GET /api/requests": Example(
        "Requests that start, wait or run (emberd)", {"requests": [_ACTIVE]}
    ),
    "GET /api/requests/{id}": Example(
        "One request: what its prompt took from the cache, and where it parts from earlier ones (emberd)",
        _ACTIVE
        | {
            "state": "ended",
            "ends": ["stop"],
            "prompts": [
                {
                    "sequence": 0,
                    "prompt_tokens": 6100,
                    "cached_tokens": 4096,
                    "gone_tokens": 0,
                    "outcome": "parted",
                    "nearest": {"request": "req_89abcdef0123456789abcdef", "tokens": 4101},
                    "difference": {
                        "position": 4101,
                        "before": "... it is 12:0",
                        "token": {"id": 20, "text": "5"},
                        "after": " on Monday",
                        "nearest_token": {"id": 19, "text": "4"},
                        "nearest_after": " on Monday",
                    },
                }
            ],
        },
    ),
    "DELETE /api/requests/{id}": Example(
        "Ends a request (emberd)", {"id": _ACTIVE["id"], "cancelled": True}
    ),
    "GET /api/batch/status": Example(
        "What is in each model's batch, block by block and step by step (emberd)",
        {"models": [{"model": f"{MODEL}:latest", "running": [], "waiting": [], "num_steps": 120}]},
    ),
    "POST /api/batch/preempt": Example(
        "Puts running sequences back to those that wait (emberd)",
        {"preempted": [_ACTIVE["id"]], "sequences": 1},
        {"id": _ACTIVE["id"]},
    ),
    "POST /v1/chat/completions": Example(
        "Answers a conversation (OpenAI)",
        {
            "id": "chatcmpl-0123456789abcdef01234567",
            "object": "chat.completion",
            "created": 1750000000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": _ANSWER},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": _USAGE,
        },
        {"model": MODEL, "messages": _USER, "temperature": 0, "max_tokens": 32},
        SSE,
    ),
    "POST /v1/completions": Example(
        "Continues a text, or fills in between two (OpenAI)",
        {
            "id": "cmpl-0123456789abcdef01234567",
            "object": "text_completion",
            "created": 1750000000,
            "model": MODEL,
            "choices": [
                {"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "length"}
            ],
            "usage": _USAGE,
        },
        {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 2},
        SSE,
    ),
    "POST /v1/embeddings": Example(
        "Vectors of texts (OpenAI)",
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.6, -0.8]}],
            "model": MODEL,
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        },
        {"model": MODEL, "input": ["A text."], "encoding_format": "float"},
    ),
    "GET /v1/models": Example(
        "The models that can be served (OpenAI; Anthropic's shape with its header)",
        {"object": "list", "data": [_OPENAI_MODEL]},
    ),
    "GET /v1/models/{name}": Example("One model (OpenAI, Anthropic)", _OPENAI_MODEL),
    "POST /v1/chat/completions/input_tokens": Example(
        "How many tokens a chat's prompt has",
        {"object": "response.input_tokens", "input_tokens": 14},
        {"model": MODEL, "messages": _USER},
    ),
    "POST /v1/responses": Example(
        "Answers items, and stores the answer (OpenAI)",
        _RESPONSE,
        {"model": MODEL, "input": "Name the capital of France.", "max_output_tokens": 32},
        SSE,
    ),
    "POST /v1/responses/input_tokens": Example(
        "Counts the tokens of a request for a response",
        {"object": "response.input_tokens", "input_tokens": 14},
        {"model": MODEL, "input": "Name the capital of France."},
    ),
    "GET /v1/responses/{id}": Example("A stored response", _RESPONSE),
    "DELETE /v1/responses/{id}": Example(
        "Forgets a stored response",
        {"id": "resp_0123456789abcdef", "object": "response", "deleted": True},
    ),
    "GET /v1/responses/{id}/input_items": Example(
        "What a stored response was an answer to", {"object": "list", "data": []}
    ),
    "POST /v1/responses/{id}/cancel": Example(
        "Ends a response of the background", {**_RESPONSE, "background": True}
    ),
    "POST /v1/messages": Example(
        "Answers a conversation (Anthropic)",
        {
            "id": "msg_0123456789abcdef01234567",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": _ANSWER}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 14, "output_tokens": 8},
        },
        {"model": MODEL, "max_tokens": 32, "messages": _USER},
        SSE,
    ),
    "POST /v1/messages/count_tokens": Example(
        "Counts the tokens of a request for a message (Anthropic)",
        {"input_tokens": 14},
        {"model": MODEL, "messages": _USER},
    ),
    "POST /api/generate": Example(
        "Answers a prompt, or fills in between two texts; without a prompt, loads the model (Ollama)",
        {
            "model": MODEL,
            "created_at": "2026-01-01T00:00:00.000000Z",
            "response": _ANSWER,
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 14,
            "eval_count": 8,
        },
        {"model": MODEL, "prompt": "Name the capital of France.", "stream": False},
        LINES,
    ),
    "POST /api/chat": Example(
        "Answers a conversation; without messages, loads the model (Ollama)",
        {
            "model": MODEL,
            "created_at": "2026-01-01T00:00:00.000000Z",
            "message": {"role": "assistant", "content": _ANSWER},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 14,
            "eval_count": 8,
        },
        {"model": MODEL, "messages": _USER, "stream": False},
        LINES,
    ),
    "POST /api/embed": Example(
        "Vectors of texts, at length 1 (Ollama)",
        {"model": MODEL, "embeddings": [[0.6, -0.8]], "prompt_eval_count": 4},
        {"model": MODEL, "input": ["A text."]},
    ),
    "POST /api/embeddings": Example(
        "The vector of one text, as the model made it (Ollama)",
        {"embedding": [1.2, -1.6]},
        {"model": MODEL, "prompt": "A text."},
    ),
    "GET /api/tags": Example("The models that can be served (Ollama)", {"models": [_OLLAMA_MODEL]}),
    "POST /api/show": Example(
        "A model's details, metadata and capabilities (Ollama)",
        {
            "details": {"format": "gguf", "family": "llama"},
            "model_info": {"general.architecture": "llama"},
            "capabilities": ["completion", "tools"],
        },
        {"model": MODEL},
    ),
    "GET /api/ps": Example(
        "What is loaded, how large it is, and until when (Ollama)", {"models": [_OLLAMA_MODEL]}
    ),
    "GET /api/fit": Example(
        "Whether a model would fit, and what it takes, without loading it: ?model=NAME&num_ctx=TOKENS",
        {
            "model": f"{MODEL}:latest",
            "verdict": "fits",
            "context": {"trained": 131072, "wanted": 8192, "served": 8192},
            "memory": {"weights": {"bytes": 807000000, "source": "estimated"}},
        },
    ),
    "GET /api/version": Example(
        "Whose API this is (Ollama)", {"version": "0.12.6", "emberd": "0.1.0"}
    ),
    "POST /api/pull": Example(
        "Fetches a model from a registry or a hub (Ollama)",
        {"status": "success"},
        {"model": "smollm2:135m"},
        LINES,
    ),
    "POST /api/create": Example(
        "Makes a model from another one, with its own settings (Ollama)",
        {"status": "success"},
        {"model": "my-other", "from": MODEL, "system": "Answer briefly.", "stream": False},
        LINES,
    ),
    "POST /api/copy": Example(
        "Gives a model a second name (Ollama)", "", {"source": MODEL, "destination": "my-copy"}
    ),
    "DELETE /api/delete": Example("Deletes a model (Ollama)", "", {"model": "my-copy"}),
    "GET /api/blobs/{digest}": Example("Whether a file is here; HEAD asks the same (Ollama)", ""),
    "POST /api/blobs/{digest}": Example("Takes a file, of which a model is made next (Ollama)", ""),
    "POST /tokenize": Example(
        "Token ids of a text or of a conversation (llama.cpp, vLLM)",
        {"tokens": [9906, 1917], "count": 2, "max_model_len": 2048, "token_strs": None},
        {"model": MODEL, "content": "Hello world"},
    ),
    "POST /detokenize": Example(
        "The text of token ids (llama.cpp, vLLM)",
        {"content": "ab", "prompt": "ab"},
        {"model": MODEL, "tokens": [97, 98]},
    ),
    "POST /apply-template": Example(
        "A conversation as the text that the model would be given (llama.cpp)",
        {"prompt": "<|im_start|>user\nName the capital of France.<|im_end|>\n"},
        {"model": MODEL, "messages": _USER},
    ),
    "GET /props": Example(
        "Context, places and template of a model (llama.cpp)",
        {
            "default_generation_settings": {"n_ctx": 2048},
            "total_slots": 32,
            "model_path": "my-model.gguf",
        },
    ),
    "POST /infill": Example(
        "Fills in between two texts, for editors (llama.cpp)",
        {
            "content": "a + b",
            "stop": True,
            "stop_type": "eos",
            "model": MODEL,
            "tokens_predicted": 4,
        },
        {
            "model": MODEL,
            "input_prefix": "def add(a, b):\n    return ",
            "input_suffix": "\n",
            "n_predict": 16,
        },
        SSE,
    ),
}
