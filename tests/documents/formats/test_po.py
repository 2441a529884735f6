"""Gettext catalogues: texts are found and filled in, msgfmt and polib accept the result, the rest stays."""

import gettext
import io
import shutil
import subprocess

import polib
import pytest
from document_translators import translated
from hypothesis import strategies as st
from property_checks import few_and_many
from test_round_trips import PO
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.formats.po import PoDocument

HEADER = PO[:PO.index("# Note")]


def entry(text, header=HEADER):
    return PoDocument((header + text).encode())


def test_polib_reads_the_translations():
    entries = polib.pofile(upper(PoDocument(PO.encode())).decode())
    assert [one.msgstr for one in entries if one.fuzzy and not one.msgid_plural] == [
        'CANNOT OPEN "%S".\n', "FILE", "Öfnen",
        "A FIRST LINE THAT IS RATHER LONG, SO THAT THE MESSAGE IS WRITTEN ON SEVERAL LINES.\n"
        "\tA SECOND LINE WITH A TAB AND A \\.\n"]
    assert entries.find("%X file").msgstr_plural == {0: "%X FILE", 1: "%X FILES"}
    assert entries.metadata["Language"] == "de"


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="msgfmt of gettext is not installed")
def test_msgfmt_accepts_the_catalogue_with_its_translations(tmp_path):
    source = PO.replace("Project-Id-Version: files", "Project-Id-Version: it")
    document = PoDocument(source.encode())
    path = tmp_path / "de.po"
    path.write_bytes(upper(document))
    header_fields = {"Last-Translator", "Language-Team", "PO-Revision-Date"}
    result = subprocess.run(["msgfmt", "--check", "--use-fuzzy", "-o", str(tmp_path / "de.mo"), str(path)],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(any(field in line for field in header_fields) for line in result.stderr.splitlines()), result.stderr


@pytest.mark.parametrize(("forms", "given_forms", "expected"), [
    ("nplurals=1; plural=0", 1, ["FILES"]), ("nplurals=3; plural=0", 2, ["FILE", "FILES", "FILES"]),
    ("nplurals=INTEGER; plural=EXPRESSION", 2, ["FILE", "FILES"]),
    ("nplurals=INTEGER; plural=0", 1, ["FILE", "FILES"])])
def test_the_header_decides_about_the_number_of_plurals(forms, given_forms, expected):
    strings = "\n".join(f'msgstr[{form}] ""' for form in range(given_forms))
    document = entry(f'msgid "file"\nmsgid_plural "files"\n{strings}\n',
                     HEADER.replace("nplurals=2; plural=(n != 1)", forms))
    assert list(polib.pofile(upper(document).decode())[0].msgstr_plural.values()) == expected


def test_a_partly_translated_plural_stays():
    assert entry('msgid "file"\nmsgid_plural "files"\nmsgstr[0] "Datei"\nmsgstr[1] ""\n').blocks == []


def test_a_catalogue_in_another_encoding_keeps_it():
    header = HEADER.replace("UTF-8", "ISO-8859-15")
    data = (header + 'msgid "5 € für"\nmsgstr ""\n').encode("iso-8859-15")
    assert texts(PoDocument(data)) == ["5 € für"]
    assert upper(PoDocument(data)).endswith('msgstr "5 € FÜR"\n'.encode("iso-8859-15"))


@few_and_many(10, 500, st.text("ab \n\t\"\\%é\r", min_size=1, max_size=300), st.booleans())
def test_polib_reads_every_text_as_it_was_written(text, context):
    document = entry('msgctxt "c"\n' * context + f'msgid "{polib.escape(text)}"\nmsgstr ""\n')
    read = polib.pofile(upper(document).decode())[0]
    assert read.msgstr == (text.upper() if any(map(str.isalpha, text)) else "")
    assert unchanged(document).decode() == HEADER + 'msgctxt "c"\n' * context + \
        f'msgid "{polib.escape(text)}"\nmsgstr ""\n'


@pytest.mark.parametrize("forms", ["", " nplurals=INTEGER; plural=EXPRESSION;"])
@pytest.mark.parametrize(("language", "count"), [("ja", 1), ("de", 2), ("pt-BR", 2), ("ru", 3), ("ar", 6)])
def test_missing_plural_forms_are_those_of_the_target_language(forms, language, count):
    data = (f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms:{forms}\\n"\n\n'
            'msgid "one dog"\nmsgid_plural "two dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n').encode()
    catalogue = polib.pofile(upper(PoDocument(data), language).decode())
    assert catalogue.metadata["Plural-Forms"].startswith(f"nplurals={count};")
    assert len(catalogue[0].msgstr_plural) == count


def test_the_placeholder_of_the_charset_is_filled_in():
    data = (b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=CHARSET\\n"\n\nmsgid "one dog"\nmsgstr ""\n')
    result = translated(PoDocument(data), lambda text: "ein Hündchen").decode()
    assert "charset=UTF-8" in result and "CHARSET" not in result
    assert gettext.GNUTranslations(io.BytesIO(polib.pofile(result).to_binary()))
    assert PoDocument(data).render(PoDocument(data).blocks, "de") == data


def test_plural_forms_of_a_header_stay():
    data = (b'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=2; plural=n>1;\\n"\n\nmsgid "one dog"\n'
            b'msgid_plural "two dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n')
    assert b"nplurals=2; plural=n>1;" in upper(PoDocument(data), "ru")
