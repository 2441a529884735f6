"""Quality of a pair: lengths, damaged characters, and text on the wrong side."""

import csv
import io
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.cleaning import clean
from seq2seq.data.corpus import Counts
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.language_identification import LanguageDetector, SideLanguages, is_installed
from seq2seq.data.pair_quality import LengthModel, has_csv_quotes, has_entities
from seq2seq.errors import UserError
from seq2seq.recipe import Cleaning
from seq2seq.tokenizers.source import Source


@pytest.mark.parametrize("text", ["schÃ¶n", "GroÃŸ", "â€œquoted", "lost \ufffd", "a\x00b", "bell \x07"])
def test_damaged_characters_are_detected(text):
    assert is_damaged(text)


@pytest.mark.parametrize("text", ["schön", "„Spaß“ »Spaß«", "GARÇON Ãrea", "tab\there", "FORÊT À la", "我们"])
def test_intact_text_is_not_classified_as_damaged(text):
    assert not is_damaged(text)


SENTENCES = {
    "French": "Voilà « l’été » à Noël, où ça ? — Déjà… CAFÉ… À la crème, n° 5, 20 °C, CAFÉ » ÉTÉ”, É\xa0!",
    "Portuguese": "NÃO AMANHÃ… irmã não IRMÃ» coração", "Spanish": "¿Sí? ¡Aquí! «MAMÁ» Nº 5ª",
    "Italian": "È\xa0vero: perché è così, È… «È» PERCHÉ»", "German": "Spaß… MÜ… Daß“ ÜBERFLUß» GRÜẞE",
    "Polish": "Mąż zażółcił gęślą jaźń – byłaś w łodzi… ŻÓŁĆ…", "Hungarian": "Árvíztűrő tükörfúrógép Ő… É’s",
    "Czech": "Úžasný František Škoda, „Tomáš“ říká: výši… ÚŽAS", "Latvian": "Glāžšķūņu rūķīši Šķērsiela",
    "Turkish": "Işık ağaçta, şu öğüdü kıskanç", "Romanian": "Ștefan își dorește mâine, România",
    "Icelandic": "Þórður á Íslandi Ð", "Vietnamese": "Tiếng Việt rất đẹp", "Greek": "Η ελληνική γλώσσα είναι όμορφη",
    "Russian": "Слово не воробей, вылетит — не поймаешь. Сёмга Рёв С…", "Ukrainian": "Різні їжаки й Ґанок, Сік Рік",
    "Hebrew": "שלום לכולם", "Arabic": "مرحبا بالعالم", "Hindi": "नमस्ते दुनिया", "Thai": "สวัสดีชาวโลก",
    "Chinese": "我们在学校学习中文。", "Japanese": "私は学生です。", "Korean": "안녕하세요 세계"}


@pytest.mark.parametrize("sentence", SENTENCES.values(), ids=SENTENCES)
def test_utf8_that_was_decoded_in_another_encoding_is_damaged_in_every_language(sentence):
    def decoded(encoding):
        """Return the text as a program decodes it that takes a byte without a character as a control character."""
        return "".join(bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in sentence.encode())

    assert not is_damaged(sentence) and not is_damaged(sentence.upper())
    assert is_damaged(decoded("cp1252")) and is_damaged(decoded("latin-1"))
    if "Слово" in sentence or "Ґ" in sentence:
        assert is_damaged(decoded("cp1251"))


def test_html_entities_are_detected():
    assert has_entities("&quot;a&quot;") and has_entities("it&#39;s") and not has_entities("R&D; AT&T")


@settings(max_examples=50)
@given(st.text(st.sampled_from('ab "'), max_size=9))
def test_a_field_of_a_csv_is_recognised_by_its_doubled_quotes(text):
    field = io.StringIO()
    csv.writer(field, lineterminator="").writerow([text])
    assert has_csv_quotes(field.getvalue()) == ('"' in text)
    assert not has_csv_quotes(re.sub('"+', '"', text))


def test_lengths_are_those_of_gale_and_church():
    model = LengthModel.learn([(10, 12), (20, 22), (0, 5), (30, 26)])
    assert model.mean == 1
    assert model.variance == pytest.approx((2**2 / 10 + 2**2 / 20 + 4**2 / 30) / 3)
    assert LengthModel(1.5, 2.0).deviation(8, 24) == 12 / 4
    assert LengthModel.learn([]).deviation(1, 1) == 0
    assert LengthModel.learn([(7, 7)] * 11).deviation(7, 8) < 4


GERMAN = ["ein Hund läuft über die Wiese", "zwei Kinder spielen im Garten", "der Mann liest eine Zeitung",
          "die Frau kocht eine Suppe", "das Mädchen schreibt einen Brief"]
ENGLISH = ["a dog is running across the meadow", "two children are playing in the garden",
           "the man is reading a newspaper", "the woman is cooking a soup", "the girl is writing a letter"]
PAIRS = list(zip(GERMAN, ENGLISH, strict=True)) * 3


def test_text_in_the_language_of_the_other_side_is_detected():
    sides = SideLanguages(PAIRS)
    assert sides.wrong("der Hund schreibt eine Zeitung", "the dog is writing a newspaper") == []
    assert sides.wrong("the children are reading a newspaper", "the children are reading a newspaper") == ["source"]
    assert sides.wrong("die Kinder lesen eine Zeitung", "die Kinder lesen eine Zeitung") == ["target"]
    assert sides.wrong("", "") == sides.wrong("12", "Berlin") == []


def test_names_on_both_sides_do_not_put_a_text_on_the_wrong_one():
    sides = SideLanguages(PAIRS)
    names = "the dog is running across the meadow"                              # the title of a song
    assert sides.wrong(f"{names}, der Mann liest", f"{names}, the man is reading") == []
    assert sides.wrong(f"{names}, is reading", f"{names}, the man is reading") == ["source"]
    assert sides.wrong(names, names) == ["source"]


def test_one_language_on_both_sides_is_never_wrong():
    sides = SideLanguages([(text, text) for text in GERMAN])
    assert not any(sides.wrong(text, text) for text in GERMAN + ENGLISH)


def cleaned(pairs, **options):
    counts = Counts(lines=len(pairs))
    numbered = [(number, Source(source), target) for number, (source, target) in enumerate(pairs, 1)]
    kept = clean(numbered, Cleaning(**options), counts)
    return [number for number, _, _ in kept], counts.dropped


def test_cleaning_by_signals_counts_each_reason():
    pairs = [*PAIRS, (GERMAN[0], GERMAN[1]), ("Hund 7", "dog 11"), ("HÃ¼nde", "dogs"), (GERMAN[0], ENGLISH[0] * 7)]
    kept, dropped = cleaned(pairs, language="sides", min_number_agreement=0.7, remove_damaged=True)
    assert kept == [*range(1, 16), 19]
    assert dropped == {"wrong_language": 1, "numbers": 1, "damaged": 1}
    kept, dropped = cleaned(pairs, max_length_deviation=3.0)
    assert kept == list(range(1, 19)) and dropped == {"length_deviation": 1}


def test_text_alone_has_nothing_to_compare():
    counts = Counts()
    options = Cleaning(language="sides", min_number_agreement=1.0, max_length_deviation=1.0)
    assert len(list(clean([(1, Source(""), "7 dogs"), (2, Source(""), "x")], options, counts, sides=1))) == 2


def test_lingua_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "lingua", None)
    with pytest.raises(UserError):
        LanguageDetector(None)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
def test_lingua_sees_a_third_language_and_says_what_it_does_not_know():
    from seq2seq.recipe import Languages

    detector = LanguageDetector(Languages(source="de", target="en-GB"))
    assert detector.wrong(GERMAN[0], ENGLISH[0]) == {}
    spanish = "la biblioteca de la universidad está cerrada durante las vacaciones de verano"
    assert detector.wrong(spanish, ENGLISH[0]) == {"source": "es"}
    assert detector.wrong(GERMAN[0], spanish) == {"target": "es"}
    works = "Wolfgang Amadeus Mozart, Johannes Brahms und Leos Janáček"
    assert detector.wrong(f"Werke von {works}", f"works of {works}") == {}    # names stand on both sides
    assert detector.wrong("我们明天去看", ENGLISH[0]) == {"source": "zh"}         # six characters are several words
    assert detector.wrong("我们", ENGLISH[0]) == {}
    # A side in a language that lingua lacks is never wrong; the other one is judged. Cleaning asks for one at least.
    languages, pairs = Languages(source="tlh", target="en"), [(1, Source(GERMAN[0]), spanish)]
    assert LanguageDetector(languages).wrong(GERMAN[0], spanish) == {"target": "es"}
    assert not list(clean(pairs, Cleaning(language="lingua"), Counts(), 2, languages))
    with pytest.raises(UserError, match="source, tlh, nor that of the target, qsm"):
        list(clean(pairs, Cleaning(language="lingua"), Counts(), 2, Languages(source="tlh", target="qsm")))


@pytest.mark.skipif(not is_installed(), reason="needs the extra `language`")
@pytest.mark.parametrize("short, long", [("de", "deu"), ("zh", "zho-Hant"), ("no", "nor"), ("en-GB", "eng"),
                                         ("de", "ger")])
def test_languages_are_known_by_three_letters_as_by_two(short, long):
    from seq2seq.recipe import Languages

    by_two, by_three = (LanguageDetector(Languages(source=code, target=code)) for code in (short, long))
    assert by_two._expected == by_three._expected != [None, None]
