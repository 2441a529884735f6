"""Parser of the JSON in files: bundles, runs, models in other formats, JSONL."""

from __future__ import annotations

import json
from typing import Any

MAX_NESTING = 64
"""Maximum nesting depth. The files that seq2seq writes have 5 levels; Python's JSON writer fails at about 300."""


class NotJson(ValueError):
    """Error of the functions below: the input is not JSON, or a value in it is not accepted. The message says why."""


def parse_json(contents: bytes | str) -> Any:
    """Parse a JSON text from an untrusted source.

    Raises:
        NotJson: the text is not JSON or not UTF-8, is nested too deeply, or contains an integer of more than 4,300
            digits (Python's limit) or a lone surrogate (which UTF-8 cannot encode).
    """
    value = read_any_json(contents)
    if _is_deeper(value, MAX_NESTING):
        raise NotJson("nested too deeply")
    # Only an escape can be half of a pair.
    if b"\\u" in contents if isinstance(contents, bytes) else "\\u" in contents:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotJson("half of a surrogate pair") from None
    return value


def read_any_json(contents: bytes | str) -> Any:
    """Parse a JSON text, which may contain lone surrogates and be nested as deeply as Python's parser allows.

    Raises:
        NotJson: as for `parse_json`, but lone surrogates are no error.
    """
    try:
        # Bytes are decoded here as UTF-8, because json.loads would also accept UTF-16 and UTF-32.
        return json.loads(contents if isinstance(contents, str) else contents.decode())
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as error:                                                 # JSONDecodeError, UnicodeDecodeError
        raise NotJson(str(error)) from None


def _is_deeper(value: Any, levels: int) -> bool:
    """Return True if lists and objects are nested in a value more than `levels` times."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (levels == 0 or any(_is_deeper(one, levels - 1) for one in inner))
