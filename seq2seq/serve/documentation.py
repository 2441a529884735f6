"""Description of the HTTP interface: `/spec` in OpenAPI, `/docs` as a web page."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from seq2seq import __version__
from seq2seq.languages import language_name
from seq2seq.serve.deepl import TAG_LISTS
from seq2seq.serve.directions import Directions
from seq2seq.serve.service import TEXT_FORMATS, Service

_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TEXTS = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_KEY = ("api_key", _TEXT, False, "API key, if the server has keys.")
_SOURCE = ("source", _TEXT, True, "Language code of the text, such as de, or auto to detect the language.")
_TARGET = ("target", _TEXT, True, "Language code of the translation, such as en.")
_ERRORS = {400: "The request is invalid.", 403: "The API key is wrong or missing.", 413: "The request is too large.",
           429: "Too many requests, or too many waiting sentences.", 500: "The server has a bug."}

Parameter = tuple[str, dict[str, Any], bool, str]
_GLOSSARY: Parameter = ("glossary", {"type": "string"}, False, "Name of a glossary on the server, or identifier of one "
                        "of the client's.")
_TAG: Parameter = ("tag", {"type": "string"}, False, "Tag of all sentences, if the model was trained with tags. A line "
                   "of a text may also begin with its tag.")
EXAMPLE_ADDRESS, EXAMPLE_SOURCE, EXAMPLE_TARGET = "http://127.0.0.1:5000", "de", "en"
"""Address and language codes in the examples below, which a server replaces by its own."""
SAMPLE_TEXTS = {"de": "ein Hund läuft", "en": "A dog runs.", "zh-Hans": "一只狗在跑。"}
# For each endpoint: method, path, description, parameters (name, schema, required, description), example response.
_ENDPOINTS: list[tuple[str, str, str, list[Parameter], Any]] = [
    ("post", "/translate", "Translate a text or a list of texts.", [
        ("q", _TEXTS, True, "The text, or a list of texts. Each line is translated separately."), _SOURCE, _TARGET,
        ("format", {"type": "string", "enum": list(TEXT_FORMATS), "default": "text"}, False, "Format of the texts."),
        _GLOSSARY, _TAG,
        ("alternatives", _NUMBER, False, "Number of further translations of each text, at most 10."),
        ("confidence", _FLAG, False, "Also return the words of the translation, each with its confidence."), _KEY],
     {"translatedText": "A dog runs.", "detectedLanguage": {"confidence": 98.5, "language": "de"},
      "alternatives": ["The dog runs."], "confidence": [{"text": "A", "confidence": 0.9731}]}),
    ("post", "/detect", "Detect the language of a text, among the languages of this server.", [
        ("q", _TEXT, True, "The text."), _KEY], [{"confidence": 98.5, "language": "de"}]),
    ("get", "/languages", "List the languages and, for each language, its possible target languages.", [],
     [{"code": "de", "name": "German", "targets": ["en", "de"]}]),
    ("post", "/translate_file", "Translate a document. The result can be downloaded once, within 30 minutes.", [
        ("file", {"type": "string", "format": "binary"}, True, "The file, as multipart/form-data. The file's name "
         "decides the format."), _SOURCE, _TARGET, _GLOSSARY, _TAG, _KEY],
     {"translatedFileUrl": "http://127.0.0.1:5000/download_file/NAME"}),
    ("get", "/glossaries", "List the glossaries with their source and target languages: those of the server, and those "
     "of the client, with the identifier that a request names.", [],
     [{"name": "products", "source": "de", "target": "en"}]),
    ("post", "/suggest", "Suggest a better translation, if the server accepts suggestions.", [
        ("q", _TEXT, True, "The text."), ("s", _TEXT, True, "The suggested translation."), _SOURCE, _TARGET, _KEY],
     {"success": True}),
    ("get", "/frontend/settings", "Return settings for web pages.", [], {"charLimit": -1, "keyRequired": False}),
    ("get", "/health", "Return the state of the server.", [], {"status": "ok"}),
    ("get", "/metrics", "Return metrics in the text format of Prometheus.", [], None),
    ("post", "/v2/translate", "Translate texts, for programs that use DeepL's interface.", [
        ("text", _TEXTS, True, "The texts."), ("target_lang", _TEXT, True, "Language code of the translation."),
        ("source_lang", _TEXT, False, "Language code of the texts. By default, the language is detected."),
        ("tag_handling", {"type": "string", "enum": ["html", "xml"]}, False, "Format of the texts (default: text)."),
        ("split_sentences", {"type": "string", "enum": ["0", "1", "nonewlines"]}, False, "Where sentences end."),
        *((name, _TEXTS, False, "Names of elements, as in DeepL's interface, for XML.") for name in TAG_LISTS),
        ("outline_detection", _FLAG, False, "False: the structure of XML does not decide where texts end."),
        ("glossary_id", _TEXT, False, "Name of a glossary on the server, or identifier of one of the client's."), _TAG],
     {"translations": [{"detected_source_language": "DE", "text": "A dog runs."}]}),
    ("post", "/v2/document", "Translate a document in the background. POST /v2/document/ID with document_key tells the "
     "status, POST /v2/document/ID/result returns the translation.", [
        ("file", {"type": "string", "format": "binary"}, True, "The file, as multipart/form-data."),
        ("target_lang", _TEXT, True, "Language code of the translation."),
        ("source_lang", _TEXT, False, "Language code of the document. By default, the language is detected."),
        ("glossary_id", _TEXT, False, "As in /v2/translate."), _TAG],
     {"document_id": "0A1B", "document_key": "2C3D"}),
    ("post", "/v2/glossaries", "Create a glossary. GET lists all; GET and DELETE /v2/glossaries/ID and "
     "GET /v2/glossaries/ID/entries return or delete one.", [
        ("name", _TEXT, True, "Name of the glossary."), ("source_lang", _TEXT, True, "Language code of the terms."),
        ("target_lang", _TEXT, True, "Language code of their translations."),
        ("entries", _TEXT, True, "A term and its translation in each line."),
        ("entries_format", {"type": "string", "enum": ["tsv", "csv"]}, False, "Format of the entries (default: tsv).")],
     {"glossary_id": "ID", "name": "products", "ready": True, "source_lang": "de", "target_lang": "en",
      "creation_time": "2026-01-01T00:00:00.000Z", "entry_count": 1}),
    ("post", "/v3/glossaries", "Create a glossary with several directions, as in DeepL's interface. PATCH, PUT and "
     "DELETE change it.", [
        ("name", _TEXT, True, "Name of the glossary."),
        ("dictionaries", {"type": "array", "items": {"type": "object"}}, True, "Objects with source_lang, target_lang, "
         "entries and entries_format, as in /v2/glossaries.")],
     {"glossary_id": "ID", "name": "products", "creation_time": "2026-01-01T00:00:00.000Z",
      "dictionaries": [{"source_lang": "de", "target_lang": "en", "entry_count": 1}]}),
    ("get", "/v2/glossary-language-pairs", "List the directions for which glossaries can be created.", [],
     {"supported_languages": [{"source_lang": "de", "target_lang": "en"}]}),
]


def _of_server(example: Any, address: str, direction: tuple[str, str]) -> Any:
    """Return an example with the address and the languages of a server."""
    if isinstance(example, dict):
        return {key: _of_server(value, address, direction) for key, value in example.items()}
    if isinstance(example, list):
        return [_of_server(value, address, direction) for value in example]
    source, target = direction
    replaced = {EXAMPLE_SOURCE: source, EXAMPLE_SOURCE.upper(): source.upper(), EXAMPLE_TARGET: target,
                language_name(EXAMPLE_SOURCE): language_name(source), "A dog runs.": SAMPLE_TEXTS.get(target, "…"),
                "The dog runs.": "The dog runs." if target == EXAMPLE_TARGET else "…",
                "A": "A" if target == EXAMPLE_TARGET else "…"}
    if isinstance(example, str):
        return replaced.get(example, example.replace(EXAMPLE_ADDRESS, address))
    return example


def specification(address: str, directions: Directions) -> dict[str, Any]:
    """Return the description of the interface in OpenAPI 3.0.

    address: address of the server, as its clients see it.
    """
    paths: dict[str, Any] = {}
    for method, path, description, parameters, example in _ENDPOINTS:
        example = _of_server(example, address, directions.direct[0])
        content = {"text/plain": {}} if example is None else {"application/json": {"example": example}}
        operation: dict[str, Any] = {
            "summary": description, "operationId": path.strip("/").replace("/", "_"),
            "responses": {"200": {"description": "Success.", "content": content}}}
        if parameters:
            schema = {"type": "object", "required": [name for name, _, required, _ in parameters if required],
                      "properties": {name: {**kind, "description": text} for name, kind, _, text in parameters}}
            kinds = ["multipart/form-data"] if path in ("/translate_file", "/v2/document") else [
                "application/json", "application/x-www-form-urlencoded"]
            operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
            operation["responses"] |= {str(status): {
                "description": text, "content": {"application/json": {"example": {"error": text}}}}
                for status, text in _ERRORS.items()}
        paths[path] = {method: operation}
    return {"openapi": "3.0.3", "servers": [{"url": address}], "paths": paths,
            "info": {"title": "seq2seq", "version": __version__,
                     "description": "Machine translation. Parameters can be sent as JSON, as a form or in the query "
                                    "string. Errors are answered as {\"error\": \"…\"}."}}


def page(address: str, directions: Directions) -> str:
    """Return the description of the interface as a web page, which loads nothing from other hosts. For the arguments,
    see `specification`."""
    source, target = directions.direct[0]
    languages = [(f"<code>{code}</code>", html.escape(language_name(code)),
                  " ".join(f"<code>{each}</code>" for each in directions.targets(code) if each != code))
                 for code in map(html.escape, directions.languages)]
    sections = [f"<section><h2>Languages of this server</h2>"
                f"{_table(['code', 'language', 'translated into'], languages)}</section>"]
    for method, path, description, parameters, example in _ENDPOINTS:
        example = _of_server(example, address, (source, target))
        rows = [(f"<code>{name}</code>", "required" if required else "optional", html.escape(text))
                for name, _, required, text in parameters]
        table = _table(["parameter", "use", "meaning"], rows) if rows else ""
        shown = "" if example is None else f'<pre tabindex="0">{html.escape(_formatted(example))}</pre>'
        sections.append(f'<section><h2><code>{method.upper()} {path}</code></h2><p>{html.escape(description)}</p>'
                        f"{table}{shown}</section>")
    command = (f"curl -d q='{SAMPLE_TEXTS.get(source, 'TEXT')}' -d source={source} -d target={target} "
               f"{shlex.quote(address)}/translate")
    return _PAGE.replace("COMMAND", html.escape(command)).replace("VERSION", html.escape(__version__)).replace(
        "SECTIONS", "\n".join(sections))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. rows: cells as HTML."""
    head = "".join(f'<th scope="col">{title}</th>' for title in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _formatted(example: Any) -> str:
    import json

    return json.dumps(example, indent=2, ensure_ascii=False)


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


def documentation_routes(service: Service) -> list[Route]:

    def address(request: Request) -> str:
        return str(request.base_url).rstrip("/")

    async def spec(request: Request) -> Response:
        return JSONResponse(specification(address(request), service.directions))

    async def docs(request: Request) -> Response:
        return HTMLResponse(page(address(request), service.directions), headers={
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    return [Route("/spec", spec, methods=["GET"]), Route("/docs", docs, methods=["GET"])]
