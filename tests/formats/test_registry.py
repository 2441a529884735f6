"""Files are read in the format that their name or root element tells, or refused, never read as lines by mistake."""

from pathlib import Path

import pytest

from seq2seq.cli.translate import input_format, require_lines
from seq2seq.errors import UserError
from seq2seq.formats.registry import FORMATS, SUFFIXES, format_of, structure_of
from seq2seq.languages import LANGUAGES, canonical
from seq2seq.serve.errors import ApiError
from seq2seq.serve.files import format_of_file

REFUSED = ".pdf .doc .xlsx .rtf .js .ini .toml .ipynb .scss .PDF .src .bpe .2016 .orig"


@pytest.mark.parametrize("suffix", REFUSED.split())
def test_files_of_other_formats_are_refused_with_the_formats_that_are_read(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_text("A dog.\n")
    with pytest.raises(UserError, match=r"--document FORMAT.*--document lines") as error:
        input_format(path, None)
    assert " ".join(SUFFIXES) in str(error.value)
    assert input_format(path, "lines") is None and input_format(path, "html") == "html"
    assert format_of_file(path.name, b"A dog.\n") is None


@pytest.mark.parametrize("name", ["a", "a.txt", "train.de", "corpus.cs", "corpus.ml", "corpus.en.gz", "a.TXT",
                                  "dev.eng_Latn", "a.zh-Hans", "news.deu", "x.tok.jp", "x.ast", "text.german"])
def test_lines_of_text_are_lines_whatever_their_name(name, tmp_path):
    (tmp_path / name).write_bytes(b"A dog.\nTwo: {dogs}\n\n<b>x</b>\n")
    assert input_format(tmp_path / name, None) is None


def test_no_code_of_a_language_is_the_suffix_of_another_format():
    others = {"mo", "sh", "iw", "no", "ace", "gre"}
    for suffix in {*map(canonical, LANGUAGES), *LANGUAGES, *others} - {"ts"}:             # that of Qt
        require_lines(f"corpus.{suffix.lower()}", b"A dog.")


@pytest.mark.parametrize("code", ["tzo", "qaa", "ts", "mkd", "pot", "srt", "sr-Latn"])
def test_a_file_named_by_a_language_of_the_model_is_lines_of_text(code, tmp_path):
    path, compressed = tmp_path / f"test.{code.lower()}", tmp_path / f"test.{code}.gz"
    for file in (path, compressed):
        file.write_bytes(b"A dog.\nTwo.\n")
        assert input_format(file, None, ["en", code]) is None
    assert input_format(path, "html", ["en", code]) == "html"
    path.write_bytes(b"<?xml version='1.0'?><TS/>")
    with pytest.raises(UserError, match="--document FORMAT"):
        input_format(path, None, ["en", code])


@pytest.mark.parametrize(("data", "kind"), [
    (b'<?xml version="1.0"?>\n<a/>', "XML or HTML"), (b"<!DOCTYPE html>", "XML or HTML"),
    (b"\n <html lang='en'>", "XML or HTML"),
    (b'{\n  "a": "b"}', "JSON"), (b'{"a": 1}', "JSON"), (b"%PDF-1.7", "PDF"), (b"{\\rtf1", "RTF"),
    (b"WEBVTT\n\n00:01.000", "WebVTT"), (b"1\n00:00:01,000 --> 00:00:02,000\na", "SRT"), (b"[Script Info]\n", "ASS"),
    (b'# German\n#\nmsgid ""\n', "PO"), ('\ufeff{"a": 1}'.encode(), "JSON"), ('{"a": 1}'.encode("utf-16"), "JSON"),
    *((text.encode(), None) for text in (
        "", "A dog.", "{name} has a dog.", "{ a dog }", "<b>A dog</b>", "[1] A dog", "1\nTwo", "# Title", "- a", "a: b",
        "html", "webvtt is a format", "XML", "{{a}}", "\ufeffA dog", "%s dogs", "<0>a</0>", "12:30 --> 13:00",
        "---\na")),
    ("A dog.".encode("utf-16"), None)])
def test_structured_contents_are_recognised_and_text_is_text(data, kind):
    assert structure_of(data) == kind


@pytest.mark.parametrize("data", [b"a\0b", b"PK\3\4\0\0", "A dog.".encode("utf-16-le")])
def test_bytes_of_value_0_are_no_lines_of_text(data):
    with pytest.raises(UserError, match="value 0"):
        require_lines("a", data)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.de"])
def test_structured_contents_under_another_name_are_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b'{"a": "A dog."}')
    with pytest.raises(UserError, match="begin like JSON"):
        input_format(tmp_path / name, None)
    assert input_format(tmp_path / name, "lines") is None
    if name == "a.txt":
        with pytest.raises(ApiError, match="begin like JSON"):
            format_of_file(name, b'{"a": "A dog."}')


@pytest.mark.parametrize(("data", "format"), [
    (b"<resources/>", "android"), (b'<?xml version="1.0"?><!-- <a> -->\n<resources xmlns:x="y">', "android"),
    (b"<xliff version='1.2'/>", "xliff"), (b"<!DOCTYPE TS><TS/>", "ts"), (b"<tmx version='1.4'>", "tmx"),
    (b"<root/>", "resx"), ("<?xml version='1.0' encoding='utf-16'?><resources/>".encode("utf-16"), "android"),
    (b"<manifest/>", None), (b"<x:xliff/>", "xliff"), ("<resources/>".encode("utf-32"), "android"),
    (b"<plist/>", None), (b"A dog", None), (b"", None),
    (b"<a><resources/></a>", None)])
def test_the_root_element_tells_the_format_of_an_xml_file(data, format, tmp_path):
    assert format_of("arrays.xml", data) == format
    assert format_of_file("values/ARRAYS.XML", data) == format
    path = tmp_path / "arrays.xml"
    path.write_bytes(data)
    if format:
        assert input_format(path, None) == format
    else:
        with pytest.raises(UserError, match="root element"):
            input_format(path, None)


def test_a_file_named_strings_xml_is_read_as_that_of_android_to_report_its_faults():
    assert format_of("values/Strings.xml", b"<resources") == "android"
    assert format_of("strings.xml", b"<manifest/>") is None


def test_compressed_documents_are_refused(tmp_path):
    for name in ("a.po.gz", "a.pdf.gz", "strings.xml.zst"):
        with pytest.raises(UserError, match="compressed"):
            input_format(tmp_path / name, None)


def test_every_suffix_names_a_format():
    assert {*SUFFIXES.values()} == {*FORMATS} - {"text", "android"}


def test_the_documentation_has_a_row_for_every_format_and_suffix():
    rows = (Path(__file__).parents[2] / "docs/documents.md").read_text(encoding="utf-8").splitlines()
    named = " ".join(row for row in rows if row.startswith("| `"))
    assert [name for name in FORMATS if f"`{name}`" not in named] == []
    assert [suffix for suffix in SUFFIXES if suffix not in named] == []
