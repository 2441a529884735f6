"""Word spans, links between words and the alignment error rate, against values computed by hand."""

import numpy as np
import pytest

from seq2seq.data.alignment_links import (
    Reference,
    alignment_error_rate,
    extract_links,
    format_links,
    piece_word_overlap,
    word_weights,
)
from seq2seq.tokenizers.line_splitting import OUTSIDE, word_spans


def reference(sure, possible=()):
    return Reference(frozenset(sure), frozenset([*sure, *possible]))


def test_error_rate_equals_the_value_computed_by_hand():
    # |A ∩ S| = 1, |A ∩ P| = 2, |A| = 3, |S| = 2: 1 - 3/5.
    rate = alignment_error_rate([{(0, 0), (1, 2), (2, 1)}], [reference([(0, 0), (1, 1)], [(1, 2), (2, 2)])])
    assert rate == pytest.approx(0.4)


def test_error_rate_sums_the_links_of_all_pairs_instead_of_averaging_their_rates():
    # Pair 1: 1 - 4/4 = 0. Pair 2: 1 - 0/6 = 1. Together 1 - 4/10; the mean would be 0.5.
    found = [{(0, 0), (1, 1)}, {(0, 1), (0, 2), (0, 3)}]
    references = [reference([(0, 0), (1, 1)]), reference([(1, 1), (2, 2), (3, 3)])]
    assert alignment_error_rate(found, references) == pytest.approx(0.6)


def test_possible_links_may_be_missing_and_do_not_replace_a_sure_link():
    known = reference([(0, 0)], [(1, 1)])
    assert alignment_error_rate([{(0, 0)}], [known]) == 0
    assert alignment_error_rate([{(0, 0), (1, 1)}], [known]) == 0
    assert alignment_error_rate([{(1, 1)}], [known]) == pytest.approx(0.5)


def test_error_rate_is_undefined_without_any_link():
    with pytest.raises(ValueError, match="undefined"):
        alignment_error_rate([set()], [reference([], [(0, 0)])])


def test_different_numbers_of_alignments_and_references_are_refused():
    with pytest.raises(ValueError):
        alignment_error_rate([{(0, 0)}], [])


def test_links_are_formatted_in_ascending_order():
    assert format_links({(10, 0), (2, 3), (2, 1)}) == "2-1 2-3 10-0"
    assert format_links(set()) == ""


@pytest.mark.parametrize(("language", "text", "words"), [
    ("en", "a dog, it  runs.", ["a", "dog,", "it", "runs."]),
    ("de_DE", "", []),
    ("zh", "我有 iPad。", ["我", "有", "i", "P", "a", "d", "。"]),
    ("zho_Hans", "我有", ["我", "有"]),
    ("bur", "ခွေး", list("ခွေး")),
    ("ja-JP", "犬 が", ["犬", "が"]),
    ("ko", "개가 달린다", ["개가", "달린다"]),
])
def test_words_are_split_at_spaces_and_into_characters_in_languages_without_spaces(language, text, words):
    assert [text[begin:end] for begin, end in word_spans(text, language)] == words


def test_pieces_belong_to_the_words_that_they_overlap():
    # "ab c龘": a space before the line, "ab", a space, "c", and 龘 as three byte pieces; only the last has a span.
    pieces = [(0, 0), (0, 2), (2, 3), (3, 4), (4, 4), (4, 4), (4, 5)]
    assert piece_word_overlap(pieces, [(0, 2), (3, 5)]).argmax(1).tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert piece_word_overlap(pieces, [(0, 2), (3, 5)]).sum(1).tolist() == [1] * 7
    # Every character a word: both characters of "ab" share a piece, and all three bytes belong to 龘.
    by_character = piece_word_overlap(pieces, [(0, 1), (1, 2), (3, 4), (4, 5)])
    assert [row.nonzero()[0].tolist() for row in by_character] == [[0, 1], [0, 1], [2], [2], [3], [3], [3]]


def test_word_weights_are_summed_over_source_pieces_and_averaged_over_target_pieces():
    weights = np.array([[0.5, 0.25, 0.125, 0.125], [0.125, 0.375, 0.25, 0.25], [0, 0.25, 0.5, 0.25]])
    of_source = np.array([[1, 0], [1, 0], [0, 1]], bool)                         # two pieces, one piece
    of_target = np.array([[1, 0], [1, 0], [0, 1]], bool)
    expected = [[(0.75 + 0.5) / 2, (0.125 + 0.25) / 2, (0.125 + 0.25) / 2], [0.25, 0.5, 0.25]]
    np.testing.assert_allclose(word_weights(weights, of_source, of_target), expected)


def test_pieces_outside_of_the_line_count_as_the_end_of_the_source_and_not_in_a_mean_of_the_target():
    spans = [OUTSIDE, OUTSIDE, (0, 0), (0, 2)]                                  # a language token of two pieces
    of_source, of_target = piece_word_overlap(spans, [(0, 2)]), piece_word_overlap([OUTSIDE, (0, 2)], [(0, 2)])
    assert of_source.ravel().tolist() == [False, False, True, True]
    weights = np.array([[1, 0, 0, 0, 0], [0.125, 0.25, 0.25, 0.25, 0.125]])
    np.testing.assert_allclose(word_weights(weights, of_source, of_target), [[0.5, 0.5]])


# Attention of three target words (rows) to two source words and `</s>` (columns).
WEIGHTS = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])


def test_each_target_word_links_to_its_strongest_source_word_unless_that_is_the_end_of_sentence():
    assert extract_links(WEIGHTS, "target") == {(0, 0), (0, 1)}


def test_mutual_links_are_the_strongest_of_both_words():
    assert extract_links(WEIGHTS, "mutual") == {(0, 0)}


def test_source_words_with_equal_weights_are_both_linked():
    assert extract_links(np.array([[0.4, 0.4, 0.2]]), "target") == {(0, 0), (1, 0)}


@pytest.mark.parametrize("shape", [(0, 1), (0, 3), (2, 1)])
def test_a_pair_without_source_or_target_words_has_no_links(shape):
    for rule in ("target", "mutual"):
        assert extract_links(np.ones(shape) / shape[1], rule) == set()


def test_a_word_that_attends_to_nothing_has_no_link():
    assert extract_links(np.zeros((2, 3)), "target") == set()
