"""Compressed request bodies: gzip and zstd, never more plain bytes than a limit allows.

Knows no request.
"""

from __future__ import annotations

import sys
import zlib
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from ..errors import BadRequestError, EmberdError

_MAX_WINDOW_LOG = 23  # 8 MiB, which RFC 9659 lets HTTP senders use; a frame may ask for gigabytes


class BodyTooLargeError(EmberdError):
    """The body is longer than the setting allows (413)."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the request body is larger than {limit} bytes; raise EMBERD_MAX_BODY to allow it"
        )


class _Decoder(Protocol):
    """One gzip member or one zstd frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def decompress(raw: bytes, encoding: str, limit: int) -> bytes:
    """`raw` as it was before `encoding`, a content-encoding. Raises BadRequestError, BodyTooLargeError."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return raw
    if name not in ("gzip", "x-gzip", "zstd"):
        raise BadRequestError(
            f"content-encoding '{encoding:.64}' is not supported; send gzip, zstd or none",
            "content-encoding",
        )
    parts, room = [], limit + 1
    while raw:
        decoder = _decoder(name)
        try:
            parts.append(decoder.decompress(raw, room))
        except (zlib.error, zstd.ZstdError) as error:
            raise BadRequestError(f"the request body is not valid {name}: {error}") from None
        room -= len(parts[-1])
        if room <= 0:
            raise BodyTooLargeError(limit)
        if not decoder.eof:
            raise BadRequestError(f"the request body's {name} data is cut short")
        raw = decoder.unused_data
    return b"".join(parts)


def _decoder(name: str) -> _Decoder:
    if name == "zstd":
        return zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        )
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
