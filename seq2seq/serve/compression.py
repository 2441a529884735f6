"""Compressed bodies of requests."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from seq2seq.serve.errors import ApiError, invalid


class GzipBody:
    """Body of a request that arrives in pieces, compressed with gzip."""

    def __init__(self) -> None:
        self._decompressor, self._began = zlib.decompressobj(16 + zlib.MAX_WBITS), False

    def decompress(self, piece: bytes, last: bool, limit: int) -> bytes:
        """Return what a piece of the body expands to, at most `limit` + 1 bytes.

        last: True if no piece follows.
        Raises:
            ApiError: the body is not in gzip, or its end is missing.
        """
        self._began = self._began or bool(piece)
        try:
            expanded = self._decompressor.decompress(piece, limit + 1)
        except zlib.error as error:
            raise invalid(f"the body is not valid gzip ({error})") from None
        if len(expanded) <= limit:
            if self._decompressor.unused_data:
                raise invalid("the body has data after the end of its gzip data")
            if last and self._began and not self._decompressor.eof:
                raise invalid("the end of the body's gzip data is missing")
        return expanded


def decompressor(headers: Iterable[tuple[bytes, bytes]]) -> GzipBody | None:
    """Return the decompressor that a request's header `Content-Encoding` asks for; None if the body is not compressed.

    Raises:
        ApiError: the compression is not supported (status 415).
    """
    encoding = b", ".join(value for name, value in headers if name == b"content-encoding").decode("latin-1")
    if encoding.strip().lower() in ("", "identity"):
        return None
    if encoding.strip().lower() in ("gzip", "x-gzip"):
        return GzipBody()
    raise ApiError(415, f"the content encoding {encoding[:30]} is not supported. Send the body in gzip, or as it is",
                   {"Accept-Encoding": "gzip"})
