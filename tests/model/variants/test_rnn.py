"""The recurrent model against the equations of Bahdanau et al. 2015, computed position by position in NumPy."""

import numpy as np
import pytest
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model.packing import Sentences
from seq2seq.model.variants import rnn
from seq2seq.model.variants.rnn import Cell, RecurrentModel

D_MODEL = 14


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def softmax(values):
    return np.exp(values) / np.exp(values).sum()


def gru(weights, entering, before):
    """GRU step on a projected input: h = (1 - z) n + z h', n = tanh(x_n + r (U_n h' + b))."""
    recurrent = weights["recurrent.weight"] @ before + weights["recurrent.bias"]
    (x_r, x_z, x_n), (h_r, h_z, h_n) = np.split(entering, 3), np.split(recurrent, 3)
    reset, update = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    return (1 - update) * np.tanh(x_n + reset * h_n) + update * before


def part(weights, prefix):
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def logits_by_hand(model, source, target_input):
    """Reference logits for one sentence, computed equation by equation."""
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def affine(name, vector):
        return weights[f"{name}.weight"] @ vector + weights[f"{name}.bias"]

    def embedded(token):
        return np.sqrt(D_MODEL) * weights["target_embedding"][token]

    def read(tokens, direction):
        state, states = np.zeros(D_MODEL // 2), []
        for token in tokens:
            entering = (weights[f"encoder.recurrent.weight_ih_l0{direction}"] @ embedded(token)
                        + weights[f"encoder.recurrent.bias_ih_l0{direction}"])
            state = gru({"recurrent.weight": weights[f"encoder.recurrent.weight_hh_l0{direction}"],
                         "recurrent.bias": weights[f"encoder.recurrent.bias_hh_l0{direction}"]}, entering, state)
            states.append(state)
        return states

    forward, backward = read(source, ""), read(source[::-1], "_reverse")[::-1]
    annotations = [np.concatenate(both) for both in zip(forward, backward, strict=True)]
    state = np.tanh(affine("first", backward[0]))
    logits = []
    for token in target_input:
        # e_ti = v tanh(W s_{t-1} + U h_i); alpha = softmax(e); c_t = sum_i alpha_ti h_i.
        energies = np.array([weights["attention.weighing.weight"][0]
                             @ np.tanh(affine("attention.query", state) + affine("attention.key", annotation))
                             for annotation in annotations])
        context = sum(weight * annotation for weight, annotation in zip(softmax(energies), annotations, strict=True))
        entering = affine("embedded_in", embedded(token)) + affine("context_in", context)
        state = gru(part(weights, "cells.0."), entering[:-D_MODEL], state)
        output = np.tanh(entering[-D_MODEL:] + affine("output", state))
        logits.append(weights["target_embedding"] @ output)
    return np.array(logits)


def test_the_model_follows_the_equations_of_the_paper(make_model, make_batch):
    model = make_model(kind=RecurrentModel, encoder_layers=1, decoder_layers=1, num_heads=1)
    batch = make_batch()
    logits = model(batch).dense().detach()
    for number in range(4):
        source = batch.source[batch.source_offsets[number] : batch.source_offsets[number + 1]].tolist()
        span = slice(int(batch.target_offsets[number]), int(batch.target_offsets[number + 1]))
        expected = logits_by_hand(model, source, batch.target_input[span].tolist())
        torch.testing.assert_close(logits[span], torch.from_numpy(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("kind", "theirs"), [("gru", torch.nn.GRUCell), ("lstm", torch.nn.LSTMCell)])
@torch.no_grad()
def test_a_cell_equals_that_of_torch(kind, theirs):
    torch.manual_seed(1)
    ours, other = Cell(kind, 5).double(), theirs(7, 5).double()
    ours.recurrent.weight.copy_(other.weight_hh)
    ours.recurrent.bias.copy_(other.bias_hh)
    entering, state = torch.randn(3, 7, dtype=torch.float64), torch.randn(ours.vectors, 3, 5, dtype=torch.float64)
    expected = other(entering, state[0] if kind == "gru" else tuple(state))
    found = ours(entering @ other.weight_ih.T + other.bias_ih, state)
    torch.testing.assert_close(found, expected[None] if kind == "gru" else torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("selection", ["soft", "hard", "structured"])
def test_padding_to_a_fixed_shape_changes_nothing(make_model, make_corpus, selection):
    model, corpus = make_model(kind=RecurrentModel, selection=selection), make_corpus()
    indices, fill = np.arange(4), Shape(40, 47, 17)
    outcomes = []
    for batch in (gather(corpus, indices), gather(corpus, indices, fill)):
        loss = model.loss(batch)
        # A parameter that only draws is for has no gradient where nothing is drawn.
        outcomes.append((loss, torch.autograd.grad(loss.total, model.parameters(), allow_unused=True)))
    (plain, gradients), (filled, filled_gradients) = outcomes
    torch.testing.assert_close(filled.total, plain.total, rtol=1e-12, atol=0)
    for gradient, expected in zip(filled_gradients, gradients, strict=True):
        if expected is not None:
            torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


def test_hard_attention_gives_gradients_to_every_weight(make_model, make_batch):
    torch.manual_seed(1)
    model, batch = make_model(kind=RecurrentModel, selection="hard").train(), make_batch()
    model.loss(batch).total.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_sentences_beyond_its_positions_are_refused(make_model):
    model = make_model(kind=RecurrentModel, max_positions=3)
    corpus = EncodedCorpus(EncodedSide.from_lists([[3]]), EncodedSide.from_lists([[3, 4, 5]]))
    with pytest.raises(ValueError):
        model(gather(corpus, np.arange(1)))


@pytest.mark.parametrize("choice", [{}, {"selection": "hard"}, {"input_feeding": True, "decoder_layers": 2}], ids=str)
def test_removing_finished_sentences_does_not_change_the_results(make_model, make_batch, monkeypatch, choice):
    model, batch = make_model(kind=RecurrentModel, **choice), make_batch(tuple(range(2, 15)), tuple(range(14, 1, -1)))
    everybody = [13] * batch.longest_target
    found = model(batch).dense()
    gradient, = torch.autograd.grad(found.square().sum(), model.output_weight)
    targets = Sentences.from_offsets(batch.target_offsets, batch.longest_target)
    assert rnn.plan_active_rows(targets)[0] != everybody
    monkeypatch.setattr(rnn, "plan_active_rows", lambda sentences: (everybody, None))
    expected = model(batch).dense()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), model.output_weight)[0])


def test_few_sentences_are_computed_beyond_their_end():
    offsets = torch.tensor([0, 2, 9, 12, 14], dtype=torch.int32)
    # The longest target has 7 tokens, rounded up to 8.
    active_rows, order = rnn.plan_active_rows(Sentences.from_offsets(offsets, 8))
    assert active_rows == [4, 4, 2, 1, 1, 1, 1, 1] and order.tolist() == [1, 2, 0, 3]
