"""Errors that a client of the server sees."""

from __future__ import annotations

import traceback
from collections.abc import Mapping


class ApiError(Exception):
    """Error of a request, answered as `{"error": message}`.

    status: HTTP status code. headers: further headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


class SlowdownError(ApiError):
    """Error with status 429: there are too many requests, and the client should wait.

    seconds: time after which the client may try again.
    """

    def __init__(self, reason: str, seconds: int = 1) -> None:
        super().__init__(429, f"Slowdown: {reason}", {"Retry-After": str(seconds)})


def invalid(reason: str) -> ApiError:
    """Return an error with status 400, for a request that the client must correct."""
    return ApiError(400, f"Invalid request: {reason}")


def traceback_of(error: Exception, with_message: bool) -> str:
    """Return an error's traceback. with_message: include the error's message, which may quote users' texts."""
    if with_message:
        return "".join(traceback.format_exception(error)).rstrip()
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__} (--log-text shows its message, which may quote a text)\n{frames}".rstrip()
