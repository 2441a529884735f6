"""Gettext catalogues: texts are found and filled in, msgfmt and polib accept the result, the rest stays."""

import gettext
import io
import shutil
import subprocess

import polib
import pytest
from document_translators import translated
from hypothesis import given, settings
from hypothesis import strategies as st
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.block import DocumentError
from seq2seq.formats.po import PoDocument

HEADER = '''# German translation.
msgid ""
msgstr ""
"Project-Id-Version: files 3.1\\n"
"Language: \\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

'''
PO = HEADER + '''# Note of a translator
#. Note of a developer
#: src/open.c:12
#, c-format
msgid "Cannot open \\"%s\\".\\n"
msgstr ""

#: src/menu.c:3
#| msgid "Files"
msgctxt "menu|item"
msgid "File"
msgstr ""

#: src/menu.c:4
msgid "Close"
msgstr "Schließen"

#, fuzzy
msgid "Open"
msgstr "Öfnen"

msgid ""
"A first line that is rather long, so that the message is written on several "
"lines.\\n"
"\\tA second line with a tab and a \\\\.\\n"
msgstr ""

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgid "12"
msgstr ""
#~ msgid "Gone"
#~ msgstr ""
'''


def entry(text, header=HEADER):
    return PoDocument((header + text).encode())


def test_only_untranslated_messages_are_blocks():
    document = PoDocument(PO.encode())
    assert texts(document) == [
        'Cannot open "%s".', "File",
        "A first line that is rather long, so that the message is written on several lines.\n\tA second line with a "
        "tab and a \\.", "%d file", "%d files"]
    assert document.blocks[1].place == "line 21"


@pytest.mark.parametrize("text", [PO, PO.replace("\n", "\r\n"), "\ufeff" + PO, PO.rstrip("\n"), "", "# only a comment"])
def test_a_catalogue_without_new_translations_keeps_its_bytes(text):
    assert unchanged(PoDocument(text.encode())) == text.encode()


def test_translations_are_filled_in_and_marked_as_fuzzy():
    result = upper(PoDocument(PO.encode())).decode()
    expected = PO.replace('"Language: ', '"Language: de').replace('''#, c-format
msgid "Cannot open \\"%s\\".\\n"
msgstr ""''', '''#, fuzzy, c-format
msgid "Cannot open \\"%s\\".\\n"
msgstr "CANNOT OPEN \\"%S\\".\\n"''').replace('''#| msgid "Files"
msgctxt "menu|item"
msgid "File"
msgstr ""''', '''#, fuzzy
#| msgid "Files"
msgctxt "menu|item"
msgid "File"
msgstr "FILE"''').replace('''msgid ""
"A first''', '''#, fuzzy
msgid ""
"A first''').replace('''\\\\.\\n"
msgstr ""''', '''\\\\.\\n"
msgstr ""
"A FIRST LINE THAT IS RATHER LONG, SO THAT THE MESSAGE IS WRITTEN ON SEVERAL "
"LINES.\\n"
"\\tA SECOND LINE WITH A TAB AND A \\\\.\\n"''').replace('''#, c-format
msgid "%d file"''', '''#, fuzzy, c-format
msgid "%d file"''').replace('[0] ""', '[0] "%D FILE"').replace('[1] ""', '[1] "%D FILES"')
    assert result == expected


def test_polib_reads_the_translations():
    entries = polib.pofile(upper(PoDocument(PO.encode())).decode())
    assert [one.msgstr for one in entries if one.fuzzy and not one.msgid_plural] == [
        'CANNOT OPEN "%S".\n', "FILE", "Öfnen",
        "A FIRST LINE THAT IS RATHER LONG, SO THAT THE MESSAGE IS WRITTEN ON SEVERAL LINES.\n"
        "\tA SECOND LINE WITH A TAB AND A \\.\n"]
    assert entries.find("%d file").msgstr_plural == {0: "%D FILE", 1: "%D FILES"}
    assert entries.metadata["Language"] == "de"


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="msgfmt of gettext is not installed")
def test_msgfmt_accepts_the_catalogue_with_its_translations(tmp_path):
    # Format strings are kept by another part, so that here the texts have none.
    source = PO.replace("%s", "it").replace("%d ", "").replace("Project-Id-Version: files", "Project-Id-Version: it")
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
    ("nplurals=INTEGER; plural=EXPRESSION", 2, ["FILE", "FILES"]), ("nplurals=INTEGER; plural=0", 1, ["FILES"])])
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


def test_a_character_that_the_encoding_does_not_have_is_an_error():
    document = entry('msgid "file"\nmsgstr ""\n', HEADER.replace("UTF-8", "ISO-8859-1"))
    with pytest.raises(DocumentError, match="line 13: .*ISO-8859-1 does not have"):
        document.render([type(document.blocks[0])("Файл")], "ru")


@pytest.mark.parametrize(("text", "message"), [
    ('msgid "a\nmsgstr ""\n', "line 1: neither"), ('msgid "a"\n\nfoo\n', "line 3: neither"),
    ('msgid "a"\n', "line 1: the message has no msgstr"), ('msgid "a"\nmsgid "b"\n', "line 2: msgid is not expected"),
    ('msgstr "a"\n', "line 1: msgstr is not"), ('"a"\n', "line 1: a string without"),
    ('msgid "a\\q"\nmsgstr ""\n', r"line 1: \\q is not"), ('msgid "a"\nmsgstr[0] ""\n', "line 2: msgstr is not"),
    ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] ""\n', "line 3: msgstr is not"),
    ('msgid ""\nmsgstr "Content-Type: text/plain; charset=klingon\\n"\n', "line 2: the encoding 'klingon'")])
def test_a_malformed_line_is_an_error_with_its_number(text, message):
    with pytest.raises(DocumentError, match=message):
        PoDocument(text.encode())


def test_bytes_of_another_encoding_are_an_error_with_their_line():
    with pytest.raises(DocumentError, match="line 2: byte 12 is not utf-8"):
        PoDocument(b'msgid "a"\n"\xff"\nmsgstr ""\n')


@settings(max_examples=50, deadline=None)
@given(st.text("ab \n\t\"\\%é\r", min_size=1, max_size=300), st.booleans())
def test_polib_reads_every_text_as_it_was_written(text, context):
    document = entry('msgctxt "c"\n' * context + f'msgid "{polib.escape(text)}"\nmsgstr ""\n')
    read = polib.pofile(upper(document).decode())[0]
    assert read.msgstr == (text.upper() if any(map(str.isalpha, text)) else "")
    assert unchanged(document).decode() == HEADER + 'msgctxt "c"\n' * context + \
        f'msgid "{polib.escape(text)}"\nmsgstr ""\n'


@pytest.mark.slow
def test_a_catalogue_of_a_hundred_thousand_lines_is_parsed_in_seconds():
    assert len(entry('msgid "a"\n' + '"b"\n' * 100_000 + 'msgstr ""\n').blocks[0].text) == 100_001
    assert len(entry('msgid "a"\nmsgstr ""\n\n' * 33_000).blocks) == 33_000


@pytest.mark.slow
@pytest.mark.parametrize("text", ['"' + "a" * 1_000_000, '"' * 1_000_001, "msgid " + '"a" ' * 200_000 + "x",
                                  "domain " + '"" ' * 200_000 + "x", '"' + "Content-Type:" * 8_000,
                                  " " * 1_000_000 + "x"])
def test_a_hostile_line_is_refused_in_linear_time(text):
    with pytest.raises(DocumentError, match="line 1"):
        PoDocument(text.encode())


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
