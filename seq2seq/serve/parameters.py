"""Parameters of a request. Every endpoint accepts them as JSON, as a form or in the query string."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Scope

from seq2seq.files import NotJson, parse_json
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.serve.threads import in_thread

MAX_TEXTS = 1_000
"""Maximum number of texts of a request."""
MAX_FIELDS = 10_000
"""Maximum number of fields of a form or query string, and of values of a JSON object, including nested ones."""
LISTS = ("q", "text", "ignore_tags", "splitting_tags", "non_splitting_tags", "glossary_ids")
"""Parameters that a form or query string may repeat. The values of a repeated parameter become a list."""
KEYS = ("api_key", "auth_key")
"""Names of the API key in LibreTranslate's and in DeepL's interface."""
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
    query = _decode_form(scope["query_string"], "the query string")
    return next((query[name] for name in KEYS if query.get(name)), "")


async def read_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a request. If a parameter is both in the body and in the query string, the body's value
    is used. The value of a file is an `UploadFile`.

    Raises:
        ApiError: the body or the query string is malformed.
    """
    body, query = await request.body(), request.scope["query_string"]

    def decode() -> dict[str, Any]:
        return _decode_form(query, "the query string") | _decode(body, request.headers.get("content-type", ""))

    size = len(body) + len(query)
    return decode() if size <= THREAD_BYTES else await in_thread(decode, large=size > LARGE_BYTES)


def _decode(body: bytes, content_type: str) -> dict[str, Any]:
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        return _decode_multipart(body, content_type)
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body.strip():
        return {}
    charset = options.get(b"charset", b"").lower()
    if charset not in CHARSETS and _NOT_ASCII.search(body):
        raise ApiError(415, f"the charset {charset.decode('latin-1')[:30]} is not supported. Send the body in UTF-8")
    # Some programs, such as curl -d, send JSON with the content type of a form, or without a content type.
    if kind.endswith(b"json") or body.lstrip()[:1] == b"{":
        return _decode_json(body)
    return _decode_form(body, "the form")


def _decode_multipart(body: bytes, content_type: str) -> dict[str, Any]:
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
        return _merge((_as_utf_8(name), _as_utf_8(value)) for name, value in end.value.multi_items())
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


def _decode_form(encoded: bytes, place: str) -> dict[str, Any]:
    try:
        return _merge(parse_qsl(encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS))
    except UnicodeDecodeError:
        raise invalid(f"{place} is not UTF-8") from None
    except ValueError:
        raise invalid(f"{place} has more than {MAX_FIELDS:,} fields") from None


def _merge(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for name, value in fields:
        values.setdefault(name.removesuffix("[]"), []).append(value)
    for name, several in values.items():
        if name not in LISTS and len(set(several)) > 1:
            raise invalid(f"{name[:30]} parameter has several values")
    return {name: several if len(several) > 1 and name in LISTS else several[-1] for name, several in values.items()}


def text(parameters: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a parameter that is a single text.

    default: value if the parameter is missing or empty; None means that the parameter is required.
    Raises:
        ApiError: a required parameter is missing or empty, or the value is not a text.
    """
    value = parameters.get(name)
    if value is None or value == "":
        if default is None:
            raise invalid(f"missing {name} parameter")
        return default
    return _require_text(value, name)


def texts(parameters: Mapping[str, Any], name: str) -> tuple[list[str], bool]:
    """Return the texts of a parameter, and True if its value is a list of texts, False if it is a single text.

    Raises:
        ApiError: the parameter is missing or empty, or is neither a text nor a list of texts, or is a list of more than
            MAX_TEXTS texts.
    """
    value = parameters.get(name)
    if value is None or value == "" or value == []:
        raise invalid(f"missing {name} parameter")
    if isinstance(value, list):
        if len(value) > MAX_TEXTS:
            raise ApiError(413, f"Invalid request: request has {len(value):,} texts, this server accepts at most "
                                f"{MAX_TEXTS:,}")
        return [_require_text(one, f"each element of {name}") for one in value], True
    return [_require_text(value, name)], False


def names(parameters: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of a parameter, which is a list of names or a text in which commas separate them.

    Raises:
        ApiError: the value is neither.
    """
    value = parameters.get(name)
    several = value if isinstance(value, list) else [] if value is None else [value]
    return [part.strip() for one in several for part in _require_text(one, name).split(",") if part.strip()]


def number(parameters: Mapping[str, Any], name: str) -> int:
    """Return a parameter as an integer; 0 if it is missing or empty.

    Raises:
        ApiError: the value is not a number.
    """
    value = parameters.get(name)
    if value is None or value == "":
        return 0
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return int(value)
        except (ValueError, OverflowError):
            pass
    raise invalid(f"{name} parameter is not a number")


def flag(parameters: Mapping[str, Any], name: str) -> bool:
    """Return a Boolean parameter; False if it is missing or empty.

    Raises:
        ApiError: the value is neither true nor false.
    """
    value = parameters.get(name)
    known: dict[str, bool] = {"true": True, "1": True, "false": False, "0": False, "": False, "none": False}
    found = known.get(str(value).lower()) if value is None or isinstance(value, bool | int | str) else None
    if found is None:
        raise invalid(f"{name} parameter is neither true nor false")
    return found


def _require_text(value: Any, name: str) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid(f"{name} parameter is not UTF-8") from None
        return value
    raise invalid(f"{name} parameter must be a text")
