"""emberd's own routes: what runs and waits now, and how to end it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ..errors import BadRequestError, EmberdError, NotFoundError, WorkerDiedError
from ..inspection import BatchStatus, SequenceStatus, StepTimes
from ..models.loaded import LoadedModel
from ..protocol import PRIORITIES
from ..text.tokenizer import Tokenizer
from .body import Schema, Text, ignored_header
from .explain import PromptStory
from .requests import ActiveRequest, EndedRequest, request_id
from .routing import caller_of, documented, read_body, service_of
from .service import Service

router = APIRouter(prefix="/api")
Json = dict[str, Any]


class PreemptRequest(Schema):
    """Neither: of the only model that runs something, the sequence that would go first."""

    id: Text | None = None  # of a request; all of its sequences that run
    model: Text | None = None  # of this one, the sequence that would go first


BODIES = (PreemptRequest,)


@router.get("/requests")
async def list_requests(request: Request) -> Response:
    """Every request that starts, waits or runs, the oldest first."""
    service = service_of(request)
    statuses = await _statuses(service)
    return JSONResponse({"requests": [_told(one, statuses) for one in service.requests]})


@router.get("/requests/{id}")
async def explain_request(request: Request, id: str) -> Response:
    """One request, also for a while after its end: what its prompts took from the prefix cache, and the token at
    which each parts from the nearest path there."""
    service, caller = service_of(request), caller_of(request)
    found = service.requests.look_up(id, caller)
    if isinstance(found, ActiveRequest):
        told = _told(found, await _statuses(service)) | {"ends": None}
        generation = found.generation
        stories = () if generation is None else generation.stories
        tokenizer = None if generation is None else generation.model.tokenizer
    else:
        told, stories = found.told, found.stories
        tokenizer = await _tokenizer_of(service, found) if stories else None

    def sees(story: PromptStory) -> bool:
        nearest = story.nearest_id
        return service.requests.sees(caller, nearest and request_of(nearest))

    prompts = [story.told(tokenizer, sees(story)) for story in stories]
    return JSONResponse(told | {"prompts": prompts})


async def _tokenizer_of(service: Service, ended: EndedRequest) -> Tokenizer | None:
    """None where the model is no longer what it was."""
    assert ended.stored is not None
    with contextlib.suppress(EmberdError):
        if await service.manager.find(ended.stored.name) == ended.stored:
            return (await service.manager.text(ended.stored.name)).tokenizer
    return None


@router.delete("/requests/{id}")
async def cancel_request(request: Request, id: str) -> Response:
    """Ends a request, as if its client had hung up; what it has answered so far stands."""
    ended = service_of(request).requests.cancel(id, caller_of(request))
    return JSONResponse({"id": ended.caller.request_id, "cancelled": True})


@router.get("/batch/status")
async def batch_status(request: Request) -> Response:
    """What is in each model's batch, its blocks and prefixes, and how long its steps take."""
    found = await batches(service_of(request))
    return JSONResponse({"models": [_batch(model, status) for model, status in found]})


@router.post("/batch/preempt", openapi_extra=documented(PreemptRequest))
async def preempt(request: Request) -> Response:
    """Puts running sequences back to those that wait: their blocks are free, and their tokens are kept."""
    body, raw = await read_body(request, PreemptRequest)
    if body.id is not None and body.model is not None:
        raise BadRequestError("send one of 'id' and 'model'", "model")
    service = service_of(request)
    preempted = []
    for model, sequence in await _victims(service, body):
        with contextlib.suppress(WorkerDiedError):
            if (one := await model.worker.preempt(sequence)) is not None:
                preempted.append(one)
    if not preempted:
        what = f"request '{body.id:.128}'" if body.id else "model or request that was named"
        raise NotFoundError(f"nothing of the {what} runs")
    ids = list(dict.fromkeys(map(request_of, preempted)))
    return JSONResponse(
        {"preempted": ids, "sequences": len(preempted)}, headers=ignored_header(raw, PreemptRequest)
    )


async def _victims(service: Service, body: PreemptRequest) -> list[tuple[LoadedModel, str | None]]:
    """Models with the sequences that are to go; None: the one that would go first. Raises BadRequestError and
    ModelNotFoundError."""
    found = await batches(service)
    if body.id is not None:
        wanted = request_id(body.id)
        return [
            (model, one.request_id)
            for model, status in found
            for one in status.sequences
            if request_of(one.request_id) == wanted
        ]
    if body.model is not None:
        name = (await service.manager.find(body.model)).name
        return [(model, None) for model, _ in found if model.name == name]
    running = [
        model for model, status in found if any(s.position is None for s in status.sequences)
    ]
    if len(running) > 1:
        names = ", ".join(model.name for model in running)
        raise BadRequestError(f"several models run something: {names}; say which", "model")
    return [(model, None) for model in running]


def _batch(model: LoadedModel, status: BatchStatus) -> Json:
    tiers = model.worker.stats.tiers
    sequences = [_sequence(one) for one in status.sequences]
    return {
        "model": model.name,
        "device": model.info.device,
        "running": [one for one in sequences if one["position"] is None],
        "waiting": [one for one in sequences if one["position"] is not None],
        "max_sequences": model.info.max_sequences,
        "blocks": asdict(status.blocks) | {"tokens": model.info.block_size},
        "draft_blocks": asdict(status.draft_blocks) if status.draft_blocks is not None else None,
        "prefixes": asdict(status.prefixes),
        "tiers": asdict(tiers) if tiers is not None else None,
        "num_steps": status.num_steps,
        "steps": {kind: _step_times(times) for kind, times in status.steps.items()},
    }


def _sequence(one: SequenceStatus) -> Json:
    """As the worker has it; `id` is that of the request, of which a choice or prompt is `sequence`."""
    told = asdict(one) | {"priority": PRIORITIES[one.priority]}
    sequence = told.pop("request_id")
    return {"id": request_of(sequence), "sequence": sequence.partition("-")[2], **told}


def _step_times(times: StepTimes) -> Json:
    """In milliseconds."""
    return {
        "count": times.count,
        "p50_ms": round(1e3 * times.p50, 3),
        "p95_ms": round(1e3 * times.p95, 3),
        "longest_ms": round(1e3 * times.longest, 3),
        "prompt_tokens": times.prompt_tokens,
        "reply_rows": times.reply_rows,
    }


async def batches(service: Service, whole: bool = True) -> list[tuple[LoadedModel, BatchStatus]]:
    """What each loaded model's worker has in its batch; one that ends meanwhile is left out."""

    async def of(model: LoadedModel) -> BatchStatus | None:
        with contextlib.suppress(WorkerDiedError):
            return await model.worker.inspect(whole)
        return None

    models = list(service.manager.loaded())
    found = await asyncio.gather(*map(of, models))
    return [(model, one) for model, one in zip(models, found, strict=True) if one is not None]


async def _statuses(service: Service) -> dict[str, list[SequenceStatus]]:
    """Of all workers' sequences, by request."""
    found: dict[str, list[SequenceStatus]] = {}
    for _, status in await batches(service, whole=False):
        for sequence in status.sequences:
            found.setdefault(request_of(sequence.request_id), []).append(sequence)
    return found


def request_of(sequence_id: str) -> str:
    """The request whose sequence it is: the worker knows them as `req_…-0`, `req_…-0-1`."""
    return sequence_id.partition("-")[0]


def _told(one: ActiveRequest, statuses: dict[str, list[SequenceStatus]]) -> Json:
    return one.told(statuses.get(one.caller.request_id, ()))
