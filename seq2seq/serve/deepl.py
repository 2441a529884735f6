"""DeepL's interface, for programs that support only this one: texts, glossaries, documents.

Documentation: https://developers.deepl.com/api-reference
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seq2seq.formats.xml_text import SplitSentences, XmlOptions, XmlTextDocument
from seq2seq.languages import language_name
from seq2seq.serve.api import (
    Api,
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
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.serve.files import StoredFile, safe_name, suffix_of
from seq2seq.serve.parameters import flag, names, read_parameters, text, texts
from seq2seq.serve.service import AUTO, Glossaries
from seq2seq.serve.threads import in_thread

T = TypeVar("T")

UNLIMITED = 1_000_000_000_000
"""Character limit of an account without a limit, as DeepL gives it."""
WITHOUT_EFFECT = {
    "formality": ("", "default", "prefer_more", "prefer_less"),
    "model_type": ("", "latency_optimized", "quality_optimized", "prefer_quality_optimized"),
    "tag_handling_version": ("", "v1", "v2"),
}
"""Values of parameters that are accepted and change nothing. Other values are refused."""
REFUSED = ("style_id", "custom_instructions", "translation_memory_id")
"""Parameters that would change the translation, and are not supported."""
TAG_LISTS = ("splitting_tags", "non_splitting_tags", "ignore_tags")
_FORM_FIELD = re.compile(r"dictionaries\[(\d{1,3})\]\.?\[?(\w+)\]?")
"""Name of a form's field that is part of a dictionary, such as `dictionaries[0].entries`."""


def is_deepl(path: str) -> bool:
    """Return True if a path belongs to DeepL's interface."""
    return path.startswith(("/v2/", "/v3/"))


class DeepLApi:
    """Endpoints of DeepL's interface, with the models, limits and settings of `api`."""

    def __init__(self, api: Api) -> None:
        self.api, self.store = api, api.settings.glossaries
        self.jobs = DocumentJobs(api.files, api.settings.log_text)

    def routes(self) -> list[Route]:
        glossary, document = "/glossaries/{glossary_id}", "/v2/document/{document_id}"
        return [
            Route("/v2/translate", self.translate, methods=["POST"]),
            Route("/v2/languages", self.languages, methods=["GET", "POST"]),
            Route("/v2/usage", self.usage, methods=["GET", "POST"]),
            Route("/v2/glossary-language-pairs", self.glossary_language_pairs, methods=["GET"]),
            Route("/v2/glossaries", self.list_glossaries, methods=["GET"]),
            Route("/v2/glossaries", self.create_glossary, methods=["POST"]),
            Route(f"/v2{glossary}", self.get_glossary, methods=["GET"]),
            Route(f"/v2{glossary}", self.delete_glossary, methods=["DELETE"]),
            Route(f"/v2{glossary}/entries", self.get_entries, methods=["GET"]),
            Route("/v3/glossaries", self.list_multilingual_glossaries, methods=["GET"]),
            Route("/v3/glossaries", self.create_multilingual_glossary, methods=["POST"]),
            Route(f"/v3{glossary}", self.get_multilingual_glossary, methods=["GET"]),
            Route(f"/v3{glossary}", self.edit_multilingual_glossary, methods=["PATCH"]),
            Route(f"/v3{glossary}", self.delete_glossary, methods=["DELETE"]),
            Route(f"/v3{glossary}/entries", self.get_multilingual_entries, methods=["GET"]),
            Route(f"/v3{glossary}/dictionaries", self.replace_dictionary, methods=["PUT"]),
            Route(f"/v3{glossary}/dictionaries", self.delete_dictionary, methods=["DELETE"]),
            Route("/v2/document", self.upload_document, methods=["POST"]),
            Route(document, self.document_status, methods=["POST"]),
            Route(f"{document}/result", self.document_result, methods=["POST"]),
        ]

    # Texts

    async def translate(self, request: Request) -> Response:
        """Answer POST /v2/translate."""
        parameters = await read_parameters(request)
        q, _ = texts(parameters, "text")
        client = await self.api.admit(request, parameters, len(q))
        source, target = text(parameters, "source_lang", AUTO), text(parameters, "target_lang")
        _require_supported(parameters)
        markup, read = text(parameters, "tag_handling", ""), _reader(parameters)
        self.api.require_short(q)
        glossary, glossaries = await self._terms(parameters, client, source, target)
        found = await unless_disconnected(request, self.api.service.translate(
            q, source, target, "html" if markup else "text", glossary=glossary, client=client, glossaries=glossaries,
            read=read, name="text", tag=text(parameters, "tag", "")))
        self.api.log_texts(q, found)
        translations = [{"detected_source_language": one.path[0].split("-")[0].upper(), "text": one.versions[0],
                         "billed_characters": len(original), **one.report}
                        for original, one in zip(q, found, strict=True)]
        return await json_response({"translations": translations}, q, path_header(found))

    async def languages(self, request: Request) -> Response:
        """Answer GET /v2/languages."""
        parameters = await read_parameters(request)
        directions = self.api.service.directions
        wanted = 1 if text(parameters, "type", "source") == "target" else 0
        return JSONResponse([{"language": code.upper(), "name": language_name(code), "supports_formality": False}
                             for code in directions.languages if any(pair[wanted] == code for pair in directions.direct)
                             ])

    async def usage(self, request: Request) -> Response:
        """Answer GET /v2/usage: there is no quota of characters."""
        await self.api.identify(request, await read_parameters(request))
        return JSONResponse({"character_count": 0, "character_limit": UNLIMITED})

    # Glossaries

    async def glossary_language_pairs(self, request: Request) -> Response:
        """Answer GET /v2/glossary-language-pairs."""
        pairs = self._pairs() if self.store.accepts else []
        return JSONResponse({"supported_languages": [
            {"source_lang": source, "target_lang": target} for source, target in pairs]})

    async def list_glossaries(self, request: Request) -> Response:
        """Answer GET /v2/glossaries: those with one dictionary."""
        found = await self._with_store(request, self.store.of)
        return JSONResponse({"glossaries": [_record(one) for one in found if len(one.dictionaries) == 1]})

    async def create_glossary(self, request: Request) -> Response:
        """Answer POST /v2/glossaries. A glossary with the same name and languages is replaced."""
        parameters = await read_parameters(request)
        name, dictionary = text(parameters, "name"), await self._dictionary(parameters)
        new = await self._with_store(request, lambda client: self.store.create(client, name, dictionary, replaces=True),
                                     parameters)
        return JSONResponse(_record(new), 201)

    async def get_glossary(self, request: Request) -> Response:
        """Answer GET /v2/glossaries/<id>."""
        return JSONResponse(_record(await self._glossary(request)))

    async def delete_glossary(self, request: Request) -> Response:
        """Answer DELETE /v2/glossaries/<id> and /v3/glossaries/<id>."""
        await self._with_store(request, lambda client: self.store.delete(client, request.path_params["glossary_id"]))
        return Response(status_code=204)

    async def get_entries(self, request: Request) -> Response:
        """Answer GET /v2/glossaries/<id>/entries."""
        dictionary = _only_dictionary(await self._glossary(request))
        return Response(await self._entries(dictionary), media_type="text/tab-separated-values")

    async def list_multilingual_glossaries(self, request: Request) -> Response:
        """Answer GET /v3/glossaries."""
        found = await self._with_store(request, self.store.of)
        return JSONResponse({"glossaries": list(map(_multilingual_record, found))})

    async def create_multilingual_glossary(self, request: Request) -> Response:
        """Answer POST /v3/glossaries."""
        parameters = await read_parameters(request)
        name, dictionaries = text(parameters, "name"), await self._dictionaries(parameters)
        if not dictionaries:
            raise invalid("missing dictionaries parameter")
        new = await self._with_store(request, lambda client: self.store.create(client, name, dictionaries), parameters)
        return JSONResponse(_multilingual_record(new), 201)

    async def get_multilingual_glossary(self, request: Request) -> Response:
        """Answer GET /v3/glossaries/<id>."""
        return JSONResponse(_multilingual_record(await self._glossary(request)))

    async def edit_multilingual_glossary(self, request: Request) -> Response:
        """Answer PATCH /v3/glossaries/<id>: change the name, and add entries or change them."""
        parameters = await read_parameters(request)
        name, dictionaries = text(parameters, "name", ""), await self._dictionaries(parameters)
        new = await self._with_store(request, lambda client: self.store.update(
            client, request.path_params["glossary_id"], dictionaries, name, adds=True), parameters)
        return JSONResponse(_multilingual_record(new))

    async def get_multilingual_entries(self, request: Request) -> Response:
        """Answer GET /v3/glossaries/<id>/entries."""
        parameters = await read_parameters(request)
        glossary = await self._glossary(request)
        wanted = _languages(parameters)
        dictionary = glossary.dictionary(wanted)
        if dictionary is None:
            raise ApiError(404, "The glossary has no such dictionary")
        return JSONResponse({"dictionaries": [{
            "source_lang": wanted[0], "target_lang": wanted[1], "entries": await self._entries(dictionary),
            "entries_format": "tsv"}]})

    async def replace_dictionary(self, request: Request) -> Response:
        """Answer PUT /v3/glossaries/<id>/dictionaries."""
        parameters = await read_parameters(request)
        dictionary = await self._dictionary(parameters)
        new = await self._with_store(request, lambda client: self.store.update(
            client, request.path_params["glossary_id"], dictionary), parameters)
        return JSONResponse(next(_described(one) for one in new.dictionaries if one.languages in dictionary))

    async def delete_dictionary(self, request: Request) -> Response:
        """Answer DELETE /v3/glossaries/<id>/dictionaries."""
        parameters = await read_parameters(request)
        wanted = _languages(parameters)
        await self._with_store(request, lambda client: self.store.delete_dictionary(
            client, request.path_params["glossary_id"], wanted), parameters)
        return Response(status_code=204)

    async def _with_store(self, request: Request, function: Callable[[str], T],
                          parameters: Mapping[str, Any] | None = None) -> T:
        """Return the result of a function of the client's name, which uses the store of glossaries."""
        parameters = await read_parameters(request) if parameters is None else parameters
        client = await self.api.admit(request, parameters)
        return await in_thread(lambda: function(client), large=request.method != "GET")

    async def _glossary(self, request: Request) -> ClientGlossary:
        return await self._with_store(
            request, lambda client: self.store.get(client, request.path_params["glossary_id"]))

    async def _entries(self, dictionary: Dictionary) -> str:
        entries = await in_thread(partial(self.store.entries, dictionary), large=False)
        return "\n".join(f"{source}\t{target}" for source, target in entries.items())

    def _pairs(self) -> list[Languages]:
        """Return the languages, without scripts and regions, for which a model can use a glossary."""
        direct = self.api.service.directions.direct
        return list(dict.fromkeys((base_language(source), base_language(target)) for source, target in direct))

    async def _dictionary(self, parameters: Mapping[str, Any]) -> dict[Languages, dict[str, str]]:
        languages = _languages(parameters)
        if languages not in self._pairs():
            raise invalid(f"glossaries from {languages[0][:30]} to {languages[1][:30]} are not supported")
        entries, format = text(parameters, "entries"), text(parameters, "entries_format", "tsv")
        return {languages: await in_thread(lambda: parse_entries(entries, format, languages), large=True)}

    async def _dictionaries(self, parameters: Mapping[str, Any]) -> dict[Languages, dict[str, str]]:
        """Return the entries of the parameter `dictionaries`, or of the fields of a form for it, by languages."""
        several: Any = parameters.get("dictionaries")
        if several is None:
            fields: dict[str, dict[str, Any]] = {}
            for name, value in parameters.items():
                if match := _FORM_FIELD.fullmatch(name):
                    fields.setdefault(match[1], {})[match[2]] = value
            several = list(fields.values())
        if not isinstance(several, list) or not all(isinstance(one, dict) for one in several):
            raise invalid("dictionaries parameter must be a list of objects")
        found: dict[Languages, dict[str, str]] = {}
        for one in several:
            dictionary = await self._dictionary(one)
            if found.keys() & dictionary:
                raise invalid("two dictionaries have the same languages")
            found |= dictionary
        return found

    async def _terms(self, parameters: Mapping[str, Any], client: str, source: str, target: str,
                     ) -> tuple[str, Glossaries | None]:
        """Return the name of the glossary of a request, and the client's glossaries with this name by direction; None
        if the name is that of a glossary of the server."""
        several = [*filter(None, [text(parameters, "glossary_id", "")]), *names(parameters, "glossary_ids")]
        if len(several) > 1:
            raise invalid("only one glossary is supported")
        return "".join(several), await self.api.terms("".join(several), client, source, target)

    # Documents

    async def upload_document(self, request: Request) -> Response:
        """Answer POST /v2/document: translate a file in the background."""
        parameters = await read_parameters(request)
        name, format, contents = uploaded_file(parameters)
        client = await self.api.admit(request, parameters)
        source, target = text(parameters, "source_lang", AUTO), text(parameters, "target_lang")
        _require_supported(parameters)
        wanted = text(parameters, "output_format", "").lower()
        if f".{wanted}" not in (".", suffix_of(name)):
            raise invalid(f"output_format {wanted[:30]} is not supported, only that of the file")
        service = self.api.service
        service.language(target) if source.lower() == AUTO else service.path(source, target)
        glossary, glossaries = await self._terms(parameters, client, source, target)
        tag = text(parameters, "tag", "")

        async def work() -> StoredFile:
            characters = 0

            def check(content: str) -> None:
                nonlocal characters
                self.api.require_short([content])
                characters = len(content)

            found = await service.translate_document(contents, format, safe_name(name), source, target, glossary, check,
                                                     client, glossaries, tag)
            return self.api.translated_file(name, found, client, characters)

        id, key = self.jobs.start(client, len(contents), work)
        return JSONResponse({"document_id": id, "document_key": key})

    async def document_status(self, request: Request) -> Response:
        """Answer POST /v2/document/<id>."""
        id, key = await self._document(request)
        file, answer = self.jobs.get(id, key), {"document_id": id}
        if file is None:
            return JSONResponse({**answer, "status": "translating", "seconds_remaining": 1})
        if file.error is not None:
            return JSONResponse({**answer, "status": "error", "error_message": file.error.message})
        return JSONResponse({**answer, "status": "done", "billed_characters": file.characters})

    async def document_result(self, request: Request) -> Response:
        """Answer POST /v2/document/<id>/result, and delete the file afterwards."""
        id, key = await self._document(request)
        file = self.jobs.get(id, key)
        if file is None:
            raise ApiError(503, "The document is not translated yet", {"Retry-After": "1"})
        if file.error is not None:
            raise file.error
        return file_response(file, BackgroundTask(self.jobs.delete, id, key))

    async def _document(self, request: Request) -> tuple[str, str]:
        """Return the id and the key of a document that a request names."""
        parameters = await read_parameters(request)
        await self.api.identify(request, parameters)
        return request.path_params["document_id"], text(parameters, "document_key")


def _require_supported(parameters: Mapping[str, Any]) -> None:
    """Raise ApiError if a parameter asks for something that would change the translation and is not supported."""
    for name, accepted in WITHOUT_EFFECT.items():
        if (value := text(parameters, name, "")) not in accepted:
            raise invalid(f"{name} {value[:30]} is not supported")
    for name in REFUSED:
        if parameters.get(name):
            raise invalid(f"{name} parameter is not supported")
    flag(parameters, "preserve_formatting")


def _reader(parameters: Mapping[str, Any]) -> Read | None:
    """Return the function that parses the texts of a request; None if their format is enough to tell that.

    Raises:
        ApiError: a parameter has an unknown value, or is only for XML.
    """
    markup, split = text(parameters, "tag_handling", ""), str(parameters.get("split_sentences", "")).lower()
    split = {"true": "1", "false": "0", "none": ""}.get(split, split)
    if markup not in ("", "html", "xml"):
        raise ApiError(400, f"{markup[:30]} format is not supported")
    if split not in ("", "0", "1", "nonewlines"):
        raise invalid("split_sentences parameter is none of 0, 1 and nonewlines")
    outline = parameters.get("outline_detection") in (None, "") or flag(parameters, "outline_detection")
    splitting, non_splitting, ignored = (frozenset(names(parameters, name)) for name in TAG_LISTS)
    if markup == "xml":
        options = XmlOptions(splitting, non_splitting, ignored, outline, cast(SplitSentences, split or "1"))
        return partial(XmlTextDocument, options=options)
    for name, value in zip((*TAG_LISTS, "outline_detection"), (splitting, non_splitting, ignored, not outline),
                           strict=True):
        if value:
            raise invalid(f"{name} parameter is supported only with tag_handling xml")
    if markup == "html":
        return read_unsplit_html if split == "0" else None
    return partial(WholeText, split=split != "0") if split in ("0", "nonewlines") else None


def _languages(parameters: Mapping[str, Any]) -> Languages:
    """Return the languages of a dictionary, without scripts and regions."""
    return base_language(text(parameters, "source_lang")), base_language(text(parameters, "target_lang"))


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
