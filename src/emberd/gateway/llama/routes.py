"""Tokens of texts and texts of tokens, prompts of conversations, and what is served, in llama.cpp's words."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ... import __version__
from ...models.loaded import ModelText
from ...text.tokenizer import Tokenizer
from ..body import ignored_header
from ..conversation import Conversation
from ..logprobs import token_bytes
from ..openai.messages import template_messages
from ..routing import documented, read_body, service_of
from .schema import Conversing, DetokenizeRequest, TokenizeRequest

router = APIRouter()
BODIES = (TokenizeRequest, DetokenizeRequest, Conversing)
Json = dict[str, Any]


@router.post("/tokenize", openapi_extra=documented(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """The token ids of a text, or of a conversation as the model would be given it. Loads no model."""
    body, raw = await read_body(request, TokenizeRequest)
    body.text()
    manager = service_of(request).manager
    stored = await manager.find_or_only(body.model)
    text = await manager.text(stored.name)
    answer = await asyncio.to_thread(_tokens, text, body, stored.name)
    answer["max_model_len"] = manager.context_length(stored)
    return JSONResponse(answer, headers=ignored_header(raw, TokenizeRequest))


@router.post("/detokenize", openapi_extra=documented(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """The text of token ids, control tokens by their names. Loads no model."""
    body, raw = await read_body(request, DetokenizeRequest)
    manager = service_of(request).manager
    text = await manager.text((await manager.find_or_only(body.model)).name)
    ids = text.known_ids(body.tokens, "tokens")
    content = await asyncio.to_thread(text.tokenizer.decode, ids, show_special=True)
    answer = {"content": content, "prompt": content}
    return JSONResponse(answer, headers=ignored_header(raw, DetokenizeRequest))


@router.post("/apply-template", openapi_extra=documented(Conversing))
async def apply_template(request: Request) -> Response:
    """A conversation as the text that the model would be given. Loads no model."""
    body, raw = await read_body(request, Conversing)
    manager = service_of(request).manager
    stored = await manager.find_or_only(body.model)
    text = await manager.text(stored.name)
    ids = await asyncio.to_thread(_conversation_ids, text, body, stored.name)
    prompt = text.tokenizer.decode(ids, show_special=True)
    return JSONResponse({"prompt": prompt}, headers=ignored_header(raw, Conversing))


@router.get("/props")
async def props(request: Request, model: str | None = None) -> Response:
    """What llama.cpp's clients ask of a server: context, places, template. Loads no model."""
    service = service_of(request)
    stored = await service.manager.find_or_only(model)
    text = await service.manager.text(stored.name)
    loaded = service.manager.loaded_as(stored)
    sampling = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        **text.sampling_hints,
    }
    tokenizer = text.tokenizer
    return JSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": service.manager.context_length(stored),
                "params": sampling,
            },
            "total_slots": loaded.info.max_sequences if loaded else service.config.max_sequences,
            "model_alias": stored.name,
            "model_path": stored.path.name,
            "chat_template": text.template.source,
            "bos_token": _name(tokenizer, tokenizer.bos_id),
            "eos_token": _name(tokenizer, tokenizer.eos_id),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"emberd {__version__}",
        }
    )


def _name(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _tokens(text: ModelText, body: TokenizeRequest, name: str) -> Json:
    ids, tokenizer = _ids(text, body, name), text.tokenizer
    return {
        "tokens": _with_pieces(tokenizer, ids) if body.with_pieces else ids,
        "count": len(ids),
        "token_strs": [tokenizer.token_text(i) for i in ids] if body.return_token_strs else None,
    }


def _ids(text: ModelText, body: TokenizeRequest, name: str) -> list[int]:
    content = body.text()
    if content is None:
        return _conversation_ids(text, body, name)
    return text.tokenizer.encode(
        content, add_special=body.adds_special, parse_special=body.parse_special is not False
    )


def _conversation_ids(text: ModelText, body: TokenizeRequest | Conversing, name: str) -> list[int]:
    variables = dict(body.chat_template_kwargs or {})
    if body.add_generation_prompt is not None:
        variables["add_generation_prompt"] = body.add_generation_prompt
    messages = template_messages(body.messages or ())
    return list(Conversation(messages, body.tools or None, variables=variables).read(text, name)[0])


def _with_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[Json]:
    """Pieces that are no text by themselves as lists of bytes, as llama.cpp has it."""
    return [{"id": i, "piece": _text_or_bytes(token_bytes(tokenizer, i))} for i in ids]


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
