"""The ASGI application: routes, the web page for translation, cross-origin requests, error responses, the size limit of
requests, and the log."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from seq2seq.serve.api import CLIENT, PATH_HEADER, Api, Settings
from seq2seq.serve.compression import decompressor
from seq2seq.serve.deepl import DeepLApi, is_deepl
from seq2seq.serve.documentation import documentation_routes
from seq2seq.serve.errors import ApiError, SlowdownError, traceback_of
from seq2seq.serve.limits import Limits, network
from seq2seq.serve.parameters import key_in_head
from seq2seq.serve.quotas import Held
from seq2seq.serve.service import Service
from seq2seq.serve.threads import in_thread

logger = logging.getLogger("seq2seq.serve")

SMALL_BODY = 64 * 2**10
"""Size of the body up to which a request is never refused for lack of memory: the number of connections bounds it."""
BODY_BYTES, CLIENT_BODY_BYTES = 128 * 2**20, 32 * 2**20
"""Maximum size of what the bodies of all requests in work have beyond SMALL_BODY, and of those of one client."""
ANSWER_PIECE = 64 * 2**10
"""Size of the pieces in which an answer is sent, in bytes."""
MAX_LOGGED = 64
"""Maximum number of characters of an address or method in the log."""
REQUEST_FIELDS = "request"
"""Attribute of a log record with the fields of an answered request."""
UNKNOWN_ENDPOINT = "other"
"""Name under which the metrics count all requests whose path is not an endpoint."""
FOLDER = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
               ".svg": "image/svg+xml"}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers of all files of the page. With no-cache, browsers keep a file, but check by ETag at each visit if it has
changed."""


def create_app(service: Service, limits: Limits | None = None, settings: Settings | None = None,
               lifespan: Lifespan[Starlette] | None = None) -> ASGIApp:
    """Return the application that serves the models of `service`.

    lifespan: context manager that Starlette enters when the application starts, and exits when the application stops.
    """
    settings = settings or Settings()
    api = Api(service, limits or Limits(), settings)
    endpoints = [*api.endpoints(), *DeepLApi(api).endpoints()]
    routes = [*map(api.route, endpoints), *documentation_routes(service, endpoints), *page_routes()]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"],
                       expose_headers=[PATH_HEADER]),
            Middleware(_Guard, service=service, limits=api.limits, settings=settings,
                       routes=routes),
        ],
        lifespan=lifespan,
        exception_handlers={ApiError: _answer_api_error, HTTPException: _answer_http_error},
    )


def page_routes() -> list[Route]:
    """Read all files of the page and return their routes, so that no request can choose a path on the disk."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES)
    return [_route("/" if path.name == "index.html" else f"/page/{path.name}", path) for path in files]


def _route(address: str, path: Path) -> Route:
    content = path.read_bytes()
    headers = {**PAGE_HEADERS, "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def send(request: Request) -> Response:
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if headers["ETag"] in known:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=MEDIA_TYPES[path.suffix])

    return Route(address, send)


def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(request.scope, error.status, error.message, error.headers)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(request.scope, error.status_code, error.detail, error.headers)


def _error(scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    # Clients of DeepL read the key `message`.
    return JSONResponse({"error": message, **({"message": message} if is_deepl(path_of(scope)) else {})}, status,
                        headers)


def path_of(scope: Scope) -> str:
    """Return the path of a request, without the prefix under which a proxy serves this server."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


class _Guard:
    """Middleware that checks the keys in the heads of requests, limits the size of their bodies, answers unexpected
    errors, sends long answers in pieces, and counts and logs all requests."""

    def __init__(self, app: ASGIApp, service: Service, limits: Limits, settings: Settings, routes: Sequence[Route],
                 ) -> None:
        self.app, self.service, self.limits, self.settings = app, service, limits, settings
        self.routes, self.memory = routes, Held(CLIENT_BODY_BYTES, BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, received, held, gzip = time.monotonic(), 0, 0, 0, None
        path = path_of(scope)
        address = (scope.get("client") or ("-",))[0]
        # All requests whose key is not known yet have one share of the memory, if the server requires a key.
        holder = "" if self.limits.key_required else network(address)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            # uvicorn waits before a message until the client has read most of the messages before it.
            body, more = message.get("body", b""), message.get("more_body", False)
            for place in range(0, max(1, len(body)), ANSWER_PIECE):
                end = place + ANSWER_PIECE
                await send({**message, "body": body[place:end], "more_body": more or end < len(body)}
                           if len(body) > ANSWER_PIECE else message)

        async def receiving() -> Message:
            nonlocal received, held
            message = await receive()
            if gzip is not None and message["type"] == "http.request":
                piece, last = message["body"], not message.get("more_body", False)
                limit = self.settings.max_request_bytes - received
                message["body"] = await in_thread(lambda: gzip.decompress(piece, last, limit), large=False)
            received += len(message.get("body", b""))
            if received > self.settings.max_request_bytes:
                raise self._too_large()
            if grown := max(0, received - SMALL_BODY) - held:
                if not self.memory.take(holder, grown):
                    raise SlowdownError("too many large requests are in work. Try again later", 5)
                held += grown
            return message

        try:
            try:
                for name, value in scope["headers"]:
                    if name == b"content-length" and value.isdigit() and int(
                            value[:20]) > self.settings.max_request_bytes:
                        raise self._too_large()
                gzip = decompressor(scope["headers"])
                checks_key = self.limits.keys and (scope["method"] == "POST" or is_deepl(path) or
                                                   path == "/glossaries")
                if checks_key and (key := key_in_head(scope)):
                    scope[CLIENT] = holder = await self.limits.identify(key, address)
                await self.app(scope, receiving, sending)
            except ApiError as error:
                await _answer_api_error(Request(scope), error)(scope, receive, sending)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            logger.error("%s", traceback_of(error, self.settings.log_text))
            if not status:
                await _error(scope, 500, "internal error")(scope, receive, sending)
        finally:
            self.memory.give_back(holder, held)
        seconds = time.monotonic() - began
        route = next((route.path for route in self.routes if route.path_regex.match(path)), UNKNOWN_ENDPOINT)
        endpoint = route.partition("/{")[0]
        self.service.metrics.count_request(endpoint, status, seconds)
        if endpoint not in ("/health", "/metrics"):
            fields = {"client": address[:MAX_LOGGED], "method": scope["method"][:MAX_LOGGED], "endpoint": endpoint,
                      "status": status, "milliseconds": round(1000 * seconds)}
            logger.info("%s %s %s %d %d ms", *fields.values(), extra={REQUEST_FIELDS: fields})

    def _too_large(self) -> ApiError:
        return ApiError(413, f"Invalid request: the request is larger than {self.settings.max_request_bytes:,} bytes")
