"""A worker's process and the gateway's end of the channel to it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Sequence

from emberd import logs

WORKER_COMMAND = (sys.executable, "-m", "emberd.worker.process")
KEY_VARIABLES = {"EMBERD_API_KEYS", "EMBERD_API_KEY_FILE"}

log = logging.getLogger("emberd.worker")


async def spawn(
    command: Sequence[str],
) -> tuple[Process, asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a worker that is told nothing yet. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            process = await create_subprocess_exec(
                *command,
                f"{logging.getLevelName(log.getEffectiveLevel())}:{logs.style()}",
                str(theirs.fileno()),
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
        except BaseException:
            writer.close()
            raise
    return process, reader, writer


def _environment() -> dict[str, str]:
    """Without the API keys: a worker reads files that others wrote, and needs none."""
    return {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
