"""K13 of bug_kinds.md: whoever hangs up frees his place, streaming or not, on every route."""

from __future__ import annotations

import httpx
import psutil
import pytest

from daemon import Daemon, wait_until
from dialects import CHAT, COMPLETION, ROUTES, ask, body

ENDED_SECONDS = 4.0
"""Two are wanted; a reply of `MANY_TOKENS` that nobody cancels takes longer than this."""
MANY_TOKENS = 4000
NUM_HANG_UPS = 100


def hang_up(daemon: Daemon, route: str, num_lines: int = 3) -> None:
    """Close an endless stream after three events."""
    request = body(route, "script", "x" * 40 + "2", stream=True, max_tokens=MANY_TOKENS)
    with (
        httpx.Client(base_url=daemon.url, timeout=60, trust_env=False) as http,
        http.stream("POST", route, json=request) as response,
    ):
        seen = [line for _, line in zip(range(2 * num_lines), response.iter_lines(), strict=False)]
    assert sum(bool(line) for line in seen) >= num_lines


def ended(daemon: Daemon) -> bool:
    """Seen from the gateway and from the worker, which has nothing left to compute."""
    return daemon.num_active("script") == 0 and not daemon.computes()


@pytest.mark.parametrize("route", ROUTES)
def test_k13_closing_a_stream_ends_it(daemon: Daemon, route: str) -> None:
    """K13."""
    hang_up(daemon, route)
    wait_until(lambda: ended(daemon), ENDED_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_k13_hanging_up_on_a_whole_reply_ends_it(daemon: Daemon, route: str) -> None:
    """K13, C8: without a stream too."""
    ask(daemon.http, CHAT, "script", "1")  # loaded: what follows does not wait for it
    request = body(route, "script", "2", stream=False, max_tokens=MANY_TOKENS)
    with httpx.Client(base_url=daemon.url, trust_env=False) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post(route, json=request, timeout=httpx.Timeout(60, read=0.3))
    wait_until(lambda: ended(daemon), ENDED_SECONDS)


@pytest.mark.slow
def test_k13_a_hundred_hang_ups_leave_the_counts(daemon: Daemon) -> None:
    """K13: no descriptor of the daemon and no block of the pool is lost."""
    process = psutil.Process(daemon.pid)
    hang_up(daemon, CHAT)
    wait_until(lambda: ended(daemon), ENDED_SECONDS)
    before = process.num_fds()
    workers = [(worker.pid, worker.num_fds()) for worker in daemon.workers()]
    for i in range(NUM_HANG_UPS):
        hang_up(daemon, ROUTES[i % 4])
    wait_until(lambda: ended(daemon), ENDED_SECONDS)
    wait_until(lambda: process.num_fds() <= before, ENDED_SECONDS)
    assert [(worker.pid, worker.num_fds()) for worker in daemon.workers()] == workers
    context = daemon.loaded()["script"]["context_length"]
    reply = ask(daemon.http, COMPLETION, "script", "x" * (context - 2) + "1")
    assert (reply.text, reply.reason) == ("A B", "length")
