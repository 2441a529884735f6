"""Subtitles: cues are joined into sentences and divided again; times, numbers, notes and styles keep their bytes."""

import re
from dataclasses import replace

import pysubs2
import pytest
from document_translators import shortened, translated
from hypothesis import strategies as st
from property_checks import few_and_many
from test_round_trips import ASS

from seq2seq.documents.formats.subtitles import AssDocument, SrtDocument, VttDocument


def cues(*texts, gap=0.1):
    """Return an SRT of cues of a second each."""
    stamp = "00:{:02}:{:06.3f}"
    begins = [(1 + gap) * index for index in range(len(texts))]
    return "\n".join(f"{index}\n{stamp.format(int(begin // 60), begin % 60)} --> "
                     f"{stamp.format(int((begin + 1) // 60), (begin + 1) % 60)}\n{text}\n"
                     for index, (text, begin) in enumerate(zip(texts, begins, strict=True), 1)).encode()


def read(data, form="srt"):
    return [event.text for event in pysubs2.SSAFile.from_string(data.decode(), format_=form)]


@pytest.mark.parametrize(("texts", "gap", "expected"), [
    (["One two", "three.", "Four"], 0.1, ["One two three.", "Four"]), (["One", "two"], 3.1, ["One", "two"]),
    (["One", "- two"], 0.1, ["One", "two"]), (["a"] * 11, 0.1, [" ".join("a" * 8), "a a a"]),
    (["One", "<v Bob>two"], 0.1, ["One", "two"]), (["日本", "語"], 0.1, ["日本語"]),
    (["One", "123", "two"], 0.1, ["One", "two"]),
    (["[sighs]", "one"], 0.1, ["[sighs]", "one"]), (["What?\"", "one"], 0.1, ["What?\"", "one"]),
    (["-5 a", "b"], 0.1, ["-5 a b"]),
])
def test_a_block_ends_at_a_sentence_a_gap_or_another_speaker(texts, gap, expected):
    data = cues(*texts, gap=gap)
    document = VttDocument(b"WEBVTT\n\n" + data) if "<v" in texts[1] else SrtDocument(data)
    assert [block.text for block in document.blocks] == expected


def test_a_translation_without_balanced_borders_is_divided_by_shares():
    document = SrtDocument(cues("one two", "three four five six."))
    block, = document.blocks
    for position in (0, 1, len("eins zwei drei vier fünf")):
        moved = replace(block, text="eins zwei drei vier fünf", tags=(replace(block.tags[0], position=position),))
        assert read(document.render([moved], "de")) == ["eins", "zwei drei vier fünf"]
    moved = replace(block, text="一二三四五六七八九", tags=(replace(block.tags[0], position=0),))
    assert read(document.render([moved], "zh")) == ["一二", "三四五六七八九"]


@pytest.mark.parametrize(("language", "translation", "lines"), [
    ("th", "กาน้ำชา", ["กา", "น้ำชา"]), ("km", "មាឆ្កែ", ["មា", "ឆ្កែ"]), ("zh", "一二三四五六七", ["一二三", "四五六七"]),
])
def test_no_line_or_cue_begins_between_a_letter_and_its_marks(language, translation, lines):
    for texts in (["one\ntwo."], ["one", "two."]):
        document = SrtDocument(cues(*texts))
        block, = document.blocks
        moved = replace(block, text=translation, tags=tuple(replace(tag, position=0) for tag in block.tags))
        result = document.render([moved], language).decode()
        assert [line for line in result.splitlines() if not line.isascii()] == lines


def test_a_tag_around_a_border_is_closed_and_opened_again():
    document = SrtDocument(cues("a <i>b c</i>", "d e."))
    block, = document.blocks
    opened, closed, border = block.tags
    tags = (replace(opened, position=2), replace(border, position=4), replace(closed, position=5))
    result = document.render([replace(block, text="x y z u.", tags=tags)], "en").decode()
    assert "x <i>y</i>\n" in result and "<i>z</i> u." in result


def test_text_cannot_become_markup():
    assert read(translated(SrtDocument(cues("one")), lambda text: "a --> b\n\nc")) == ["a \u2192 b c"]
    assert b"a &lt;b&gt; --&gt;" in translated(VttDocument(b"WEBVTT\n\n" + cues("one")), lambda text: "a <b> -->")
    assert b"\\{\\i1}\\\xe2\x81\xa0N" in translated(AssDocument(ASS.encode()), lambda text: "{\\i1}\\N" * 4)


def test_a_number_without_an_empty_line_before_it_is_no_text():
    data = cues("one.", "two.").replace(b"one.\n\n", b"one.\n")
    document = SrtDocument(data)
    assert [block.text for block in document.blocks] == ["one.", "two."]
    assert translated(document) == data.replace(b"one", b"ONE").replace(b"two", b"TWO")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_after_an_empty_line_of_an_srt_cue_belongs_to_the_cue(end):
    data = b"1\n00:00:01,000 --> 00:00:02,000\nWe saw\n\n \n<i>a dog</i>\n\n\n2\n\n00:00:09,000 --> 00:00:10,000\n" \
           b"Born in\n\n3\n00:00:11,000 --> 00:00:12,000\n\n4\n00:00:19,000 --> 00:00:20,000\nyes\n\nno\n"
    data = data.replace(b"\n", end.encode())
    document = SrtDocument(data)
    assert [block.text for block in document.blocks] == ["We saw a dog", "Born in", "yes no"]
    assert document.render(document.blocks, "en") == data
    joined = data.decode().replace(f"We saw{end}{end} {end}<i>a dog</i>", f"WE SAW{end}<i>A DOG</i>").replace(
        f"yes{end}{end}no", f"YES{end}NO").replace("Born in", "BORN IN").encode()
    assert translated(document) == joined
    text = VttDocument(b"WEBVTT\n\n" + data)
    assert [block.text for block in text.blocks] == ["We saw", "Born in", "yes"]


def test_the_byte_order_mark_is_not_part_of_the_first_section():
    text = "\ufeff[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,one\n"
    assert translated(AssDocument(text.encode())) == text.replace("one", "ONE").encode()


TIMES = re.compile(rb"^00:.*-->.*$", re.MULTILINE)
TEXTS = st.lists(st.text("ab .<i>/\n{\\an8}-\u00e4日\x0b", max_size=20), max_size=9)


@few_and_many(10, 2000, TEXTS, st.sampled_from([str.upper, shortened, lambda text: text * 5, lambda text: ""]))
def test_times_stay_with_any_translation(texts, translate):
    for kind, data in ((SrtDocument, cues(*texts)), (VttDocument, b"WEBVTT\n\n" + cues(*texts))):
        document = kind(data)
        assert document.render(document.blocks, "en") == data
        result = translated(document, translate)
        assert TIMES.findall(result) == TIMES.findall(data)


@pytest.mark.parametrize("words", ["ja", "ja gut", "ja gut so", "Donaudampfschiff a b", "a b Donaudampfschiff"])
def test_no_cue_becomes_empty_if_the_translation_has_few_words(words):
    data = "".join(f"{number}\n00:00:0{number},000 --> 00:00:0{number},900\n{text}\n\n" for number, text in enumerate(
        ["and so we have", "a sentence that", "ends here."], 1)).encode()
    document = SrtDocument(data)
    block = document.blocks[0]
    tags = tuple(replace(tag, position=0) for tag in block.tags)
    cues = pysubs2.SSAFile.from_string(document.render([replace(block, text=words, tags=tags)], "de").decode())
    assert all(cue.text for cue in cues)
    assert " ".join(dict.fromkeys(cue.text for cue in cues)) == words


@pytest.mark.parametrize("dash", "-–—―")
def test_speakers_after_any_dash_are_apart(dash):
    cue = f"1\n00:00:01,000 --> 00:00:02,000\n{dash} Yes.\n{dash} No, I will not go there.\n"
    assert [block.text for block in SrtDocument(cue.encode()).blocks] == ["Yes.", "No, I will not go there."]
