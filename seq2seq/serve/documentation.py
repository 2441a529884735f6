"""Description of the HTTP interface: `/spec` in OpenAPI, `/docs` as a web page."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from seq2seq import __version__
from seq2seq.languages import language_name
from seq2seq.serve.directions import Directions
from seq2seq.serve.endpoints import SAMPLE_TEXTS, Endpoint, KeyParameters
from seq2seq.serve.service import Service
from seq2seq.serve.threads import in_thread

_ERRORS = {400: "The request is invalid.", 403: "The API key is wrong or missing.", 413: "The request is too large.",
           429: "Too many requests, or too many waiting sentences.", 500: "The server has a bug."}


def _schema(endpoint: Endpoint[Any]) -> dict[str, Any]:
    """Return the JSON schema of the parameters of an endpoint, keys last."""
    schema = endpoint.parameters.model_json_schema(ref_template="#/components/schemas/{model}")
    keys = {} if endpoint.access == "open" else KeyParameters.model_json_schema()["properties"]
    return {**schema, "properties": schema.get("properties", {}) | keys}


def specification(address: str, endpoints: Sequence[Endpoint[Any]]) -> dict[str, Any]:
    """Return the description of the interface in OpenAPI 3.1.

    address: address of the server, as its clients see it.
    """
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for endpoint in endpoints:
        schema = _schema(endpoint)
        schemas |= schema.pop("$defs", {})
        required = schema.get("required", [])
        in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                   for name in re.findall(r"{(\w+)}", endpoint.path)]
        responses: dict[str, Any] = {"200": {"description": "Success."}}
        if endpoint.example is not None:
            responses["200"]["content"] = {"application/json": {"example": endpoint.example}}
        if endpoint.access != "open":
            responses |= {str(status): {
                "description": text, "content": {"application/json": {"example": {"error": text}}}}
                for status, text in _ERRORS.items()}
        for method in endpoint.methods.lower().split():
            operation: dict[str, Any] = {
                "summary": endpoint.description, "parameters": [*in_path], "responses": responses,
                "operationId": re.sub(r"\W+", "_", f"{method}{endpoint.path}").strip("_")}
            if method in ("get", "delete"):
                operation["parameters"] += [
                    {"name": name, "in": "query", "required": name in required, "schema": kind}
                    for name, kind in schema["properties"].items()]
            elif schema["properties"]:
                kinds = ["multipart/form-data"] if "file" in required else [
                    "application/json", "application/x-www-form-urlencoded"]
                operation["requestBody"] = {"required": bool(required),
                                            "content": {kind: {"schema": schema} for kind in kinds}}
            paths.setdefault(endpoint.path, {})[method] = operation
    return {"openapi": "3.1.0", "servers": [{"url": address}], "paths": paths, "components": {"schemas": schemas},
            "info": {"title": "seq2seq", "version": __version__,
                     "description": "Machine translation. Parameters can be sent as JSON, as a form or in the query "
                                    "string. Errors are answered as {\"error\": \"…\"}."}}


def page(address: str, directions: Directions, endpoints: Sequence[Endpoint[Any]]) -> str:
    """Return the description of the interface as a web page, which loads nothing from other hosts. For the arguments,
    see `specification`."""
    source, target = directions.direct[0]
    languages = [(f"<code>{code}</code>", html.escape(language_name(code)),
                  " ".join(f"<code>{each}</code>" for each in directions.targets(code) if each != code))
                 for code in map(html.escape, directions.languages)]
    sections = [f"<section><h2>Languages of this server</h2>"
                f"{_table(['code', 'language', 'translated into'], languages)}</section>"]
    for endpoint in endpoints:
        schema = _schema(endpoint)
        required = schema.get("required", [])
        properties = sorted(schema["properties"].items(), key=lambda one: one[0] not in required)
        rows = [(f"<code>{name}</code>", "required" if name in required else "optional",
                 html.escape(kind["description"])) for name, kind in properties]
        table = _table(["parameter", "use", "meaning"], rows) if rows else ""
        example = json.dumps(endpoint.example, indent=2, ensure_ascii=False)
        shown = "" if endpoint.example is None else f'<pre tabindex="0">{html.escape(example)}</pre>'
        sections.append(f"<section><h2><code>{endpoint.methods} {endpoint.path}</code></h2>"
                        f"<p>{html.escape(endpoint.description)}</p>{table}{shown}</section>")
    command = (f"curl -d q='{SAMPLE_TEXTS.get(source, 'TEXT')}' -d source={source} -d target={target} "
               f"{shlex.quote(address)}/translate")
    return _PAGE.replace("COMMAND", html.escape(command)).replace("VERSION", html.escape(__version__)).replace(
        "SECTIONS", "\n".join(sections))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. rows: cells as HTML."""
    head = "".join(f'<th scope="col">{title}</th>' for title in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Interface of this translation server</title>
<style>
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
background: light-dark(#fff, #14181d); color: light-dark(#1b2733, #e6ebf0) }
a { color: light-dark(#1f5f8b, #7fbde8) }
pre { padding: .75rem; overflow-x: auto; background: light-dark(#eef1f4, #262d35); border-radius: .25rem }
td, th { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top }
h2 { font-size: 1.1rem; margin-top: 2rem }
</style></head><body><main>
<h1>Interface of this translation server</h1>
<p>Parameters can be sent as JSON, as a form or in the query string. Errors are answered as
<code>{"error": "…"}</code>. <a href="spec">OpenAPI</a>. seq2seq VERSION</p>
<pre tabindex="0">COMMAND</pre>
SECTIONS
</main></body></html>
"""


def documentation_routes(service: Service, endpoints: Sequence[Endpoint[Any]]) -> list[Route]:

    def address(request: Request) -> str:
        return str(request.base_url).rstrip("/")

    async def spec(request: Request) -> Response:
        return JSONResponse(await in_thread(lambda: specification(address(request), endpoints), large=False))

    async def docs(request: Request) -> Response:
        shown = await in_thread(lambda: page(address(request), service.directions, endpoints), large=False)
        return HTMLResponse(shown, headers={
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    return [Route("/spec", spec, methods=["GET"]), Route("/docs", docs, methods=["GET"])]
