"""Routes that belong to no API: what probes ask for."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from . import document
from .body import Schema
from .routing import service_of

router = APIRouter()
BODIES: tuple[type[Schema], ...] = ()


@router.get("/", response_class=PlainTextResponse)
async def root() -> Response:
    """Clients look for this very text."""
    return PlainTextResponse("Ollama is running")


@router.get("/health")
async def health(request: Request) -> Response:
    """The daemon answers. 503 while a device that was lost is not in service again, and while the daemon leaves."""
    if (reason := service_of(request).manager.failing) is not None:
        return JSONResponse({"status": "error", "error": reason}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus; docs/operations.md tells what each name means."""
    page, content_type = service_of(request).metrics.page(request.headers.get("accept", ""))
    return Response(page, headers={"content-type": content_type})


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> Response:
    """Every route with its body, an example and its answers."""
    return HTMLResponse(document.page(request.app.openapi()))
