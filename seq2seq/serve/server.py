"""The running server: uvicorn, its HTTP protocol, signals, and the check for models whose files changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from seq2seq.console import escape_control_characters
from seq2seq.errors import UserError
from seq2seq.serve.api import Settings
from seq2seq.serve.app import create_app
from seq2seq.serve.limits import Limits
from seq2seq.serve.service import Service

logger = logging.getLogger("seq2seq.serve")

RELOAD_SECONDS = 5.0
"""Interval between two checks for models whose files changed."""
STOP_SECONDS = 60
"""Maximum time after a stop signal to finish the requests in progress."""
MAX_HEADER_BYTES = 512 * 1024
"""Maximum size of a request's first line and headers. It is large, because some clients send text in the query."""
IDLE_SECONDS = 30
"""Time after which a connection is closed if its client has not sent a complete request head."""


def application(service: Service, limits: Limits, settings: Settings, reload_seconds: float = RELOAD_SECONDS,
                ) -> ASGIApp:
    """Return the application. It reloads models whose files change; on SIGHUP, it reloads all models."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        reload = asyncio.Event()
        with contextlib.suppress(ValueError, RuntimeError, AttributeError):     # not the main thread, or Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
        watcher = asyncio.create_task(_keep_models_current(service, reload, reload_seconds))
        try:
            yield
        finally:
            watcher.cancel()
            await asyncio.to_thread(service.scheduler.close)

    return create_app(service, limits, settings, lifespan)


async def _keep_models_current(service: Service, reload: asyncio.Event, seconds: float) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await reload.wait()
        asked = reload.is_set()
        reload.clear()
        for message in await asyncio.to_thread(service.models.reload, changed_only=not asked):
            logger.info("%s", escape_control_characters(message))
            service.metrics.count_reload()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address.

    Raises:
        UserError: the address is in use, does not belong to this machine, or is not permitted.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Nagle's algorithm delays each response by 40 ms. asyncio turns it off only if the protocol is IPPROTO_TCP.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        raise UserError(f"The server cannot listen on {host}:{port}: {error.strerror}. Choose another --host or "
                        "--port.") from error
    return listening


class HttpProtocol(H11Protocol):
    """HTTP/1.1 on one connection. Unlike in uvicorn, errors are JSON, and silent connections are closed."""

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
        with contextlib.suppress(h11.LocalProtocolError):
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


def create_server(app: ASGIApp) -> uvicorn.Server:
    """Return a uvicorn server with the settings that this application needs."""
    return uvicorn.Server(uvicorn.Config(
        app, http=HttpProtocol, ws="none", log_config=None, access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=STOP_SECONDS, h11_max_incomplete_event_size=MAX_HEADER_BYTES))


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT. Then finish the requests in progress and return.

    Raises:
        KeyboardInterrupt: SIGINT stopped the server.
    """
    # After it has stopped, uvicorn raises the signal again. Without this handler, SIGTERM would end the process.
    previous = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        create_server(app).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, previous)


def log_to_standard_error() -> None:
    """Send the log messages of the server and of uvicorn to standard error, each with its time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.getLogger("seq2seq.serve").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)               # it warns about malformed forms
    for name in ("seq2seq.serve", "uvicorn"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False
