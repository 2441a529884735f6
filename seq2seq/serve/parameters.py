"""Parameters of a request. Every endpoint accepts them as JSON, as a form or in the query string."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import AsyncGenerator, Iterable, Set
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Scope

from seq2seq.files import NotJson, parse_json
from seq2seq.serve.endpoints import KeyParameters
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.serve.threads import in_thread

MAX_FIELDS = 10_000
"""Maximum number of fields of a form or query string, and of values of a JSON object, including nested ones."""
SCHEMES = ("deepl-auth-key", "bearer")
"""Schemes that may precede the API key in the header `Authorization`, in lower case."""
THREAD_BYTES, LARGE_BYTES = 4 * 1024, 64 * 1024
"""Parameters of more bytes than these are decoded in another thread, and in one for large work (see `in_thread`)."""
CHARSETS = (b"", b"utf-8", b"utf8", b"us-ascii", b"ascii")
"""Values of the parameter `charset` of a content type, in lower case, with which a body is read."""
_NOT_ASCII = re.compile(rb"[\x80-\xff]|%[89a-fA-F]")
"""Byte above 127, as it is or percent-encoded."""
_JSON_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
"""A string of JSON, complete or not, or a character that begins a value."""


def key_in_head(scope: Scope) -> str:
    """Return the API key in a request's header `Authorization` or in its query string; "" if there is none.

    Raises:
        ApiError: the query string is malformed.
    """
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() in SCHEMES:
                return key.strip()
    if b"_key=" not in scope["query_string"]:
        return ""
    query = dict(_form_fields(scope["query_string"], "the query string"))
    return next((query[name] for name in KeyParameters.model_fields if query.get(name)), "")


async def read_parameters(request: Request, lists: Set[str]) -> dict[str, Any]:
    """Return the parameters of a request. If a parameter is both in the body and in the query string, the body's value
    is used. The value of a file is an `UploadFile`.

    Args:
        lists: parameters that a form or query string may repeat. The values of a repeated parameter become a list.
    Raises:
        ApiError: the body or the query string is malformed.
    """
    body, query = await request.body(), request.scope["query_string"]

    def decode() -> dict[str, Any]:
        return _merge(_form_fields(query, "the query string"), lists) | _decode(
            body, request.headers.get("content-type", ""), lists)

    size = len(body) + len(query)
    return decode() if size <= THREAD_BYTES else await in_thread(decode, large=size > LARGE_BYTES)


def _decode(body: bytes, content_type: str, lists: Set[str]) -> dict[str, Any]:
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        return _merge(_multipart_fields(body, content_type), lists)
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body.strip():
        return {}
    charset = options.get(b"charset", b"").lower()
    if charset not in CHARSETS and _NOT_ASCII.search(body):
        raise ApiError(415, f"the charset {charset.decode('latin-1')[:30]} is not supported. Send the body in UTF-8")
    # Some programs, such as curl -d, send JSON with the content type of a form, or without a content type.
    if kind.endswith(b"json") or body.lstrip()[:1] == b"{":
        return _decode_json(body)
    return _merge(_form_fields(body, "the form"), lists)


def _multipart_fields(body: bytes, content_type: str) -> list[tuple[str, Any]]:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    # Starlette reads names and texts that are not UTF-8 as Latin-1, without an error. If it reads all as Latin-1,
    # `_as_utf_8` can restore their bytes.
    headers = Headers({"content-type": f"{content_type}; charset=latin-1"})
    parser = MultiPartParser(headers, whole(), max_files=1, max_fields=MAX_FIELDS, max_part_size=len(body))
    parser.spool_max_size = 0                                                       # never in a file on the disk
    try:
        # The body is there and all files are in memory, so the parser never waits, and needs no event loop.
        parser.parse().send(None)
    except StopIteration as end:
        return [(_as_utf_8(name), _as_utf_8(value)) for name, value in end.value.multi_items()]
    except MultiPartException as error:
        raise invalid(f"the body is not valid multipart/form-data: {error.message[:200]}") from None
    raise AssertionError("the parser waits")


def _as_utf_8(value: Any) -> Any:
    """Return a text that was read as Latin-1, or a file whose name was, as UTF-8."""
    if isinstance(value, UploadFile):
        value.filename = (value.filename or "").encode("latin-1").decode(errors="replace")
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise invalid("the form is not UTF-8") from None


def _decode_json(body: bytes) -> dict[str, Any]:
    # Python's parser keeps the interpreter's lock until it has read all values. 8 MB of empty lists would take 1 s.
    if sum(1 for _ in itertools.islice(_JSON_TOKENS.finditer(body), MAX_FIELDS + 1)) > MAX_FIELDS:
        raise ApiError(413, f"Invalid request: the body has more than {MAX_FIELDS:,} values")
    try:
        value = parse_json(body)
    except NotJson as error:
        # The message can be passed on, because Python's parser never quotes the text.
        raise invalid(f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object with the parameters")
    return value


def _form_fields(encoded: bytes, place: str) -> list[tuple[str, Any]]:
    try:
        return parse_qsl(encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise invalid(f"{place} is not UTF-8") from None
    except ValueError:
        raise invalid(f"{place} has more than {MAX_FIELDS:,} fields") from None


def _merge(fields: Iterable[tuple[str, Any]], lists: Set[str]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for name, value in fields:
        values.setdefault(name.removesuffix("[]"), []).append(value)
    for name, several in values.items():
        if name not in lists and len(set(several)) > 1:
            raise invalid(f"{name[:30]} parameter has several values")
    return {name: several if len(several) > 1 and name in lists else several[-1] for name, several in values.items()}
