"""Documents as context: which sentences precede a sentence, and their form in lines of text."""

import pytest

from seq2seq.tokenizers.context import PreviousSentences, in_context, parse_context, shortened
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line


def test_a_text_follows_its_context_and_is_found_again():
    source = Source("It is wet.", ("It rains.", "It pours."), tag="<x>")
    assert as_line(source) == "It rains.␞ It pours.␞ <x> It is wet."
    assert parse_context(as_line(source)) == Source("<x> It is wet.", source.context)


def test_a_document_begins_with_an_empty_context():
    assert as_line(Source("It rains.", ())) == "␞ It rains."
    assert parse_context("␞ It rains.") == Source("It rains.", ())
    assert parse_context("It rains.") == Source("It rains.")
    assert parse_context(" It rains. ␞It pours.␞␞ It is wet.") == Source("It is wet.", ("It rains.", "It pours."))


def test_a_given_context_is_not_looked_for_in_the_text():
    source = Source("a␞ b", ("c",))
    assert parse_context(source) is source


def test_a_separator_in_a_sentence_of_the_context_becomes_a_space():
    assert as_line(Source("c", ("a␞b",))) == "a b␞ c"


def test_an_empty_line_or_another_document_ends_the_context():
    previous = PreviousSentences(2)
    assert [previous.source(text).context for text in ("a", "b", "c", "d", " ", "e")] == [
        (), ("a",), ("a", "b"), ("b", "c"), None, ()]
    assert previous.source("f", begins_document=True).context == () and previous.source("g").context == ("f",)
    assert previous.source("x␞ h").context == ("x",) and previous.source("i").context == ("g", "h")


@pytest.mark.parametrize(("count", "expected"), [
    (1, ["␞ a", "a␞ b", "", "␞ c"]), (0, ["a", "b", "", "c"])])
def test_each_sentence_of_a_document_gets_its_context(count, expected):
    assert list(map(as_line, in_context(["a", "b", "", "c"], count))) == expected


def test_the_oldest_sentences_are_left_out_if_there_are_too_many_pieces():
    def encode(sources):
        return [[*as_line(source)] for source in sources]

    sources = [Source("cc", ("aa", "bb")), Source("b", ("a",)), Source("x" * 20)]
    assert shortened(sources, encode, 6) == [Source("cc", ("bb",)), *sources[1:]]
    assert shortened(sources, encode, 4)[0] == Source("cc", ())
