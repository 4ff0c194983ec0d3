"""A Hugging Face hub on a free port: repositories of files, behind redirects to another host, tokens, gates."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from registry_fakes import Registry, running_registry

REVISION = "c0ffee" * 6 + "c0ff"


@dataclass
class Hub:
    """`storage` has the files' bytes by digest, and the faults of K32; it is another host than the hub."""

    storage: Registry
    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    in_git: set[str] = field(default_factory=set)  # names of files that have no SHA-256
    token: str | None = None  # who else asks is told that there is nothing
    gated: bool = False
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # path, authorization
    info: dict[str, Any] = field(default_factory=dict)  # over what is told of a repository

    def add(self, repository: str, **files: bytes) -> None:
        """Files by name; `_` in a name given as a keyword stays."""
        self.repositories.setdefault(repository, {}).update(files)
        self.storage.blobs |= {_digest(data): data for data in files.values()}

    def told(self, repository: str) -> dict[str, Any]:
        siblings = []
        for name, data in self.repositories[repository].items():
            item: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": "b" * 40}
            if name not in self.in_git:
                sha256 = hashlib.sha256(data).hexdigest()
                item["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 100}
            siblings.append(item)
        gated = "manual" if self.gated else False
        base = {"id": repository, "sha": REVISION, "gated": gated, "siblings": siblings}
        return base | self.info


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    with running_registry() as storage:
        hub = Hub(storage)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                authorization = self.headers.get("authorization")
                hub.seen.append((path, authorization))
                allowed = hub.token is None or authorization == f"Bearer {hub.token}"
                if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
                    if match[1] not in hub.repositories or not allowed:
                        return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
                    return self._send(200, json.dumps(hub.told(match[1])).encode())
                match = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{REVISION}/(.+)", path)
                data = hub.repositories.get(match[1], {}).get(match[2]) if match else None
                if data is None or not allowed:
                    return self._send(404, b"")
                location = f"{hub.storage.url}/v2/a/b/blobs/{_digest(data)}"
                self._send(302, b"", {"location": location.replace("127.0.0.1", "localhost")})

            def _send(
                self, status: int, body: bytes, headers: dict[str, str] | None = None
            ) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
