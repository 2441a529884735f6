"""Faults of translations are detected, and correct text is not reported as faulty."""

import time

import hypothesis
import pytest
from hypothesis import strategies

from seq2seq.translation.output_faults import FAULTS, changed_numbers, faults, lost_urls

GERMAN = "Zwei Hunde laufen am Strand entlang und tragen zusammen einen langen Stock."


@pytest.mark.parametrize(("source", "translation", "expected"), [
    (GERMAN, "", ("empty",)),
    (GERMAN, " \x00\u200b", ("empty",)),
    (GERMAN, "Two dogs run along the beach along the beach along the beach carrying a stick.", ("loop",)),
    (GERMAN, "Two dogs run with their stick on the beach while with their stick on the rocks.", ("loop",)),
    (GERMAN, "Two two two two dogs run along the beach and carry a long stick.", ("loop",)),
    (GERMAN, "Two dogs run along the beach!!!!!!!!!!!!!!!!!!!!!!!!!!!!", ("loop",)),
    (GERMAN, "两只狗在海滩上跑来跑去海滩上跑来跑去，一起叼着一根长长的棍子。", ("loop",)),
    (GERMAN, "Dogs run.", ("too_short",)),
    ("Guten Tag.", "This is a translation that cannot be one of so short a line.", ("too_long",)),
    (GERMAN, GERMAN, ("copied",)),
    (GERMAN, GERMAN.lower(), ("copied",)),
    (GERMAN, "Zwei Hunde laufen am Strand entlang and carry together a stick.", ("copied",)),
    ("我们明天去北京看我的老朋友。", "我们明天去北京看我的老朋友。", ("copied",)),
    ("Mehr auf https://example.org/a?b=c.", "More on the web page.", ("lost_url",)),
    ("Schreiben Sie an post@example.org!", "Write to post@example.com!", ("lost_url",)),
    ("Kopieren von SSH://host.example/weg", "Copying from the host", ("lost_url",)),
    ("Das war im Jahr 1987.", "That was in the year 1978.", ("lost_number",)),
    ("Der Spieler mit der Nummer 57 wirft.", "The player with number 75 is throwing.", ("lost_number",)),
    ("Die Nummer ist 93.", "The number is 9331300.", ("lost_number",)),
    ("Es kostet 40.000 Euro.", "It costs 4,000 euros.", ("lost_number",)),
    ("Es kostet 2,5 Millionen Euro.", "It costs 2.6 million euros.", ("lost_number",)),
    ("Er hat 7 Hunde.", "He has 8 dogs.", ("lost_number",)),
    ("Er hat 57 Hunde.", "He has many dogs.", ("lost_number",)),
    ("Er hat viele Hunde.", "He has 57 dogs.", ("lost_number",)),
    ("Der Zug fährt um 14:10 von Gleis 2 ab.", "The train leaves at 16:10 from platform 2.", ("lost_number",)),
    ("Seit 1987: www.example.org", "For a long time", ("lost_url", "lost_number")),
])
def test_a_fault_is_named(source, translation, expected):
    assert faults(source, translation, "de", "en") == expected


@pytest.mark.parametrize(("source", "translation"), [
    (GERMAN, "Two dogs run along the beach and carry a long stick together."),
    ("Nein, nein, nein, nein!", "No, no, no, no, no!"),                         # as the source does
    ("Hahahahahahahahaha", "Hahahahahahahahahaha"),
    ("Eine Frau im roten Kleid und ein Mann im roten Kleid", "A woman in a red dress and a man in a red dress"),
    ("Er wusste, dass das das Ende war.", "He knew that that that he had seen was the end."),
    ("Ja.", "Yes, I do."),
    ("我爱你。", "I love you."),
    ("New York Times", "New York Times"),
    ("Tom.", "Tom."),
    ("123 456 789 012", "123 456 789 012"),
    ("Es kostet 1.000 Euro.", "It costs 1,000 euros."),
    ("Es kostet 1.234,50 Euro.", "It costs 1,234.50 euros."),
    ("Es kostet 1\u202f234\u202f567 Euro.", "It costs 1 234 567 euros."),
    ("Es kostet 1,5 Millionen Euro.", "It costs 1,500,000 euros."),
    ("Sie hat 3 Kinder und 12 Enkel.", "She has three children and twelve grandchildren."),
    ("Er wurde 50.", "He turned fifty."),
    ("Er hat 500 Bücher.", "He has five hundred books."),
    ("Der Zug fährt um 17:30 Uhr.", "The train leaves at 5:30 p.m."),
    ("Der Zug fährt um 10.30 Uhr.", "The train leaves at half past ten."),
    ("Am 31.12.2020.", "On 12/31/2020."),
    ("Am 31.12.2020.", "On December 31, 2020."),
    ("有300万人。", "There are 3 million people."),
    ("２０１９年", "In 2019"),
    ("Mehr auf https://example.org/1234567.", "More on https://example.org/1234567 ."),
    ("Weitere Texte: https://example.org/1234567", "更多文本：https://example.org/1234567，谢谢"),
    ("", ""), (" \x00", ""),
])
def test_what_people_write_has_no_fault(source, translation):
    assert faults(source, translation, "de", "en") == ()


def test_within_one_language_a_copy_is_none():
    for own in ("de-AT", "deu", "ger"):
        assert faults(GERMAN, GERMAN, "de", own) == ()
    assert faults(GERMAN, GERMAN) == ("copied",)


def test_what_is_lost_is_told_as_it_is_written():
    assert lost_urls("Siehe (http://a.example/x), www.b.example.", "See www.b.example") == ["http://a.example/x"]
    assert changed_numbers("1.987 und 2345 und 2345, 17", "1987 99") == (["2345", "17"], ["99"])


@hypothesis.settings(deadline=None, derandomize=True, max_examples=12)
@hypothesis.given(strategies.text(), strategies.text())
def test_any_two_texts_can_be_compared(source, translation):
    found = faults(source, translation, "de", "en")
    assert list(found) == [name for name in FAULTS if name in found]


@pytest.mark.parametrize("text", ["1 " * 15_000, "1:00 " * 9_000, "5 g " * 8_000, "7" * 5_000,
                                  "a" * 40_000, "a@" * 20_000, "1." * 20_000, "ab " * 13_000, "<a" * 20_000,
                                  "www." * 10_000, "".join(map(chr, range(0x4E00, 0x9E00)))])
def test_long_lines_are_judged_quickly(text):
    begin = time.monotonic()
    faults(text, text[: len(text) // 2], "de", "en")
    faults(text[: len(text) // 2], text + "!", "de", "en")
    assert time.monotonic() - begin < 10
