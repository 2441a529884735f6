"""Endpoints of LibreTranslate's interface, and the settings of a server."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import json
import logging
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import Field
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from seq2seq.data.glossary import Glossary
from seq2seq.data.language_identification import is_installed
from seq2seq.errors import UserError
from seq2seq.languages import language_name
from seq2seq.serve.deepl_glossaries import GlossaryStore, base_language
from seq2seq.serve.endpoints import SAMPLE_TEXTS, Endpoint, File, KeyParameters, Parameters, Texts, validated
from seq2seq.serve.errors import ApiError, SlowdownError, invalid
from seq2seq.serve.files import (
    LIFETIME_SECONDS,
    SUFFIXES,
    FileStore,
    StoredFile,
    content_type,
    format_of_file,
    safe_name,
    suffix_of,
    translated_name,
)
from seq2seq.serve.limits import Limits
from seq2seq.serve.parameters import LARGE_BYTES, THREAD_BYTES, read_parameters
from seq2seq.serve.service import AUTO, TEXT_FORMATS, Glossaries, Service, Translated
from seq2seq.serve.threads import in_thread

logger = logging.getLogger("seq2seq.serve")
Result = TypeVar("Result")

PATH_HEADER = "X-Translation-Path"
"""Response header that lists the languages of a translation: `de,en,fr` for German to French through English."""
CLIENT = "seq2seq.client"
"""Name, in a request's scope, of its client, if the request's head has an API key."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
MAX_SUGGESTION_BYTES = 64 * 2**20
"""Maximum size of the file to which suggestions are appended."""


@dataclass(frozen=True)
class Settings:
    """Settings of the HTTP interface.

    character_limit: maximum number of characters of a request; 0: unlimited. max_request_bytes: maximum size of a
    request's body. suggestions: file to which suggestions are appended; None means that suggestions are refused.
    log_text: if True, users' texts are written to the log. glossaries: store of the glossaries that clients send.
    """

    character_limit: int = 0
    max_request_bytes: int = 8 * 2**20
    suggestions: Path | None = None
    log_text: bool = False
    glossaries: GlossaryStore = field(default_factory=GlossaryStore)

    def __post_init__(self) -> None:
        if self.suggestions is not None:
            try:
                self.suggestions.open("a", encoding="utf-8").close()
            except OSError as error:
                raise UserError(f"{self.suggestions} cannot be written: {error.strerror}. Choose another file for "
                                "--suggestions.") from error


class UploadParameters(Parameters):
    file: File
    """The file, as multipart/form-data. Its name decides its format."""
    filename: str = ""
    """Name of the file, instead of that in the form."""


class LanguageParameters(Parameters):
    source: str
    """Language code of the text, such as de, or auto to detect the language."""
    target: str
    """Language code of the translation, such as en."""


class TranslationParameters(LanguageParameters):
    glossary: str = ""
    """Name of a glossary on the server, or identifier of one of the client's."""
    tag: str = ""
    """Tag of all sentences, if the model was trained with tags. A line of a text may also begin with its tag."""


class TextParameters(TranslationParameters):
    q: Texts
    """The text, or a list of texts. Each line is translated separately."""
    format: str = Field("text", json_schema_extra={"enum": [*TEXT_FORMATS]})
    """Format of the texts."""
    alternatives: int = 0
    """Number of further translations of each text, at most 10."""
    confidence: bool = False
    """Also return the words of the translation, each with its confidence."""


class DetectionParameters(Parameters):
    q: Texts
    """The text, or a list of texts."""


class FileParameters(TranslationParameters, UploadParameters):
    pass


class SuggestionParameters(LanguageParameters):
    q: str
    """The text."""
    s: str
    """The suggested translation."""


class Api:
    """Endpoints of LibreTranslate's interface, as methods that answer Starlette requests."""

    def __init__(self, service: Service, limits: Limits, settings: Settings) -> None:
        self.service, self.limits, self.settings = service, limits, settings
        self.files = FileStore()

    def endpoints(self) -> list[Endpoint[Any]]:
        source, target = self.service.directions.direct[0]
        detected, translation = {"confidence": 98.5, "language": source}, SAMPLE_TEXTS.get(target, "…")
        return [
            Endpoint("POST", "/translate", self.translate, TextParameters, {
                "translatedText": translation, "detectedLanguage": detected, "alternatives": ["…"],
                "confidence": [{"text": translation.split()[0], "confidence": 0.9731}]}),
            Endpoint("POST", "/detect", self.detect, DetectionParameters, [detected]),
            Endpoint("GET", "/languages", self.languages, Parameters, [
                {"code": source, "name": language_name(source), "targets": [target, source]}], access="open"),
            Endpoint("POST", "/translate_file", self.translate_file, FileParameters, {
                "translatedFileUrl": "https://…/download_file/NAME"}),
            Endpoint("GET", "/download_file/{name}", self.download_file, Parameters, access="open"),
            Endpoint("GET", "/glossaries", self.glossaries, Parameters, [
                {"name": "products", "source": source, "target": target}], access="open"),
            Endpoint("POST", "/suggest", self.suggest, SuggestionParameters, {"success": True}),
            Endpoint("GET", "/frontend/settings", self.frontend_settings, Parameters, {
                "charLimit": -1, "keyRequired": False}, access="open"),
            Endpoint("GET", "/health", self.health, Parameters, {"status": "ok"}, access="open"),
            Endpoint("GET", "/metrics", self.metrics, Parameters, access="open"),
        ]

    def route(self, endpoint: Endpoint[Any]) -> Route:
        """Return the route of an endpoint, which reads the parameters, identifies the client and checks its limits."""

        async def answer(request: Request) -> Response:
            reads = endpoint.access != "open" or endpoint.parameters.model_fields
            values, client = await read_parameters(request, endpoint.parameters.lists()) if reads else {}, ""
            if endpoint.access != "open":
                keys = validated(KeyParameters, values)
                client = await self.identify(request, keys.api_key or keys.auth_key)
            asked = validated(endpoint.parameters, values)
            if endpoint.access == "limited":
                self.limits.check(client, asked.cost)
            return await endpoint.answer(request, client, asked)

        return Route(endpoint.path, answer, methods=endpoint.methods.split(), name=endpoint.answer.__name__)

    async def translate(self, request: Request, client: str, asked: TextParameters) -> Response:
        """Translate a text or a list of texts."""
        q, source, target = as_list(asked.q), asked.source, asked.target
        self.require_short(q)
        found = await unless_disconnected(request, self.service.translate(
            q, source, target, asked.format, asked.alternatives, asked.confidence, asked.glossary, client,
            await self.terms(asked.glossary, client, source, target), tag=asked.tag))
        self.log_texts(q, found)
        fields: dict[str, list[Any]] = {"translatedText": [one.versions[0] for one in found]}
        if source.lower() == AUTO:
            fields["detectedLanguage"] = [one.detected.as_json() for one in found if one.detected]
        if asked.alternatives > 0:
            fields["alternatives"] = [one.versions[1:] for one in found]
        if asked.confidence:
            fields["confidence"] = [one.words for one in found]
        for name in dict.fromkeys(name for one in found for name in one.report):
            fields[name] = [one.report.get(name, {} if name == "faults" else []) for one in found]
        answer = fields if isinstance(asked.q, list) else {name: values[0] for name, values in fields.items()}
        return await json_response(answer, q, path_header(found))

    async def detect(self, request: Request, client: str, asked: DetectionParameters) -> Response:
        """Detect the language of a text, among the languages of this server."""
        q = as_list(asked.q)
        self.require_short(q)
        return JSONResponse([one.as_json() for one in await self.service.detect("\n".join(q))])

    async def languages(self, request: Request, client: str, asked: Parameters) -> Response:
        """List the languages and, for each language, its possible target languages."""
        directions = self.service.directions
        return JSONResponse([{"code": code, "name": language_name(code), "targets": directions.targets(code)}
                             for code in directions.languages])

    async def translate_file(self, request: Request, client: str, asked: FileParameters) -> Response:
        """Translate a document. The result can be downloaded once, within 30 minutes."""
        name, format, contents = uploaded_file(asked)
        found = await unless_disconnected(request, self.service.translate_document(
            contents, format, safe_name(name), asked.source, asked.target, asked.glossary,
            lambda content: self.require_short([content]), client,
            await self.terms(asked.glossary, client, asked.source, asked.target), tag=asked.tag))
        key = secrets.token_urlsafe(32) + suffix_of(name)
        self.files.add(self.translated_file(name, found, client), key)
        url = str(request.url_for("download_file", name=key))
        return JSONResponse({"translatedFileUrl": url, **found.report}, headers=path_header([found]))

    def translated_file(self, name: str, found: Translated[bytes], client: str, characters: int = 0) -> StoredFile:
        """Return a translated file for the store. name: name of the file that was translated."""
        if self.settings.log_text:
            logger.info("%s %r", ",".join(found.path), safe_name(name))
        return StoredFile(client, translated_name(name, found.path[-1]), found.versions[0], characters)

    async def glossaries(self, request: Request, client: str, asked: Parameters) -> Response:
        """List the glossaries with their source and target languages: those of the server, and those of the client,
        with the identifier that a request names."""
        found = [{"name": name, "source": source, "target": target}
                 for name, source, target in self.service.models.glossaries]
        if self.settings.glossaries.accepts and (CLIENT in request.scope or not self.limits.key_required):
            client = await self.identify(request, "")
            for one in await in_thread(lambda: self.settings.glossaries.of(client), large=False):
                found += [{"id": one.glossary_id, "name": one.name, "source": source, "target": target}
                          for source, target in self.service.directions.direct
                          if one.dictionary((base_language(source), base_language(target)))]
        return JSONResponse(found)

    async def terms(self, name: str, client: str, source: str, target: str) -> Glossaries | None:
        """Return a client's glossary by its identifier, as a mapping by direction; None if the name is "" or that of a
        glossary of the server, or if the server stores no glossaries."""
        if not (name and self.settings.glossaries.accepts) or any(
                name == other for other, *_ in self.service.models.glossaries):
            return None
        store, service = self.settings.glossaries, self.service
        glossary = await in_thread(lambda: store.get(client, name), large=False)
        sources = service.directions.sources if source.lower() == AUTO else [service.language(source)]
        found: dict[tuple[str, str, str], Glossary] = {}
        for one in sources:
            direction = one, service.language(target)
            dictionary = glossary.dictionary((base_language(direction[0]), base_language(direction[1])))
            if direction in service.directions.direct and dictionary is not None:
                found[name, *direction] = await in_thread(partial(store.terms, dictionary, direction), large=True)
        return found

    async def download_file(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return a translated file, and delete it afterwards."""
        key = request.path_params["name"]
        file = self.files.get(key)
        if file is None:
            raise ApiError(404, "There is no such file. A translated file is deleted after its download, after "
                                f"{LIFETIME_SECONDS // 60} minutes, or for newer files if there are too many")
        deletion = None if request.method == "HEAD" else BackgroundTask(self.files.delete, key)
        return file_response(file, deletion)

    async def suggest(self, request: Request, client: str, asked: SuggestionParameters) -> Response:
        """Suggest a better translation, if the server accepts suggestions."""
        self.require_short([asked.q, asked.s])
        if asked.source != AUTO:
            self.service.language(asked.source)
        self.service.language(asked.target)
        if self.settings.suggestions is None:
            raise ApiError(403, "This server does not accept suggestions")
        record = {"q": asked.q, "s": asked.s, "source": asked.source, "target": asked.target}
        line = json.dumps(record, ensure_ascii=False) + "\n"
        await in_thread(lambda: self._append_suggestion(line), large=False)
        return JSONResponse({"success": True})

    def _append_suggestion(self, line: str) -> None:
        path = self.settings.suggestions
        assert path is not None
        with path.open("a", encoding="utf-8") as file:
            if file.tell() + len(line) > MAX_SUGGESTION_BYTES:
                raise SlowdownError("there are too many suggestions already", 3600)
            file.write(line)

    async def frontend_settings(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return settings for web pages."""
        directions = self.service.directions
        target = next(code for code in directions.languages if any(code == pair[1] for pair in directions.direct))
        source = next(code for code, other in directions.direct if other == target)
        return JSONResponse({
            "apiKeys": bool(self.limits.keys), "charLimit": self.settings.character_limit or -1,
            "filesTranslation": True, "frontendTimeout": 500, "keyRequired": self.limits.key_required,
            "language": {"source": {"code": AUTO, "name": "Auto Detect"} if is_installed() else
                                   {"code": source, "name": language_name(source)},
                         "target": {"code": target, "name": language_name(target)}},
            "suggestions": self.settings.suggestions is not None, "supportedFilesFormat": list(SUFFIXES),
        })

    async def health(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return the state of the server."""
        if not self.service.scheduler.alive:
            raise ApiError(500, "the model thread has ended")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return metrics in the text format of Prometheus."""
        return PlainTextResponse(self.service.metrics.text(self.service.scheduler.waiting,
                                                           self.service.models.checksums),
                                 media_type="text/plain; version=0.0.4; charset=utf-8")

    async def identify(self, request: Request, key: str) -> str:
        """Return the name of a request's client. key: API key among its parameters, or "". Raises ApiError: see
        `Limits.identify`."""
        client: str | None = request.scope.get(CLIENT)
        return client or await self.limits.identify(key, request.client.host if request.client else "")

    def require_short(self, q: list[str]) -> None:
        """Raise ApiError if all texts together exceed the character limit."""
        characters, limit = sum(map(len, q)), self.settings.character_limit
        if limit and characters > limit:
            raise invalid(f"request ({characters}) exceeds text limit ({limit})")

    def log_texts(self, q: list[str], found: list[Translated[str]]) -> None:
        """If `Settings.log_text` is set, write texts and translations to the log."""
        if self.settings.log_text:
            for one, translated in zip(q, found, strict=True):
                logger.info("%s %r -> %r", ",".join(translated.path), one, translated.versions[0])


def as_list(texts: str | list[str]) -> list[str]:
    """Return the texts of a parameter, which is a text or a list."""
    return [texts] if isinstance(texts, str) else texts


def uploaded_file(asked: UploadParameters) -> tuple[str, str, bytes]:
    """Return the name, format and contents of a file.

    Raises:
        ApiError: its name does not tell a format that is supported.
    """
    name = asked.filename or asked.file.filename or ""
    contents = asked.file.file.read()
    format = format_of_file(name, contents)
    if format is None or not name.removesuffix(suffix_of(name)):
        raise invalid(f"the format of this file is not supported, only {', '.join(SUFFIXES)}")
    return name, format, contents.removeprefix(codecs.BOM_UTF8) if format == "text" else contents


def file_response(file: StoredFile, background: BackgroundTask | None) -> Response:
    """Return the response with a translated file. RFC 6266: `filename*` is a name that is not ASCII."""
    plain = "".join(character if character.isascii() else "_" for character in file.name)
    disposition = f'attachment; filename="{plain}"'
    if plain != file.name:
        disposition += f"; filename*=UTF-8''{quote(file.name, safe='')}"
    return Response(file.contents, background=background, headers={
        "Content-Type": content_type(file.name, file.contents), "Content-Disposition": disposition,
        "X-Content-Type-Options": "nosniff"})


async def json_response(answer: Any, q: Sequence[str], headers: Mapping[str, str]) -> Response:
    """Return a response, which is encoded in another thread if the texts `q`, which it answers, are long."""

    def encode() -> bytes:
        # json.dumps keeps the interpreter's lock until it has encoded the whole value.
        fragments, encoded = _ENCODER.iterencode(answer), bytearray()
        while several := "".join(itertools.islice(fragments, 1_000)):
            encoded += several.encode()
        return bytes(encoded)

    characters = sum(map(len, q))
    if characters <= THREAD_BYTES:
        return JSONResponse(answer, headers=headers)
    return Response(await in_thread(encode, large=characters > LARGE_BYTES), headers=headers,
                    media_type="application/json")


def path_header(found: Sequence[Translated[Any]]) -> Mapping[str, str]:
    """Return the header PATH_HEADER, which lists the distinct language paths of the translations."""
    return {PATH_HEADER: "; ".join(dict.fromkeys(",".join(one.path) for one in found))}


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`. If the client closes the connection first, cancel `work`.

    Raises:
        ClientDisconnect: the client has closed the connection.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for one in (task, watcher):
            one.cancel()
