import itertools

import hypothesis
import pytest
from hypothesis import strategies

from seq2seq.tokenizers.line_splitting import (
    alignment_units,
    divide_sentences,
    join_translations,
    sentences,
    split_long,
    split_margins,
)


def at_most(characters):
    return lambda text: len(text) <= characters


@pytest.mark.parametrize(("text", "units"), [
    ("किताब लाल है।", ["किताब", "लाल", "है", "।"]), ("الكُتُبَ هنا", ["الكُتُبَ", "هنا"]),
    ("cafe\u0301s!", ["cafe\u0301s", "!"]), ("می\u200cخواهم", ["می\u200cخواهم"]), ("ดีมาก", ["ดี", "ม", "า", "ก"]),
    ("don't_go 3,5", ["don", "'", "t_go", "3", ",", "5"]),
    ("ឆ្កែមួយ", ["ឆ្កែ", "មួ", "យ"]), ("မန္တလေး", ["မ", "န္တ", "လေး"]),                   # stacked letters
    ("བུ་ཁྱི་མཐོང་།", ["བུ་", "ཁྱི་", "མཐོང་", "།"]),                                       # Tibetan syllables
    ("เด็กน้ำ", ["เด็", "ก", "น้ำ"]), ("ເນື້ອນ້ຳ", ["ເນື້", "ອ", "ນ້ຳ"]),                        # Thai and Lao vowels
])
def test_a_letter_and_its_marks_are_in_one_unit(text, units):
    assert [text[begin:end] for begin, end in alignment_units(text)] == units


# Margins


@pytest.mark.parametrize(("line", "margins"), [
    ("Ein Hund", ("", "Ein Hund", "")),
    ("  Ein Hund \t", ("  ", "Ein Hund", " \t")),
    ("\u00a0Hund\u3000", ("\u00a0", "Hund", "\u3000")),
    ("a a", ("", "a a", "")),
    (" \t ", (" \t ", "", "")),
    ("", ("", "", "")),
])
def test_white_space_around_a_line_is_separated(line, margins):
    assert split_margins(line) == margins


@hypothesis.given(strategies.text(alphabet=" \t\u2028\u0085ab.。", max_size=13))
def test_white_space_and_text_join_to_the_line(line):
    before, text, after = split_margins(line)
    assert before + text + after == line
    assert text == text.strip()


# Lines too long for a model


def test_a_text_that_fits_stays_whole():
    assert split_long("One. Two. Three.", at_most(16)) == ["One. Two. Three."]


@pytest.mark.parametrize(("text", "longest", "parts"), [
    ("One two. Three four. Five.", 13, ["One two. ", "Three four. ", "Five."]),
    ("One two. Three four. Five.", 21, ["One two. Three four. ", "Five."]),
    ('He said "no." She left.', 14, ['He said "no." ', "She left."]),
    ("Is it? It is! Oh… yes.", 7, ["Is it? ", "It is! ", "Oh… ", "yes."]),
    ("他说：“好。”她走了。再见！", 7, ["他说：“好。”", "她走了。再见！"]),
    ("Pi is 3.14159 or so.", 9, ["Pi is ", "3.14159 ", "or so."]),               # no sentence ends inside a number
], ids=str)
def test_a_long_text_is_cut_at_sentence_ends(text, longest, parts):
    assert split_long(text, at_most(longest)) == parts


def test_only_a_long_sentence_is_split_at_spaces():
    text = "Short one. A sentence without an end that goes on. Short two."
    assert split_long(text, at_most(17)) == [
        "Short one. ", "A sentence ", "without an end ", "that goes on. ", "Short two.",
    ]


def test_a_very_long_word_is_split_anywhere():
    assert split_long("aaaaaaaaaaa", at_most(3)) == ["aa", "aaa", "aaa", "aaa"]


texts = strategies.text(alphabet="ab .!?。！”\" \t\u00a0中文é", max_size=101)


@hypothesis.given(texts, strategies.integers(1, 17))
def test_parts_join_to_the_text_and_every_part_fits(text, longest):
    parts = split_long(text, at_most(longest))
    assert "".join(parts) == text
    assert all(len(part) <= longest for part in parts)
    assert all(parts) or text == ""


@hypothesis.given(texts, strategies.integers(3, 17))
def test_what_fits_may_be_counted_in_bytes(text, longest):
    def fits(part):
        return len(part.encode()) <= longest

    parts = split_long(text, fits)
    assert "".join(parts) == text and all(map(fits, parts))


@hypothesis.given(strategies.lists(strategies.integers(1, 7), min_size=1, max_size=13), strategies.integers(9, 23))
def test_sentences_that_fit_together_stay_together(lengths, longest):
    text = "".join("a" * length + ". " for length in lengths)
    parts = split_long(text, at_most(longest))
    assert all(len(part) + len(following[: following.index(" ") + 1]) > longest
               for part, following in itertools.pairwise(parts))


def test_a_very_long_line_needs_few_trials():
    trials = []

    def fits(text):
        trials.append(len(text))
        return len(text) <= 500

    parts = split_long("A short sentence. " * 5000, fits)
    assert len(parts) <= 190                                                    # 90,000 characters at 486 a part
    assert len(trials) < 15 * len(parts)


# Parts joined again


@pytest.mark.parametrize(("language", "parts", "line"), [
    ("en", [("One.", " "), ("Two.", "  "), ("Three.", "")], "One. Two.  Three."),
    ("en", [("One.", ""), ("Two.", "")], "One. Two."),                          # from a language without spaces
    ("zh", [("一。", " "), ("二。", "  "), ("三。", "")], "一。二。三。"),
    ("zh", [("一。", "\t"), ("二。", "")], "一。\t二。"),                          # a tab is no mere gap
    ("de", [("Eins.", "\t"), ("Zwei.", "")], "Eins.\tZwei."),
    ("zh-TW", [("一。", " "), ("二。", "")], "一。二。"),
    ("zh_Hans", [("一。", " "), ("二。", "")], "一。二。"),
    ("JA", [("一。", " "), ("二。", "")], "一。二。"),
    ("th", [("ฝนตก", " "), ("ฟ้าร้อง", "  "), ("จบ", "")], "ฝนตก ฟ้าร้อง  จบ"),        # the space is the only sentence mark
    ("km", [("មួយ។", ""), ("ពីរ។", "")], "មួយ។ ពីរ។"),
    ("en", [("Only.", " ")], "Only."),
], ids=str)
def test_translations_of_parts_are_joined_as_the_target_language_is_written(language, parts, line):
    assert join_translations(parts, language) == line


@pytest.mark.parametrize(("text", "expected"), [
    ("Dr. Müller kommt. Er ist da.", ["Dr. Müller kommt. ", "Er ist da."]),
    ("Das ist z. B. gut. Und du? Ja!", ["Das ist z. B. gut. ", "Und du? ", "Ja!"]),
    ("Er kam am 4. März. Er ging.", ["Er kam am 4. März. ", "Er ging."]),
    ("我来了。你好吗？", ["我来了。", "你好吗？"]),
    ("It is 3.5 m long.", ["It is 3.5 m long."]), ("What? he said.", ["What? he said."]), ("", [""]),
])
def test_abbreviations_and_ordinals_do_not_end_a_sentence(text, expected):
    assert sentences(text) == expected
    assert divide_sentences(text).texts == [sentence.strip() for sentence in expected if sentence]
