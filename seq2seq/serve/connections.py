"""Connections of the server: HTTP/1.1 with a deadline for each phase of a connection, and a maximum number of
connections, beyond which those that wait make room."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from seq2seq.serve.limits import network

logger = logging.getLogger("seq2seq.serve")

MAX_CONNECTIONS = 1_000
"""Maximum number of connections, if there are enough descriptors."""
ACCEPTED_AT_ONCE = 16
"""Number of connections that asyncio accepts in one iteration of the event loop, before it tells any protocol."""
RESERVED_DESCRIPTORS = 64 + 4 * ACCEPTED_AT_ONCE
"""Descriptors that are not for connections: files, and the connections that are accepted until others, which make room
for them, are closed, which takes up to 4 iterations of the event loop."""
MAX_HEADER_BYTES = 128 * 1024
"""Maximum size of a request's first line and headers. It is large, because some clients send text in the query: 5,000
characters of 4 bytes, percent-encoded, are 60 KB."""
RECEIVED_AT_ONCE = 16 * 1024
"""Maximum number of bytes that are taken from a connection before others have their turn: chunks of one byte take h11
20 ms."""
MAX_CHUNK_OVERHEAD = 16 * 1024
"""Maximum size of the framing of a chunked body, beyond a quarter of its contents."""
HEAD_SECONDS, BODY_SECONDS = 30, 60
"""Maximum time from the first byte of a request, or from the connection, until its head is complete, and from there
until its body is complete."""
WRITE_SECONDS = 30
"""Maximum time until a client has read some 64 KB of a response."""
LINGER_SECONDS = 5
"""Time for which the body of an answered request is still received, and ignored. If the connection were closed at
once, TCP would reset it, and the client might not see the answer."""
STOP_SECONDS = 10
"""Maximum time after a stop signal until a request's body is complete."""
WARNING_SECONDS = 60
"""Minimum time between two warnings about closed connections."""


class Phase(Enum):
    """Phases of a connection, which waits for a request's head, the rest of its body, the application, the client that
    reads the response, the next request, or the end of the connection."""

    HEAD = 1
    BODY = 2
    WORK = 3
    WRITING = 4
    IDLE = 5
    CLOSING = 6
    GONE = 7


CLOSED = (Phase.CLOSING, Phase.GONE)


class Room:
    """Connections of a server, of which there are at most `places`.

    If there is no place for a new connection, one that waits for its client is closed: the one that has waited longest
    among those of the network with the most of them, so that one client cannot drive out the others.
    """

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.places, self._clock = places, clock
        self._open: set[HttpProtocol] = set()
        self._waiting: dict[str, dict[HttpProtocol, None]] = {}
        self._closed, self._warned = 0, -float(WARNING_SECONDS)

    def place(self, connection: HttpProtocol, waits: bool) -> None:
        """Note that a connection is open, and whether it waits for its client."""
        self._open.add(connection)
        same = self._waiting.setdefault(connection.network, {})
        same.pop(connection, None)
        if waits:
            same[connection] = None
        elif not same:
            del self._waiting[connection.network]

    def remove(self, connection: HttpProtocol) -> None:
        if connection in self._open:
            self.place(connection, waits=False)
            self._open.remove(connection)

    def make(self) -> bool:
        """Make room for one more connection. Returns False if there is none, because no connection waits."""
        if len(self._open) < self.places:
            return True
        self._closed += 1
        if (now := self._clock()) - self._warned >= WARNING_SECONDS:
            logger.warning("%d connections were closed, because this server has at most %d. ulimit -n is the maximum "
                           "number of its files and connections", self._closed, self.places)
            self._closed, self._warned = 0, now
        if not self._waiting:
            return False
        largest = max(self._waiting.values(), key=len)
        next(iter(largest)).abort()
        return True


class _Transport:
    """Transport whose `close` calls `HttpProtocol.close`, for uvicorn, which closes transports itself."""

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        self._transport, self._protocol = transport, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._protocol.phase in CLOSED or self._transport.is_closing()

    def close(self) -> None:
        self._protocol.close()


class HttpProtocol(H11Protocol):
    """HTTP/1.1 on one connection. Unlike in uvicorn, errors are JSON, each phase has a deadline, and what follows a
    request before its response is dropped. uvicorn would stop reading then, and not see that the client has gone.

    room: all connections of the server.
    """

    def __init__(self, *arguments: Any, room: Room, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.room, self.network = room, ""
        self.phase = Phase.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._raw: asyncio.Transport
        self._received = self._contents = 0                 # bytes of the body with and without its framing

    def connection_made(self, transport: asyncio.Transport) -> None:                # type: ignore[override]
        """Make room for the connection, or refuse it."""
        self._raw = transport
        setattr(transport, "max_size", RECEIVED_AT_ONCE)    # noqa: B010           # asyncio's types lack it
        super().connection_made(_Transport(transport, self))                        # type: ignore[arg-type]
        self.network = network(self.client[0] if self.client else "")
        if self.room.make():
            self._enter(Phase.HEAD)
        else:
            self._refuse(503, "The server has too many connections. Try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout, and leave room for other connections."""
        self._enter(Phase.GONE)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase in CLOSED:
            return
        if self.phase in (Phase.WORK, Phase.WRITING) and self.conn.their_state is not h11.SEND_BODY:
            self.cycle.keep_alive = False
            return
        cycle, before = self.cycle, len(self.cycle.body) if self.cycle else 0
        super().data_received(data)
        if self.cycle is cycle and self.phase is Phase.BODY:
            self._contents += len(self.cycle.body) - before
            self._received += len(data)
            if self._received - self._contents > MAX_CHUNK_OVERHEAD + self._contents // 4:
                self._refuse(400, "Invalid request: the chunks of the body are too small")
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request. If the body of this one is incomplete, close the connection."""
        if self.conn.their_state is h11.SEND_BODY:
            self.close()
        super().on_response_complete()
        self._enter(Phase.IDLE)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        super().pause_writing()
        self._enter(Phase.WRITING)

    def resume_writing(self) -> None:
        """Stop the timeout for a client that does not read its response."""
        super().resume_writing()
        if self.phase is Phase.WRITING:
            self._follow()

    def shutdown(self) -> None:
        """Close the connection, or finish its request."""
        super().shutdown()
        if self.phase is Phase.BODY:
            self._start(STOP_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Close a connection that received invalid HTTP. Unless a response has begun, send an error first."""
        if len(self.conn.trailing_data[0]) > MAX_HEADER_BYTES:
            self._refuse(431, f"Invalid request: the request's head is larger than {MAX_HEADER_BYTES:,} bytes")
        else:
            self._refuse(400, "Invalid request: the request is not valid HTTP")

    def close(self) -> None:
        """Close the connection when all is sent. If the client still sends, ignore that first for LINGER_SECONDS."""
        if self.phase in CLOSED:
            return
        if self.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            self._enter(Phase.CLOSING)
            self._start(LINGER_SECONDS)
            try:
                self._raw.write_eof()
            except OSError:                                                         # the client has gone
                self.abort()
            self.flow.resume_reading()
            return
        self._raw.close()
        self._enter(Phase.CLOSING if self._raw.get_write_buffer_size() else Phase.GONE)

    def abort(self) -> None:
        """Close the connection, and drop what is not sent."""
        self._enter(Phase.GONE)
        self._raw.abort()

    def _follow(self) -> None:
        """Enter the phase that follows from the state of the request, unless the connection is being closed."""
        if self.phase in CLOSED:
            return
        if self.conn.their_state is h11.IDLE:
            self._enter(Phase.HEAD)
        elif self.conn.their_state is h11.SEND_BODY:
            self._enter(Phase.BODY)
        elif not self.cycle.response_complete:
            if self.flow.read_paused:                                               # by h11, or by a large body
                self.cycle.keep_alive = self.cycle.keep_alive and not self.conn.trailing_data[0]
                self.flow.resume_reading()
            self._enter(Phase.WORK)

    def _enter(self, phase: Phase) -> None:
        if phase is self.phase or self.phase is Phase.GONE or self.phase is Phase.CLOSING and phase is not Phase.GONE:
            return
        self.phase = phase
        if phase is Phase.GONE:
            self.room.remove(self)
        else:
            self.room.place(self, waits=phase is not Phase.WORK)
        if phase is Phase.BODY:
            self._received = self._contents = 0
        # While a connection is idle, uvicorn's own timeout runs.
        self._start({Phase.HEAD: HEAD_SECONDS, Phase.BODY: BODY_SECONDS, Phase.WRITING: WRITE_SECONDS,
                     Phase.CLOSING: WRITE_SECONDS}.get(phase))

    def _start(self, seconds: float | None) -> None:
        """Start the timeout of this phase, instead of the one that runs. None: this phase has none."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.phase is Phase.HEAD:
            self.close()
        elif self.phase is Phase.BODY:
            self._refuse(408, "Invalid request: the request's body did not arrive in time")
        else:
            self.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, unless a response has begun, and close the connection."""
        # If a response has begun, h11 raises LocalProtocolError.
        with contextlib.suppress(h11.LocalProtocolError):
            body = json.dumps({"error": message}).encode()
            headers = [("content-type", "application/json"), ("connection", "close"),
                       ("content-length", str(len(body)))]
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self._raw.write(self.conn.send(event) or b"")
            logger.info("%s %d %s", self.network, status, message)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True                                      # drops the application's response
            self.cycle.message_event.set()
        self.close()
