"""Words, links between them, and the error rate of alignments, on numbers computed by hand."""

import numpy as np
import pytest

from seq2seq.analysis.alignment import (
    Reference,
    alignment_error_rate,
    format_links,
    links_of,
    parse_reference,
    word_spans,
    word_weights,
    words_of_pieces,
)


def reference(sure, possible=()):
    return Reference(frozenset(sure), frozenset([*sure, *possible]))


def test_error_rate_by_hand():
    # |A ∩ S| = 1, |A ∩ P| = 2, |A| = 3, |S| = 2: 1 - 3/5.
    rate = alignment_error_rate([{(0, 0), (1, 2), (2, 1)}], [reference([(0, 0), (1, 1)], [(1, 2), (2, 2)])])
    assert rate == pytest.approx(0.4)


def test_error_rate_is_of_all_pairs_together_not_their_mean():
    # Pair 1: 1 - 4/4 = 0. Pair 2: 1 - 0/6 = 1. Together 1 - 4/10; the mean would be 0.5.
    found = [{(0, 0), (1, 1)}, {(0, 1), (0, 2), (0, 3)}]
    references = [reference([(0, 0), (1, 1)]), reference([(1, 1), (2, 2), (3, 3)])]
    assert alignment_error_rate(found, references) == pytest.approx(0.6)


def test_links_that_are_only_possible_cost_nothing_and_earn_nothing_alone():
    known = reference([(0, 0)], [(1, 1)])
    assert alignment_error_rate([{(0, 0)}], [known]) == 0
    assert alignment_error_rate([{(0, 0), (1, 1)}], [known]) == 0
    assert alignment_error_rate([{(1, 1)}], [known]) == pytest.approx(0.5)


def test_without_any_link_there_is_nothing_to_rate():
    with pytest.raises(ValueError, match="undefined"):
        alignment_error_rate([set()], [reference([], [(0, 0)])])


def test_as_many_alignments_as_references():
    with pytest.raises(ValueError):
        alignment_error_rate([{(0, 0)}], [])


def test_references_are_read():
    assert parse_reference("0-0 1?2 10-3") == reference([(0, 0), (10, 3)], [(1, 2)])
    assert parse_reference("") == Reference(frozenset(), frozenset())
    with pytest.raises(ValueError, match="'1:2' is no link"):
        parse_reference("0-0 1:2")


def test_links_are_written_in_order():
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
def test_words_are_what_space_parts_and_characters_where_there_is_none(language, text, words):
    assert [text[begin:end] for begin, end in word_spans(text, language)] == words


def test_pieces_belong_to_the_words_that_they_are_part_of():
    # "ab c龘": a space before the line, "ab", a space, "c", and 龘 in three bytes of which only the last has a place.
    pieces = [(0, 0), (0, 2), (2, 3), (3, 4), (4, 4), (4, 4), (4, 5)]
    assert words_of_pieces(pieces, [(0, 2), (3, 5)]).argmax(1).tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert words_of_pieces(pieces, [(0, 2), (3, 5)]).sum(1).tolist() == [1] * 7
    # By characters: the two of "ab" share a piece, and the bytes go with the character that they end in.
    by_character = words_of_pieces(pieces, [(0, 1), (1, 2), (3, 4), (4, 5)])
    assert [row.nonzero()[0].tolist() for row in by_character] == [[0, 1], [0, 1], [2], [2], [3], [3], [3]]


def test_weights_of_words_are_sums_over_the_source_and_means_over_the_target():
    weights = np.array([[0.5, 0.25, 0.125, 0.125], [0.125, 0.375, 0.25, 0.25], [0, 0.25, 0.5, 0.25]])
    of_source = np.array([[1, 0], [1, 0], [0, 1]], bool)                         # two pieces, one piece
    of_target = np.array([[1, 0], [1, 0], [0, 1]], bool)
    expected = [[(0.75 + 0.5) / 2, (0.125 + 0.25) / 2, (0.125 + 0.25) / 2], [0.25, 0.5, 0.25]]
    np.testing.assert_allclose(word_weights(weights, of_source, of_target), expected)


# Three target words over two source words and the end of the source.
WEIGHTS = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])


def test_each_target_word_goes_with_its_strongest_source_word_unless_that_is_the_end():
    assert links_of(WEIGHTS, "target") == {(0, 0), (0, 1)}


def test_mutual_links_are_the_strongest_of_both_words():
    assert links_of(WEIGHTS, "mutual") == {(0, 0)}


def test_words_of_one_piece_share_its_link():
    assert links_of(np.array([[0.4, 0.4, 0.2]]), "target") == {(0, 0), (1, 0)}


@pytest.mark.parametrize("shape", [(0, 1), (0, 3), (2, 1)])
def test_sides_without_words_have_no_links(shape):
    for rule in ("target", "mutual"):
        assert links_of(np.ones(shape) / shape[1], rule) == set()


def test_a_word_that_attends_to_nothing_has_no_link():
    assert links_of(np.zeros((2, 3)), "target") == set()
