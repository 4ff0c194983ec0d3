"""emberd's own routes: what runs and waits now, and how to end it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ..errors import WorkerDiedError
from ..inspection import BatchStatus, SequenceStatus
from ..models.loaded import LoadedModel
from .body import Schema
from .requests import ActiveRequest
from .routing import caller_of, service_of
from .service import Service

router = APIRouter(prefix="/api")
BODIES: tuple[type[Schema], ...] = ()
Json = dict[str, Any]


@router.get("/requests")
async def list_requests(request: Request) -> Response:
    """Every request that starts, waits or runs, the oldest first."""
    service = service_of(request)
    statuses = await _statuses(service)
    return JSONResponse({"requests": [_told(one, statuses) for one in service.requests]})


@router.delete("/requests/{id}")
async def cancel_request(request: Request, id: str) -> Response:
    """Ends a request, as if its client had hung up; what it has answered so far stands."""
    ended = service_of(request).requests.cancel(id, caller_of(request))
    return JSONResponse({"id": ended.caller.request_id, "cancelled": True})


async def batches(service: Service) -> list[tuple[LoadedModel, BatchStatus]]:
    """What each loaded model's worker has in its batch; one that ends meanwhile is left out."""

    async def of(model: LoadedModel) -> BatchStatus | None:
        with contextlib.suppress(WorkerDiedError):
            return await model.worker.inspect()
        return None

    models = list(service.manager.loaded())
    found = await asyncio.gather(*map(of, models))
    return [(model, one) for model, one in zip(models, found, strict=True) if one is not None]


async def _statuses(service: Service) -> dict[str, list[SequenceStatus]]:
    """Of all workers' sequences, by request."""
    found: dict[str, list[SequenceStatus]] = {}
    for _, status in await batches(service):
        for sequence in status.sequences:
            found.setdefault(request_of(sequence.request_id), []).append(sequence)
    return found


def request_of(sequence_id: str) -> str:
    """The request whose sequence it is: the worker knows them as `req_…-0`, `req_…-0-1`."""
    return sequence_id.partition("-")[0]


def _told(one: ActiveRequest, statuses: dict[str, list[SequenceStatus]]) -> Json:
    return one.told(statuses.get(one.caller.request_id, ()))
