"""Structured attention: the weights are the marginals of a linear chain over the keys."""

import itertools

import pytest
import torch

from seq2seq.model.attention import ScaledDotProduct
from seq2seq.model.variants.structured import StructuredWeighing, chain_marginals


def by_brute_force(scores, pairwise):
    """Return the marginals of one chain by a sum over all assignments."""
    count = len(scores)
    total, selected = torch.zeros((), dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for values in itertools.product((0, 1), repeat=count):
        energy = sum(score for score, value in zip(scores, values, strict=True) if value)
        energy = energy + sum(pairwise[first, second] for first, second in itertools.pairwise(values))
        weight = torch.as_tensor(energy, dtype=torch.float64).exp()
        total = total + weight
        selected = selected + weight * torch.tensor(values)
    return selected / total


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_weights_equal_brute_force(count):
    generator = torch.Generator().manual_seed(count)
    scores = 3 * torch.randn(5, count, dtype=torch.float64, generator=generator)
    pairwise = 2 * torch.randn(2, 2, dtype=torch.float64, generator=generator)
    found = chain_marginals(scores, pairwise, torch.ones_like(scores, dtype=torch.bool))
    expected = torch.stack([by_brute_force(chain, pairwise) for chain in scores])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    single = chain_marginals(scores.float(), pairwise.float(), torch.ones_like(scores, dtype=torch.bool))
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-6)


def test_padding_has_no_part_in_the_chain():
    scores = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairwise = torch.tensor([[0.3, -1.0], [2.0, 1.5]], dtype=torch.float64)
    lengths = torch.tensor([1, 3, 5, 6])
    found = chain_marginals(scores, pairwise, torch.arange(6) < lengths[:, None])
    for chain, weights, length in zip(scores, found, lengths.tolist(), strict=True):
        torch.testing.assert_close(weights[:length], by_brute_force(chain[:length], pairwise), rtol=0, atol=1e-9)
        assert not weights[length:].any()


def test_gradients_equal_finite_differences_also_with_padding():
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 2, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    pairwise = torch.randn(2, 2, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    is_key = torch.arange(5) < torch.tensor([5, 2, 1])[:, None, None]
    masked = is_key.expand(3, 2, 5)
    assert torch.autograd.gradcheck(lambda *inputs: chain_marginals(*inputs, masked), (scores, pairwise))


def test_without_pairwise_potentials_it_is_sigmoid_attention():
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(3))
    found = chain_marginals(scores, torch.zeros(2, 2), torch.ones(3, 7, dtype=torch.bool))
    torch.testing.assert_close(found, scores.sigmoid())


def test_extreme_scores_give_neither_nan_nor_infinite_gradients():
    scores = torch.tensor([[-1e4, 1e4, -1e4, 50.0], [1e4, 1e4, 1e4, 1e4]], requires_grad=True)
    pairwise = torch.tensor([[30.0, -30.0], [-30.0, 30.0]], requires_grad=True)
    weights = chain_marginals(scores, pairwise, torch.tensor([[True] * 4, [True, True, False, False]]))
    assert weights.isfinite().all() and ((weights >= 0) & (weights <= 1)).all()
    weights.sum().backward()
    assert scores.grad.isfinite().all() and pairwise.grad.isfinite().all()


def test_each_head_learns_its_own_potentials_and_they_change_the_weights():
    weighing = StructuredWeighing(2, 4)
    assert dict(weighing.named_parameters())["pairwise"].shape == (2, 1, 2, 2) and not weighing.is_scaled_dot_product
    query, keys = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 6, 4)
    bias = torch.zeros(3, 1, 1, 6)
    bias[0, :, :, 4:] = torch.finfo(torch.float32).min / 2
    before = weighing(query, keys, bias)
    assert before.shape == (3, 2, 5, 6) and not before[0, :, :, 4:].any()
    weighing.pairwise.data[1, 0, 1, 1] = 2.0
    after = weighing(query, keys, bias)
    assert torch.equal(after[:, 0], before[:, 0]) and (after[:, 1] > before[:, 1])[1].all()


def test_only_the_attention_over_the_source_of_the_last_layer_is_structured(make_model):
    model = make_model(selection="structured", decoder_layers=3)
    kinds = [type(layer.cross_attention.weighing) for layer in model.decoder]
    assert kinds == [ScaledDotProduct, ScaledDotProduct, StructuredWeighing]
    assert all(layer.self_attention.weighing.is_scaled_dot_product for layer in model.decoder)
