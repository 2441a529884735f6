"""`seq2seq translate` and `translate_document` on documents."""

import io
import json
import os
import pty
import re
import zipfile

import docx
import pptx
import pytest
from random_models import ENGLISH, GERMAN, recipe_text, save_random_model, trained_tokenizers

from seq2seq import Translator, TranslatorPool, translate_document
from seq2seq.cli import main
from seq2seq.documents import divided_document
from seq2seq.errors import UserError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.translation.translation import Translation

PAGE = (b"<html><head><style>p {}</style></head><body>\r\n<h1>ein <b>Hund</b></h1>\r\n"
        b"<p>eine Katze &amp; {name}. <br>der Hund</p><p>eine Katze &amp; {name}. </p></body></html>\r\n")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    text = recipe_text(290, "d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 32",
                       "beam_size: 2, max_length: 8")
    tokenizers = trained_tokenizers(text, zip(GERMAN, ENGLISH, strict=True))
    return save_random_model(tmp_path_factory.mktemp("models") / "model", text, tokenizers, seed=3)


@pytest.fixture(scope="module")
def translator(model):
    return Translator.load(model, precision="fp32", threads=1)


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.txt"])
@pytest.mark.parametrize("place", ["screen", "/dev/tty", "pipe", "file"])
def test_a_binary_document_is_written_to_a_file_or_pipe_but_not_to_a_terminal(model, tmp_path, monkeypatch, capfdbinary,
                                                                               name, place):
    """Under `script`, /dev/tty would be a terminal, too."""
    if name == "a.docx":
        document = docx.Document()
        document.add_paragraph("ein Hund")
        document.save(tmp_path / name)
    elif name == "a.pptx":
        slides = pptx.Presentation()
        slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "ein Hund"
        slides.save(tmp_path / name)
    else:
        (tmp_path / name).write_text("ein Hund\n")
    keyboard, screen = pty.openpty()
    arguments = ["translate", str(model), str(tmp_path / name), "--precision", "fp32", "--threads", "1"]
    arguments += {"/dev/tty": ["-o", os.ttyname(screen)], "file": ["-o", str(tmp_path / "out")]}.get(place, [])
    with open(screen, "w") as stdout:
        if place == "screen":
            monkeypatch.setattr("sys.stdout", stdout)
        code = main(arguments)
    os.close(keyboard)
    assert code == (2 if name != "a.txt" and place in ("screen", "/dev/tty") else 0)
    if place == "pipe":
        assert capfdbinary.readouterr().out.startswith(b"PK") == (name != "a.txt")


@pytest.fixture
def run(capsysbinary):
    def run(*arguments):
        code = main([str(argument) for argument in ("translate", *arguments, "--precision", "fp32", "--threads", "1")])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()
    return run


def test_the_name_tells_the_format_and_all_but_the_text_stays(run, model, tmp_path):
    (tmp_path / "page.html").write_bytes(PAGE)
    code, out, err = run(model, tmp_path / "page.html", "--output", tmp_path / "page.en.html")
    assert (code, out) == (0, b"") and "is translated as html" in err
    page = (tmp_path / "page.en.html").read_bytes()
    assert page.startswith(b"<html><head><style>p {}</style></head><body>\r\n<h1>")
    assert page.endswith(b"</body></html>\r\n")
    assert page.count(b"<b>") == page.count(b"</b>") == page.count(b"<br>") == 1 and page.count(b"{name}") == 2
    assert b"Katze" not in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.en.html", "page.html"]


def test_a_document_of_too_many_sentences_is_refused_with_its_name_and_line(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr(divided_document, "MAX_SENTENCES", 1)
    (tmp_path / "a.md").write_text("ein Hund\n\neine Katze\n")
    code, out, err = run(model, tmp_path / "a.md")
    assert (code, out) == (2, b"") and f"{tmp_path / 'a.md'}:3: the document has more than 1 sentences" in err


def saved(document) -> bytes:
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def text_document() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        file.writestr("content.xml", '<o:document-content xmlns:o="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
                                     'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><o:body>'
                                     '<text:p>eine Katze</text:p></o:body></o:document-content>')
    return stream.getvalue()


def documents() -> dict[str, bytes]:
    """Return documents with a sentence, by file name."""
    word, slides = docx.Document(), pptx.Presentation()
    word.add_paragraph("eine Katze")
    slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "eine Katze"
    return {"a.docx": saved(word), "a.pptx": saved(slides), "a.odt": text_document(), "a.html": PAGE,
            "a.md": b"# eine Katze\n", "a.srt": b"1\n00:00:01,000 --> 00:00:02,000\neine Katze\n",
            "a.vtt": b"WEBVTT\n\n00:01.000 --> 00:02.000\neine Katze\n", "a.po": b'msgid "eine Katze"\nmsgstr ""\n',
            "a.properties": b"a=eine Katze\n", "a.json": b'{"a": "eine Katze"}',
            "strings.xml": b'<resources><string name="a">eine Katze</string></resources>'}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("a.docx", "a.odt", "a.md", "a.srt", "strings.xml") else pytest.mark.slow)
    for name in documents()])
def test_documents_of_each_format_are_translated_by_their_name(run, model, translator, tmp_path, name):
    (tmp_path / name).write_bytes(documents()[name])
    code, out, err = run(model, tmp_path / name, "--output", tmp_path / f"out-{name}")
    assert (code, out) == (0, b"") and "is translated as" in err
    found = (tmp_path / f"out-{name}").read_bytes()
    assert found == translate_document(translator, tmp_path / name)
    assert found != documents()[name]


@pytest.mark.slow
def test_standard_output_workers_and_the_python_interface_give_the_same_bytes(run, model, translator, tmp_path):
    (tmp_path / "page.html").write_bytes(PAGE)
    _, out, _ = run(model, tmp_path / "page.html")
    assert run(model, tmp_path / "page.html", "--workers", "2")[1] == out
    assert translate_document(translator, tmp_path / "page.html") == out
    assert translate_document(translator, PAGE, "html", beam_size=2) == out
    assert translate_document(translator.protecting(Placeholders()), PAGE, "html") == out
    with TranslatorPool(model, 2) as pool:
        assert translate_document(pool, PAGE, "html") == out


def test_lines_of_a_file_with_the_ending_of_a_document_can_be_translated(run, model, tmp_path):
    (tmp_path / "test.ts").write_text("ein Hund\ndie Katze\n")
    code, out, err = run(model, tmp_path / "test.ts", "--document", "lines")
    assert (code, out.count(b"\n")) == (0, 2) and "translated as" not in err


def test_a_document_that_fails_leaves_nothing_but_the_old_output(run, model, tmp_path, monkeypatch):
    def dying(*arguments):
        raise UserError("lost")

    monkeypatch.setattr(Translator, "search_parts", dying)
    (tmp_path / "a.docx").write_bytes(documents()["a.docx"])
    (tmp_path / "b.docx").write_bytes(b"old")
    assert run(model, tmp_path / "a.docx", "--output", tmp_path / "b.docx")[0] == 2
    assert (tmp_path / "b.docx").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.docx", "b.docx"]


def test_a_document_is_translated_whole_and_by_one_process(run, model, tmp_path, monkeypatch):
    (tmp_path / "page.html").write_bytes(PAGE)
    command = [model, tmp_path / "page.html", "--output", tmp_path / "out.html"]
    assert run(*command, "--resume")[0] == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(*command)[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]


@pytest.mark.slow
def test_lost_terms_are_reported_with_their_place(run, model, tmp_path):
    (tmp_path / "terms.tsv").write_text("Hund\tunknowable 日本語\n")
    (tmp_path / "page.html").write_bytes(PAGE)
    code, _, err = run(model, tmp_path / "page.html", "--glossary", tmp_path / "terms.tsv",
                       "--max-length", "3")
    assert code == 0 and "page.html:2: the translation lacks a term of the glossary: unknowable 日本語" in err


@pytest.mark.slow
def test_evaluate_reports_the_adherence_to_a_glossary(capsys, model, tmp_path):
    for name, lines in (("test.de", GERMAN), ("test.en", ENGLISH), ("terms.tsv", ["Hund\tdog", "Katze\tcat"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    files = ["--source", str(tmp_path / "test.de"), "--reference", str(tmp_path / "test.en")]
    terms = ["--glossary", str(tmp_path / "terms.tsv")]
    assert main(["evaluate", str(model), *files, *terms, "--format", "json", "--precision", "fp32"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["terms"]["value"] == 100 and scores["terms"]["signature"] == "terms:4|form:inflected"


def test_lost_placeholders_and_terms_out_of_place_are_reported_with_their_line(run, model, tmp_path, monkeypatch):
    def tacked(self, lines, setup, progress=None):
        return [[Translation(f"{re.sub('%s|[0-9]+', 's', one.text)}. {' '.join(one.required)}", -1.0, -1.0, 3)]
                for one in lines]

    monkeypatch.setattr(Translator, "search_lines", tacked)
    for name, text in (("in", "der Hund\nein %s\n"), ("begin", "\n#x\n"), ("phrases", "dog\n\n")):
        (tmp_path / name).write_text(text)
    lines = tmp_path / "in"
    code, out, err = run(model, lines, "--require-file", tmp_path / "phrases", "--prefix-file", tmp_path / "begin")
    assert (code, out) == (0, b"der Hund. dog\nein s. \n")
    assert f"{lines}:2: lost_placeholder\n" in err and f"{lines}:1: " in err and err.count("dog") == 1
    assert "lost_placeholder" not in run(model, lines, "--prefix-file", tmp_path / "begin", "--no-safety-net")[2]
    _, out, _ = run(model, lines, "--require-file", tmp_path / "phrases", "--prefix-file", tmp_path / "begin",
                    "--format", "jsonl")
    first, second = map(json.loads, out.splitlines())
    assert first["misplaced_terms"] == ["dog"] and "placed_terms" not in first
    assert second["faults"] == ["lost_placeholder"] and "misplaced_terms" not in second
