import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.data.batching import IGNORE_INDEX, gather
from seq2seq.model import loss as loss_module
from seq2seq.model.loss import Logits, perplexity, smoothed_cross_entropy

TOKENS, D_MODEL, VOCAB_SIZE = 11, 5, 23


@pytest.fixture(params=[(1_000_000, 1_000_000), (5, 2 * VOCAB_SIZE)],
                ids=["in one chunk", "a few rows at a time"], autouse=True)
def chunks(request, monkeypatch):
    for name, size in zip(("MAX_CHUNK_ROWS", "CACHED_ELEMENTS"), request.param, strict=True):
        monkeypatch.setattr(loss_module, name, size)


def random_logits(dtype=torch.float64, bias=True):
    torch.manual_seed(1)
    shapes = [(TOKENS, D_MODEL), (VOCAB_SIZE, D_MODEL), (VOCAB_SIZE,)]
    tensors = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    return Logits(*tensors) if bias else Logits(*tensors[:2], None)


def targets(ignored=()):
    target = torch.randint(VOCAB_SIZE, (TOKENS,), generator=torch.Generator().manual_seed(1))
    target[list(ignored)] = IGNORE_INDEX
    return target


def parts_of(logits):
    return [part for part in (logits.hidden, logits.weight, logits.bias) if part is not None]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("ignored", [(), (0, 7, 10)], ids=["all count", "some ignored"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_and_gradients_equal_torch(dtype, tolerance, bias, ignored, smoothing):
    logits, target = random_logits(dtype, bias), targets(ignored)
    ours = smoothed_cross_entropy(logits, target, TOKENS - len(ignored), smoothing)
    theirs = F.cross_entropy(logits.dense(), target, ignore_index=-100, label_smoothing=smoothing, reduction="sum")
    plain = F.cross_entropy(logits.dense(), target, ignore_index=-100, reduction="sum")
    torch.testing.assert_close(ours.total, theirs, rtol=tolerance, atol=0)
    torch.testing.assert_close(ours.negative_log_likelihood, plain, rtol=tolerance, atol=0)
    assert ours.tokens == TOKENS - len(ignored)
    # The loss may be part of a sum: its gradient is scaled by what arrives.
    for gradient, expected in zip(torch.autograd.grad(3 * ours.total, parts_of(logits)),
                                  torch.autograd.grad(3 * theirs, parts_of(logits)), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance)


def test_half_precision_weights_get_gradients_that_were_summed_in_full():
    logits, target = random_logits(torch.bfloat16), targets()
    precise = Logits(*(part.detach().float().requires_grad_() for part in parts_of(logits)))
    ours = torch.autograd.grad(smoothed_cross_entropy(logits, target, TOKENS, 0.1).total, parts_of(logits))
    theirs = torch.autograd.grad(smoothed_cross_entropy(precise, target, TOKENS, 0.1).total, parts_of(precise))
    for gradient, expected in zip(ours, theirs, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.float(), expected, rtol=0.02, atol=0.03)


def test_validation_needs_no_gradients():
    logits, target = random_logits(), targets()
    with torch.no_grad():
        without = smoothed_cross_entropy(logits, target, TOKENS, 0.1)
    assert not without.total.requires_grad
    assert torch.equal(without.total, smoothed_cross_entropy(logits, target, TOKENS, 0.1).total.detach())


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_no_tokens_cost_nothing(bias):
    logits = random_logits(bias=bias)
    nothing = Logits(logits.hidden[:0].detach().requires_grad_(), logits.weight, logits.bias)
    loss = smoothed_cross_entropy(nothing, targets()[:0], 0, 0.1)
    assert loss.total.item() == 0 and loss.log_probabilities.shape == (0,)
    with torch.no_grad():
        assert nothing.loss(targets()[:0], 0).of_tokens.shape == (0,)
    for part, gradient in zip(parts_of(nothing), torch.autograd.grad(loss.total, parts_of(nothing)), strict=True):
        assert gradient.shape == part.shape and not gradient.any()


def test_an_even_distribution_costs_log_of_the_vocabulary_whatever_the_smoothing():
    logits = Logits(torch.zeros(TOKENS, D_MODEL, dtype=torch.float64), random_logits().weight.detach(), None)
    for smoothing in (0.0, 0.3):
        loss = smoothed_cross_entropy(logits, targets(), TOKENS, smoothing)
        assert loss.total.item() / loss.tokens == pytest.approx(math.log(VOCAB_SIZE), rel=1e-12)
        assert perplexity(loss.negative_log_likelihood.item(), loss.tokens) == pytest.approx(VOCAB_SIZE, rel=1e-12)


def test_token_losses_equal_torch_and_are_zero_at_ignored_positions():
    logits, target = random_logits(torch.float32), targets(ignored=(0, 7))
    expected = F.cross_entropy(logits.dense(), target, ignore_index=-100, reduction="none")
    with torch.no_grad():
        likelihood = logits.loss(target, TOKENS - 2).of_tokens
    assert likelihood[[0, 7]].tolist() == [0, 0]
    torch.testing.assert_close(likelihood, expected.detach(), rtol=1e-5, atol=0)


def test_the_gradients_of_micro_batches_sum_to_those_of_one_batch(make_model, make_corpus):
    corpus, model = make_corpus(), make_model()

    def gradients(parts):
        model.zero_grad()
        tokens = 0
        for indices in parts:
            batch = gather(corpus, indices)
            loss = smoothed_cross_entropy(model.forward(batch), batch.target_output, batch.target_count, 0.1)
            loss.total.backward()
            tokens += loss.tokens
        return tokens, [parameter.grad / tokens for parameter in model.parameters()]

    tokens, whole = gradients([np.arange(4)])
    assert tokens == 21
    same_tokens, summed = gradients(np.split(np.array([2, 0, 3, 1]), [1, 3]))
    assert same_tokens == 21
    for gradient, expected in zip(summed, whole, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


def test_perplexity_uses_the_loss_without_smoothing_and_overflows_to_infinity():
    assert perplexity(7 * math.log(5), 7) == pytest.approx(5, rel=1e-12)
    assert perplexity(0.0, 3) == 1
    assert perplexity(701.0, 1) == math.inf


def test_the_loss_of_logits_is_the_smoothed_cross_entropy_in_training_and_exact_log_p_without_a_gradient():
    logits = random_logits()
    ours, plain = logits.loss(targets(), TOKENS, 0.1), smoothed_cross_entropy(logits, targets(), TOKENS, 0.1)
    assert torch.equal(ours.total, plain.total) and ours.tokens == plain.tokens
    with torch.no_grad():
        unlikely = Logits(logits.hidden * 1000, logits.weight, logits.bias)
        exact = unlikely.loss(targets(), TOKENS)
    expected = unlikely.dense().log_softmax(1).gather(1, targets()[:, None]).squeeze(1)
    assert expected.min() < math.log(torch.finfo(torch.float64).tiny), "below what a softmax can tell"
    torch.testing.assert_close(exact.log_probabilities, expected, rtol=1e-12, atol=0)
    assert exact.total.item() == pytest.approx(-expected.sum().item(), rel=1e-12)
