"""The pointer network: its equation, dependencies between positions, and decoding step by step."""

import itertools
import math

import numpy as np
import pytest
import torch
from lookup import arrays_of, on_host

from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model import build_model
from seq2seq.model.variants.pointer import FIRST_POSITION_ID, PointerNetwork
from seq2seq.recipe.model_section import PointerSection
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID

ROUNDING = {"rtol": 0, "atol": 1e-12}
CHOICES = [{"cell": "gru"}, {"cell": "lstm"}, {"encoder_layers": 2, "decoder_layers": 3, "cell": "gru"},
           {"encoder_layers": 3, "decoder_layers": 2, "cell": "lstm"}]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=str)
# Words of each source, and the places that its target points at, from 1.
LISTS = [([20, 5, 10, 7], [1, 3, 4, 2]), ([11], [1]), ([9, 8, 12, 6, 13, 4], [5, 3, 1, 2]), ([3, 5], [])]


def make(seed=1, **options):
    torch.manual_seed(seed)
    model = PointerNetwork(**({"source_vocab_size": 23, "d_model": 6, "max_positions": 19} | options)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def batch_of(lists=LISTS, fill=None):
    sources = EncodedSide.from_lists([source for source, _ in lists])
    targets = EncodedSide.from_lists([[END_ID + place for place in places] for _, places in lists])
    return gather(EncodedCorpus(sources, targets), np.arange(len(lists)), fill)


def spans(offsets):
    return [slice(begin, end) for begin, end in itertools.pairwise(offsets.tolist())]


# The equation


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def plain_gru(layer, inputs, hidden, suffix=""):
    """Reference for a GRU (Cho et al. 2014) with the reset gate after the product, as in PyTorch; (length,
    features)."""
    input_weight, hidden_weight, input_bias, hidden_bias = (
        getattr(layer, f"{name}_l0{suffix}").detach().numpy()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    outputs = []
    for row in inputs:
        of_input = np.split(input_weight @ row + input_bias, 3)
        of_hidden = np.split(hidden_weight @ hidden + hidden_bias, 3)
        reset, update = (sigmoid(of_input[gate] + of_hidden[gate]) for gate in (0, 1))
        new = np.tanh(of_input[2] + reset * of_hidden[2])
        hidden = (1 - update) * new + update * hidden
        outputs.append(hidden)
    return np.stack(outputs)


def test_scores_are_the_equation_of_the_paper_computed_by_hand():
    model = make()
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    batch = batch_of()
    found = model(batch).values.detach().numpy()
    for (words, places), span in zip(LISTS, spans(batch.target_offsets), strict=True):
        embedded = weights["source_embedding"][[*words, END_ID]] * 6**0.5
        left = plain_gru(model.encoder.recurrent, embedded, np.zeros(3))
        right = plain_gru(model.encoder.recurrent, embedded[::-1], np.zeros(3), "_reverse")[::-1]
        states = np.concatenate([left, right], 1)                               # x_n, (words + 1, 6)
        first = np.tanh(weights["first.weight"] @ right[0] + weights["first.bias"])
        read = np.stack([weights["start_state"][0], *(states[place - 1] for place in places)])
        hidden = plain_gru(model.decoder, read, first)                          # h_m
        for row, state in zip(found[span], hidden, strict=True):
            scores = np.array([weights["score"][0] @ np.tanh(
                weights["key.weight"] @ word + weights["key.bias"] + weights["query.weight"] @ state
                + weights["query.bias"]) for word in states])
            expected = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(np.exp(row[FIRST_POSITION_ID:][: len(words)]), expected[:-1], rtol=1e-10)
            np.testing.assert_allclose(np.exp(row[END_ID]), expected[-1], rtol=1e-10)


@every_choice
def test_positions_beyond_the_source_and_special_symbols_have_weight_zero(choice):
    batch = batch_of()
    values = make(**choice)(batch).values
    assert values.shape == (batch.target_count, END_ID + batch.longest_source)
    for (words, _), span in zip(LISTS, spans(batch.target_offsets), strict=True):
        assert (values[span][:, [UNKNOWN_ID, START_ID]] == -math.inf).all()
        assert (values[span][:, FIRST_POSITION_ID + len(words) :] == -math.inf).all()
        assert values[span][:, END_ID : FIRST_POSITION_ID + len(words)].isfinite().all()
    torch.testing.assert_close(values.exp().sum(1), torch.ones(len(values), dtype=torch.float64), **ROUNDING)


# Who sees what


@every_choice
def test_outputs_do_not_depend_on_other_sentences_of_the_batch(choice):
    model, together = make(**choice), batch_of()
    values = model(together).values
    for pair, span in zip(LISTS, spans(together.target_offsets), strict=True):
        alone = model(batch_of([pair])).values
        torch.testing.assert_close(values[span][:, : alone.shape[1]], alone, **ROUNDING)


@every_choice
def test_padding_to_a_fixed_shape_changes_nothing(choice):
    model = make(**choice)
    results = []
    for fill in (None, Shape(source_tokens=31, target_tokens=29, sentences=11)):
        batch = batch_of(fill=fill)
        model.zero_grad()
        loss = model.loss(batch)
        loss.total.backward()
        results.append((loss.total, [weight.grad for weight in model.parameters()]))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-12, atol=0)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=0, atol=1e-11)


# Step by step


@every_choice
def test_step_by_step_equals_teacher_forcing(choice):
    model, batch = make(**choice), batch_of()
    expected = model(batch).values
    rows = [batch.target_input[span] for span in spans(batch.target_offsets)]
    state = model.start(batch.source, batch.source_offsets, batch.longest_source, keep_attention=True)
    for position in range(batch.longest_target):
        tokens = torch.stack([row[position] if position < len(row) else torch.tensor(END_ID) for row in rows])
        values, state = model.step(tokens, state)
        for number, span in enumerate(spans(batch.target_offsets)):
            if position < span.stop - span.start:
                torch.testing.assert_close(values[number, : expected.shape[1]], expected[span][position], **ROUNDING)
                assert values.shape[1] == END_ID + 19 and (values[:, expected.shape[1] :] == -math.inf).all()
                words = len(LISTS[number][0])
                weights = torch.cat([values[number, FIRST_POSITION_ID:][:words], values[number, END_ID:][:1]])
                torch.testing.assert_close(state.attention[number, : words + 1], weights.exp(), **ROUNDING)
                assert (state.attention[number, words + 1 :] == 0).all()


def test_selected_rows_continue_from_their_own_state():
    model, batch = make(cell="lstm"), batch_of(LISTS[:3])
    start = model.start(batch.source, batch.source_offsets, batch.longest_source, keep_attention=True)
    _, state = model.step(torch.full((3,), START_ID), start)
    # Two rows for each of the last two sentences; the first sentence is dropped.
    chosen = torch.tensor([[1, 1], [2, 2]])
    wide = state.select(chosen)
    assert wide.attention.shape == (4, batch.longest_source)
    values, wide = model.step(torch.tensor([3, 3, 3, 7]), wide)
    swapped, _ = model.step(torch.tensor([4, 4]), wide.select(torch.tensor([[3]])).select(torch.tensor([[0, 0]])))
    plain, after = model.step(torch.tensor([3, 3, 7]), state)
    torch.testing.assert_close(values[[0, 3]], plain[1:], **ROUNDING)
    again, _ = model.step(torch.tensor([4, 4, 4]), after)
    torch.testing.assert_close(swapped[0], again[2], **ROUNDING)


class Pointing:
    """Computes the log-probability of complete targets, for exhaustive search."""

    def __init__(self, model, words):
        self.model, self.words = model, words

    def log_probability(self, places):
        batch = batch_of([(self.words, places)])
        with torch.no_grad():
            return -self.model.loss(batch).of_tokens.double().sum().item()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_beam_search_finds_the_same_output_as_exhaustive_search(cell):
    model = make(cell=cell)
    lists = [[20, 5, 10], [7], [3, 11]]
    batch = batch_of([(words, []) for words in lists])
    # All targets of at most three tokens, the end included, of up to three places: 1 + 3 + 9.
    found = search(on_host(model), *arrays_of(batch), [3, 3, 3],
                   SearchOptions(13, power_length_penalty(1.0), n_best=13, banned_ids=(UNKNOWN_ID, START_ID)))
    for words, hypotheses in zip(lists, found, strict=True):
        places = range(1, len(words) + 1)
        targets = [target for length in range(3) for target in itertools.product(places, repeat=length)]
        exact = {target: Pointing(model, words).log_probability(target) for target in targets}
        ranked = sorted(targets, key=lambda target: -exact[target] / (len(target) + 1))
        assert [[token - END_ID for token in hypothesis.tokens] for hypothesis in hypotheses] == list(map(list, ranked))
        assert [hypothesis.log_probability for hypothesis in hypotheses] == pytest.approx(
            [exact[target] for target in ranked], abs=1e-5)


# Training


@every_choice
def test_every_architecture_option_gives_gradients_to_all_parameters(choice):
    model, batch = make(**choice), batch_of()
    model.loss(batch).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name


def test_the_gradient_of_the_loss_equals_finite_differences():
    model, batch = make(d_model=2), batch_of([([7, 5], [2])])
    parameters = list(model.parameters())

    def loss(*_):
        return model.loss(batch).total

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)


def test_a_sentence_longer_than_the_positions_is_an_error():
    model = make(max_positions=4)
    assert model(batch_of([([3, 4, 5], [1])])).values.isfinite().any()
    with pytest.raises(ValueError):
        model(batch_of([([3, 4, 5, 6], [1])]))


def test_recipe_keys_build_the_same_model_as_constructor_arguments():
    section = PointerSection(cell="lstm", d_model=6, encoder_layers=2, decoder_layers=1)
    model = build_model(section, 23, 99)
    assert isinstance(model, PointerNetwork) and isinstance(model.decoder, torch.nn.LSTM)
    assert model.encoder.recurrent.num_layers == 2 and model.source_embedding.shape == (23, 6)


def test_dropout_acts_in_training_only():
    model, batch = make(dropout=0.5, encoder_layers=2, decoder_layers=2), batch_of()
    torch.testing.assert_close(model(batch).values, model(batch).values, **ROUNDING)
    model.train()
    assert not torch.equal(model(batch).values, model(batch).values)
