"""JSON as a tree of values, with their places in the document, to edit it without writing it anew."""

from __future__ import annotations

import re

from seq2seq.files import NotJson, read_any_json
from seq2seq.formats.block import MAX_LINES, DocumentError, require_count
from seq2seq.formats.data_tree import Node

_PLACE = re.compile(r"(.*): line (\d+) column (\d+) \(char \d+\)")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],]|[^\s{}\[\],:"]++')


def margin_before(text: str, place: int) -> str:
    """Return the line end and the indentation before a place; the spaces before it if it is not at the beginning of a
    line."""
    match = re.compile(r"(?:\r?\n)?[ \t]*+\Z").search(text, max(0, place - 200), place)
    return match[0] if match else ""


def parse_json_tree(text: str) -> Node:
    """Return the root of a JSON document. Elements of arrays that have no string are left out, because an array of
    numbers may have millions."""
    require_count(text.count('"') // 2, MAX_LINES, "strings")
    try:
        read_any_json(text.removeprefix("\ufeff"))
    except NotJson as error:
        problem = _PLACE.sub(r"line \2, column \3: \1", str(error))
        raise DocumentError(problem if problem.startswith("line ") else f"the document: {problem}. Simplify it.") \
            from None
    root: Node | None = None
    levels: list[Node] = []                                                     # objects and arrays around a value
    key: tuple[int, int] | None = None
    for match in _TOKEN.finditer(text, int(text.startswith("\ufeff"))):
        token, (begin, end) = match[0], match.span()
        in_array = bool(levels) and levels[-1].is_array
        if token == "," or in_array and token[0] not in '"{[]':                 # a number
            key = None
            continue
        if token in "}]":
            node = levels.pop()
            node.end = end
        elif levels and not in_array and key is None:
            key = begin, end
            continue
        else:
            node = Node(begin, end, is_array=token == "[", key_begin=begin, key_end=begin)
            root = root or node
            if key:
                node.key_begin, node.key_end = key
                levels[-1].members[read_any_json(text[slice(*key)])] = node
            if token in "{[":
                node.members = {}
                levels.append(node)
                key = None
            else:
                node.value = read_any_json(token)
        if levels and levels[-1].is_array and (node.members or isinstance(node.value, str)):
            levels[-1].members[str(len(levels[-1].members))] = node
    assert root is not None                                                     # JSON has a value
    return root
