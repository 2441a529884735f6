"""Connections of the server: a deadline for each phase of a connection, and a maximum number of connections, beyond
which those that wait make room.

`Connection` stands between asyncio and uvicorn's protocol, and knows no HTTP. `Phases`, the outermost middleware, tells
it how far a request has come. They find each other through the state in ASGI's scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus

from h11 import LocalProtocolError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq.serve.limits import network

logger = logging.getLogger("seq2seq.serve")

MAX_CONNECTIONS = 1_000
"""Maximum number of connections, if there are enough descriptors."""
ACCEPTED_AT_ONCE = 16
"""Number of connections that asyncio accepts in one iteration of the event loop, before it tells any protocol."""
RESERVED_DESCRIPTORS = 64 + 4 * ACCEPTED_AT_ONCE
"""Descriptors that are not for connections: files, and the connections that are accepted until others, which make room
for them, are closed, which takes up to 4 iterations of the event loop."""
RECEIVED_AT_ONCE = 16 * 1024
"""Maximum number of bytes that are taken from a connection before others have their turn: chunks of one byte take h11
20 ms."""
MAX_OVERHEAD = 192 * 1024
"""Maximum number of bytes of a request that are not contents, beyond a quarter of the contents: its head, the framing
of chunks, and what uvicorn has not passed on yet (at most 80 KB). It is large, because some clients send text in the
query: 5,000 characters of 4 bytes, percent-encoded, are 60 KB."""
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
STATE = "connection"
"""Name of the connection in the state of a request's scope."""


class Phase(Enum):
    """Event that a connection waits for: a request's head, its body, the application, or, after an answer before the
    end of the body, that the client closes it."""

    HEAD = 1
    BODY = 2
    WORK = 3
    LINGER = 4


class Room:
    """Connections of a server, of which there are at most `places`.

    If there is no place for a new connection, one that waits for its client is closed: the one that has waited longest
    among those of the network with the most of them, so that one client cannot drive out the others.
    """

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.places, self._clock = places, clock
        self._open: set[Connection] = set()
        self._waiting: dict[str, dict[Connection, None]] = {}
        self._closed, self._warned = 0, -float(WARNING_SECONDS)

    def place(self, connection: Connection, waits: bool) -> None:
        """Note that a connection is open, and whether it waits for its client."""
        self._open.add(connection)
        same = self._waiting.setdefault(connection.network, {})
        same.pop(connection, None)
        if waits:
            same[connection] = None
        elif not same:
            del self._waiting[connection.network]

    def remove(self, connection: Connection) -> None:
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

    def hurry(self) -> None:
        """Allow requests whose body is incomplete STOP_SECONDS more."""
        for connection in self._open:
            if connection.phase is Phase.BODY:
                connection.wait(STOP_SECONDS)


class Connection(asyncio.BufferedProtocol):
    """One connection, whose bytes the protocol of an HTTP server reads and writes.

    In WORK, what is received is dropped, and the connection is closed after the answer. A server that stopped reading
    would not see that the client has gone, and one that went on reading would have to keep it.

    room: all connections of the server. make: function that returns the protocol of the HTTP server.
    """

    def __init__(self, room: Room, make: Callable[[Connection], asyncio.Protocol]) -> None:
        self.room, self._http = room, make(self)
        self.network, self.phase = "", Phase.HEAD
        self.received = self.contents = 0                       # bytes of the request, and those of its contents
        self.gone = asyncio.Event()
        self._buffer = bytearray(RECEIVED_AT_ONCE)
        self._followed = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    @property
    def closing(self) -> bool:
        """True if the server, or uvicorn, has closed the connection."""
        return self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room for the connection, or refuse it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.network = network(str(peer[0]) if peer else "")
        self._http.connection_made(transport)
        if self.room.make():
            self.enter(Phase.HEAD)
        else:
            self._write_error(503, "The server has too many connections. Try again later")
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout, and leave room for other connections."""
        self.wait(None)
        self.room.remove(self)
        self._http.connection_lost(exc)
        self.gone.set()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.phase is Phase.WORK:
            self._followed = True
        elif self.phase is not Phase.LINGER:
            if self.received - self.contents > MAX_OVERHEAD + self.contents // 4:
                self._refuse(400, "the head is too large, or the chunks of the body are too small")
                return
            self.received += nbytes
            try:
                self._http.data_received(bytes(self._buffer[:nbytes]))
            except LocalProtocolError:                          # uvicorn's answer to what is not valid HTTP after HEAD
                self.abort()

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        self._http.pause_writing()
        self.room.place(self, waits=True)
        self.wait(WRITE_SECONDS)

    def resume_writing(self) -> None:
        """Stop the timeout for a client that does not read its response."""
        self._http.resume_writing()
        self.enter(self.phase)

    def enter(self, phase: Phase) -> None:
        """Enter a phase, which begins with its deadline."""
        if self.gone.is_set():
            return
        self.phase = phase
        self.room.place(self, waits=phase is not Phase.WORK)
        self.wait({Phase.HEAD: HEAD_SECONDS, Phase.BODY: BODY_SECONDS, Phase.LINGER: LINGER_SECONDS}.get(phase))

    def wait(self, seconds: float | None) -> None:
        """Start the timeout of this phase, instead of the one that runs. None: this phase has none."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._expire)

    def work(self) -> None:
        """The request is complete."""
        self.enter(Phase.WORK)
        self._transport.resume_reading()                        # uvicorn pauses it if more than the request has come

    def end(self) -> None:
        """The answer is complete. Wait for the next request."""
        if self._followed:
            self._transport.close()
        self.received = self.contents = 0
        self.enter(Phase.HEAD)

    def linger(self) -> None:
        """Send nothing more, and close the connection when the client has closed it, or after LINGER_SECONDS."""
        self.enter(Phase.LINGER)
        with contextlib.suppress(OSError):                      # the client has gone
            self._transport.write_eof()
        self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection, and drop what is not sent."""
        self.room.remove(self)
        self._transport.abort()

    def _expire(self) -> None:
        if self.phase is Phase.BODY and not self.closing:
            self._refuse(408, "the request's body did not arrive in time")
        else:
            self.abort()

    def _refuse(self, status: int, problem: str) -> None:
        self._write_error(status, f"Invalid request: {problem}")
        self.linger()

    def _write_error(self, status: int, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self._transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
                              f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        logger.info("%s %d %s", self.network, status, message)


class Phases:
    """Middleware that tells connections the phases of their requests.

    An answer before the end of a request's body is sent, but not completed, so that uvicorn leaves the connection open;
    then the connection lingers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        connection: Connection = scope["state"].pop(STATE)
        complete = False
        if any(name == b"transfer-encoding" or name == b"content-length" and value.strip(b" 0")
               for name, value in scope["headers"]):
            connection.enter(Phase.BODY)
        else:
            connection.work()

        async def receiving() -> Message:
            message = await receive()
            if connection.phase is Phase.LINGER:                # the request was refused meanwhile
                return {"type": "http.disconnect"}
            connection.contents += len(message.get("body", b""))
            if connection.phase is Phase.BODY and not message.get("more_body", False):
                connection.work()
            return message

        async def sending(message: Message) -> None:
            nonlocal complete
            # Closing: what followed the head is not valid HTTP.
            if connection.closing or connection.phase is Phase.LINGER:
                return
            early, last = connection.phase is Phase.BODY, False
            if message["type"] == "http.response.body":
                last = not message.get("more_body", False)
                message = {**message, "more_body": early or not last}
            elif early:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)
            if last and early:
                connection.linger()
            elif last:
                complete = True
                connection.end()

        await self.app(scope, receiving, sending)
        if not complete:                                        # and will not be; uvicorn is to know that
            connection.enter(Phase.LINGER)
            await connection.gone.wait()


def protocol(room: Room, http: Callable[..., asyncio.Protocol]) -> Callable[..., Connection]:
    """Return the class for `uvicorn.Config.http` whose connections are in `room`.

    http: a protocol of uvicorn.
    """

    return lambda app_state, **arguments: Connection(
        room, lambda connection: http(app_state={**app_state, STATE: connection}, **arguments))
