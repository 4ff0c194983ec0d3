"""A registry as Ollama's, on a free port, with the faults that K32 names."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ollama_layout import layers_of

_PATH = re.compile(r"/v2/([\w.-]+/[\w.-]+)/(manifests|blobs)/([\w.:-]+)")
PIECE = 64 << 10


@dataclass
class Registry:
    """`requests` are blobs asked for: (digest, Range header). Faults hold for the largest blob."""

    url: str = ""
    manifests: dict[str, Any] = field(default_factory=dict)  # "namespace/model:tag"
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)  # method and path of everything
    cut: float | None = None  # the next answer ends after this share of its bytes
    ignores_range: bool = False
    gate: threading.Event = field(default_factory=threading.Event)  # the second half waits for it
    wrong: dict[str, bytes] = field(default_factory=dict)  # what is sent instead, by digest
    status: int | None = None  # of all answers about blobs
    redirect: str | None = None  # to this base
    authorizations: set[str | None] = field(default_factory=set)  # that came with requests

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def add(self, name: str, model: bytes, **texts: Any) -> str:
        """`name` as namespace/model:tag; gives the digest of the weights."""
        manifest, blobs = layers_of(model, texts)
        self.manifests[name] = manifest
        self.blobs |= blobs
        digest: str = manifest["layers"][0]["digest"]
        return digest

    def num_weights(self) -> int:
        largest = max(self.blobs, key=lambda digest: len(self.blobs[digest]))
        return sum(digest == largest for digest, _ in self.requests)


@contextlib.contextmanager
def running_registry() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append((self.command, self.path))
            registry.authorizations.add(self.headers.get("authorization"))
            match = _PATH.fullmatch(self.path)
            if match is None:
                return self._send(404, b"{}")
            repository, kind, which = match.groups()
            if kind == "manifests":
                manifest = registry.manifests.get(f"{repository}:{which}")
                if manifest is None:
                    return self._send(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
                raw = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
                return self._send(200, raw)
            self._blob(which)

        def _blob(self, digest: str) -> None:
            wanted = self.headers.get("range")
            registry.requests.append((digest, wanted))
            if registry.status is not None:
                return self._send(registry.status, b"no")
            if registry.redirect is not None:
                self.send_response(307)
                self.send_header("location", registry.redirect + self.path)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            data = registry.wrong.get(digest, registry.blobs.get(digest))
            if data is None:
                return self._send(404, b"")
            start = 0
            if wanted is not None and not registry.ignores_range:
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start >= len(data) > 0:
                return self._send(416, b"")
            is_large = len(data) == max(map(len, registry.blobs.values()))
            self.send_response(206 if start else 200)
            if start:
                self.send_header("content-range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("content-length", str(len(data) - start))
            self.end_headers()
            end = len(data)
            if is_large and registry.cut is not None:
                end, registry.cut = start + int((end - start) * registry.cut), None
                self.close_connection = True
            middle = (start + end) // 2 if is_large else end
            for first in range(start, end, PIECE):
                if first >= middle:
                    registry.gate.wait(20)
                with contextlib.suppress(OSError):
                    self.wfile.write(data[first : min(end, first + PIECE)])

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        registry.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
