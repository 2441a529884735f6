"""Operations on the logits of a step, in arrays and in tensors: against their definitions, and against each other."""

import math

import numpy as np
import pytest
import torch

from seq2seq.inference.tensor_scores import TensorScores
from seq2seq.search import scores as module
from seq2seq.search.sampling import uniform_numbers
from seq2seq.search.scores import ArrayScores, log_sum_exp
from seq2seq.tokenizers.tokenizer import END_ID

FORBIDDEN = np.array([0, 1, 7])


def in_array(logits):
    return ArrayScores(logits.copy())


def in_tensor(logits):
    with torch.inference_mode():                                                # as engines compute logits
        return TensorScores(torch.from_numpy(logits).clone())


def logits_of(scores):
    return np.asarray(scores.logits)


@pytest.fixture(params=[in_array, in_tensor])
def make(request):
    return request.param


@pytest.fixture
def logits():
    return 3 * np.random.default_rng(1).normal(size=(5 * 3, 101))


@pytest.fixture
def totals():
    return -np.random.default_rng(1).random((5, 3))


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def by_sorting(logits, totals, must_end, count):
    """Reference top-k: the definition, one candidate at a time. Returns (total, beam, token) of each group."""
    log_p = log_softmax(logits).reshape(*totals.shape, -1)
    return [sorted(((total + log_p[group][beam][word], beam, word)
                    for beam, total in enumerate(totals[group].tolist())
                    for word in ([END_ID] if must_end[group] else range(logits.shape[1]))
                    if word not in FORBIDDEN), reverse=True)[:count] for group in range(len(totals))]


@pytest.mark.parametrize("count", [1, 6, 500])
def test_top_k_equals_sorting(make, logits, totals, count):
    must_end = np.array([False, True, False, False, True])
    found = make(logits).best(totals, FORBIDDEN, must_end, count, False)
    assert all(part.shape == (5, count) for part in found)
    for group, wanted in enumerate(by_sorting(logits, totals, must_end, count)):
        possible = found[0][group] > -math.inf
        ours = list(zip(*(part[group][possible].tolist() for part in found), strict=True))
        assert [one[1:] for one in ours] == [one[1:] for one in wanted]
        assert [one[0] for one in ours] == pytest.approx([one[0] for one in wanted])
        assert not possible[len(wanted) :].any()


def test_log_probabilities_are_not_normalised_again(make, logits, totals):
    normalised = log_softmax(logits)
    found = make(normalised).best(totals, FORBIDDEN, None, 6, True)
    expected = make(logits).best(totals, FORBIDDEN, None, 6, False)
    np.testing.assert_allclose(found[0], expected[0])
    np.testing.assert_allclose(make(normalised - 1).best(totals, FORBIDDEN, None, 6, True)[0], expected[0] - 1)


def test_the_best_of_some_rows_are_those_of_a_search_of_these_rows(make, logits):
    rows, past = np.array([[4, 2], [9, 14]]), np.array([[0.5, -1.0], [-math.inf, 2.0]])
    for found, expected in zip(make(logits).best_of_rows(rows, past, 7),
                               make(logits[rows.ravel()]).best(past, FORBIDDEN[:0], None, 7, True), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert set(make(logits).best_of_rows(rows, past, 7)[1][1].tolist()) == {1}    # the other hypothesis is impossible


def test_of_equal_scores_the_first_hypothesis_and_the_smallest_id_come_first():
    found = in_array(np.zeros((2, 300))).best(np.zeros((1, 2)), FORBIDDEN, None, 5, True)
    assert found[1].tolist() == [[0] * 5] and found[2].tolist() == [[2, 3, 4, 5, 6]]


def test_not_a_number_is_not_overlooked(make, logits, totals):
    logits[4, 80] = math.nan
    found = make(logits).best(totals, FORBIDDEN, None, 6, False)[0]
    assert np.isnan(found[1]).any() and np.isfinite(found[[0, 2, 3, 4]]).all()


def test_logits_are_read_and_changed_at_rows_and_ids(make, logits):
    scores, rows, ids = make(logits), np.array([0, 3, 3]), np.array([5, 5, 100])
    np.testing.assert_array_equal(scores.values(rows, ids), logits[rows, ids])
    scores.assign(rows, ids, -math.inf)
    scores.assign(np.array([7, 8]), slice(None), -math.inf)
    scores.assign(np.array([7, 8]), np.array([2, 3]), np.array([0.25, 0.5]))
    scores.assign(np.arange(15)[:, None], np.array([90, 91]), -math.inf)
    logits[rows, ids] = logits[7:9] = -math.inf
    logits[7, 2], logits[8, 3], logits[:, 90:92] = 0.25, 0.5, -math.inf
    np.testing.assert_array_equal(logits_of(scores), logits)
    excluded = np.arange(101) != 57
    assert make(logits).best_ids(np.array([7, 8])).tolist() == [2, 3]
    assert make(logits).best_ids(np.array([0, 14]), excluded).tolist() == [57, 57]


def test_models_are_combined_by_their_definitions(make, logits):
    one, other = log_softmax(logits), log_softmax(logits[::-1])
    other[2, 5] = one[2, 5] = -math.inf
    np.testing.assert_allclose(logits_of(make(logits).log_softmax()), log_softmax(logits))
    np.testing.assert_allclose(logits_of(make(one).plus(make(other), 0.3)), one + 0.3 * other)
    np.testing.assert_allclose(logits_of(make(one).mean([make(other), make(one)])), (2 * one + other) / 3)
    with np.errstate(divide="ignore"):
        mean = np.log((np.exp(one) + np.exp(other)) / 2)
    np.testing.assert_allclose(logits_of(make(one).mean_probability([make(other)])), mean)


@pytest.mark.parametrize("options", [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.0, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1),
                                     (2.0, 20, 0.9, 0.05), (1.0, 0, 1e-6, 0.0)])
def test_samples_from_arrays_and_tensors_are_equal(logits, options):
    logits, numbers = logits.repeat(200, 0), uniform_numbers(3, np.arange(3000))
    logits[:, 70:] = -math.inf
    found = in_array(logits).sample(numbers, *options)
    assert np.array_equal(found, in_tensor(logits).sample(numbers, *options)) and found.max() < 70
    in_fp32 = in_array(logits.astype(np.float32)).sample(numbers, *options)
    assert (in_fp32 == found).mean() > 0.99


def test_log_sums_of_many_rows_equal_those_of_single_rows(logits, monkeypatch):
    whole = log_sum_exp(logits)
    np.testing.assert_allclose(whole, np.log(np.exp(logits).sum(1)))
    monkeypatch.setattr(module, "CACHED_ELEMENTS", 4 * logits.shape[1])
    assert np.array_equal(log_sum_exp(logits), whole)


@pytest.mark.parametrize("shift", [500.0, -500.0])
def test_logits_beyond_what_exp_can_hold_are_summed_all_the_same(logits, shift):
    logits = logits.astype(np.float32)
    np.testing.assert_allclose(log_sum_exp(logits + np.float32(shift)), log_sum_exp(logits) + shift, rtol=1e-5)
    assert log_sum_exp(np.full((1, 9), -np.inf)) == -np.inf and np.isnan(log_sum_exp(np.full((1, 9), np.nan)))
