"""Running commands in this process, and a scripted daemon for those that talk to one."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cli_harness import Emberd, Result, ScriptedDaemon

import emberd.cli


@pytest.fixture
def emberd_cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free_port: int
) -> Emberd:
    """Runs `emberd ARGS` as the entry point does. No daemon answers unless a test starts one."""
    monkeypatch.setenv("EMBERD_PORT", str(free_port))

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["emberd", *arguments])
        capsys.readouterr()
        try:
            emberd.cli.main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return Result(code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def scripted_daemon(free_port: int) -> Iterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(gets={"/api/version": {"version": "0.12.0", "emberd": "0.1.0"}})

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, status: int, lines: list[Any]) -> None:
            body = "".join(json.dumps(line) + "\n" for line in lines).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            found = daemon.gets.get(self.path)
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            self._answer(200 if found else 404, [found or {"error": "not found"}])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            daemon.asked.append((self.path, body))
            self._answer(*daemon.posts[self.path])

        def do_DELETE(self) -> None:
            daemon.asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(*daemon.deletes.get(self.path, (404, [{"error": "not here"}])))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", free_port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield daemon
    server.shutdown()
    server.server_close()
    thread.join()
