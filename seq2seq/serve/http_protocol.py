"""uvicorn's HTTP protocol, changed so that errors are JSON and silent connections are closed after a timeout."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 30
"""Time after which a connection is closed if its client has not sent a complete request head."""


class HttpProtocol(H11Protocol):
    """HTTP/1.1 on one connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:                # type: ignore[override]
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._limit_silence()

    def data_received(self, data: bytes) -> None:
        """Handle received data. If the request head is not complete yet, start the timeout for the rest of it."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._limit_silence()

    def send_400_response(self, msg: str) -> None:
        """Close a connection that received invalid HTTP. Unless a response has begun, send status 400 first."""
        # If a response has begun, h11 raises LocalProtocolError, which uvicorn's own method does not catch.
        with suppress(h11.LocalProtocolError):
            body = json.dumps({"error": "Invalid request: the request is not valid HTTP"}).encode()
            headers = [("content-type", "application/json"), ("connection", "close"),
                       ("content-length", str(len(body)))]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True                                      # drops the application's response
            self.cycle.message_event.set()
        self.transport.close()

    def _limit_silence(self) -> None:
        if self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(IDLE_SECONDS, self.timeout_keep_alive_handler)
