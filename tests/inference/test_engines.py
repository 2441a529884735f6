"""The engine of PyTorch for every model."""

import copy

import numpy as np
import pytest
import tolerances
import torch
from lookup import arrays_of
from sections import score_of

from seq2seq.inference.eager import EagerEngine, for_inference
from seq2seq.model import build_recurrent_model, build_transformer
from seq2seq.model.variants.language_model import LanguageModel
from seq2seq.model.variants.pointer import PointerNetwork
from seq2seq.model.variants.rnn import RecurrentModel

CPU = torch.device("cpu")


def test_preparing_for_inference_does_not_change_the_trained_model(make_model, make_batch):
    model, batch = make_model(torch.float32), make_batch()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fast = for_inference(model, "fp32")
    assert not fast.training and not any(weight.requires_grad for weight in fast.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    found, expected = (each(batch).dense() for each in (fast, model.eval()))
    assert (found - expected).norm() < 1e-6 * expected.norm()


SIZES = {"source_vocab_size": 23, "target_vocab_size": 23, "d_model": 16}


def transformer(**choice):
    return build_transformer(**SIZES, encoder_layers=1, decoder_layers=2, num_heads=2, feed_forward=24, **choice)


MODELS = {
    "transformer": transformer, "pre-norm": lambda: transformer(pre_norm=True), "window": lambda: transformer(window=2),
    "additive": lambda: transformer(score="additive"), "bilinear": lambda: transformer(score="bilinear"),
    "relu": lambda: transformer(normalize="relu"), "hard": lambda: transformer(selection="hard"),
    "structured": lambda: transformer(selection="structured"),
    "rnn, structured": lambda: build_recurrent_model(**SIZES, selection="structured"),
    "copying": lambda: transformer(copy=True),
    "rnn": lambda: RecurrentModel(**SIZES), "rnn, hard": lambda: build_recurrent_model(**SIZES, selection="hard"),
    "rnn, lstm": lambda: RecurrentModel(**SIZES, cell="lstm", input_feeding=True),
    "rnn, copying": lambda: build_recurrent_model(**SIZES, copy=True),
    "language model": lambda: LanguageModel(vocab_size=23, d_model=16, layers=2, num_heads=2, feed_forward=24),
    "pointer": lambda: PointerNetwork(source_vocab_size=23, d_model=16),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_decodes(make_batch, name):
    torch.manual_seed(1)
    model, batch = MODELS[name]().eval(), make_batch()
    engine = EagerEngine(model, "fp32", CPU)
    found = engine.start(*arrays_of(batch))
    expected = model.start(batch.source, batch.source_offsets, batch.longest_source)
    order = torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3]])
    for number, token in enumerate((0, 5, 3, 4)):
        rows = torch.full((4 if number == 0 else 8 if number < 3 else 4,), 0 if name == "pointer" else token)
        ours, found = engine.step(rows.numpy(), found)
        theirs, expected = model.step(rows, expected)
        likely, sure = torch.from_numpy(ours.logits).softmax(1), theirs.softmax(1)
        assert (likely - sure).abs().max() < 1e-5
        if number in (0, 2):                                                    # a beam of two; and half of them leave
            order = order if number == 0 else torch.tensor([[3, 2], [4, 4]])
            found, expected = found.select(order.numpy()), expected.select(order)


@pytest.mark.parametrize("score", ["dot", "bilinear"])
@torch.no_grad()
def test_other_dot_products_become_scaled_ones_with_the_same_scores(make_model, make_batch, score):
    model, batch = make_model(score=score), make_batch()
    fast = for_inference(model, "fp32")
    torch.testing.assert_close(fast(batch).dense(), model(batch).dense(), rtol=0, atol=1e-10)
    assert {score_of(each.weighing) for each in fast.attentions} == {"scaled_dot"}
    assert {score_of(each.weighing) for each in model.attentions} == {score}


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
