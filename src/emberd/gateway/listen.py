"""Where the daemon listens: TCP sockets or a Unix socket, and who may be let in there.

Knows no HTTP.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from ..config import Config
from ..errors import ConfigError
from .security import is_loopback

BACKLOG = 2048


def refuse_open_door(config: Config) -> None:
    """Raises ConfigError where other machines could call without a key and nobody said that they may."""
    local = config.socket is not None or is_loopback(config.host)
    if not local and not config.insecure and not config.keys():
        raise ConfigError(
            f"listening on {config.host} lets other machines in, and there is no API key: set EMBERD_API_KEYS or "
            "--api-key-file, listen on 127.0.0.1, or say --insecure"
        )


@contextlib.contextmanager
def listening(config: Config) -> Iterator[list[socket.socket]]:
    """The sockets that the settings ask for. A Unix socket's file goes at the end. Raises ConfigError."""
    if config.socket is None:
        yield open_sockets(config.host, config.port)
        return
    listener = open_unix_socket(config.socket)
    made = os.stat(config.socket)
    try:
        yield [listener]
    finally:
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(made, os.stat(config.socket)):  # else another daemon's by now
                config.socket.unlink()


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets. For IPv4 loopback also ::1 with the same port: `localhost` may mean either."""
    host = host.strip("[]")
    sockets = [_listen(host, port)]
    if host.lower() == "localhost" or (is_loopback(host) and ":" not in host):
        first_is_ipv6 = sockets[0].family == socket.AF_INET6
        try:
            sockets.append(
                _listen("127.0.0.1" if first_is_ipv6 else "::1", sockets[0].getsockname()[1])
            )
        except (ConfigError, OSError):
            pass  # no IPv6 here, or somebody else's: the address asked for is served
    return sockets


def open_unix_socket(path: Path) -> socket.socket:
    """A listening socket that its owner alone may connect to. One that a dead daemon left is replaced."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("this system has no Unix sockets; use --host and --port")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)  # no moment in which others may connect
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
    except ConfigError:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"cannot listen on {path}: something that is no socket is there")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise ConfigError(
        f"cannot listen on {path}: another program listens there; stop it, or choose another path"
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = "; another program listens there: stop it, or choose another port with --port"
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}{hint}"
        ) from None
    return listener
