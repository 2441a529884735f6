"""The reader of all JSON that comes from outside: bundles, runs, journals, models in other formats, JSONL."""

from __future__ import annotations

import json
from typing import Any

MOST_NESTED = 64
"""Objects and lists inside one another. Ours have 5; Python's own writer gives up at some 300."""


class NotJson(ValueError):
    """Bytes that are no JSON, or JSON that nothing here could use. The message says why."""


def parse_json(contents: bytes | str) -> Any:
    """The value of a JSON text, which a stranger may have written.

    Raises:
        NotJson: it is no JSON or not UTF-8, or is nested too deeply to be read or written again, or has a number of
            thousands of digits, or text that no UTF-8 file can hold (half of a surrogate pair).
    """
    try:
        # Of bytes, json.loads would take UTF-16 and UTF-32, too.
        value = json.loads(contents if isinstance(contents, str) else contents.decode())
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as error:                                                 # JSONDecodeError, UnicodeDecodeError
        raise NotJson(str(error)) from None
    _require_usable(value)
    return value


def _require_usable(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MOST_NESTED + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, str):
                _require_text(one)
            elif isinstance(one, dict):
                inner += one
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return
        level = inner
    raise NotJson("nested too deeply")


def _require_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJson(f"half of a surrogate pair in {text[:60]!r}") from None
