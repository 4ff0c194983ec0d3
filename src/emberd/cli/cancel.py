"""Command cancel: ends a request of the running daemon."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from ..config import Config
from ..errors import BadRequestError
from .client import running_daemon
from .settings import with_settings

RequestArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A request's id: the header x-request-id of its answer, or the id in its body.",
    ),
]


@with_settings("host", "port", "socket")
def cancel(config: Config, id: RequestArgument) -> None:
    """End a request of the running daemon; its place and blocks are free within one step."""
    with running_daemon(config) as daemon:
        daemon.delete(request_path(id), {})
    print(f"{id} is cancelled")


def request_path(id: str) -> str:
    """The route of one request. Raises BadRequestError for what leads to another route."""
    if not id.strip() or "/" in id:
        raise BadRequestError(
            f"'{id}' is not a request's id; ids are those of the header x-request-id"
        )
    return f"/api/requests/{quote(id)}"
