"""Untrusted files and JSON are read by one function each, which returns a value or raises a single kind of error."""

import ast
import contextlib
import io
import json
import os
import socket
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seq2seq
from seq2seq.data.glossary import Glossary
from seq2seq.errors import UserError
from seq2seq.files import MAX_NESTING, NotJson, NotZip, open_regular, open_zip, parse_json, regular_bytes
from seq2seq.serve.limits import read_keys

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


def special_file(path, kind):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(kind)
    return path


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "/dev/zero", "/dev/null"])
@pytest.mark.parametrize("read", [regular_bytes, open_regular])
def test_only_regular_files_are_opened_and_none_is_waited_for(tmp_path, monkeypatch, kind, read):
    monkeypatch.chdir(tmp_path)                                                 # paths of sockets have a short limit
    with pytest.raises(OSError):
        read(special_file(Path("x"), kind))


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
@pytest.mark.parametrize("read", [lambda path: Glossary.read(path, "de", "en"), read_keys])
def test_glossaries_and_key_files_are_regular_files(tmp_path, kind, read):
    with pytest.raises(UserError, match="x.tsv cannot be read: it is not a regular file"):
        read(special_file(tmp_path / "x.tsv", kind))


def test_a_file_is_read_up_to_a_size_through_links(tmp_path):
    (tmp_path / "file").write_bytes(b"1234567")
    (tmp_path / "link").symlink_to("file")
    assert regular_bytes(tmp_path / "link", 7) == b"1234567"
    with pytest.raises(OSError, match="more than 6 bytes"):
        regular_bytes(tmp_path / "link", 6)
    with (tmp_path / "file").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(OSError, match="more than 50,000,000 bytes"):
        regular_bytes(tmp_path / "link")


def test_the_directory_of_a_zip_archive_is_bounded_and_its_members_are_not():
    def archive(members, size):
        result = io.BytesIO()
        with zipfile.ZipFile(result, "w") as written:
            for number in range(members):
                written.writestr(f"{number:0100}", bytes(size))
        return result

    with open_zip(archive(1, 6_000_000)) as opened_archive:
        assert len(opened_archive.read(opened_archive.namelist()[0])) == 6_000_000
    with pytest.raises(NotZip, match="directory has more than"):
        open_zip(archive(40_000, 0))
    with pytest.raises(NotZip):
        open_zip(io.BytesIO(b"PK"))
