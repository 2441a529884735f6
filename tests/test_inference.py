import pytest
import torch
from torch import nn

from seq2seq.batching import round_down
from seq2seq.inference.eager import FEW_ROWS, Int8Linear, PackedLinear, for_inference, quantised
from seq2seq.inference.flat import FlatDecoderLayer
from seq2seq.model.attention import Weighing
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import Transformer
from seq2seq.search import round_size

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def layer():
    torch.manual_seed(1)
    made = nn.Linear(64, 128)
    nn.init.normal_(made.bias)
    return made.requires_grad_(False)


def relative_error(found, expected):
    return ((found.float() - expected).norm() / expected.norm()).item()


def test_quantised_weights_are_off_by_half_a_step_at_most():
    weight = torch.randn(7, 13, generator=torch.Generator().manual_seed(1))
    levels, scale = quantised(weight)
    assert levels.dtype == torch.int8 and levels.abs().amax(1).tolist() == [127] * 7
    assert ((levels * scale[:, None] - weight).abs() <= scale[:, None] / 2 + 1e-7).all()


def test_a_row_of_zeros_is_quantised_to_zeros():
    levels, scale = quantised(torch.zeros(2, 3))
    assert levels.eq(0).all() and scale.isfinite().all()


def test_int8_products_are_near_the_exact_ones(layer):
    rows = torch.randn(11, 64)
    assert relative_error(Int8Linear(layer.weight, layer.bias)(rows), layer(rows)) < 0.015


def test_in_int8_neighbours_have_no_influence_on_a_row(layer):
    fast, rows = Int8Linear(layer.weight, layer.bias), torch.randn(5, 64)
    beside_giants = torch.cat([rows[:1], 1e4 * rows[1:]])
    assert torch.equal(fast(rows)[0], fast(beside_giants)[0])


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 50])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_packed_products_are_near_the_exact_ones_for_few_rows_and_for_many(layer, rows, activation):
    hidden = torch.randn(rows, 64)
    found = PackedLinear(layer.weight, layer.bias, activation)(hidden.bfloat16())
    expected = layer(hidden) if activation == "none" else layer(hidden).relu()
    assert found.dtype == torch.bfloat16 and relative_error(found, expected) < 0.015
    assert activation == "none" or found.min() >= 0


def test_odd_sizes_never_reach_the_kernel_that_reads_whole_vectors():
    odd = nn.Linear(60, 128).requires_grad_(False)
    packed, row = PackedLinear(odd.weight, odd.bias), torch.ones(1, 60)
    assert packed.few_rows == 0 and relative_error(packed(row.bfloat16()), odd(row)) < 0.1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_model_that_learns_is_left_alone(make_model, make_batch, precision):
    model, batch = make_model(torch.float32), make_batch()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fast = for_inference(model, precision)
    assert not fast.training and not any(weight.requires_grad for weight in fast.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    expected = model.eval()(batch).dense()
    assert relative_error(fast(batch).dense(), expected) < (1e-6 if precision == "fp32" else 0.05)


@pytest.mark.parametrize(("kind", "keys"), [
    (Transformer, {"source_vocab_size": 11, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2,
                   "feed_forward": 16}),
    (RecurrentModel, {"source_vocab_size": 11}),
    (LanguageModel, {"vocab_size": 11, "layers": 1, "num_heads": 2, "feed_forward": 16}),
])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_words_are_scored_in_int8_whatever_the_model(kind, keys, precision):
    sizes = {"target_vocab_size": 11} if "source_vocab_size" in keys else {}
    assert isinstance(for_inference(kind(d_model=8, **keys, **sizes), precision).vocabulary, Int8Linear)


def test_sizes_of_batches_are_round():
    assert [round_size(number) for number in (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 25)] \
        == [0, 1, 2, 3, 4, 6, 6, 8, 12, 12, 16, 32]
    assert [round_down(number) for number in (1, 2, 3, 4, 5, 6, 7, 11, 12, 25)] == [1, 2, 3, 4, 4, 6, 6, 8, 12, 24]


@pytest.mark.parametrize("score", ["dot", "bilinear"])
@torch.no_grad()
def test_other_dot_products_become_scaled_ones_with_the_same_scores(make_model, make_batch, score):
    model, batch = make_model(score=score), make_batch()
    fast = for_inference(model, "fp32")
    torch.testing.assert_close(fast(batch).dense(), model(batch).dense(), rtol=0, atol=1e-10)
    assert {module.score for module in fast.modules() if isinstance(module, Weighing)} == {"scaled_dot"}
    assert {module.score for module in model.modules() if isinstance(module, Weighing)} == {score}


@pytest.mark.parametrize("choice", [{}, {"pre_norm": True}, {"activation": "gelu"}, {"score": "bilinear"}], ids=str)
def test_flat_steps_are_those_of_the_layers(make_model, make_batch, choice):
    model, batch = make_model(torch.float32, **choice), make_batch()
    fast = for_inference(model, "fp32")
    assert all(isinstance(layer, FlatDecoderLayer) for layer in fast.decoder)
    found, expected = (each.start(batch.source, batch.source_offsets, batch.longest_source) for each in (fast, model))
    for token in (3, 5, 7, 11):
        ours, found = fast.step(torch.full((4,), token), found)
        theirs, expected = model.step(torch.full((4,), token), expected)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("choice", [{"score": "additive"}, {"normalize": "relu"}], ids=str)
def test_other_attention_keeps_its_own_step(make_model, choice):
    fast = for_inference(make_model(torch.float32, **choice), "fp32")
    assert not any(isinstance(layer, FlatDecoderLayer) for layer in fast.decoder)
