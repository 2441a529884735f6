"""Sampling: golden values, top-p sets, frequencies, and independence of other lines."""

import math

import numpy as np
import pytest

from seq2seq.search.sampling import (
    min_p,
    sample_tokens,
    splitmix64,
    top_k,
    top_p,
    truncate,
    uniform_numbers,
    with_temperature,
)

# FOUNDATIONS.md, "Temperature and banning".
GOLDEN = [0.10014858, 0.22968848, 0.17318473, 0.03110688, 0.46587133]
# 0.999 quantiles of the chi-square distribution, by degrees of freedom (any table of it).
CHI_SQUARE = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467, 6: 22.458}


def logits_of(*probabilities):
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities))[None]


def probabilities_of(logits):
    weights = np.exp(logits[0])
    return (weights / weights.sum()).tolist()


def kept(logits):
    return set(np.flatnonzero(np.isfinite(logits[0])).tolist())


# Functions of logits


def test_temperature_has_its_golden_numbers():
    logits = logits_of(*GOLDEN)
    assert probabilities_of(with_temperature(logits, 5)) == pytest.approx(
        [0.18356056, 0.21670965, 0.20481055, 0.14528531, 0.24963393], abs=1e-8)
    assert probabilities_of(with_temperature(logits, 0.5)) == pytest.approx(
        [0.03227246, 0.16975432, 0.09650763, 0.00311355, 0.69835204], abs=2e-8)   # p is given to 8 digits


def test_top_k_keeps_the_most_probable_words():
    logits = logits_of(*GOLDEN)
    assert [kept(top_k(logits, k)) for k in (1, 2, 4, 5, 7)] == [{4}, {1, 4}, {0, 1, 2, 4}, *[set(range(5))] * 2]
    assert probabilities_of(top_k(logits, 2))[4] == pytest.approx(0.46587133 / (0.46587133 + 0.22968848))
    assert len(kept(top_k(np.zeros((1, 11)), 3))) == 3                         # equally probable words too


def test_top_p_keeps_the_smallest_set_that_suffices():
    """No smaller set of tokens reaches the mass, and no other set of the same size has more mass."""
    source = np.random.default_rng(3)
    for _ in range(50):
        probabilities = source.dirichlet(np.full(7, 0.7))
        p = source.uniform(0.05, 0.99)
        chosen = kept(top_p(logits_of(*probabilities), p))
        fewest = next(count for count in range(1, 8) if np.sort(probabilities)[::-1][:count].sum() >= p)
        assert chosen == set(np.argsort(-probabilities)[:fewest].tolist())


def test_top_p_at_its_borders():
    logits = logits_of(0.5, 0.25, 0.125, 0.125)
    assert [len(kept(top_p(logits, p))) for p in (1e-9, 0.5, 0.5000001, 0.75, 0.875, 0.9, 1.0)] == [1, 1, 2, 2, 3, 4, 4]
    assert kept(top_p(logits, 0.875)) == {0, 1, 2}                              # of the equals, the first
    tail = np.full((1, 20_000), -60.0)
    tail[0, 11] = 0.0
    assert len(kept(top_p(tail, 1.0))) == 20_000


def test_min_p_keeps_what_is_near_the_most_probable():
    logits = logits_of(*GOLDEN)
    for p in (0.0, 0.05, 0.2, 0.3, 0.5, 1.0):
        assert kept(min_p(logits, p)) == {index for index, each in enumerate(GOLDEN) if each >= p * max(GOLDEN)}


def test_banned_tokens_stay_banned_and_the_others_share_their_probability():
    logits = logits_of(*GOLDEN)
    logits[0, 0] = -math.inf
    for narrow in (logits, top_k(logits, 5), top_p(logits, 1.0), min_p(logits, 0.01), with_temperature(logits, 1.0)):
        assert probabilities_of(narrow) == pytest.approx([0, 0.25525156, 0.19245925, 0.0345689, 0.51772029], abs=1e-8)
    assert kept(truncate(logits, temperature=3.0, k=4, p=0.999, min_share=1e-9)) <= {1, 2, 3, 4}


def test_temperature_top_k_top_p_and_min_p_apply_in_this_order():
    logits = logits_of(*GOLDEN)
    one_by_one = min_p(top_p(top_k(with_temperature(logits, 2.0), 4), 0.7), 0.6)
    assert np.array_equal(truncate(logits, temperature=2.0, k=4, p=0.7, min_share=0.6), one_by_one)
    assert np.array_equal(truncate(logits), logits)


# Draws


def chi_square(counts, probabilities):
    expected = np.array(probabilities) * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_splitmix64_has_its_golden_numbers():
    # The first five outputs of the reference implementation (Vigna, splitmix64.c) seeded with 1234567.
    states = (1234567 + np.arange(5, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    assert splitmix64(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423,
                                      4593380528125082431, 16408922859458223821]


def test_random_numbers_depend_only_on_their_key_and_are_uniform():
    lines = np.arange(10_000)
    numbers = uniform_numbers(3, lines, 5)
    assert numbers.shape == (10_000,) and numbers.min() >= 0 and numbers.max() < 1
    assert uniform_numbers(3, 77, 5) == numbers[77]
    assert np.array_equal(uniform_numbers(3, lines[::-1], 5), numbers[::-1])
    assert uniform_numbers(3, lines[:7, None], [2, 3, 5])[4, 2] == uniform_numbers(3, 4, 5)
    assert chi_square(np.bincount((numbers * 7).astype(int)), [1 / 7] * 7) < CHI_SQUARE[6]
    for key in ((4, lines, 5), (3, lines, 6), (5, lines, 3), (3, lines + 1, 5)):
        other = uniform_numbers(*key)
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.05 and not (numbers == other).any()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"temperature": 3.0}, {"k": 3}, {"p": 0.8},
                                     {"min_share": 0.3}])
def test_words_are_drawn_as_often_as_they_are_probable(options):
    logits = truncate(logits_of(*GOLDEN), **options)
    probabilities = np.array(probabilities_of(logits))
    numbers = uniform_numbers(11, np.arange(20_000), 0)
    counts = np.bincount(sample_tokens(logits.repeat(20_000, 0), numbers), minlength=5)
    possible = probabilities > 0
    assert not counts[~possible].any()
    assert chi_square(counts[possible], probabilities[possible]) < CHI_SQUARE[possible.sum() - 1]


def test_the_first_and_the_last_number_draw_possible_words():
    logits = logits_of(0.0, 0.3, 0.0, 0.7, 0.0).repeat(2, 0)
    assert sample_tokens(logits, np.array([0.0, 1 - 2.0**-52])).tolist() == [1, 3]
    assert sample_tokens(np.full((1, 5), -math.inf), np.array([0.5])).shape == (1,)   # nothing to draw is no crash
