"""Commands about requests: cancel."""

from __future__ import annotations

from cli_harness import Emberd, ScriptedDaemon


def test_cancel_asks_the_daemon(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.deletes["/api/requests/req_1f"] = (200, [{"id": "req_1f", "cancelled": True}])
    done = emberd_cli("cancel", "req_1f")
    assert (done.code, done.out) == (0, "req_1f is cancelled\n")
    missing = emberd_cli("cancel", "a/b")
    assert (missing.code, missing.err) == (1, "error: not here\n")
    assert [path for path, _ in scripted_daemon.asked] == [
        "/api/requests/req_1f",
        "/api/requests/a%2Fb",
    ]
