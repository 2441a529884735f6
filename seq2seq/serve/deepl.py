"""DeepL's interface, for programs that support only this one: texts, glossaries, documents.

Documentation: https://developers.deepl.com/api-reference
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seq2seq.formats.xml_text import XmlOptions, XmlTextDocument
from seq2seq.languages import language_name
from seq2seq.serve.api import (
    Api,
    UploadParameters,
    as_list,
    file_response,
    json_response,
    path_header,
    unless_disconnected,
    uploaded_file,
)
from seq2seq.serve.deepl_documents import DocumentJobs
from seq2seq.serve.deepl_glossaries import (
    ClientGlossary,
    Dictionary,
    Languages,
    base_language,
    parse_entries,
)
from seq2seq.serve.deepl_texts import WholeText, read_unsplit_html
from seq2seq.serve.document_workers import Read
from seq2seq.serve.endpoints import SAMPLE_TEXTS, Endpoint, Names, Parameters, Texts
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.serve.files import StoredFile, safe_name, suffix_of
from seq2seq.serve.service import AUTO, Glossaries
from seq2seq.serve.threads import in_thread

T = TypeVar("T")

UNLIMITED = 1_000_000_000_000
"""Character limit of an account without a limit, as DeepL gives it."""
_FORM_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.?\[?(\w+)\]?")
"""Name of a form's field that is part of a dictionary, such as `dictionaries[0].entries`."""


def is_deepl(path: str) -> bool:
    """Return True if a path belongs to DeepL's interface."""
    return path.startswith(("/v2/", "/v3/"))


class DeepLParameters(Parameters):
    target_lang: str
    """Language code of the translation."""
    source_lang: str = AUTO
    """Language code of the text. By default, the language is detected."""
    glossary_id: str = ""
    """Name of a glossary on the server, or identifier of one of the client's."""
    glossary_ids: Names = frozenset()
    """Like glossary_id, as a list, which may have one element."""
    tag: str = ""
    """Tag of all sentences, if the model was trained with tags. A line of a text may also begin with its tag."""
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"
    """Without effect."""
    model_type: Literal["latency_optimized", "quality_optimized", "prefer_quality_optimized"] | None = None
    """Without effect."""
    tag_handling_version: Literal["v1", "v2"] | None = None
    """Without effect."""
    preserve_formatting: bool = False
    """Without effect."""
    style_id: None = None
    """Not supported."""
    custom_instructions: None = None
    """Not supported."""
    translation_memory_id: None = None
    """Not supported."""


def _split(value: Any) -> str:
    return {"true": "1", "false": "0"}.get(str(value).lower(), str(value).lower())


class DeepLTextParameters(DeepLParameters):
    text: Texts
    """The text, or a list of texts."""
    tag_handling: Literal["html", "xml"] | None = None
    """Format of the texts. By default, they are plain text."""
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], BeforeValidator(_split)] = "1"
    """Ends of sentences: nowhere, also at line ends, or not at line ends."""
    splitting_tags: Names = frozenset()
    """Names of elements of XML that divide texts."""
    non_splitting_tags: Names = frozenset()
    """Names of elements of XML that do not divide texts."""
    ignore_tags: Names = frozenset()
    """Names of elements of XML that stay as they are."""
    outline_detection: bool = True
    """False: the structure of XML does not decide where texts end."""


class DeepLDocumentParameters(DeepLParameters, UploadParameters):
    output_format: str = ""
    """Ending of the file's name, the only format of the translation."""


class LanguageListParameters(Parameters):
    type: Literal["source", "target"] = "source"
    """Which languages to list."""


class DocumentParameters(Parameters):
    document_key: str
    """Key of the document, from the answer to its upload."""


class PairParameters(Parameters):
    source_lang: str
    """Language code of the terms."""
    target_lang: str
    """Language code of their translations."""

    @property
    def languages(self) -> Languages:
        """Source and target language, without scripts and regions."""
        return base_language(self.source_lang), base_language(self.target_lang)


class DictionaryParameters(PairParameters):
    entries: str
    """A term and its translation in each line."""
    entries_format: Literal["tsv", "csv"] = "tsv"
    """Format of the entries."""


class GlossaryParameters(DictionaryParameters):
    name: str
    """Name of the glossary."""


class GlossaryChangeParameters(Parameters):
    name: str = ""
    """New name of the glossary."""
    dictionaries: list[DictionaryParameters] = []
    """Terms to add or to change, by languages."""

    @model_validator(mode="before")
    @classmethod
    def _with_fields_of_forms(cls, values: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if match := _FORM_FIELD.fullmatch(name):
                fields.setdefault(match[1], {})[match[2]] = value
        return {"dictionaries": list(fields.values()), **values} if fields else values


class NewGlossaryParameters(GlossaryChangeParameters):
    name: str
    """Name of the glossary."""
    dictionaries: Annotated[list[DictionaryParameters], Field(min_length=1)]
    """Terms by languages."""


class DeepLApi:
    """Endpoints of DeepL's interface, with the models, limits and settings of `api`."""

    def __init__(self, api: Api) -> None:
        self.api, self.store = api, api.settings.glossaries
        self.jobs = DocumentJobs(api.files, api.settings.log_text)

    def endpoints(self) -> list[Endpoint[Any]]:
        source, target = self.api.service.directions.direct[0]
        pair = {"source_lang": base_language(source), "target_lang": base_language(target)}
        counted = {**pair, "entry_count": 1}
        named = {"glossary_id": "ID", "name": "products", "creation_time": "2026-01-01T00:00:00.000Z"}
        record, multilingual = {**named, "ready": True, **counted}, {**named, "dictionaries": [counted]}
        v2, v3, document = (f"/{path}" for path in (
            "v2/glossaries/{glossary_id}", "v3/glossaries/{glossary_id}", "v2/document/{document_id}"))
        return [
            Endpoint("POST", "/v2/translate", self.translate, DeepLTextParameters, {
                "translations": [{"detected_source_language": source.upper(), "text": SAMPLE_TEXTS.get(target, "…")}]}),
            Endpoint("GET POST", "/v2/languages", self.languages, LanguageListParameters, access="open"),
            Endpoint("GET POST", "/v2/usage", self.usage, Parameters, access="clients"),
            Endpoint("POST", "/v2/document", self.upload_document, DeepLDocumentParameters, {
                "document_id": "0A1B", "document_key": "2C3D"}),
            Endpoint("POST", document, self.document_status, DocumentParameters, access="clients"),
            Endpoint("POST", f"{document}/result", self.document_result, DocumentParameters, access="clients"),
            Endpoint("GET", "/v2/glossary-language-pairs", self.glossary_language_pairs, Parameters, {
                "supported_languages": [pair]}, access="open"),
            Endpoint("GET", "/v2/glossaries", self.list_glossaries, Parameters, {"glossaries": [record]}),
            Endpoint("POST", "/v2/glossaries", self.create_glossary, GlossaryParameters, record),
            Endpoint("GET", v2, self.get_glossary, Parameters, record),
            Endpoint("DELETE", v2, self.delete_glossary, Parameters),
            Endpoint("GET", f"{v2}/entries", self.get_entries, Parameters),
            Endpoint("GET", "/v3/glossaries", self.list_multilingual_glossaries, Parameters, {
                "glossaries": [multilingual]}),
            Endpoint("POST", "/v3/glossaries", self.create_multilingual_glossary, NewGlossaryParameters, multilingual),
            Endpoint("GET", v3, self.get_multilingual_glossary, Parameters, multilingual),
            Endpoint("PATCH", v3, self.edit_multilingual_glossary, GlossaryChangeParameters, multilingual),
            Endpoint("DELETE", v3, self.delete_glossary, Parameters),
            Endpoint("GET", f"{v3}/entries", self.get_multilingual_entries, PairParameters),
            Endpoint("PUT", f"{v3}/dictionaries", self.replace_dictionary, DictionaryParameters, counted),
            Endpoint("DELETE", f"{v3}/dictionaries", self.delete_dictionary, PairParameters),
        ]

    # Texts

    async def translate(self, request: Request, client: str, asked: DeepLTextParameters) -> Response:
        """Translate texts, for programs that use DeepL's interface."""
        q, source, target = as_list(asked.text), asked.source_lang, asked.target_lang
        read = _reader(asked)
        self.api.require_short(q)
        glossary, glossaries = await self._terms(asked, client)
        found = await unless_disconnected(request, self.api.service.translate(
            q, source, target, "html" if asked.tag_handling else "text", glossary=glossary, client=client,
            glossaries=glossaries, read=read, name="text", tag=asked.tag))
        self.api.log_texts(q, found)
        translations = [{"detected_source_language": one.path[0].split("-")[0].upper(), "text": one.versions[0],
                         "billed_characters": len(original), **one.report}
                        for original, one in zip(q, found, strict=True)]
        return await json_response({"translations": translations}, q, path_header(found))

    async def languages(self, request: Request, client: str, asked: LanguageListParameters) -> Response:
        """List the languages."""
        directions = self.api.service.directions
        wanted = 1 if asked.type == "target" else 0
        return JSONResponse([{"language": code.upper(), "name": language_name(code), "supports_formality": False}
                             for code in directions.languages if any(pair[wanted] == code for pair in directions.direct)
                             ])

    async def usage(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return the use of a client, which has no quota of characters."""
        return JSONResponse({"character_count": 0, "character_limit": UNLIMITED})

    # Glossaries

    async def glossary_language_pairs(self, request: Request, client: str, asked: Parameters) -> Response:
        """List the directions for which glossaries can be created."""
        pairs = self._pairs() if self.store.accepts else []
        return JSONResponse({"supported_languages": [
            {"source_lang": source, "target_lang": target} for source, target in pairs]})

    async def list_glossaries(self, request: Request, client: str, asked: Parameters) -> Response:
        """List the glossaries with one dictionary."""
        found = await in_thread(lambda: self.store.of(client), large=False)
        return JSONResponse({"glossaries": [_record(one) for one in found if len(one.dictionaries) == 1]})

    async def create_glossary(self, request: Request, client: str, asked: GlossaryParameters) -> Response:
        """Create a glossary. One with the same name and languages is replaced."""
        return JSONResponse(_record(await self._change(lambda: self.store.create(
            client, asked.name, self._entries_of([asked]), replaces=True))), 201)

    async def get_glossary(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return a glossary, without its entries."""
        return JSONResponse(_record(await self._glossary(request, client)))

    async def delete_glossary(self, request: Request, client: str, asked: Parameters) -> Response:
        """Delete a glossary."""
        await self._change(lambda: self.store.delete(client, request.path_params["glossary_id"]))
        return Response(status_code=204)

    async def get_entries(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return the entries of a glossary."""
        dictionary = _only_dictionary(await self._glossary(request, client))
        return Response(await self._entries(dictionary), media_type="text/tab-separated-values")

    async def list_multilingual_glossaries(self, request: Request, client: str, asked: Parameters) -> Response:
        """List the glossaries."""
        found = await in_thread(lambda: self.store.of(client), large=False)
        return JSONResponse({"glossaries": list(map(_multilingual_record, found))})

    async def create_multilingual_glossary(self, request: Request, client: str, asked: NewGlossaryParameters,
                                           ) -> Response:
        """Create a glossary with several directions."""
        return JSONResponse(_multilingual_record(await self._change(lambda: self.store.create(
            client, asked.name, self._entries_of(asked.dictionaries)))), 201)

    async def get_multilingual_glossary(self, request: Request, client: str, asked: Parameters) -> Response:
        """Return a glossary, without its entries."""
        return JSONResponse(_multilingual_record(await self._glossary(request, client)))

    async def edit_multilingual_glossary(self, request: Request, client: str, asked: GlossaryChangeParameters,
                                         ) -> Response:
        """Change the name of a glossary, and add entries or change them."""
        return JSONResponse(_multilingual_record(await self._change(lambda: self.store.update(
            client, request.path_params["glossary_id"], self._entries_of(asked.dictionaries), asked.name, adds=True))))

    async def get_multilingual_entries(self, request: Request, client: str, asked: PairParameters) -> Response:
        """Return the entries of a direction of a glossary."""
        dictionary = (await self._glossary(request, client)).dictionary(asked.languages)
        if dictionary is None:
            raise ApiError(404, "The glossary has no such dictionary")
        return JSONResponse({"dictionaries": [{
            "source_lang": dictionary.source_lang, "target_lang": dictionary.target_lang,
            "entries": await self._entries(dictionary), "entries_format": "tsv"}]})

    async def replace_dictionary(self, request: Request, client: str, asked: DictionaryParameters) -> Response:
        """Replace the entries of a direction of a glossary, or add a direction."""
        new = await self._change(lambda: self.store.update(
            client, request.path_params["glossary_id"], self._entries_of([asked])))
        return JSONResponse(next(_described(one) for one in new.dictionaries if one.languages == asked.languages))

    async def delete_dictionary(self, request: Request, client: str, asked: PairParameters) -> Response:
        """Delete a direction of a glossary."""
        await self._change(lambda: self.store.delete_dictionary(
            client, request.path_params["glossary_id"], asked.languages))
        return Response(status_code=204)

    async def _change(self, function: Callable[[], T]) -> T:
        return await in_thread(function, large=True)

    async def _glossary(self, request: Request, client: str) -> ClientGlossary:
        return await in_thread(lambda: self.store.get(client, request.path_params["glossary_id"]), large=False)

    async def _entries(self, dictionary: Dictionary) -> str:
        entries = await in_thread(partial(self.store.entries, dictionary), large=False)
        return "\n".join(f"{source}\t{target}" for source, target in entries.items())

    def _pairs(self) -> list[Languages]:
        """Return the languages, without scripts and regions, for which a model can use a glossary."""
        direct = self.api.service.directions.direct
        return list(dict.fromkeys((base_language(source), base_language(target)) for source, target in direct))

    def _entries_of(self, dictionaries: Sequence[DictionaryParameters]) -> dict[Languages, dict[str, str]]:
        """Return the entries by languages. Raises ApiError if they are malformed, or no model translates directly."""
        found: dict[Languages, dict[str, str]] = {}
        for one in dictionaries:
            if one.languages not in self._pairs():
                raise invalid(f"glossaries from {one.source_lang[:30]} to {one.target_lang[:30]} are not supported")
            if one.languages in found:
                raise invalid("two dictionaries have the same languages")
            found[one.languages] = parse_entries(one.entries, one.entries_format, one.languages)
        return found

    async def _terms(self, asked: DeepLParameters, client: str) -> tuple[str, Glossaries | None]:
        """Return the name of the glossary of a request, and the client's glossaries with this name by direction; None
        if the name is that of a glossary of the server."""
        several = [*filter(None, [asked.glossary_id]), *asked.glossary_ids]
        if len(several) > 1:
            raise invalid("only one glossary is supported")
        name = "".join(several)
        return name, await self.api.terms(name, client, asked.source_lang, asked.target_lang)

    # Documents

    async def upload_document(self, request: Request, client: str, asked: DeepLDocumentParameters) -> Response:
        """Translate a document in the background."""
        name, format, contents = uploaded_file(asked)
        source, target, wanted = asked.source_lang, asked.target_lang, asked.output_format.lower()
        if f".{wanted}" not in (".", suffix_of(name)):
            raise invalid(f"output_format {wanted[:30]} is not supported, only that of the file")
        service = self.api.service
        service.language(target) if source.lower() == AUTO else service.path(source, target)
        glossary, glossaries = await self._terms(asked, client)

        async def work() -> StoredFile:
            characters = 0

            def check(content: str) -> None:
                nonlocal characters
                self.api.require_short([content])
                characters = len(content)

            found = await service.translate_document(contents, format, safe_name(name), source, target, glossary, check,
                                                     client, glossaries, asked.tag)
            return self.api.translated_file(name, found, client, characters)

        id, key = self.jobs.start(client, len(contents), work)
        return JSONResponse({"document_id": id, "document_key": key})

    async def document_status(self, request: Request, client: str, asked: DocumentParameters) -> Response:
        """Return the state of a document: translating, done or error."""
        id = request.path_params["document_id"]
        file, answer = self.jobs.get(id, asked.document_key), {"document_id": id}
        if file is None:
            return JSONResponse({**answer, "status": "translating", "seconds_remaining": 1})
        if file.error is not None:
            return JSONResponse({**answer, "status": "error", "error_message": file.error.message})
        return JSONResponse({**answer, "status": "done", "billed_characters": file.characters})

    async def document_result(self, request: Request, client: str, asked: DocumentParameters) -> Response:
        """Return the translation of a document, and delete it afterwards."""
        id, key = request.path_params["document_id"], asked.document_key
        file = self.jobs.get(id, key)
        if file is None:
            raise ApiError(503, "The document is not translated yet", {"Retry-After": "1"})
        if file.error is not None:
            raise file.error
        return file_response(file, BackgroundTask(self.jobs.delete, id, key))


def _reader(asked: DeepLTextParameters) -> Read | None:
    """Return the function that parses the texts of a request; None if their format is enough to tell that.

    Raises:
        ApiError: a parameter is only for XML.
    """
    markup, split = asked.tag_handling, asked.split_sentences
    if markup == "xml":
        options = XmlOptions(asked.splitting_tags, asked.non_splitting_tags, asked.ignore_tags, asked.outline_detection,
                             split)
        return partial(XmlTextDocument, options=options)
    for name in ("splitting_tags", "non_splitting_tags", "ignore_tags"):
        if getattr(asked, name):
            raise invalid(f"{name} parameter is supported only with tag_handling xml")
    if not asked.outline_detection:
        raise invalid("outline_detection parameter is supported only with tag_handling xml")
    if markup == "html":
        return read_unsplit_html if split == "0" else None
    return None if split == "1" else partial(WholeText, split=split != "0")


def _only_dictionary(glossary: ClientGlossary) -> Dictionary:
    if len(glossary.dictionaries) != 1:
        raise ApiError(400, "The glossary does not have one dictionary. Use /v3/glossaries")
    return glossary.dictionaries[0]


def _record(glossary: ClientGlossary) -> dict[str, Any]:
    return {"glossary_id": glossary.glossary_id, "name": glossary.name, "ready": True,
            "creation_time": glossary.creation_time, **_described(_only_dictionary(glossary))}


def _multilingual_record(glossary: ClientGlossary) -> dict[str, Any]:
    return {"glossary_id": glossary.glossary_id, "name": glossary.name, "creation_time": glossary.creation_time,
            "dictionaries": list(map(_described, glossary.dictionaries))}


def _described(dictionary: Dictionary) -> dict[str, Any]:
    return {"source_lang": dictionary.source_lang, "target_lang": dictionary.target_lang,
            "entry_count": dictionary.entry_count}
