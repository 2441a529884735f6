"""The loss of consistency training equals its formula, with gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.data.batching import IGNORE_INDEX, EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model import consistency
from seq2seq.model import loss as loss_module
from seq2seq.model.consistency import consistency_loss
from seq2seq.model.interface import Logits
from seq2seq.model.loss import divergence_gradient, smoothed_cross_entropy
from seq2seq.model.transformer import Transformer

TOKENS, D_MODEL, VOCAB_SIZE = 11, 5, 23


@pytest.fixture(params=[(1_000_000, 1_000_000), (5, 2 * VOCAB_SIZE)], ids=["in one chunk", "a few rows at a time"],
                autouse=True)
def chunks(request, monkeypatch):
    monkeypatch.setattr(loss_module, "MAX_CHUNK_ROWS", request.param[0])
    monkeypatch.setattr(loss_module, "PAIRED_ELEMENTS", request.param[1])


def two_passes(dtype=torch.float64, bias=True):
    torch.manual_seed(1)
    weight, offset = torch.randn(VOCAB_SIZE, D_MODEL).to(dtype), torch.randn(VOCAB_SIZE).to(dtype)
    hidden = [torch.randn(TOKENS, D_MODEL).to(dtype).requires_grad_() for _ in range(2)]
    weight.requires_grad_()
    offset.requires_grad_()
    return [Logits(one, weight, offset if bias else None) for one in hidden]


def operands(passes):
    first, second = passes
    return [one for one in (first.hidden, second.hidden, first.weight, first.bias) if one is not None]


def plain_loss(passes, target, label_smoothing, consistency):
    """Equations 1 to 4 of Wu et al. 2021, divided by 2."""
    log_p, log_q = (one.dense()[target != IGNORE_INDEX].log_softmax(1) for one in passes)
    targets = target[target != IGNORE_INDEX]
    entropies = sum(F.cross_entropy(one, targets, label_smoothing=label_smoothing, reduction="sum")
                    for one in (log_p, log_q))
    divergences = sum(F.kl_div(one, other, reduction="sum", log_target=True)
                      for one, other in ((log_p, log_q), (log_q, log_p)))
    return (entropies + consistency / 2 * divergences) / 2


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [(), (0, 7, 10)], ids=["all count", "some ignored"])
def test_loss_and_gradients_equal_the_formula(bias, label_smoothing, ignored):
    passes = two_passes(bias=bias)
    target = torch.randint(VOCAB_SIZE, (TOKENS,), generator=torch.Generator().manual_seed(1))
    target[list(ignored)] = IGNORE_INDEX
    ours = consistency_loss(passes, target, TOKENS - len(ignored), label_smoothing, 5.0)
    theirs = plain_loss(passes, target, label_smoothing, 5.0)
    torch.testing.assert_close(ours.total, theirs, rtol=1e-12, atol=0)
    for gradient, expected in zip(torch.autograd.grad(ours.total, operands(passes)),
                                  torch.autograd.grad(theirs, operands(passes)), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_the_gradient_agrees_with_finite_differences():
    passes = two_passes()
    target = torch.arange(TOKENS)

    def loss(first, second, weight, bias):
        return consistency_loss([Logits(one, weight, bias) for one in (first, second)], target, TOKENS, 0.1, 5.0).total

    assert torch.autograd.gradcheck(loss, operands(passes), fast_mode=True)


def test_two_equal_passes_have_the_loss_of_one():
    first, _ = two_passes()
    target = torch.arange(TOKENS)
    both, one = consistency_loss([first, first], target, TOKENS, 0.1, 5.0), smoothed_cross_entropy(
        first, target, TOKENS, 0.1)
    torch.testing.assert_close(both.total, one.total, rtol=1e-12, atol=0)
    torch.testing.assert_close(both.log_probabilities, one.log_probabilities, rtol=1e-12, atol=0)


def test_the_divergence_is_that_of_two_coins():
    coins = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log()
    value, _ = divergence_gradient(coins, torch.tensor([True, True]), 1.0)
    assert value.item() == pytest.approx(0.226289 + 0.311239, abs=1e-6)         # KL(p || q) + KL(q || p) in nats


def test_in_bf16_the_gradient_is_that_of_fp32_up_to_rounding():
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        passes = two_passes(dtype)
        loss = consistency_loss(passes, torch.arange(TOKENS), TOKENS, 0.1, 5.0)
        gradients.append([one.float() for one in torch.autograd.grad(loss.total, operands(passes))])
    for precise, rounded in zip(*gradients, strict=True):
        assert (precise - rounded).norm() < 0.03 * precise.norm()


def test_two_passes_computed_together_equal_two_separate_passes():
    torch.manual_seed(1)
    model = Transformer(source_vocab_size=40, target_vocab_size=40, d_model=8, encoder_layers=2, decoder_layers=2,
                        num_heads=2, feed_forward=16).double().eval()
    sides = [EncodedSide.from_lists([list(range(3, 3 + length)) for length in lengths])
             for lengths in ((4, 1, 7), (2, 5, 3))]
    # The batch has a tail and empty sentences at its end, so the batch and its copy have some in the middle.
    batch, results = gather(EncodedCorpus(*sides), np.arange(3), Shape(25, 22, 9)), []
    for together in (False, True):
        passes = consistency.two_passes(model, batch, together)
        loss = consistency_loss(passes, batch.target_output, batch.target_count, 0.1, 5.0)
        results.append(([each.hidden for each in passes], torch.autograd.grad(loss.total, model.parameters())))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)
