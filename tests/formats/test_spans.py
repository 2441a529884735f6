"""Helpers of the formats."""

import pytest
from hypothesis import strategies as st
from property_checks import few_and_many

from seq2seq.documents.divided_document import split_sentences
from seq2seq.formats.block import Block
from seq2seq.formats.inline_tags import Tag
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import join_surrogates, trim, wrap


def test_spans_are_replaced_in_order():
    assert replace_spans("abcdef", [(4, 5, "X"), (1, 1, "+"), (1, 3, "")]) == "a+dXf"


def test_margins_end_at_tags():
    before, block, after = trim(Block(" a  ", (Tag(0, "<b>"), Tag(3, "</b>"))))
    assert (before, block.text, after) == ("", " a ", " ")
    assert trim(Block("  ")) == ("  ", Block(""), "")
    assert trim(Block("\n a ", (Tag(3, "<b/>"),)))[1] == Block("a", (Tag(1, "<b/>"),))


def test_halves_of_a_surrogate_pair_are_joined():
    assert join_surrogates("a\ud83d\ude00\ud83d") == "a😀\ud83d"


@few_and_many(10, 500, st.text("ab \n", max_size=100), st.integers(1, 20))
def test_wrapped_lines_are_the_text(text, width):
    lines = wrap(text, width)
    assert "".join(lines) == text
    assert all("\n" not in line[:-1] and (len(line.rstrip()) <= width or " " not in line.strip()) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a " * 500_000, " " * 1_000_000 + "a"])
def test_hostile_texts_take_linear_time(text):
    assert "".join(wrap(text, 77)) == text


@pytest.mark.parametrize(("text", "sentences"), [
    ("यह एक है। वह दो है।। बस", ["यह एक है।", "वह दो है।।", "बस"]), ("هل هذا؟ نعم.", ["هل هذا؟", "نعم."]),
    ("یہ ہے۔ وہ ہے۔", ["یہ ہے۔", "وہ ہے۔"]), ("ይህ ነው። ያ ነው።", ["ይህ ነው።", "ያ ነው።"]), ("ဒါ။ ဟို။", ["ဒါ။", "ဟို။"]),
    ("Սա է։ Նա է։", ["Սա է։", "Նա է։"]), ("是。不是。", ["是。", "不是。"]),
    ("Dr. Who is. Yes!", ["Dr. Who is.", "Yes!"]), ("I wait... You run.", ["I wait...", "You run."]),
    ("Usage: cp [OPTION]... SOURCE... [-t TARGET...] <dog>", ["Usage: cp [OPTION]... SOURCE... [-t TARGET...] <dog>"])])
def test_sentences_end_at_the_marks_of_their_script(text, sentences):
    assert split_sentences(text).texts == sentences
