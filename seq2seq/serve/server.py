"""The running server: uvicorn, signals, and the check for models whose files changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from seq2seq.console import escape_control_characters
from seq2seq.errors import UserError
from seq2seq.serve.app import create_app
from seq2seq.serve.http_protocol import HttpProtocol
from seq2seq.serve.limits import Limits
from seq2seq.serve.service import Service
from seq2seq.serve.settings import Settings

logger = logging.getLogger("seq2seq.serve")

RELOAD_SECONDS = 5.0
"""Interval between two checks for models whose files changed."""
STOP_SECONDS = 60
"""Maximum time after a stop signal to finish the requests in progress."""
MAX_HEADER_BYTES = 512 * 1024
"""Maximum size of a request's first line and headers. It is large, because some clients send text in the query."""


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
