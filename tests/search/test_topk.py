import math

import numpy as np
import pytest
import torch

from seq2seq.search import topk as module
from seq2seq.search.topk import log_sum_exp, topk
from seq2seq.tokenizers.tokenizer import END_ID

FORBIDDEN = torch.tensor([0, 1, 7])


@pytest.fixture
def logits():
    return 3 * torch.randn(5 * 3, 101, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def totals():
    return -torch.from_numpy(np.random.default_rng(1).random((5, 3)))


def by_sorting(logits, totals, must_end, count):
    """Reference top-k: the definition, one candidate at a time. Returns (total, beam, token) of each group."""
    log_p = logits.log_softmax(1).view(*totals.shape, -1).tolist()
    return [sorted(((total + log_p[group][beam][word], beam, word)
                    for beam, total in enumerate(totals[group].tolist())
                    for word in ([END_ID] if must_end[group] else range(logits.shape[1]))
                    if word not in FORBIDDEN), reverse=True)[:count] for group in range(len(totals))]


@pytest.mark.parametrize("count", [1, 6, 500])
def test_top_k_equals_sorting(logits, totals, count):
    must_end = torch.tensor([False, True, False, False, True])
    expected = by_sorting(logits, totals, must_end, count)
    found = topk(logits.clone(), totals, FORBIDDEN, must_end, count, False)
    for group, wanted in enumerate(expected):
        possible = found[0][group] > -math.inf
        ours = list(zip(*(part[group][possible].tolist() for part in found), strict=True))
        assert [one[1:] for one in ours] == [one[1:] for one in wanted]
        assert [one[0] for one in ours] == pytest.approx([one[0] for one in wanted])
        assert not possible[len(wanted) :].any()


def test_log_probabilities_are_not_normalised_again(logits, totals):
    normalised = logits.log_softmax(1)
    found = topk(normalised.clone(), totals, FORBIDDEN, None, 6, True)
    expected = topk(logits.clone(), totals, FORBIDDEN, None, 6, False)
    np.testing.assert_allclose(found[0], expected[0])
    twice = topk(normalised - 1, totals, FORBIDDEN, None, 6, True)
    np.testing.assert_allclose(twice[0], expected[0] - 1)


def test_log_sums_of_many_rows_equal_those_of_single_rows(logits, monkeypatch):
    whole = log_sum_exp(logits)
    torch.testing.assert_close(whole, logits.logsumexp(1))
    monkeypatch.setattr(module, "CACHED_ELEMENTS", 4 * logits.shape[1])
    assert torch.equal(log_sum_exp(logits), whole)


@pytest.mark.parametrize("shift", [500.0, -500.0])
def test_logits_beyond_what_exp_can_hold_are_summed_all_the_same(logits, shift):
    logits = logits.float()
    torch.testing.assert_close(log_sum_exp(logits + shift), log_sum_exp(logits) + shift)
