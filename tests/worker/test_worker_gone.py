"""A worker that was killed while it had nothing to do: who comes to it next is told to send the request again."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from test_worker_client import endless, gather, make_request, start

from emberd.errors import WorkerDiedError, WorkerGoneError
from emberd.gateway.errors import error_response


def test_who_comes_to_a_killed_worker_may_send_it_again() -> None:
    async def scenario() -> None:
        worker = await start()
        await gather(worker, make_request("before"))
        while worker.stats.num_running or worker._queues:
            await asyncio.sleep(0.002)
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.alive  # nobody has seen it yet
        with pytest.raises(WorkerGoneError, match="SIGKILL"):
            await gather(worker, make_request("first"))
        assert not worker.alive
        with pytest.raises(WorkerGoneError, match="SIGKILL"):
            await gather(worker, make_request("second"))
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_what_ran_or_came_beside_what_ran_may_not() -> None:
    async def scenario() -> None:
        worker = await start("slow")
        running = asyncio.create_task(gather(worker, endless("a")))
        while not worker.stats.num_running:
            await asyncio.sleep(0.002)
        os.kill(worker.pid, signal.SIGKILL)
        late = asyncio.create_task(gather(worker, make_request("late")))
        for found in await asyncio.gather(running, late, return_exceptions=True):
            assert type(found) is WorkerDiedError
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/chat/completions", 503), ("/api/chat", 503), ("/v1/messages", 529)]
)
def test_the_answer_asks_to_try_again(path: str, status: int) -> None:
    scope = {"type": "http", "path": path, "headers": [], "request_id": "req_1"}
    answer = error_response(WorkerGoneError("the worker ended"), scope)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")
    assert "x-should-retry" not in answer.headers
    died = error_response(WorkerDiedError("the worker ended"), scope)
    assert (died.status_code, died.headers["x-should-retry"]) == (500, "false")
