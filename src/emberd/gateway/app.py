"""The application: routes, guards and error bodies put together. Its lifespan owns the workers.

Adds no behaviour of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from .. import __version__
from ..config import Config
from ..errors import EmberdError
from ..models.manager import ModelManager
from . import control, document, errors, root
from .anthropic import routes as anthropic
from .edge import Edge
from .llama import infill as llama_infill
from .llama import routes as llama
from .ollama import embeddings as ollama_embeddings
from .ollama import library as ollama_library
from .ollama import routes as ollama
from .openai import completions as openai_completions
from .openai import embeddings as openai_embeddings
from .openai import routes as openai
from .openai.responses import routes as responses
from .openai.responses.background import Background
from .openai.responses.store import ResponseStore
from .service import Service

MODULES = (
    root,
    control,
    openai,
    openai_completions,
    openai_embeddings,
    responses,
    llama,
    llama_infill,
    ollama,
    ollama_embeddings,
    ollama_library,
    anthropic,
)
"""Everything that is served: each has a `router`, and `BODIES` that its routes read themselves."""


def create_app(config: Config, manager: ModelManager, preload: Sequence[str] = ()) -> FastAPI:
    """The ASGI application; `preload` names models to load at its start.

    Its shutdown ends the manager's workers; `app.state.service` drains it before. Raises ConfigError when the
    key file cannot be read.
    """
    service = Service(config, manager)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        manager.preload(preload)
        try:
            yield
        finally:
            await service.pulls.close()
            await manager.close()

    app = FastAPI(
        title="emberd",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.responses = ResponseStore(config.response_memory)
    app.state.background = Background()
    for module in MODULES:
        app.routes.extend(module.router.routes)  # as they are: including makes each of them anew
    for kind in (EmberdError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, errors.handle)
    app.add_middleware(Edge, service=service, keys=config.keys())
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        bodies = [schema for module in MODULES for schema in module.BODIES]
        app.openapi_schema = document.build(app, bodies)
    return app.openapi_schema
