"""Parameters of a request. Every endpoint accepts them as JSON, as a form or in the query string."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.requests import Request

from seq2seq.files import NotJson, parse_json
from seq2seq.serve.errors import ApiError, invalid

MAX_FIELDS = 10_000
"""Maximum number of fields of a form or query string."""
BODY_SECONDS = 60
"""Maximum time until a request's body has arrived."""
LISTS = ("q", "text")
"""Parameters that a form or query string may repeat. The values of a repeated parameter become a list."""


async def read_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a request. If a parameter is both in the body and in the query string, the body's value
    is used. The value of a file is an `UploadFile`.

    Raises:
        ApiError: the body or the query string is malformed, or the body does not arrive in time.
    """
    parameters = _decode_form(request.scope["query_string"], "the query string")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return parameters | await _body(request)
    except TimeoutError:
        raise ApiError(408, "Invalid request: the request's body did not arrive in time") from None


async def _body(request: Request) -> dict[str, Any]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "multipart/form-data":
        # Starlette reads names and texts that are not UTF-8 as Latin-1, without an error. If it reads all as Latin-1,
        # `_as_utf_8` can restore their bytes.
        headers = [(name, value + b"; charset=latin-1" if name == b"content-type" else value)
                   for name, value in request.scope["headers"]]
        form = await Request({**request.scope, "headers": headers}, request.receive).form(
            max_files=1, max_fields=MAX_FIELDS, max_part_size=2**31)
        return _merge((_as_utf_8(name), _as_utf_8(value)) for name, value in form.multi_items())
    body = await request.body()
    if not body.strip():
        return {}
    if content_type.endswith("json"):
        return _decode_json(body)
    # Some programs, such as curl -d, send JSON with the content type of a form, or without a content type.
    if body.lstrip()[:1] == b"{":
        return _decode_json(body)
    return _decode_form(body, "the form")


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
        ApiError: the parameter is missing or empty, or is neither a text nor a list of texts.
    """
    value = parameters.get(name)
    if value is None or value == "" or value == []:
        raise invalid(f"missing {name} parameter")
    if isinstance(value, list):
        return [_require_text(one, f"each element of {name}") for one in value], True
    return [_require_text(value, name)], False


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
