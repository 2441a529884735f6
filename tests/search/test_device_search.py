"""The search that stays on the GPU finds what the search on the host finds. Both run on any device; here, on a CPU."""

from functools import partial

import numpy as np
import pytest
import torch

from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import Transformer
from seq2seq.search.beam import search
from seq2seq.search.device_search import CHECK_STEPS, device_search
from seq2seq.search.length_penalty import power_length_penalty, wu_length_penalty
from seq2seq.search.options import SearchOptions
from seq2seq.tokenizers.tokenizer import END_ID

VOCAB_SIZE = 90
OPTIONS = [
    SearchOptions(1, power_length_penalty(1.0)),
    SearchOptions(2, power_length_penalty(0.0), n_best=2, banned_ids=[5, 7, END_ID]),
    SearchOptions(3, wu_length_penalty(0.6), n_best=3, patience=2.0),
    SearchOptions(5, power_length_penalty(0.6), n_best=5, banned_ids=[0, 1]),
    SearchOptions(12, power_length_penalty(1.0), n_best=12, patience=0.5),
]


def peaked_model(seed, kind=Transformer):
    """Random model in fp64 with probabilities that differ enough for hypotheses of many lengths."""
    torch.manual_seed(seed)
    sizes = {} if kind is RecurrentModel else {"feed_forward": 32}
    model = kind(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, d_model=16, encoder_layers=1,
                 decoder_layers=1, num_heads=2, tied_embeddings="none", **sizes).double().eval()
    torch.nn.init.normal_(model.output_weight, std=0.6)
    with torch.no_grad():
        model.output_weight[END_ID] *= 1.5
    return model


def batch_of(generator, sentences):
    lengths = generator.integers(1, 12, sentences)
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    source = torch.from_numpy(generator.integers(3, VOCAB_SIZE, lengths.sum()))
    return (source, offsets, int(lengths.max())), generator.integers(1, 40, sentences).tolist()


def assert_same(model, batch, limits, options):
    found = search(model, *batch, limits, options, whole_search=partial(device_search, model))
    expected = search(model, *batch, limits, options)
    for one, other in zip(found, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other]
        assert [hypothesis.log_probability for hypothesis in one] == pytest.approx(
            [hypothesis.log_probability for hypothesis in other], rel=1e-12)
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: f"beam-{options.beam_size}")
@pytest.mark.parametrize("kind", [Transformer, RecurrentModel])
def test_n_best_lists_equal_those_of_the_search_on_the_host(options, kind):
    generator, lengths = np.random.default_rng(options.beam_size), set()
    for seed in range(3):
        found = assert_same(peaked_model(seed, kind), *batch_of(generator, 17), options)
        lengths |= {len(hypothesis.tokens) for n_best in found for hypothesis in n_best}
    assert len(lengths) > 8, "hypotheses of many lengths"


@pytest.mark.slow
def test_two_thousand_sentences_have_equal_n_best_lists():
    generator = np.random.default_rng(7)
    for seed in range(40):
        beam_size = int(generator.integers(1, 13))
        penalty = [power_length_penalty, wu_length_penalty][seed % 2](float(generator.uniform(0, 1.2)))
        options = SearchOptions(beam_size, penalty, n_best=int(generator.integers(1, beam_size + 1)),
                                patience=float(generator.uniform(0.5, 3)),
                                banned_ids=generator.integers(0, VOCAB_SIZE, 5).tolist())
        assert_same(peaked_model(seed, [Transformer, RecurrentModel][seed % 3 == 0]), *batch_of(generator, 50), options)


def test_sentences_that_are_finished_leave_the_search():
    rows, model = [], peaked_model(2)
    step = model.step
    model.step = lambda tokens, state: rows.append(len(tokens)) or step(tokens, state)
    batch, _ = batch_of(np.random.default_rng(1), 12)
    device_search(model, *batch, beam_size=2, max_lengths=[3] * 9 + [3 * CHECK_STEPS] * 3, enough=2, forbidden=[END_ID])
    assert rows == [12] + [24] * (CHECK_STEPS - 1) + [6] * 2 * CHECK_STEPS


def test_the_search_ends_soon_after_all_sentences_are_finished():
    rows, model = [], peaked_model(2)
    step = model.step
    model.step = lambda tokens, state: rows.append(len(tokens)) or step(tokens, state)
    batch, _ = batch_of(np.random.default_rng(1), 3)
    with torch.no_grad():
        model.output_weight[END_ID] *= 50
    device_search(model, *batch, beam_size=1, max_lengths=[100] * 3, enough=1, forbidden=[])
    assert len(rows) <= 4 * CHECK_STEPS and len(rows) % CHECK_STEPS == 0
