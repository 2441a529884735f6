"""Gettext catalogues: texts are found and filled in, msgfmt and polib accept the result, the rest stays."""

import gettext
import io
import re
import shutil
import subprocess

import polib
import pytest
from document_translators import translated
from hypothesis import strategies as st
from property_checks import few_and_many
from test_round_trips import sample
from unchanged_documents import texts, unchanged, upper

from seq2seq.documents.divided_document import DividedDocument
from seq2seq.formats.plurals import gettext_rule
from seq2seq.formats.po import PoDocument
from seq2seq.languages import LANGUAGES

PO = sample("messages.po")
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
    assert read.msgstr == (text.upper() if texts(document) else "")
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


@pytest.mark.parametrize("field", ["nplurals=2; plural=n>1;", "nplurals=2; plural=n>1", "nplurals=2;plural=(n>1);\\\\n",
                                   "Plural-Forms: nplurals=2; plural=n>1;"])
def test_plural_forms_of_a_header_stay(field):
    data = (f'msgid ""\nmsgstr ""\n"Plural-Forms: {field}\\n"\n\nmsgid "one dog"\n'
            'msgid_plural "two dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n')
    rendered = upper(PoDocument(data.encode()), "ru").decode()
    assert f'"Plural-Forms: {field}\\n"' in rendered and "msgstr[2]" not in rendered


def head(*fields):
    return 'msgid ""\nmsgstr ""\n' + "".join(f'"{field}\\n"\n' for field in fields) + "\n"


def require_msgfmt(data):
    """Require that msgfmt accepts a catalogue whose translations are all fuzzy."""
    if shutil.which("msgfmt"):
        result = subprocess.run(["msgfmt", "--check", "--use-fuzzy", "-o", "/dev/null", "-"], input=data,
                                capture_output=True, check=False)
        assert result.returncode == 0, result.stderr.decode()


UTF_8 = "Content-Type: text/plain; charset=UTF-8"
ONE_DOG = 'msgid "one dog"\nmsgstr ""\n'
DOGS = '#, c-format\nmsgid "%d dog"\nmsgid_plural "%d dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n'


@pytest.mark.parametrize(("encoding", "text", "result"), [
    ("ISO-8859-1", "собака", "utf-8"), ("ASCII", "Hündchen", "utf-8"), ("ISO-8859-1", "Hündchen", "iso-8859-1"),
    ("CP1251", "犬", "utf-8"), ("EUC-JP", "犬", "euc-jp"), ("CHARSET", "perro", "utf-8"), ("UTF-8", "犬", "utf-8")])
def test_a_catalogue_whose_charset_lacks_a_letter_becomes_utf_8(encoding, text, result):
    data = head("Language: xx", f"Content-Type: text/plain; charset={encoding}") + ONE_DOG
    rendered = translated(PoDocument(data.encode()), lambda _: text, "xx")
    assert f"charset={result}" in rendered.decode(result).lower() and f'msgstr "{text}"' in rendered.decode(result)
    require_msgfmt(rendered)
    assert polib.pofile(rendered.decode(result))[0].msgstr == text


def test_a_catalogue_in_another_charset_keeps_its_letters_in_utf_8():
    text = head("Content-Type: text/plain; charset=ISO-8859-1") + 'msgid "é"\nmsgstr "ü"\n\n' + ONE_DOG
    rendered = translated(PoDocument(text.encode("latin-1")), lambda _: "собака", "ru").decode()
    assert 'charset=UTF-8\\n"' in rendered and 'msgid "é"\nmsgstr "ü"' in rendered


@pytest.mark.parametrize("language", [*LANGUAGES, "pt_PT", "sr@latin", "xx"])
def test_every_language_has_plural_forms(language):
    data = (head(UTF_8, "Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;") + DOGS).encode()
    rendered = upper_words(PoDocument(data), language)
    count = int(polib.pofile(rendered.decode()).metadata["Plural-Forms"].split("=")[1][0])
    assert len(polib.pofile(rendered.decode())[0].msgstr_plural) == count
    finished = polib.pofile(rendered.decode().replace("fuzzy, ", ""))
    translations = gettext.GNUTranslations(io.BytesIO(finished.to_binary()))
    assert all(translations.ngettext("%d dog", "%d dogs", n).startswith("%d DOG") for n in range(120))
    if language in ("ar", "de", "lv", "pt-BR", "xx"):
        require_msgfmt(rendered)


def upper_words(document, language):
    return translated(document, lambda text: text.upper().replace("%D", "%d").replace("%S", "%s"), language)


@pytest.mark.parametrize(("language", "rule"), [
    ("ja", "nplurals=1; plural=0;"), ("de", "nplurals=2; plural=(n != 1);"), ("fr", "nplurals=2; plural=(n > 1);"),
    ("pt", "nplurals=2; plural=(n != 1);"), ("pt-BR", "nplurals=2; plural=(n > 1);"),
    ("es", "nplurals=2; plural=(n != 1);"), ("he", "nplurals=2; plural=(n != 1);"),
    ("lv", "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);"),
    ("cs", "nplurals=3; plural=(n == 1 ? 0 : n >= 2 && n <= 4 ? 1 : 2);"),
    ("cy", "nplurals=6; plural=(n == 0 ? 0 : n == 1 ? 1 : n == 2 ? 2 : n == 3 ? 3 : n == 6 ? 4 : 5);"),
    ("tl", gettext_rule("fil")), ("sr-Latn", gettext_rule("sr")), ("xx", "nplurals=2; plural=(n != 1);")])
def test_the_plural_rules_are_those_of_gettext(language, rule):
    assert gettext_rule(language) == rule


@pytest.mark.parametrize(("singular", "plural", "language", "forms"), [
    ("%d dog", "%d dogs", "ar", ["%d DOGS", "%d DOG", *["%d DOGS"] * 4]),
    ("one dog", "%d dogs", "ar", ["%d DOGS", "ONE DOG", *["%d DOGS"] * 4]),
    ("%d dog", "%d dogs", "ru", ["%d DOG", "%d DOGS", "%d DOGS"]), ("one dog", "%d dogs", "ru", ["%d DOGS"] * 3),
    ("one dog", "%d dogs", "pl", ["ONE DOG", "%d DOGS", "%d DOGS"]),
    ("one dog", "%d dogs", "fr", ["ONE DOG", "%d DOGS"]),
    ("one dog", "all dogs", "ru", ["ONE DOG", "ALL DOGS", "ALL DOGS"]), ("one dog", "%d dogs", "ja", ["%d DOGS"])])
def test_the_form_of_the_number_1_has_the_singular_if_it_does_not_lose_the_number(singular, plural, language, forms):
    data = (head(UTF_8, "Plural-Forms: ") + f'#, c-format\nmsgid "{singular}"\nmsgid_plural "{plural}"\n'
            'msgstr[0] ""\nmsgstr[1] ""\n').encode()
    rendered = upper_words(PoDocument(data), language)
    assert list(polib.pofile(rendered.decode())[0].msgstr_plural.values()) == forms
    require_msgfmt(rendered)


@pytest.mark.parametrize(("language", "code"), [
    ("de", "de"), ("pt-BR", "pt_BR"), ("zh", "zh_CN"), ("zh-Hans", "zh_CN"), ("zh-TW", "zh_TW"), ("zh_Hant", "zh_TW"),
    ("sr", "sr"), ("sr-Latn", "sr@latin"), ("sr-Cyrl", "sr"), ("srp_Latn", "sr@latin"), ("sr-Latn-RS", "sr_RS@latin"),
    ("uz-Cyrl", "uz@cyrillic"), ("uz-Latn", "uz"), ("ca@valencia", "ca@valencia"), ("no", "nb"), ("en-GB", "en_GB")])
def test_languages_are_spelled_as_in_gettext(language, code):
    rendered = upper(PoDocument((head("Language: ", UTF_8) + ONE_DOG).encode()), language).decode()
    assert f'"Language: {code}\\n"' in rendered


def test_a_template_in_another_language_gets_the_target_language_and_its_plural_forms():
    header = head("Language: en_US", "Plural-Forms: nplurals=2; plural=(n != 1);", UTF_8)
    catalogue = polib.pofile(upper_words(PoDocument((header + DOGS).encode()), "ru").decode())
    assert catalogue.metadata["Language"] == "ru" and len(catalogue[0].msgstr_plural) == 3
    begun = header + 'msgid "cat"\nmsgstr "chat"\n\n' + DOGS
    catalogue = polib.pofile(upper_words(PoDocument(begun.encode()), "ru").decode())
    assert catalogue.metadata["Language"] == "en_US" and len(catalogue[1].msgstr_plural) == 2


def test_missing_fields_and_a_missing_header_are_added():
    for header in ("", 'msgid ""\nmsgstr ""\n\n', 'msgid ""\nmsgstr "X-Tool: a"\n\n', head("Language: ru")):
        rendered = translated(PoDocument(("# note\n" + header + DOGS).encode()), lambda text: text + "о", "ru")
        assert polib.pofile(rendered.decode()).metadata["Content-Type"] == "text/plain; charset=UTF-8"
        assert len(polib.pofile(rendered.decode())[0].msgstr_plural) == 3
        require_msgfmt(rendered)
    assert upper(PoDocument(ONE_DOG.encode())) == b'#, fuzzy\nmsgid "one dog"\nmsgstr "ONE DOG"\n'


def test_a_field_on_several_lines_is_replaced_as_a_whole():
    data = head(UTF_8).rstrip() + '\n"Plural-Forms: nplurals=INTEGER; "\n"plural=EXPRESSION;\\n"\n\n' + DOGS
    assert '"Plural-Forms: nplurals=1; plural=0;\\n"\n\n' in upper_words(PoDocument(data.encode()), "ja").decode()


@pytest.mark.parametrize("message", [
    'msgid "translator-credits"', 'msgid "translator_credits"', 'msgctxt "NAME OF TRANSLATORS"\nmsgid "Your names"',
    'msgctxt "EMAIL OF TRANSLATORS"\nmsgid "Your emails"', 'msgid ""\n"_: NAME OF TRANSLATORS\\n"\n"Your names"',
    'msgid "CREDIT_FOR_TRANSLATORS"', 'msgid "default:LTR"', 'msgid "calendar:week_start:0"',
    'msgid "QT_LAYOUT_DIRECTION"',
    'msgctxt "_"\nmsgid "external ref=\'figures/a.png\' md5=\'1f\'"', 'msgid "@@image: \'a.png\'; md5=1f"',
    '#. Translators: Do NOT translate or transliterate this text (this is an icon file name)!\nmsgid "document-open"',
    "#. Don't translate this.\nmsgid \"Open\""])
def test_reserved_messages_stay(message):
    assert PoDocument(f'{message}\nmsgstr ""\n'.encode()).blocks == []


@pytest.mark.parametrize("message", [
    'msgid "Translator credits are here"', 'msgid "Send us your names"',
    '#. Do not translate the word Foo\nmsgid "Foo bar"',
    'msgctxt "name"\nmsgid "Your name"'])
def test_messages_like_reserved_ones_are_translated(message):
    assert len(PoDocument(f'{message}\nmsgstr ""\n'.encode()).blocks) == 1


@pytest.mark.parametrize(("comment", "syntax", "keys"), [
    ("#, c-format", ("c", "template", "bbcode", "filter", "wiki", "names"), "_&~"),
    ("#, fuzzy, no-c-format", ("template", "bbcode", "filter", "strftime", "wiki", "names"), "_&~"),
    ("#, python-format, python-brace-format",
     ("python", "python-brace", "template", "bbcode", "filter", "wiki", "names"), "_&~"),
    ("#, possible-boost-format\n#, no-wrap", ("boost", "template", "bbcode", "filter", "wiki", "names"), "_&~"),
    ("#: ../../a/b.rst:12", ("rst", "template", "bbcode", "filter", "strftime"), ""),
    ("#: foo.bar:1 of foo.bar:docstring of a.b.c:3", ("rst", "template", "bbcode", "filter", "strftime"), ""),
    ("#: man/ls.1:7", ("man", "template", "bbcode", "filter", "strftime", "names"), ""),
    ("#: docs/a.adoc:7", ("asciidoc", "template", "bbcode", "filter", "strftime", "names"), ""),
    ("#: a.txt:7", ("template", "bbcode", "filter", "strftime", "wiki", "names"), "_&~"),
    ("#. type: Title =\n#: a.txt:7", ("asciidoc", "template", "bbcode", "filter", "strftime", "names"), ""),
    ("#. type: Content of: <p>\n#: a.xml:7", ("template", "bbcode", "filter", "strftime", "wiki", "names"), "_&~"),
    ("#: README.md:1", ("markdown", "template", "bbcode", "filter", "strftime"), ""),
    ("#: a.c:1", ("template", "bbcode", "filter", "strftime", "wiki", "names"), "_&~")])
def test_flags_and_references_tell_the_syntax(comment, syntax, keys):
    block, = PoDocument(f'{comment}\nmsgid "a dog"\nmsgstr ""\n'.encode()).blocks
    assert (block.syntax, block.access_keys) == (syntax, keys)


@pytest.mark.parametrize(("text", "translation"), [
    ("%s has %d", "%d"), ("%s dogs", "%s %s dogs"), ("%s dogs", "%d dogs"), ("a dog", "a %s dog")])
def test_a_translation_with_other_directives_is_left_out(text, translation):
    data = (head(UTF_8) + f'#, c-format\nmsgid "{text}"\nmsgstr ""\n').encode()
    document = PoDocument(data)
    assert translated(document, lambda _: translation, "de") == data
    assert document.left_out == ["line 6"]


def test_apostrophes_of_java_are_doubled():
    data = (head(UTF_8) + "#, java-format\nmsgid \"It''s '{'0'}' of {0}\"\nmsgstr \"\"\n").encode()
    document = PoDocument(data)
    assert texts(document) == ["It's '{'0'}' of {0}"] and unchanged(document) == data
    rendered = translated(document, lambda text: text.replace("It's", "C'est l'"), "fr")
    assert b"msgstr \"C''est l'' '{'0'}' of {0}\"" in rendered
    require_msgfmt(rendered)


def test_markup_of_sphinx_is_divided_from_letters():
    data = b'#: a.rst:1\nmsgid "see ``b``"\nmsgstr ""\n'
    assert 'msgstr "日\\\\ ``b``\\\\ 本"' in translated(PoDocument(data), lambda _: "日``b``本", "ja").decode()


def test_a_translation_with_other_markup_of_sphinx_is_left_out():
    data = b'#: a.rst:1\nmsgid "see *b* and ``c``"\nmsgstr ""\n'
    for translation in ("siehe b und ``c``", "siehe ** und ``c``", "siehe *b* und *c*"):
        document = PoDocument(data)
        assert translated(document, lambda _, text=translation: text, "de") == data
        assert document.left_out == ["line 2"]


def test_a_message_that_must_not_be_wrapped_is_not_wrapped():
    long = "a dog " * 30
    data = f'#, no-wrap\nmsgid ""\n"{long}\\n"\n"one dog"\nmsgstr ""\n'.encode()
    assert f'msgstr ""\n"{long.upper()}\\n"\n"ONE DOG"\n'.encode() in upper(PoDocument(data))


PO4A = "#. type: Plain text\n#: {file}\nmsgid \"{text}\"\nmsgstr \"{translation}\"\n"


def translated_by_po4a(file, text):
    """Return the sentences of an entry of po4a, and its translation into upper case, outside of stand-ins."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    divided = DividedDocument(entry(PO4A.format(file=file, text=escaped, translation="")))
    new = [re.sub(r"\{[\w-]+\}|<[^<>]*>|[^{<]+", lambda part: part[0] if part[0][0] in "{<" else part[0].upper(), one)
           for one in divided.sentences]
    return divided.sentences, polib.pofile(divided.join(new, "de").decode())[-1].msgstr


@pytest.mark.parametrize(("text", "sentences", "expected"), [
    ("B<ls> lists I<two files> in B<grep\\ -E>.", ["{0} lists two files in {1}."],
     "B<ls> LISTS I<TWO FILES> IN B<grep\\ -E>."),
    ("\\fBls\\fP and \\fI\\-\\-a dog\\fR, \\fBtwo dogs\\fR", ["{0} and {1} dog, two dogs"],
     "\\fBls\\fP AND \\fI\\-\\-a DOG\\fR, \\fBTWO DOGS\\fR"),
    ("see B<ls>(1), mount(8) or L<perlfunc/open>", ["see {0}, {1} or {2}"],
     "SEE B<ls>(1), mount(8) OR L<perlfunc/open>"),
    ("the E<lt>fileE<gt> S<B<of dogs>> B<< a > b >>", ["the {0} of dogs {1}"],
     "THE E<lt>fileE<gt> S<B<OF DOGS>> B<< a > b >>"),
    ("B<grep -P> in \\f[CR]a dog\\f[R] \\(bu \\s-1POSIX\\s0", ["{0} in {1} {2} {3}POSIX{4}"],
     "B<grep -P> IN \\f[CR]a dog\\f[R] \\(bu \\s-1POSIX\\s0"),
])
def test_fonts_and_references_of_manual_pages_are_kept(text, sentences, expected):
    assert translated_by_po4a("ls.1:7", text) == (sentences, expected)
    assert translated_by_po4a("debian fedora", text) == (sentences, expected)


@pytest.mark.parametrize(("text", "sentences", "expected"), [
    ("see linkgit:git-add[1] and git-add(1)", ["see {0} and {1}"], "SEE linkgit:git-add[1] AND git-add(1)"),
    ("see <<ref,the dog>> or <<dog>>", ["see the dog or {0}"], "SEE <<ref,THE DOG>> OR <<dog>>"),
    ("use `--a dog`, +dog+ and {dog}'s *red* _car_", ["use {0}, {1} and {dog}'s red car"],
     "USE `--a dog`, +dog+ AND {dog}'S *RED* _CAR_"),
    ("link:a[`dog`] or <<a,`dog`>> here", ["{0} or {1} here"], "link:a[`dog`] OR <<a,`dog`>> HERE"),
    ("link:a.html[a dog,window=_blank] or https://a.b[dogs, cars^]", ["a dog or dogs, cars"],
     "link:a.html[A DOG,window=_blank] OR https://a.b[DOGS, CARS^]"),
    ("[[dog]]press kbd:[Ctrl+T] (((dogs, red))) in \"`two dogs`\" ((here))", ["{0}press {1} {2} in two dogs here"],
     "[[dog]]PRESS kbd:[Ctrl+T] (((dogs, red))) IN \"`TWO DOGS`\" ((HERE))"),
    ("copy each _<dog>_ to image::dog.png[a dog]", ["copy each <dog> to {0}"],
     "COPY EACH _<dog>_ TO image::dog.png[a dog]"),
])
def test_markup_of_asciidoc_is_kept(text, sentences, expected):
    assert translated_by_po4a("en/git.adoc:7", text) == (sentences, expected)


@pytest.mark.parametrize("kind", ["delimited block -", "delimited block .", "verbatim", "synopsis"])
def test_code_of_po4a_stays(kind):
    assert entry(PO4A.format(file="a.adoc:1", text="dogs run", translation="").replace("Plain text", kind)).blocks == []
