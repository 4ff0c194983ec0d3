"""Routes that belong to no API: what probes ask for."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

router = APIRouter()


@router.get("/", response_class=PlainTextResponse)
async def root() -> Response:
    """Clients look for this very text."""
    return PlainTextResponse("Ollama is running")


@router.get("/health")
async def health() -> Response:
    """The daemon answers. A daemon that is leaving answers 503, as on every route."""
    return JSONResponse({"status": "ok"})
