from collections import Counter

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

from seq2seq.search.minimum_bayes_risk import _matching_ngrams, expected_utilities, pairwise_utilities

TEXTS = [
    "A dog runs through the grass.", "The dog is running in the grass", "a cat sleeps", "A dog runs through the", "",
    "x", "Ein Hund läuft durch das Gras.", "一只狗在草地上跑。", "A  dog runs through\u3000the grass.", "aaaaaaaaaaaaa",
]


def directly(one, other):
    """Symmetric sentence chrF by sacreBLEU: the mean with either sentence as reference."""
    return (CHRF().sentence_score(one, [other]).score + CHRF().sentence_score(other, [one]).score) / 2


def test_utilities_are_those_of_sacrebleu():
    found = pairwise_utilities(TEXTS)
    for row, one in enumerate(TEXTS):
        for column, other in enumerate(TEXTS):
            assert found[row, column] == pytest.approx(directly(one, other), abs=1e-9), (one, other)
    assert np.array_equal(found, found.T)


def test_the_candidate_chosen_is_that_of_a_direct_computation():
    source = np.random.default_rng(3)
    words = ["a", "the", "dog", "cat", "runs", "sleeps", "in", "grass", "house"]
    for _ in range(7):
        candidates = [" ".join(source.choice(words, source.integers(1, 7))) for _ in range(11)]
        candidates += candidates[:3]                                            # what is drawn twice counts twice
        expected = [np.mean([directly(one, other) for other in candidates]) for one in candidates]
        found = expected_utilities(candidates)
        assert found == pytest.approx(expected, abs=1e-9)
        assert candidates[found.argmax()] == candidates[int(np.argmax(expected))]


def test_the_candidate_closest_to_most_others_is_selected():
    candidates = ["the dog runs home", "the dog runs home now", "a dog runs home", "xyz"]
    utilities = expected_utilities(candidates)
    assert utilities.argmin() == 3 and utilities.max() < 100
    assert expected_utilities(["a dog"] * 3).tolist() == [100] * 3


def test_shared_ngrams_are_counted_with_their_minimum_frequency():
    texts = ["aaab aab", "aab", "baaaab", "c", ""]
    matches, totals = _matching_ngrams(texts, 2)
    grams = [Counter(text[place : place + 2] for place in range(len(text) - 1)) for text in
             (text.replace(" ", "") for text in texts)]
    assert totals.tolist() == [each.total() for each in grams]
    assert matches.tolist() == [[(one & other).total() for other in grams] for one in grams]
