"""Documents as context in text: which sentences precede a sentence, and in which form."""

import pytest

from seq2seq.tokenizers.context import (
    PreviousSentences,
    context_sentences,
    in_context,
    shortened,
    split_context,
    with_context,
)


def test_a_text_follows_its_context_and_is_found_again():
    source = with_context(["It rains.", "It pours."], "It is wet.")
    assert source == "It rains.␞ It pours.␞ It is wet."
    context, text = split_context(source)
    assert (context_sentences(context), text) == (("It rains.", "It pours."), "It is wet.")


def test_a_document_begins_with_an_empty_context():
    assert with_context((), "It rains.") == "␞ It rains."
    assert split_context("␞ It rains.") == ("␞ ", "It rains.")
    assert split_context("It rains.") == ("", "It rains.")


def test_a_separator_in_a_sentence_of_the_context_becomes_a_space():
    assert with_context(["a␞b"], "c") == "a b␞ c"


def test_an_empty_line_or_another_document_ends_the_context():
    previous = PreviousSentences(2)
    assert [previous.add(text) for text in ("a", "b", "c", "d", " ", "e")] == [
        (), ("a",), ("a", "b"), ("b", "c"), (), ()]
    assert previous.add("f", begins_document=True) == () and previous.add("g") == ("f",)


@pytest.mark.parametrize(("count", "expected"), [
    (1, ["␞ a", "a␞ b", "", "␞ c"]), (0, ["a", "b", "", "c"])])
def test_each_sentence_of_a_document_gets_its_context(count, expected):
    assert in_context(["a", "b", "", "c"], count) == expected


def test_the_oldest_sentences_are_left_out_if_there_are_too_many_pieces():
    def encode(texts):
        return [[*text] for text in texts]

    sources = [with_context(["aa", "bb"], "cc"), with_context(["a"], "b"), "x" * 20]
    assert shortened(sources, encode, 6) == ["bb␞ cc", "a␞ b", "x" * 20]
    assert shortened(sources, encode, 4)[0] == "␞ cc"
