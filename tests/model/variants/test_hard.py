"""The score-function loss of hard attention."""

import torch

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model.variants.hard import HardAttentionSample, SampledLogits, score_function_loss


def test_the_score_function_estimator_has_the_gradient_of_the_expected_log_probability():
    # One of three positions is sampled; log p of the target depends on it. The estimator's gradient, summed over all
    # samples with their probabilities, must be that of sum_z q(z) log p(z), whatever the baseline is.
    weights = torch.tensor([0.2, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    log_p = torch.tensor([-0.3, -2.0, -5.0], dtype=torch.float64)
    distribution = weights.softmax(0)
    (exact,) = torch.autograd.grad(-(distribution * log_p).sum(), weights, retain_graph=True)
    target, baseline = torch.tensor([7]), torch.tensor([-1.3], dtype=torch.float64)
    estimated = torch.zeros(3, dtype=torch.float64)
    for drawn in range(3):
        sample = HardAttentionSample(distribution[drawn : drawn + 1].log(), baseline)
        loss = score_function_loss(sample, log_p[drawn : drawn + 1], target)
        (gradient,) = torch.autograd.grad(loss, weights, retain_graph=True)
        estimated += distribution[drawn].detach() * gradient
    torch.testing.assert_close(estimated, exact, rtol=0, atol=1e-7)


def test_the_baseline_learns_the_expected_reward_and_ignores_padding():
    baseline = torch.tensor([0.0, 0.0], dtype=torch.float64, requires_grad=True)
    log_q = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    sample, log_p = HardAttentionSample(log_q, baseline), torch.tensor([-3.0, 0.0])
    score_function_loss(sample, log_p, torch.tensor([5, IGNORE_INDEX])).backward()
    assert baseline.grad.tolist() == [3, 0] and log_q.grad.tolist() == [3, 0]


def test_the_loss_of_sampled_logits_is_that_of_logits_plus_the_score_function_loss():
    torch.manual_seed(1)
    hidden, weight, target = torch.randn(5, 3), torch.randn(7, 3), torch.tensor([1, 2, IGNORE_INDEX, 4, 6])
    sample = HardAttentionSample(torch.randn(5), torch.randn(5))
    plain = SampledLogits(hidden, weight, None).loss(target, 4, 0.1)
    sampled = SampledLogits(hidden, weight, None, sample).loss(target, 4, 0.1)
    added = score_function_loss(sample, plain.log_probabilities, target)
    torch.testing.assert_close(sampled.total, plain.total + added)
    assert torch.equal(sampled.log_probabilities, plain.log_probabilities) and added != 0
