"""The loss of consistency training equals its formula, with gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.data.batching import IGNORE_INDEX, EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model import consistency
from seq2seq.model import loss as loss_module
from seq2seq.model.consistency import TokenCutoff, consistency_loss
from seq2seq.model.loss import Logits, divergence_gradient, smoothed_cross_entropy
from seq2seq.model.transformer import Transformer
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

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


def plain_loss(passes, target, label_smoothing, consistency, symmetric):
    """Equations 1 to 4 of Wu et al. 2021, divided by 2; or the loss of SimCut (Gao et al. 2022)."""
    log_p, log_q = (one.dense()[target != IGNORE_INDEX].log_softmax(1) for one in passes)
    targets = target[target != IGNORE_INDEX]
    entropy_p, entropy_q = (F.cross_entropy(one, targets, label_smoothing=label_smoothing, reduction="sum")
                            for one in (log_p, log_q))
    # F.kl_div(input, target) is KL(target || input).
    forward, backward = (F.kl_div(one, other, reduction="sum", log_target=True)
                         for one, other in ((log_q, log_p), (log_p, log_q)))
    if symmetric:
        return (entropy_p + entropy_q + consistency / 2 * (forward + backward)) / 2
    return entropy_p + consistency * forward


both_kinds = pytest.mark.parametrize("symmetric", [True, False], ids=["R-Drop", "SimCut"])


@both_kinds
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [(), (0, 7, 10)], ids=["all count", "some ignored"])
def test_loss_and_gradients_equal_the_formula(bias, label_smoothing, ignored, symmetric):
    passes = two_passes(bias=bias)
    target = torch.randint(VOCAB_SIZE, (TOKENS,), generator=torch.Generator().manual_seed(1))
    target[list(ignored)] = IGNORE_INDEX
    ours = consistency_loss(passes, target, TOKENS - len(ignored), label_smoothing, 5.0, symmetric)
    theirs = plain_loss(passes, target, label_smoothing, 5.0, symmetric)
    torch.testing.assert_close(ours.total, theirs, rtol=1e-12, atol=0)
    for gradient, expected in zip(torch.autograd.grad(ours.total, operands(passes)),
                                  torch.autograd.grad(theirs, operands(passes)), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@both_kinds
def test_the_gradient_agrees_with_finite_differences(symmetric):
    passes = two_passes()
    target = torch.arange(TOKENS)

    def loss(first, second, weight, bias):
        passes = [Logits(one, weight, bias) for one in (first, second)]
        return consistency_loss(passes, target, TOKENS, 0.1, 5.0, symmetric).total

    assert torch.autograd.gradcheck(loss, operands(passes), fast_mode=True)


@both_kinds
def test_two_equal_passes_have_the_loss_of_one(symmetric):
    first, _ = two_passes()
    target = torch.arange(TOKENS)
    both, one = consistency_loss([first, first], target, TOKENS, 0.1, 5.0, symmetric), smoothed_cross_entropy(
        first, target, TOKENS, 0.1)
    torch.testing.assert_close(both.total, one.total, rtol=1e-12, atol=0)
    torch.testing.assert_close(both.log_probabilities, one.log_probabilities, rtol=1e-12, atol=0)


def test_the_divergence_is_that_of_two_coins():
    coins = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log()
    values = [divergence_gradient(coins, torch.tensor([True, True]), 1.0, symmetric)[0].item()
              for symmetric in (False, True)]
    assert values == pytest.approx([0.226289, 0.226289 + 0.311239], abs=1e-6)   # KL(p || q), KL(q || p) in nats


@both_kinds
def test_in_bf16_the_gradient_is_that_of_fp32_up_to_rounding(symmetric):
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        passes = two_passes(dtype)
        loss = consistency_loss(passes, torch.arange(TOKENS), TOKENS, 0.1, 5.0, symmetric)
        gradients.append([one.float() for one in torch.autograd.grad(loss.total, operands(passes))])
    for precise, rounded in zip(*gradients, strict=True):
        assert (precise - rounded).norm() < 0.03 * precise.norm()


@pytest.fixture
def batch():
    sides = [EncodedSide.from_lists([list(range(3, 3 + length)) for length in lengths])
             for lengths in ((4, 1, 7), (2, 5, 3))]
    # The batch has a tail and empty sentences at its end, so the batch and its copy have some in the middle.
    return gather(EncodedCorpus(*sides), np.arange(3), Shape(25, 22, 9))


def transformer(tied):
    torch.manual_seed(1)
    return Transformer(source_vocab_size=40, target_vocab_size=40, d_model=8, encoder_layers=2, decoder_layers=2,
                       num_heads=2, feed_forward=16, tied_embeddings=tied).double().eval()


@pytest.mark.parametrize("cutoff", [0, 0.5])
def test_two_passes_computed_together_equal_two_separate_passes(batch, cutoff):
    model, second = transformer("all"), TokenCutoff(40, 40).cut(batch, cutoff) if cutoff else batch
    results = []
    for together in (False, True):
        passes = consistency.two_passes(model, batch, second, together)
        loss = consistency_loss(passes, batch.target_output, batch.target_count, 0.1, 5.0, symmetric=not cutoff)
        results.append(([each.hidden for each in passes], torch.autograd.grad(loss.total, model.parameters())))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)
    assert torch.equal(*results[0][0]) == (not cutoff)


def test_a_cut_gives_its_share_of_the_words_an_id_of_their_own():
    sources = np.random.default_rng(1).integers(3, 30, (4001, 9)).tolist()
    corpus = EncodedCorpus(EncodedSide.from_lists(sources), EncodedSide.from_lists(sources))
    before, languages = gather(corpus, np.arange(4001)), tuple(range(5, 20))
    torch.manual_seed(1)
    after = TokenCutoff(50, 57, languages).cut(before, 0.05)
    assert after.target_output is before.target_output and after.source_offsets is before.source_offsets
    for side, new_id in (("source", 50), ("target_input", 57)):
        old, new = getattr(before, side), getattr(after, side)
        kept = torch.isin(old, torch.tensor([START_ID, END_ID, *languages]))
        assert (new == new_id)[~kept].float().mean().item() == pytest.approx(0.05, abs=0.005)
        assert torch.equal(new[kept | (new != new_id)], old[kept | (new != new_id)])


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_a_cut_token_has_an_embedding_of_zeros_and_the_output_layer_keeps_its_size(batch, tied):
    model, other, token = transformer(tied), transformer(tied), 3
    cut = replace(batch, **{side: torch.where(getattr(batch, side) == token, 40, getattr(batch, side))
                            for side in ("source", "target_input")})
    first, second = consistency.two_passes(model, batch, cut, together=True)
    with torch.no_grad():
        other.source_embedding[token] = other.target_embedding[token] = 0
    torch.testing.assert_close(second.hidden, other(batch).hidden, rtol=0, atol=1e-12)
    torch.testing.assert_close(first.hidden, model(batch).hidden, rtol=0, atol=1e-12)
    assert second.weight is model.output_weight and len(second.weight) == 40
    second.hidden.sum().backward()
    assert not model.source_embedding.grad[token].any() and model.source_embedding.grad[5].any()
