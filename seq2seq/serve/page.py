"""Routes of the web page for translation: `/`, and the other files of the page below `/page/`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
               ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers of all files. With no-cache, browsers keep a file, but check by ETag at each visit if it has changed."""


def page_routes() -> list[Route]:
    """Read all files of the page and return their routes, so that no request can choose a path on the disk."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES)
    return [_route("/" if path.name == "index.html" else f"/page/{path.name}", path) for path in files]


def _route(address: str, path: Path) -> Route:
    content = path.read_bytes()
    headers = {**HEADERS, "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def send(request: Request) -> Response:
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if headers["ETag"] in known:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=MEDIA_TYPES[path.suffix])

    return Route(address, send)
