"""Android's strings: escapes, quotes, CDATA and inline tags are kept."""

import pytest
from document_translators import translated
from unchanged_documents import upper

from seq2seq.formats.android import AndroidDocument
from seq2seq.formats.block import Block


def document(content):
    return AndroidDocument(f'<resources><string name="a">{content}</string></resources>'.encode())


def written(content, translation):
    result = document(content).render([Block(translation, document(content).blocks[0].tags)], "de").decode()
    return result.removeprefix('<resources><string name="a">').removesuffix("</string></resources>")


@pytest.mark.parametrize(("content", "translation", "expected"), [
    ("abc", "?a  b", r"\?a \u0020b"), ("abc", "<a>\\\t", r"&lt;a&gt;\\\t"),
    ('"a b"', "c 'd' \"e\"", '"c \'d\' \\"e\\""'),
    ("<![CDATA[abc]]>", "a]]>b<", "<![CDATA[a]]]]><![CDATA[>b<]]>"), 
    (r"\nabc\n", "d", r"\nd\n"), (r"\u0022a\u0022", '"b"', r"\"b\"")])
def test_special_characters_of_a_translation_are_escaped(content, translation, expected):
    assert written(content, translation) == expected


def test_a_category_that_occurs_twice_is_translated_twice():
    text = '<resources><plurals name="a"><item quantity="one">A b</item><item quantity="one">C d</item>' \
           '<item quantity="other">E f</item></plurals></resources>'
    assert upper(AndroidDocument(text.encode())).decode() == text.replace("A b", "A B").replace("C d", "C D").replace(
        "E f", "E F")


def test_tags_inside_of_cdata_are_tags():
    tags = document("<![CDATA[<b>bold</b><br><i>]]>").blocks[0].tags
    assert [(tag.raw, tag.kind, tag.pair) for tag in tags] == [
        ("<b>", "open", 0), ("</b>", "close", 0), ("<br>", "break", None), ("<i>", "open", None)]


DOG, DOGS = '<item quantity="one">%d dog</item>', '<item quantity="other">%d dogs</item>'
PLURAL = '<item quantity="{}">%d DOGS</item>'


def dogs(text):
    return text.replace("dog", "DOG").replace("DOGs", "DOGS")


@pytest.mark.parametrize(("one", "language", "expected"), [
    (DOG, "de", [DOG.replace("dog", "DOG"), PLURAL.format("other")]),
    (DOG, "ru", [DOG.replace("dog", "DOG"), *map(PLURAL.format, ["few", "many", "other"])]),
    (DOG, "ja", [PLURAL.format("other")]),
    (DOG, "ar", [DOG.replace("dog", "DOG"), *map(PLURAL.format, ["zero", "two", "few", "many", "other"])]),
    (DOG.replace("%d", "a"), "ru", [*map(PLURAL.format, ["one", "few", "many", "other"])]),
    (DOG.replace("%d", "a"), "de", ['<item quantity="one">a DOG</item>', PLURAL.format("other")])])
def test_plurals_get_the_categories_of_the_target_language(one, language, expected):
    def plurals(items):
        return '<resources>\n  <plurals name="a">\n    ' + "\n    ".join(items) + "\n  </plurals>\n</resources>"

    assert translated(AndroidDocument(plurals([one, DOGS]).encode()), dogs, language).decode() == plurals(expected)


def test_a_copied_item_of_plurals_keeps_its_markup_attributes_and_cdata():
    other = ('<item tools:b="c" quantity="other"><![CDATA[<b>%d</b> dogs]]></item>')
    source = f'<resources><plurals name="a"><item quantity="one"/>{other}</plurals></resources>'
    new = other.replace("dogs", "DOGS")
    assert translated(AndroidDocument(source.encode()), dogs, "pl").decode() == source.replace(
        other, new.replace("other", "few") + new.replace("other", "many") + new)


def test_plurals_whose_number_stands_in_an_element_have_it_in_each_category():
    number = '<xliff:g id="n">%d</xliff:g>'
    source = ('<resources><plurals name="a"><item quantity="one">A dog</item><item quantity="other">'
              f"{number} dogs</item></plurals></resources>")
    result = translated(AndroidDocument(source.encode()), dogs, "fr").decode()
    assert f'<item quantity="one">{number} DOGS</item>' in result
