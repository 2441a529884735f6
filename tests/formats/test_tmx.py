"""Translation memories: units, languages, markup, and invalid files."""

import re
import tracemalloc

import pytest

from seq2seq.errors import CorpusError
from seq2seq.formats import tmx_pairs
from seq2seq.formats.tmx_pairs import read_units

HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
<header/><body>
"""
TAIL = "</body></tmx>\n"


def unit(**texts):
    variants = (f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>' for code, text in texts.items())
    return f"<tu>{''.join(variants)}</tu>\n"


def read(text, *languages, block=7, **options):
    data = text.encode()
    blocks = (data[at:at + block] for at in range(0, len(data), block))
    return list(read_units(blocks, "memory.tmx", languages or ("en", "de"), **options))


class Deferring:
    """Parser that reports all elements at the end of the file, as expat 2.6 and later may do."""

    def __init__(self, parser):
        self.__dict__.update(parser=parser, data=b"")

    def __setattr__(self, name, value):
        setattr(self.parser, name, value)

    def Parse(self, data, last):                                                # noqa: N802, expat's name
        self.__dict__["data"] += data
        if last:
            self.parser.Parse(self.data, True)


def test_no_unit_is_lost_that_the_parser_returns_at_the_end(monkeypatch):
    create = tmx_pairs.expat.ParserCreate
    monkeypatch.setattr(tmx_pairs.expat, "ParserCreate", lambda encoding: Deferring(create(encoding)))
    assert read(HEAD + unit(en="A dog", de="Hund") + TAIL) == [("A dog", "Hund")]


def test_each_unit_gives_its_texts_in_the_chosen_languages():
    text = HEAD + unit(en="A dog", fr="Un chien", de="Ein Hund &amp; mehr") + unit(de="Käse", en="Cheese") + TAIL
    assert read(text) == [("A dog", "Ein Hund & mehr"), ("Cheese", "Käse")]
    assert read(text, "fr", "en") == [("Un chien", "A dog"), ("", "Cheese")]
    assert read(text, "de") == [("Ein Hund & mehr",), ("Käse",)]


@pytest.mark.parametrize("wanted, found", [("en", "plain"), ("en-US", "American"), ("EN_gb", "British"),
                                           ("eng-US", "American")])
def test_a_language_takes_its_regions_but_its_own_code_first(wanted, found):
    assert read(HEAD + unit(en_US="American", en_GB="British", en="plain", eng="other") + TAIL, wanted) == [(found,)]
    assert read(HEAD + unit(en_US="American", de_AT="Jänner") + TAIL) == [("American", "Jänner")]


@pytest.mark.parametrize("written, wanted", [
    ("eng", "en"), ("en", "eng"), ("eng-US", "en"), ("en-US", "eng"), ("eng-US", "en-US"), ("ENG_us", "en"),
    ("deu", "de"), ("ger", "de"), ("de", "ger"), ("deu", "ger"), ("ger-AT", "deu"), ("zho-Hant-TW", "zh-Hant"),
])
def test_codes_of_three_letters_mean_what_those_of_two_do(written, wanted):
    assert read(HEAD + unit(fr="non", **{written: "oui"}) + TAIL, wanted) == [("oui",)]


@pytest.mark.parametrize("written, wanted", [("enm", "en"), ("e", "en"), ("en", "e"), ("en", "en-US"), ("est", "es")])
def test_other_languages_and_lacking_regions_are_not_taken(written, wanted):
    with pytest.raises(CorpusError):
        read(HEAD + unit(fr="non", **{written: "oui"}) + TAIL, wanted)


def test_a_language_may_come_late_but_not_behind_the_limit():
    text = HEAD + unit(en="A dog") * 5 + unit(en="Cheese", de="Käse") + TAIL
    assert read(text) == [("A dog", "")] * 5 + [("Cheese", "Käse")]
    assert read(text, limit=6) == read(text)
    for least in range(1, 6):
        with pytest.raises(CorpusError):
            read(text, limit=least)


def test_a_file_without_units_lacks_no_language():
    assert read(HEAD + TAIL, "en") == []


def test_codes_of_the_format_are_left_out_or_kept():
    marked = 'Press <bpt i="1">&lt;b&gt;</bpt>Enter<ept i="1">&lt;/b&gt;</ept> <hi>twice</hi><ph>{0}</ph>.'
    text = HEAD + unit(en=marked, de="x<it>{<sub>note</sub>}</it>y") + TAIL
    assert read(text) == [("Press Enter twice.", "xy")]
    assert read(text, keep_markup=True) == [("Press <b>Enter</b> twice{0}.", "x{note}y")]


def test_the_attribute_of_old_versions_is_understood_and_notes_are_not_text():
    inside = '<note>no</note><prop type="x">no</prop><tuv lang="EN"><note>no</note><seg>yes</seg></tuv>'
    assert read(f"{HEAD}<tu>{inside}</tu>{TAIL}", "en") == [("yes",)]


def test_the_block_size_of_the_parser_has_no_influence():
    text = HEAD + "".join(unit(en=f"line {number} ä", de=f"Zeile {number} 中") for number in range(50)) + TAIL
    assert read(text, block=1) == read(text, block=13) == read(text, block=10**6)


@pytest.mark.parametrize("data, line", [
    ((HEAD + unit(en="a & b")).encode(), 5), ((HEAD + unit(en="a", de="b") + "<tu>").encode(), 6),
    (b"just text\n", 1), (b"", 1), (b"<html><body/></html>", 1), ((HEAD + unit(en="Käse")).encode("latin1"), 5),
    (b'<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">]>\n<tmx/>', 1)])
def test_a_file_that_is_not_a_translation_memory_is_refused_with_its_line(data, line):
    with pytest.raises(CorpusError, match=f"memory.tmx:{line}:"):
        list(read_units([data], "memory.tmx", ["en"]))


@pytest.mark.parametrize("encoding", ["nonsense", "zip", "undefined"])
def test_an_encoding_that_cannot_be_read_is_an_error(encoding):
    with pytest.raises(CorpusError):
        read(HEAD.replace("UTF-8", encoding) + TAIL)


@pytest.mark.parametrize("declared, written", [
    ("UTF-8", "utf-8-sig"), ("UTF-16", "utf-16"), ("UTF-16", "utf-16-le"), ("UTF-16", "utf-16-be"),
    ("ISO-8859-1", "latin-1"), ("windows-1252", "cp1252"), ("utf-16", "utf-8"), ("UTF-8", "utf-16")])
@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_a_file_is_read_in_its_encoding(declared, written, block):
    """.NET writes utf-16 in the declaration of files in UTF-8."""
    data = (HEAD.replace("UTF-8", declared) + unit(en="Käse — ü".replace("— ", "" if written == "latin-1" else "— "),
                                                   de="x") * 2 + TAIL).encode(written)
    blocks = (data[at:at + block] for at in range(0, len(data), block))
    assert [text[:4] for text, in read_units(blocks, "memory.tmx", ["en"])] == ["Käse"] * 2


def test_text_in_another_encoding_is_refused_with_its_line():
    data = (HEAD + unit(en="Kase") + unit(en="Käse") + TAIL).encode("latin-1")
    for block in (7, 10**6):
        with pytest.raises(CorpusError, match="memory.tmx:6:"):
            list(read_units((data[at:at + block] for at in range(0, len(data), block)), "memory.tmx", ["en"]))


@pytest.mark.parametrize("code, separates", [
    ("<ph>&lt;br/&gt;</ph>", True), ("<ph>&lt;br&gt;</ph>", True), ("<ph>&lt;/p&gt;&lt;p class='x'&gt;</ph>", True),
    ('<ph type="lb"/>', True), ('<ph type="x-lb">x</ph>', True), ('<ph type="x-LINE_BREAK"/>', True),
    ('<ph type="x-soft-break"/>', True), ('<ph type="x-break-away"/>', False), ("<ut>{\\line }</ut>", True),
    ("<ut>\\tab </ut>", True),
    ("<ph>&lt;br0/&gt;</ph>", True), ("<ph>&lt;w:br/&gt;</ph>", True), ("<it>&#10;</it>", True), ("<ph>\\n</ph>", True),
    ("<ph>&#9;</ph>", True), ("<ph>&amp;nbsp;</ph>", True), ("<ph> </ph>", True), ("<ph><![CDATA[<BR />]]></ph>", True),
    ("<bpt i='1'>&lt;li&gt;</bpt>", True), ("<ph>{tab}</ph>", True), ("<ph>&amp;#10;</ph>", True),
    ("<ph>&amp;#65;</ph>", False),
    ("<ph>&lt;b&gt;</ph>", False), ("<ph>{0}</ph>", False), ("<ph x='1'/>", False), ("<bpt>&lt;broad&gt;</bpt>", False),
    ("<ph>&lt;img src='br'/&gt;</ph>", False), ("<ph>%p</ph>", False), ("<ph>{p}</ph>", False),
    ("<ut>{\\b </ut>", False), ("<!-- <br/> -->", False), ("<?br?>", False), ("<hi></hi>", False)])
def test_a_native_code_is_a_space_where_it_separates_words_and_nothing_elsewhere(code, separates):
    space = " " * separates
    assert read(HEAD + unit(de=f"eins{code}Zeile") + TAIL, "de") == [(f"eins{space}Zeile",)]
    assert read(HEAD + unit(de=f"eins {code} Zeile{code}") + TAIL, "de") == [(f"eins{space or '  '}Zeile",)]
    assert read(HEAD + unit(de=f"{code}{code}Wort{code}{code}Wort") + TAIL, "de") == [(f"Wort{space}Wort",)]


def test_the_layout_of_the_file_is_no_text():
    lines = "\n      Press\n      <bpt>&lt;b&gt;</bpt>\n\t  Enter  twice\r\n    "
    assert read(HEAD + unit(en=lines) + TAIL, "en") == [("Press\nEnter  twice",)]
    assert read(HEAD + unit(en=" a  b ") + unit(en="\n  \n") + TAIL, "en") == [(" a  b ",), ("",)]
    assert read(HEAD + unit(en="a&#10;b") + TAIL, "en") == [("a\nb",)]


@pytest.mark.parametrize("element", ["tmx", "tu", "tuv", "seg"])
def test_preserved_space_is_text(element):
    body = HEAD.partition("?>")[2] + unit(en="\n a\n  b<ph>&lt;br&gt;</ph> c") + TAIL
    text = re.sub(f"<{element}([ >])", rf'<{element} xml:space="preserve"\1', body)
    assert read(text, "en") == [("\n a\n  b c",)]
    assert read(text.replace("preserve", "default"), "en") == [("a\nb c",)]


@pytest.mark.parametrize("written", ["\x01", "&#x1;", "&#01;", "\x00", "&#xFFFF;", "&#xD83D;", "&#x110000;", "\ufffe"])
@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_a_character_that_xml_forbids_is_replaced_and_reported_and_the_file_is_read(written, block):
    text = HEAD + unit(en="good") + unit(en=f"a {written}b", de=f"{written}") + unit(en="fine &#65;&#x42;") + TAIL
    lines: list[int] = []
    assert read(text, "en", block=block, on_forbidden=lines.append) == [("good",), ("a \ufffdb",), ("fine AB",)]
    assert lines == [6, 6]


def test_a_truncated_file_is_refused_with_the_line_of_its_end():
    text = HEAD + unit(en="one") + unit(en="two &#x1;") + unit(en="three")
    for end in (len(text) - 8, len(text)):
        with pytest.raises(CorpusError, match=r"memory.tmx:[78]:"):
            read(text[:end], "en")


def test_many_units_take_no_more_memory_than_a_thousand():
    def blocks(count):
        yield HEAD.encode()
        for number in range(count):
            yield unit(en=f"This is the sentence {number}.", de=f"Das ist der Satz {number}.").encode()
        yield TAIL.encode()

    def peak(count):
        tracemalloc.start()
        assert sum(1 for _ in read_units(blocks(count), "memory.tmx", ["en", "de"])) == count
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(10)
    assert peak(3000) < peak(1000) + 200_000
