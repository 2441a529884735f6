"""Tags and access keys in plain strings of all formats are taken out before translation, and put back into it."""

import html
import json

import numpy as np
import polib
import pytest

from seq2seq.documents.access_keys import with_key, without_key
from seq2seq.documents.divided_document import DividedDocument
from seq2seq.documents.preparation import prepare, with_markup
from seq2seq.formats.block import Block
from seq2seq.formats.registry import parse
from seq2seq.formats.tags_in_text import tags_in_text
from seq2seq.tokenizers.line_splitting import alignment_units

FRENCH = {"A": "une", "red": "rouge", "car": "voiture", "is": "est", "on": "dans", "the": "la", "street": "rue",
          ".": "."}
RED_CAR = "A red car is on the street.", "Une voiture rouge est dans la rue."


def align(pairs):
    """Return the attention of a perfect aligner of `RED_CAR`."""
    weights = []
    for pair in pairs:
        old, new = ([text[begin:end] for begin, end in alignment_units(text)] for text in pair)
        weights.append(np.array([[0.9 if FRENCH.get(one, one) == other.lower() else 0.01 for one in old]
                                 for other in new]))
    return weights


def translated(data, format, align=align):
    divided = DividedDocument(parse(data, format, "name", "en", "fr"))
    assert divided.sentences == [RED_CAR[0]]
    return divided.join([RED_CAR[1]], "fr", align).decode()


TAGGED = [
    ("A <b>red</b> <i>car</i> is on the street.", "Une <i>voiture</i> <b>rouge</b> est dans la rue."),
    ("A <b>red <i>car</i></b> is on the street.", "Une <b><i>voiture</i> rouge</b> est dans la rue."),
    ("A <_i>red</_i> car is on <_:x-1/> the street.", "Une voiture <_i>rouge</_i> est dans <_:x-1/> la rue."),
    ("A <0>red</0> <1>car</1> is on the <2/> street.", "Une <1>voiture</1> <0>rouge</0> est dans la <2/> rue."),
    ('A red <a href="x?a=1&b=2" title=\'>\'>car</a> is on the street.',
     'Une <a href="x?a=1&b=2" title=\'>\'>voiture</a> rouge est dans la rue.'),
    ('A red car is on <x id="4"></x> the street.', 'Une voiture rouge est dans <x id="4"></x> la rue.'),
    ("A red car is on the street. <!-- two > one -->", "Une voiture rouge est dans la rue. <!-- two > one -->"),
    ("<p>A red car is on the street.</p>", "<p>Une voiture rouge est dans la rue.</p>"),
    ("A <b>red car is on the</b> street.<br>", "Une <b>voiture rouge est dans la</b> rue.<br>"),
    ("A <Link to={x}>red</Link> car is on the street.", "Une voiture <Link to={x}>rouge</Link> est dans la rue.")]
CONTENTS = {
    "json": lambda text: json.dumps({"a": text}), "text": str,
    "po": lambda text: f'msgid {json.dumps(text)}\nmsgstr ""\n',
    "properties": lambda text: f"a = {text}\n",
    "xliff": lambda text: ('<xliff version="1.2"><file><body><trans-unit id="1"><source>'
                           f"{html.escape(text)}</source></trans-unit></body></file></xliff>"),
    "ts": lambda text: ("<TS><context><message><source>" + html.escape(text) + "</source>"
                        '<translation type="unfinished"/></message></context></TS>'),
    "android": lambda text: f"<resources><string name='a'><![CDATA[{text}]]></string></resources>"}
READERS = {
    "json": lambda text: json.loads(text)["a"], "text": str, "po": lambda text: polib.pofile(text)[0].msgstr,
    "properties": lambda text: text[4:-1],
    "xliff": lambda text: html.unescape(text.split("translation\">")[1].split("</target>")[0]),
    "ts": lambda text: html.unescape(text.split('"unfinished">')[1].split("</translation>")[0]),
    "android": lambda text: text.split("[CDATA[")[1].split("]]>")[0]}


# Android's strings have other quotes, and a comment in them is no comment.
@pytest.mark.parametrize(("format", "source", "expected"), [
    (format, *one) for format in CONTENTS for one in TAGGED
    if format != "android" or "'" not in one[0] and "<!--" not in one[0]])
def test_tags_of_strings_are_placed_by_alignment_in_every_format(format, source, expected):
    assert READERS[format](translated(CONTENTS[format](source).encode(), format)) == expected


@pytest.mark.parametrize("text", [
    "Hello <name>, welcome", "if a <b and c> d", "a < b > c", "Jane <jane@example.org> writes", "vector<int> v",
    '{{ "<b>x</b>" }} is here', "<<b>", "</b> and <b>", "see https://x.org/<b>", "<1>", "x <- y"])
def test_what_is_no_pair_of_tags_stays_in_the_text(text):
    assert tags_in_text(text) == []


@pytest.mark.parametrize(("text", "without", "raws"), [
    ("Run <code>a <b>b</b></code> now", "Run  now", ["<code>a <b>b</b></code>"]),
    ('Run <b translate="no">My App</b> now', "Run  now", ['<b translate="no">My App</b>']),
    ("Hello <name>, <i>you</i>", "Hello <name>, you", ["<i>", "</i>"]),
    ("<Link>a</Link><Section>b</Section> <BR>", "ab ", ["<Link>", "</Link>", "<Section>", "</Section>", "<BR>"]),
    ("<Col>", "<Col>", []), ("<b>one <i>two</b>", "one <i>two", ["<b>", "</b>"]),
    ("a<br />b<img src=c>", "ab", ["<br />", "<img src=c>"]),
    ("<b>%s</b> {x} <i></i>", "%s {x} ", ["<b>", "</b>", "<i>", "</i>"])])
def test_tags_are_taken_out_of_a_string(text, without, raws):
    (piece,) = prepare(Block(text)).pieces
    assert (piece.block.text, [tag.raw for tag in piece.block.tags]) == (without, raws)
    assert with_markup(piece.block, piece.values).text == text


def test_tags_that_a_reader_sees_stay_in_the_text():
    assert prepare(Block("the <b>bold</b> element", markup_in_text=False)).pieces[0].block.tags == ()


def test_paragraphs_of_a_string_are_translated_one_by_one():
    divided = DividedDocument(parse(b'{"a": "<p>One dog</p><ul><li>two</li></ul>A<br>B"}', "json", "a", "en", "de"))
    assert divided.sentences == ["One dog", "two", "A", "B"]
    assert divided.join(["Ein Hund", "zwei", "C", "D"], "de") == \
        b'{"a": "<p>Ein Hund</p><ul><li>zwei</li></ul>C<br>D"}'


def test_tags_stay_where_they_are_if_lines_of_a_string_are_broken_anew():
    source = b'{"a": "A dog\\r\\nruns <b>away</b> now"}'
    divided = DividedDocument(parse(source, "json", "a", "en", "de"))
    result = json.loads(divided.join(["Ein Hund rennt weg jetzt"], "de"))["a"]
    assert result.replace("\r\n", " ") == "Ein Hund rennt <b>weg</b> jetzt" and "\r\n" in result


@pytest.mark.parametrize(("text", "marks", "without", "mark", "translation", "expected"), [
    ("_File", "_", "File", "_", "Datei", "_Datei"), ("E_xit", "_", "Exit", "_", "Beenden", "_Beenden"),
    ("D_og", "&_", "Dog", "_", "Hund", "_Hund"), ("&File", "&_", "File", "&", "Fichier", "&Fichier"),
    ("Save _As…", "_", "Save As…", "_", "Speichern als…", "Speichern _als…"),
    ("_Open", "_", "Open", "_", "打开", "打开(_O)"), ("~Undo", "&_~", "Undo", "~", "Rückgängig", "~Rückgängig"),
    ("E~xit", "~", "Exit", "~", "Ende", "~Ende"), ("&&File", "&", "File", "&&", "Datei", "&&Datei"),
    ("file_name", "_", "file_name", "", "x", "x"), ("__init__", "_", "__init__", "", "x", "x"),
    ("one_two_three", "_", "one_two_three", "", "x", "x"), ("Q&A", "&_", "Q&A", "", "x", "x"),
    ("about ~5 dogs", "~", "about ~5 dogs", "", "x", "x"), ("in ~/dir", "~", "in ~/dir", "", "x", "x"),
    ("&dog-a.b; c", "&", "&dog-a.b; c", "", "x", "x"),
    ("a && b", "&", "a && b", "", "x", "x"), ("%s of D_og", "_", "%s of Dog", "_", "%s vom Hund", "%s v_om Hund"),
    ("Ф_айл", "_", "Файл", "_", "Datei", "_Datei"), ("文_件", "_", "文件", "_", "File", "_File"),
    *((name, "_", name, "", "x", "x") for name in (
        "user_id", "en_US", "Invalid LC_ALL", "x_train", "MAX_VALUE", "set pt_BR", "d_og", "URL_prefix"))])
def test_the_mark_of_an_access_key_is_put_into_the_translation(text, marks, without, mark, translation, expected):
    block, found, key = without_key(Block(text, access_keys=marks))
    assert (block.text, found) == (without, mark)
    assert with_key(Block(translation), found, key).text == expected


@pytest.mark.parametrize(("source", "sentences", "expected"), [
    (r'"&Open\tCtrl+O"', ["Open"], r'"&OPEN\tCtrl+O"'),
    (r'"Save as…\tShift+Ctrl+S"', ["Save as…"], r'"SAVE AS…\tShift+Ctrl+S"'),
    (r'"Name\tSize in bytes"', ["Name", "Size in bytes"], r'"NAME\tSIZE IN BYTES"'), (r'"\tAll files\t*.txt"',
    ["All files"], r'"\tALL FILES\t*.txt"')])
def test_a_tab_divides_a_text_into_its_columns(source, sentences, expected):
    divided = DividedDocument(parse(f'{{"a": {source}}}'.encode(), "json", "a", "en", "de"))
    assert divided.sentences == sentences
    assert divided.join([one.upper() for one in sentences], "de").decode() == f'{{"a": {expected}}}'


@pytest.mark.parametrize(("format", "source", "translation", "expected"), [
    ("android", "<resources><string name='a'>%s of %d dogs</string></resources>", "{1} Hunde von {0}",
     ">%2$d Hunde von %1$s<"),
    ("android", "<resources><string name='a'>%s of %s</string></resources>", "{1} von {0}", ">%2$s von %1$s<"),
    ("android", "<resources><string name='a'>%1$s of %2$d dogs</string></resources>", "{1} Hunde von {0}",
     ">%2$d Hunde von %1$s<"),
    ("strings", '"a" = "%@ of %ld dogs";', "{1} Hunde von {0}", '"%2$ld Hunde von %1$@"'),
    ("strings", '"a" = "50% off for %@";', "50% auf {0}", '"50% auf %@"'),
    ("strings", '"a" = "%@ of %ld dogs";', "{0} von {1} Hunden", '"%@ von %ld Hunden"')])
def test_directives_in_another_order_get_the_numbers_of_their_arguments(format, source, translation, expected):
    divided = DividedDocument(parse(source.encode(), format, "a", "en", "de"))
    reports = []
    assert expected in divided.join([translation], "de", report=lambda *one: reports.append(one)).decode()
    assert reports == []


@pytest.mark.parametrize(("source", "translation", "is_reported"), [
    ("%s of %d dogs", "%d Hunde von %s", True), ("%s of %5.2f kg", "%5.2f kg von %s", True),
    ("{} of {x} dogs {}", "{x} Hunde {} {}", False),
    ("%1$s of %2$d dogs", "%2$d Hunde von %1$s", False), ("%s of %s", "%s von %s", False)])
def test_directives_without_numbers_in_another_order_are_reported(source, translation, is_reported):
    divided = DividedDocument(parse(json.dumps({"a": source}).encode(), "json", "a", "en", "de"))
    reports = []
    divided.join([translation], "de", report=lambda place, fault: reports.append((place, fault)))
    assert reports == [("line 1", "lost_placeholder")] * is_reported


@pytest.mark.parametrize("text", [
    "A red car is on <b>{{street}}</b>.", "<0>{{count}}</0> <i>cars</i> and <b><i>{{a}}</i></b>",
    "<b>{{a}}</b><i>{{b}}</i>", "<x/>{{a}}<y/>", "Car <b>({{a}})</b>", "<b>{{a}}{{b}}</b> car"])
def test_tags_stay_around_values(text):
    prepared = prepare(Block(text))
    piece, = prepared.pieces
    assert with_markup(piece.block, piece.values).text == text


@pytest.mark.parametrize(("text", "tags"), [
    ("A <1 /> b <icon /> c <Foo bar={x} /> d <Foo bar={x}/>",
     ["<1 />", "<icon />", "<Foo bar={x} />", "<Foo bar={x}/>"]),
    ("A <a href=/x/>b</a>", ["<a href=/x/>", "</a>"]), ("A <b x='a/b' y=a/b>c</b>", ["<b x='a/b' y=a/b>", "</b>"]),
    ("A <a b='c'/> d", ["<a b='c'/>"]), ("<![CDATA[a <b>c</b>]]>", ["<![CDATA[", "<b>", "</b>", "]]>"])])
def test_tags_in_strings_are_found_in_every_spelling(text, tags):
    assert [text[one.begin:one.end] for one in tags_in_text(text)] == tags


@pytest.mark.parametrize(("text", "sentences"), [
    ("{% if a %}A dog.{% else %}A cat.{% endif %}", ["A dog.", "A cat."]),
    ("{{#if a}}A dog runs{{else}}A cat{{/if}} now", ["A dog runs", "A cat", "now"]),
    ("<% if a %>A dog.<% else %>A cat.<% end %>", ["A dog.", "A cat."]),
    ("<?php if ($a): ?>A dog.<?php else: ?>A cat.<?php endif ?>", ["A dog.", "A cat."]),
    ("{% for a in b %}A {{ a }} dog.{% endfor %}", ["A {0} dog."]),
    ("{% link %}A dog{% endlink %} runs", ["A dog runs"]),
    ("Images (*.png *.jpg);;All files (*)", ["Images", "All files"]),
    ("Text (*.txt)|*.txt|All (*.*)|*.*", ["Text", "All"]),
    ("A **red** dog, [a cat](https://x.org/a_b) and `code`", ["A red dog, a cat and {0}"])])
def test_syntax_in_strings_is_no_part_of_the_sentences(text, sentences):
    document = parse(json.dumps({"a": text}).encode(), "json", "name", "en", "fr")
    divided = DividedDocument(document)
    assert divided.sentences == sentences
    result = json.loads(divided.join([one.upper() for one in sentences], "fr"))["a"]
    assert sorted(result.lower()) == sorted(text.lower())


@pytest.mark.parametrize(("source", "flag", "translation", "expected"), [
    ("%d percent of <b>dogs</b>", "c", "{0} % der Hunde", "%d %% der <b>Hunde</b>"),
    ("%(n)s percent", "python", "{0} %", "%(n)s %%"), ("%d%% of dogs", "c", "{0}{1} der Hunde", "%d%% der Hunde"),
    ("{n} of dogs", "python-brace", "{0} von {Hunden}", "{n} von {{Hunden}}"), ("A dog", "c", "5 % Hund", "5 % Hund")])
def test_a_sign_of_directives_that_a_translation_has_as_text_is_doubled(source, flag, translation, expected):
    source = f'#, {flag}-format\nmsgid {json.dumps(source)}\nmsgstr ""\n'
    divided = DividedDocument(parse(source.encode(), "po", "a", "en", "de"))
    assert polib.pofile(divided.join([translation], "de").decode())[0].msgstr == expected


def test_a_message_that_cannot_be_read_stays_as_it_is_and_is_reported_with_its_problem():
    source = b'{"a": "A dog",\n"b": "You have {n, plural, one {# dog"}'
    divided = DividedDocument(parse(source, "json", "a", "en", "de"))
    assert divided.sentences == ["A dog"]
    reports = []
    result = divided.join(["Ein Hund"], "de", report=lambda place, fault: reports.append((place, fault)))
    assert result == source.replace(b"A dog", b"Ein Hund")
    ((place, fault),) = reports
    assert place == "line 2" and fault.startswith("not_translated: ") and "a branch one without its }" in fault
