"""JSON as parts or as a tree of values, with their places in the document, to edit it without writing it anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from seq2seq.files import NotJson, read_any_json
from seq2seq.formats.block import MAX_LINES, DocumentError, require_count

_PLACE = re.compile(r"(.*): line (\d+) column (\d+) \(char \d+\)")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],]|[^\s{}\[\],:"]++')


@dataclass(slots=True)
class JsonNode:
    """Value. begin, end: its span in the document. value: a string, number, boolean or None; None for objects and
    arrays. members: values of an object by key. key_begin: place of its key in an object."""

    begin: int
    end: int = 0
    value: Any = None
    members: dict[str, JsonNode] = field(default_factory=dict)
    key_begin: int = 0

    def text(self, *keys: str) -> str | None:
        """Return the string at the end of a path of keys; None if there is none."""
        node = self.find(*keys)
        return node.value if node is not None and isinstance(node.value, str) else None

    def find(self, *keys: str) -> JsonNode | None:
        """Return the value at the end of a path of keys; None if there is none."""
        node: JsonNode | None = self
        for key in keys:
            node = node.members.get(key) if node is not None else None
        return node


def margin_before(text: str, place: int) -> str:
    """Return the line end and the indentation before a place; the spaces before it if it is not at the beginning of a
    line."""
    match = re.compile(r"(?:\r?\n)?[ \t]*+\Z").search(text, max(0, place - 200), place)
    return match[0] if match else ""


def read_json(text: str) -> Any:
    """Return the value of a JSON document. A byte order mark is left out."""
    require_count(text.count('"') // 2, MAX_LINES, "strings")
    try:
        return read_any_json(text.removeprefix("\ufeff"))
    except NotJson as error:
        problem = _PLACE.sub(r"line \2, column \3: \1", str(error))
        raise DocumentError(problem if problem.startswith("line ") else f"the document: {problem}. Simplify it.") \
            from None


def json_parts(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, begin and end of each part of a JSON document that `read_json` accepts.

    The kinds are {, }, [, ], "key", and "value": a string, a number, a boolean or null.
    """
    levels = [""]                                                               # kinds of the open objects and arrays
    key_follows = False
    for match in _TOKEN.finditer(text, int(text.startswith("\ufeff"))):
        kind = match[0]
        if kind == ",":
            key_follows = levels[-1] == "{"
            continue
        if kind in "{[":
            levels.append(kind)
        elif kind in "}]":
            levels.pop()
        else:
            kind = "key" if key_follows else "value"
        key_follows = kind == "{"
        yield kind, *match.span()


def parse_json_tree(text: str) -> JsonNode:
    """Return the root of a JSON document. The elements of arrays are left out."""
    read_json(text)
    root: JsonNode | None = None
    levels: list[JsonNode] = []                                                 # objects and arrays
    key: tuple[str, int] | None = None                                          # with its place
    for kind, begin, end in json_parts(text):
        if kind == "key":
            key = read_any_json(text[begin:end]), begin
        elif kind in "}]":
            levels.pop().end = end
        else:
            node = JsonNode(begin, end, key_begin=key[1] if key else 0)
            if key:
                levels[-1].members[key[0]] = node
            key, root = None, root or node
            if kind == "value":
                node.value = read_any_json(text[begin:end])
            else:
                levels.append(node)
    assert root is not None                                                     # JSON has a value
    return root
