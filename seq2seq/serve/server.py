"""The running server: uvicorn, its settings, signals, the log, and the check for models whose files changed."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from seq2seq.console import escape_control_characters
from seq2seq.errors import UserError
from seq2seq.serve.api import Settings
from seq2seq.serve.app import REQUEST_FIELDS, create_app
from seq2seq.serve.connections import (
    ACCEPTED_AT_ONCE,
    MAX_CONNECTIONS,
    MAX_OVERHEAD,
    RECEIVED_AT_ONCE,
    RESERVED_DESCRIPTORS,
    Phases,
    Room,
    protocol,
)
from seq2seq.serve.limits import Limits
from seq2seq.serve.service import Service

logger = logging.getLogger("seq2seq.serve")

RELOAD_SECONDS = 5.0
"""Interval between two checks for models whose files changed."""
STOP_SECONDS = 50
"""Maximum time after a stop signal to finish the requests in progress. Then the others are answered with an error."""
LISTEN_BACKLOG = 2048
"""Number of connections that wait in the kernel until the server accepts them."""
SWITCH_SECONDS = 0.0005
"""Time after which a thread that runs Python code gives way to another. With Python's default, a thread that parses a
large document delays each step of the event loop and of the model thread by 5 ms."""

_PREFIX = re.compile(r"(?:/[\w.~!$&'()*+;=:@%-]++)*+", re.ASCII)
"""Prefix of a path, without a slash at its end."""


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
            await asyncio.to_thread(service.workers.close)

    return create_app(service, limits, settings, lifespan)


async def _keep_models_current(service: Service, reload: asyncio.Event, seconds: float) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await reload.wait()
        asked = reload.is_set()
        reload.clear()
        # Always in the same idle thread of asyncio's executor: the C library keeps the freed memory of each thread.
        reloaded = await asyncio.to_thread(service.models.reload, changed_only=not asked)
        for message, succeeded in reloaded.items():
            logger.log(logging.INFO if succeeded else logging.ERROR, "%s", message)
            service.metrics.count_reload(succeeded)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address."""
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


class _Server(uvicorn.Server):
    """uvicorn, with a longer queue of connections than the number that it accepts at once, and with less time for the
    bodies of requests after a stop signal."""

    def __init__(self, config: uvicorn.Config, room: Room) -> None:
        super().__init__(config)
        self._room = room

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(LISTEN_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests in progress."""
        self._room.hurry()
        await super().shutdown(sockets)


class _Proxied(ProxyHeadersMiddleware):
    """Middleware that believes the headers X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Prefix of proxies."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (scope.get("client") or ("",))[0] in self.trusted_hosts:
            # Each of several proxies in a row adds the prefix that it removes.
            values = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-prefix")
            parts = [part.strip().rstrip("/") for part in values.decode("latin-1").split(",")]
            if all(_PREFIX.fullmatch(part) for part in parts):
                scope = {**scope, "root_path": "".join(parts), "path": "".join(parts) + scope["path"]}
        await super().__call__(scope, receive, send)


def create_server(app: ASGIApp, trusted_proxies: Sequence[str] = ()) -> uvicorn.Server:
    """Return a uvicorn server with the settings that this application needs.

    trusted_proxies: addresses or networks of proxies whose headers are believed (see `_Proxied`).
    """
    if trusted_proxies:
        app = _Proxied(app, list(trusted_proxies))                              # type: ignore[arg-type]
    room = Room(max(ACCEPTED_AT_ONCE, min(MAX_CONNECTIONS, _raise_descriptor_limit() - RESERVED_DESCRIPTORS)))
    return _Server(uvicorn.Config(
        Phases(app), http=protocol(room, H11Protocol), ws="none", log_config=None,              # type: ignore[arg-type]
        access_log=False, server_header=False, lifespan="on", timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=MAX_OVERHEAD + 2 * RECEIVED_AT_ONCE,
        backlog=ACCEPTED_AT_ONCE, proxy_headers=False), room)


def proxy_networks(addresses: Sequence[str]) -> list[str]:
    """Return the values of `--trusted-proxy` as networks, those of IPv4 also as IPv6 sockets see them."""
    networks = []
    for address in addresses:
        try:
            parsed = ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise UserError(f"--trusted-proxy {address}: expected the address or the network of a proxy, such as "
                            "127.0.0.1 or 10.0.0.0/8.") from None
        networks.append(str(parsed))
        if parsed.version == 4:
            networks.append(f"::ffff:{parsed.network_address}/{96 + parsed.prefixlen}")
    return networks


def _raise_descriptor_limit() -> int:
    """Raise the process's limit of descriptors to what this server needs, if that is permitted, and return it."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    import resource

    wanted = MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def serve(app: ASGIApp, listening: socket.socket, trusted_proxies: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT. Then finish the requests in progress and return.

    Raises:
        KeyboardInterrupt: SIGINT stopped the server.
    """
    # After it has stopped, uvicorn raises the signal again. Without this handler, SIGTERM would end the process.
    previous = signal.signal(signal.SIGTERM, lambda number, frame: None)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        create_server(app, trusted_proxies).run(sockets=[listening])
    finally:
        logger.info("the server has stopped")
        signal.signal(signal.SIGTERM, previous)


class _Formatter(logging.Formatter):
    """Format with escaped control characters, in which only the first line of a message begins at the margin: neither a
    header nor a name in a message can control a terminal or look like another message."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control_characters(super().format(record)).replace("\n", "\n    ")


class _JsonFormatter(logging.Formatter):
    """Format with a JSON object per message. That of an answered request also has its fields (REQUEST_FIELDS)."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, "level": record.levelname, "message": record.getMessage(),
                           **getattr(record, REQUEST_FIELDS, {})}, ensure_ascii=True)


def log_to_standard_error(as_json: bool = False) -> None:
    """Send the log messages of the server and of uvicorn to standard error, each with its time.

    as_json: True for a JSON object per message instead of text.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else
                         _Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.getLogger("seq2seq.serve").setLevel(logging.INFO)
    # uvicorn's warnings are about malformed requests, as are those of python_multipart. This server logs them itself.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.captureWarnings(True)
    for name in ("seq2seq.serve", "uvicorn", "asyncio", "py.warnings"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False
