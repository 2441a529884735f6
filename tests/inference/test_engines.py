"""Engines for every model and precision, and the layers of the eager engine."""

import copy

import numpy as np
import pytest
import tolerances
import torch
from lookup import arrays_of
from torch import nn

from seq2seq.inference import eager
from seq2seq.inference.eager import (
    FEW_ROWS,
    EagerEngine,
    Fp32Linear,
    Int8Linear,
    PackedLinear,
    for_inference,
    quantised,
)
from seq2seq.model import build_recurrent_model, build_transformer
from seq2seq.model.attention_scores import Weighing
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.pointer_network import PointerNetwork
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import Transformer

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not eager.packed_operators_work(),
                                  reason="PyTorch's operators for bf16 and int8 do not work on this CPU")


@pytest.fixture
def layer():
    torch.manual_seed(1)
    made = nn.Linear(64, 128)
    nn.init.normal_(made.bias)
    return made.requires_grad_(False)


def relative_error(found, expected):
    return ((found.float() - expected).norm() / expected.norm()).item()


def test_quantisation_error_is_at_most_half_a_step():
    weight = torch.randn(7, 13, generator=torch.Generator().manual_seed(1))
    levels, scale = quantised(weight)
    assert levels.dtype == torch.int8 and levels.abs().amax(1).tolist() == [127] * 7
    assert ((levels * scale[:, None] - weight).abs() <= scale[:, None] / 2 + 1e-7).all()


def test_a_row_of_zeros_is_quantised_to_zeros():
    levels, scale = quantised(torch.zeros(2, 3))
    assert levels.eq(0).all() and scale.isfinite().all()


@needs_onednn
def test_int8_products_are_near_the_exact_ones(layer):
    rows = torch.randn(11, 64)
    assert relative_error(Int8Linear(layer.weight, layer.bias)(rows), layer(rows)) < 0.015


@needs_onednn
def test_int8_rows_do_not_depend_on_other_rows(layer):
    fast, rows = Int8Linear(layer.weight, layer.bias), torch.randn(5, 64)
    beside_giants = torch.cat([rows[:1], 1e4 * rows[1:]])
    assert torch.equal(fast(rows)[0], fast(beside_giants)[0])


@needs_onednn
@pytest.mark.parametrize(("rows", "activation"), [(1, "none"), (FEW_ROWS, "relu"), (FEW_ROWS + 1, "none"),
                                                  (50, "relu")])
def test_packed_products_are_near_the_exact_ones_for_few_rows_and_for_many(layer, rows, activation):
    hidden = torch.randn(rows, 64)
    found = PackedLinear(layer.weight, layer.bias, activation)(hidden.bfloat16())
    expected = layer(hidden) if activation == "none" else layer(hidden).relu()
    assert found.dtype == torch.bfloat16 and relative_error(found, expected) < 0.015
    assert activation == "none" or found.min() >= 0


@needs_onednn
@pytest.mark.parametrize("shape", [(2, 3, 64), (1, 2, 5, 64)])
def test_packed_products_of_more_dimensions_are_near_the_exact_ones(layer, shape):
    hidden = torch.randn(shape)
    assert relative_error(PackedLinear(layer.weight, layer.bias)(hidden.bfloat16()), layer(hidden)) < 0.015


@needs_onednn
def test_odd_sizes_never_reach_the_kernel_that_reads_whole_vectors():
    odd = nn.Linear(60, 128).requires_grad_(False)
    packed, row = PackedLinear(odd.weight, odd.bias), torch.ones(1, 60)
    assert packed.few_rows == 0 and relative_error(packed(row.bfloat16()), odd(row)) < 0.1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_preparing_for_inference_does_not_change_the_trained_model(make_model, make_batch, precision):
    model, batch = make_model(torch.float32), make_batch()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fast = for_inference(model, precision)
    assert not fast.training and not any(weight.requires_grad for weight in fast.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    expected = model.eval()(batch).dense()
    assert relative_error(fast(batch).dense(), expected) < (1e-6 if precision == "fp32" else 0.05)


SIZES = {"source_vocab_size": 23, "target_vocab_size": 23, "d_model": 16}


def transformer(**choice):
    return build_transformer(**SIZES, encoder_layers=1, decoder_layers=2, num_heads=2, feed_forward=24, **choice)


MODELS = {
    "transformer": transformer, "pre-norm": lambda: transformer(pre_norm=True), "window": lambda: transformer(window=2),
    "additive": lambda: transformer(score="additive"), "bilinear": lambda: transformer(score="bilinear"),
    "relu": lambda: transformer(normalize="relu"), "hard": lambda: transformer(selection="hard"),
    "structured": lambda: transformer(selection="structured"),
    "rnn, structured": lambda: RecurrentModel(**SIZES, selection="structured"),
    "copying": lambda: transformer(copy=True),
    "rnn": lambda: RecurrentModel(**SIZES), "rnn, hard": lambda: RecurrentModel(**SIZES, selection="hard"),
    "rnn, lstm": lambda: RecurrentModel(**SIZES, cell="lstm", input_feeding=True),
    "rnn, copying": lambda: build_recurrent_model(**SIZES, copy=True),
    "language model": lambda: LanguageModel(vocab_size=23, d_model=16, layers=2, num_heads=2, feed_forward=24),
    "pointer": lambda: PointerNetwork(source_vocab_size=23, d_model=16),
}


@pytest.mark.parametrize(("name", "precision"), [
    *((name, "fp32") for name in MODELS), ("transformer", "bf16"), ("rnn", "bf16"),
    *(pytest.param(name, "bf16", marks=pytest.mark.slow) for name in MODELS
                       if name not in ("transformer", "rnn"))])
def test_every_model_decodes_in_every_precision(make_batch, name, precision):
    torch.manual_seed(1)
    model, batch = MODELS[name]().eval(), make_batch()
    engine = EagerEngine(model, precision, CPU)
    found = engine.start(*arrays_of(batch))
    expected = model.start(batch.source, batch.source_offsets, batch.longest_source)
    order = torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3]])
    for number, token in enumerate((0, 5, 3, 4)):
        rows = torch.full((4 if number == 0 else 8 if number < 3 else 4,), 0 if name == "pointer" else token)
        ours, found = engine.step(rows.numpy(), found)
        theirs, expected = model.step(rows, expected)
        likely, sure = torch.from_numpy(ours.logits).softmax(1), theirs.softmax(1)
        assert (likely - sure).abs().max() < (1e-5 if precision == "fp32" else 0.03)
        if number in (0, 2):                                                    # a beam of two; and half of them leave
            order = order if number == 0 else torch.tensor([[3, 2], [4, 4]])
            found, expected = found.select(order.numpy()), expected.select(order)


@pytest.mark.parametrize("kind", [Transformer, RecurrentModel])
def test_logits_in_bf16_come_in_fp32(make_model, kind):
    projection = for_inference(make_model(torch.float32, kind=kind), "bf16").output_projection
    assert isinstance(projection, Int8Linear if eager.packed_operators_work() else Fp32Linear)
    assert projection(torch.randn(3, 14).bfloat16()).dtype == torch.float32


def test_without_the_operators_of_onednn_stock_layers_compute_the_same(make_model, make_batch, monkeypatch):
    monkeypatch.setattr(eager, "packed_operators_work", lambda: False)
    model, batch = make_model(torch.float32, d_model=64), make_batch()
    engine = EagerEngine(model, "bf16", CPU)
    assert not any(isinstance(layer, PackedLinear | Int8Linear) for layer in engine.model.modules())
    scores, _ = engine.step(np.zeros(4, np.int64), engine.start(*arrays_of(batch)))
    expected, _ = model.step(torch.zeros(4, dtype=torch.int64),
                             model.start(batch.source, batch.source_offsets, batch.longest_source))
    assert scores.dtype == np.float32 and relative_error(torch.from_numpy(scores.logits), expected) < 0.03


@pytest.mark.parametrize("broken", ["missing", "other arguments", "wrong"])
def test_changed_operators_are_detected(monkeypatch, broken):
    def packed(self, weight, bias, activation="none"):
        nn.Module.__init__(self)
        if broken == "missing":
            raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")
        if broken == "other arguments":
            raise RuntimeError("mkldnn::_reorder_linear_weight() is missing value for argument")

    eager.packed_operators_work.cache_clear()
    monkeypatch.setattr(PackedLinear, "__init__", packed)
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: torch.zeros(len(rows), 64))
    try:
        assert not eager.packed_operators_work()
    finally:
        eager.packed_operators_work.cache_clear()


@pytest.mark.parametrize("score", ["dot", "bilinear"])
@torch.no_grad()
def test_other_dot_products_become_scaled_ones_with_the_same_scores(make_model, make_batch, score):
    model, batch = make_model(score=score), make_batch()
    fast = for_inference(model, "fp32")
    torch.testing.assert_close(fast(batch).dense(), model(batch).dense(), rtol=0, atol=1e-10)
    assert {module.score for module in fast.modules() if isinstance(module, Weighing)} == {"scaled_dot"}
    assert {module.score for module in model.modules() if isinstance(module, Weighing)} == {score}


@pytest.mark.parametrize("choice", [{}, {"pre_norm": True}, {"score": "additive"}, *(
    pytest.param(choice, marks=pytest.mark.slow) for choice in (
        {"activation": "gelu"}, {"score": "bilinear"}, {"normalize": "relu"}, {"selection": "hard"}))], ids=str)
def test_cached_step_functions_equal_those_of_the_layers(make_model, make_batch, choice):
    model, batch = make_model(torch.float32, **choice), make_batch()
    fast = EagerEngine(model, "fp32", CPU)
    found = fast.start(*arrays_of(batch))
    states = {each: each.start(batch.source, batch.source_offsets, batch.longest_source)
              for each in (model, copy.deepcopy(model).double())}
    for token in (3, 5, 7, 11):
        ours, found = fast.step(np.full(4, token), found)
        logits = []
        for each, state in states.items():
            theirs, states[each] = each.step(torch.full((4,), token), state)
            logits.append(theirs.numpy())
        assert tolerances.relative_error(ours.logits, logits[1]) < tolerances.fp32_tolerance(*logits)
