"""Who may call: which Host names a loopback daemon answers to, which web origins may use it, CORS headers.

Plain functions over header values; knows nothing of ASGI or routes.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_LOCAL_ORIGIN_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")
_APP_SCHEMES = ("app", "capacitor", "file", "tauri", "vscode-webview", "vscode-file")
ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
ALLOWED_HEADERS = (
    "Authorization, Content-Type, User-Agent, Accept, X-Requested-With, x-api-key, "
    "anthropic-version, anthropic-beta, OpenAI-Beta"
)
_EXPOSED = "x-request-id, request-id, retry-after, x-emberd-ignored, x-emberd-truncated"
_MIRRORED_HEADER = re.compile(r"[A-Za-z0-9\-]{1,64}")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_allowed(header: str, allowed_names: Iterable[str] = ()) -> bool:
    """Whether a Host header may reach a daemon bound to loopback (against DNS rebinding)."""
    name = _host_name(header)
    if name is None:
        return False
    if name == "":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        known = {"localhost", socket.gethostname().lower(), *(n.lower() for n in allowed_names)}
        return name in known or name.endswith(_LOCAL_SUFFIXES)
    return address.is_loopback or address.is_private or address.is_unspecified


def origin_allowed(origin: str, host: str, patterns: Iterable[str] = ()) -> bool:
    """Whether a page of `origin` may use the API.

    Local pages, desktop apps, the daemon's own pages (`host` is the Host header) and the settings' patterns,
    in which * stands for any text.
    """
    if any(_matches(pattern, origin) for pattern in patterns):
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme in _APP_SCHEMES:
        return True
    if parts.scheme not in ("http", "https"):
        return False
    return name in _LOCAL_ORIGIN_HOSTS or parts.netloc.lower() == host.lower()


def cors_headers(origin: str) -> list[tuple[str, str]]:
    """For every answer to an allowed origin."""
    return [
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", _EXPOSED),
        ("vary", "Origin"),
    ]


def preflight_headers(requested: str, private_network: bool) -> list[tuple[str, str]]:
    """More of them for a preflight; `requested` is its Access-Control-Request-Headers."""
    mirrored = [
        name for part in requested.split(",") if _MIRRORED_HEADER.fullmatch(name := part.strip())
    ]
    headers = [
        ("access-control-allow-methods", ALLOWED_METHODS),
        ("access-control-allow-headers", ", ".join(mirrored) or ALLOWED_HEADERS),
        ("access-control-max-age", "600"),
    ]
    if private_network:
        headers.append(("access-control-allow-private-network", "true"))
    return headers


def _host_name(header: str) -> str | None:
    """The lower-case name in a Host header; None where it is not a name and port."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]/@\s]*)(:\d*)?", header.strip())
    return match[1].strip("[]").rstrip(".").lower() if match else None


def _matches(pattern: str, origin: str) -> bool:
    parts = (re.escape(part) for part in pattern.rstrip("/").split("*"))
    return re.fullmatch(".*".join(parts), origin, re.IGNORECASE) is not None
