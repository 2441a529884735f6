"""DeepL's `/v2/translate` and `/v2/languages`, for programs that support only DeepL's interface."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seq2seq.languages import language_name
from seq2seq.serve.api import Api, json_response, path_header, unless_disconnected
from seq2seq.serve.errors import ApiError
from seq2seq.serve.parameters import read_parameters, text, texts
from seq2seq.serve.service import AUTO


class DeepLApi:
    """Endpoints of DeepL's interface, with the models, limits and settings of `api`."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [Route("/v2/translate", self.translate, methods=["POST"]),
                Route("/v2/languages", self.languages, methods=["GET", "POST"])]

    async def translate(self, request: Request) -> Response:
        """Answer POST /v2/translate."""
        parameters = await read_parameters(request)
        q, _ = texts(parameters, "text")
        client = await self.api.admit(request, parameters, len(q))
        source, target = text(parameters, "source_lang", AUTO), text(parameters, "target_lang")
        markup = text(parameters, "tag_handling", "")
        if markup not in ("", "html", "xml"):
            raise ApiError(400, f"{markup[:30]} format is not supported")
        self.api.require_short(q)
        found = await unless_disconnected(request, self.api.service.translate(
            q, source, target, "html" if markup else "text", glossary=text(parameters, "glossary_id", ""),
            client=client))
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
