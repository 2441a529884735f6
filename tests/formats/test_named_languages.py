"""Documents that name their languages: other languages are refused, or replaced if no translation is in them."""

import re

import pytest
from unchanged_documents import upper

from seq2seq.formats.block import DocumentError
from seq2seq.formats.registry import parse

XLIFF_1 = '<xliff version="1.2"><file source-language="{}" target-language="{}"><body><trans-unit id="1"><source>dog' \
          "</source></trans-unit>{}</body></file></xliff>"
XLIFF_2 = '<xliff version="2.0" srcLang="{}" trgLang="{}"><file id="f"><unit id="1"><segment><source>dog</source>' \
          "</segment></unit>{}</file></xliff>"
TS = '<TS version="2.1" sourcelanguage="{}" language="{}"><context><message><source>dog</source><translation ' \
     'type="unfinished"></translation></message>{}</context></TS>'
PO = 'msgid ""\nmsgstr ""\n"X-Source-Language: {}\\n"\n"Language: {}\\n"\n"Content-Type: text/plain; ' \
     'charset=UTF-8\\n"\n\nmsgid "dog"\nmsgstr ""\n\n{}'
# For each format: the empty document, messages that are translated already, and messages whose translation is replaced
# or has no letters.
KEPT = {
    XLIFF_1: ["<trans-unit id='2'><source>cat</source><target>chat</target></trans-unit>",
              "<trans-unit id='2' approved='yes'><source>cat</source><target state='new'>chat</target></trans-unit>",
              "<trans-unit id='2'><source>cat</source><target state='final'><g id='1'>chat</g></target></trans-unit>"],
    XLIFF_2: ["<unit id='2'><segment><source>cat</source><target>chat</target></segment></unit>",
              "<unit id='2'><segment state='final'><source>cat</source><target>chat</target></segment></unit>"],
    TS: ["<message><source>cat</source><translation>chat</translation></message>",
         "<message><source>cat</source><translation type='unfinished'>chat</translation></message>",
         "<message numerus='yes'><source>cat</source><translation><numerusform>chat</numerusform></translation>"
         "</message>"],
    PO: ['msgid "cat"\nmsgstr "chat"\n', 'msgid "cat"\nmsgid_plural "cats"\nmsgstr[0] ""\nmsgstr[1] "chats"\n',
         '#, fuzzy\nmsgid "cat"\nmsgstr "chat"\n'],
}
REPLACED = {
    XLIFF_1: ["", "<trans-unit id='2'><source>cat</source><target state='new'>chat</target></trans-unit>",
              "<trans-unit id='2'><source>12</source><target>12</target></trans-unit>"],
    XLIFF_2: ["", "<unit id='2'><segment state='initial'><source>cat</source><target>chat</target></segment></unit>"],
    TS: ["", "<message><source>12</source><translation>12</translation></message>"],
    PO: ["", 'msgid "cat"\nmsgstr ""\n'],
}
FORMATS = {XLIFF_1: "xliff", XLIFF_2: "xliff", TS: "ts", PO: "po"}


def target_languages(text):
    """Return the target languages that a document names."""
    found = re.finditer(r'(?:target-language|trgLang| language)="([^"]*)"|\n"Language: (.*?)\\n"', text)
    return [match[match.lastindex] for match in found]


def read(form, *parts, languages=("en", "de")):
    return parse(form.format(*parts).encode(), FORMATS[form], "a", *languages)


@pytest.mark.parametrize(("form", "message"), [(form, one) for form, several in KEPT.items() for one in several])
@pytest.mark.parametrize("named", ["fr", "fr_CA", "zh-Hans", "fra"])
def test_a_document_with_translations_in_another_language_is_refused(form, message, named):
    with pytest.raises(DocumentError, match=f"^a: .*translations in the language {named}, not de"):
        read(form, "en", named, message)
    read(form, "en", named, message, languages=("en", named))
    read(form, "en", named, message, languages=("en", ""))                      # not known yet


@pytest.mark.parametrize(("form", "message"), [(form, one) for form, several in KEPT.items() for one in several])
@pytest.mark.parametrize("named", ["", "de", "DE", "de-AT", "de_DE", "deu", "x-klingon", "und"])
def test_a_document_with_translations_in_the_language_or_in_an_unknown_one_is_translated(form, message, named):
    text = upper(read(form, "en", named, message)).decode()
    if named.startswith(("de", "DE")):
        assert target_languages(text) == [named] and "DOG" in text


@pytest.mark.parametrize(("form", "message"), [(form, one) for form, several in REPLACED.items() for one in several])
@pytest.mark.parametrize("named", ["", "fr", "en", "zh-Hans", "x-klingon"])
def test_a_document_without_translations_in_another_language_gets_the_new_language(form, message, named):
    text = upper(read(form, "en", named, message)).decode()
    assert target_languages(text) == ["de"] and "DOG" in text
    text = upper(read(form, "en", "de-AT", message)).decode()
    assert target_languages(text) == ["de-AT"]


@pytest.mark.parametrize("form", FORMATS)
def test_texts_in_another_language_than_the_source_language_are_refused(form):
    with pytest.raises(DocumentError, match="^a: .*texts in the language es, not en"):
        read(form, "es", "de", "")
    for named in ("", "en", "en-GB", "en_US", "eng", "x-dev", "dev"):
        read(form, named, "de", "")
    read(form, "es", "de", "", languages=("", "de"))


def test_elements_of_xliff_may_name_their_language_themselves():
    unit = '<trans-unit id="2"><source{}>cat</source><target xml:lang="{}"{}>chat</target></trans-unit>'
    with pytest.raises(DocumentError, match="translations in the language fr"):
        read(XLIFF_1, "en", "de", unit.format("", "fr", ""))
    with pytest.raises(DocumentError, match="texts in the language es"):
        read(XLIFF_1, "en", "de", unit.format(' xml:lang="es"', "de", ' state="new"'))
    text = upper(read(XLIFF_1, "en", "fr", unit.format("", "fr", ' state="new"'))).decode()
    assert 'target-language="de"' in text and '<target xml:lang="de" state="needs-review-translation">CAT<' in text


def test_each_file_of_xliff_names_its_languages():
    file = '<file source-language="en" target-language="{}"><body><trans-unit id="1"><source>dog</source>{}' \
           "</trans-unit></body></file>"
    both = '<xliff version="1.2">' + file + file + "</xliff>"
    with pytest.raises(DocumentError, match="language es"):
        parse(both.format("de", "<target>Hund</target>", "es", "<target>perro</target>").encode(), "xliff", "a", "en",
              "de")
    text = upper(parse(both.format("fr", "", "es", "").encode(), "xliff", "a", "en", "de")).decode()
    assert text.count('target-language="de"') == 2


def test_the_locale_of_arb_is_that_of_its_texts():
    data = b'{"@@locale": "en_GB", "a": "dog", "b": {"@@locale": "x"}}'
    assert upper(parse(data, "json", "a.arb", "en", "de")) == data.replace(b"en_GB", b"de").replace(b"dog", b"DOG")
    with pytest.raises(DocumentError, match="texts in the language en_GB, not fr"):
        parse(data, "json", "a.arb", "fr", "de")
