"""Untrusted JSON is read by one function, which returns a value or raises a single kind of error."""

import ast
import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seq2seq
from seq2seq.files import MAX_NESTING, NotJson, parse_json

PACKAGE = Path(seq2seq.__file__).parent
# Reads back what it has written itself.
OTHERS = {"files.py", "unfinished_output.py"}


@pytest.mark.parametrize("contents, told", [
    (b"", "Expecting value"), (b"{", "Expecting"), (b"\xff\xfe\xfd", "codec"), (b'"\xff"', "codec"),
    ("1".encode("utf-16"), "codec"),
    ("[" * 100_000, "nested too deeply"), ('{"a":' * 100_000, "nested too deeply"),
    ("[" * (MAX_NESTING + 1) + "1" + "]" * (MAX_NESTING + 1), "nested too deeply"),
    ("1" * 5000, "digits"), (r'"a\ud800b"', "surrogate"), (r'[{"\udc00": 1}]', "surrogate"),
], ids=["nothing", "cut off", "no UTF-8", "no UTF-8 in a string", "UTF-16", "lists without end", "objects without end",
        "one list too many", "digits without end", "half a pair", "half a pair in a key"])
def test_all_invalid_json_raises_the_same_error(contents, told):
    with pytest.raises(NotJson, match=told):
        parse_json(contents)


def test_what_can_be_read_can_be_written_again():
    deepest = parse_json("[" * MAX_NESTING + "[]".strip("[]") + "]" * MAX_NESTING)
    assert parse_json(json.dumps(deepest, indent=2)) == deepest
    assert parse_json(r'{"\ud83d\ude00": ["ü", 1e-7, null, true]}') == {"😀": ["ü", 1e-7, None, True]}


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                      lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_all_json_that_is_usable_comes_back(value):
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_the_same_error(contents):
    with contextlib.suppress(NotJson):
        parse_json(contents)


def test_all_modules_read_json_with_parse_json():
    for path in PACKAGE.rglob("*.py"):
        if path.name in OTHERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            reads = isinstance(node, ast.Attribute) and node.attr in ("load", "loads") and isinstance(
                node.value, ast.Name) and node.value.id == "json"
            assert not reads, f"{path.relative_to(PACKAGE)}:{node.lineno} reads JSON past files.parse_json"
