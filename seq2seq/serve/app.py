"""The ASGI application: routes, the web page for translation, cross-origin requests, error responses, the size limit of
requests, and the log."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from seq2seq.console import escape_control_characters
from seq2seq.serve.api import PATH_HEADER, Api, Settings
from seq2seq.serve.deepl import DeepLApi
from seq2seq.serve.documentation import documentation_routes
from seq2seq.serve.errors import ApiError
from seq2seq.serve.limits import Limits
from seq2seq.serve.service import Service

logger = logging.getLogger("seq2seq.serve")

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
    routes = [
        *api.routes(),
        *DeepLApi(api).routes(),
        *documentation_routes(),
        *page_routes(),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"],
                       expose_headers=[PATH_HEADER]),
            Middleware(_Guard, service=service, settings=settings, endpoints={route.path for route in routes}),
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
    answer = {"error": error.message}
    if request.url.path.startswith("/v2/"):
        answer["message"] = error.message                                       # DeepL clients read this key
    return JSONResponse(answer, error.status, error.headers)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class _Guard:
    """Middleware that limits the size of requests, answers unexpected errors, and counts and logs all requests."""

    def __init__(self, app: ASGIApp, service: Service, settings: Settings, endpoints: set[str]) -> None:
        self.app, self.service, self.settings, self.endpoints = app, service, settings, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, received = time.monotonic(), 0, 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.settings.max_request_bytes:
                raise self._too_large()
            return message

        try:
            try:
                for name, value in scope["headers"]:
                    if name == b"content-length" and value.isdigit() and int(
                            value[:20]) > self.settings.max_request_bytes:
                        raise self._too_large()
                await self.app(scope, receiving, sending)
            except ApiError as error:
                await _answer_api_error(Request(scope), error)(scope, receive, sending)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            logger.error("%s", _traceback(error, self.settings.log_text))
            if not status:
                await JSONResponse({"error": "internal error"}, 500)(scope, receive, sending)
        seconds = time.monotonic() - began
        path = scope["path"] if scope["path"] in self.endpoints else (
            "/download_file" if scope["path"].startswith("/download_file/") else UNKNOWN_ENDPOINT)
        self.service.metrics.count_request(path, status, seconds)
        if path not in ("/health", "/metrics"):
            logger.info("%s %s %s %d %.0f ms", (scope.get("client") or ("-",))[0], scope["method"],
                        escape_control_characters(path), status, 1000 * seconds)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"Invalid request: the request is larger than {self.settings.max_request_bytes:,} bytes",
                        {"Connection": "close"})


def _traceback(error: Exception, with_message: bool) -> str:
    """Return an error's traceback. with_message: include the error's message, which may quote users' texts."""
    if with_message:
        return "".join(traceback.format_exception(error)).rstrip()
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__} (--log-text shows its message, which may quote a text)\n{frames}".rstrip()
