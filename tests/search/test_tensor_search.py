"""The search with logits in tensors, as on a GPU, finds what the search with logits in arrays finds.

It runs here on a CPU; tests/simulated_gpu has searches on a device.
"""

import numpy as np
import pytest
import torch
from lookup import on_host

from seq2seq.inference.tensor_scores import TensorScores
from seq2seq.model.transformer import Transformer
from seq2seq.model.variants.rnn import RecurrentModel
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty, wu_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID

VOCAB_SIZE = 90
OPTIONS = [
    SearchOptions(1, power_length_penalty(1.0)),
    SearchOptions(2, power_length_penalty(0.0), n_best=2, banned_ids=[5, 7, END_ID]),
    SearchOptions(3, wu_length_penalty(0.6), n_best=3, patience=2.0),
    SearchOptions(4, power_length_penalty(1.0), n_best=4, groups=2, skip_log_softmax=True),
    SearchOptions(5, power_length_penalty(0.6), n_best=5, banned_ids=[0, 1]),
    SearchOptions(12, power_length_penalty(1.0), n_best=12, patience=0.5),
]


class WithTensors:
    """Model in PyTorch with the interface of search, whose scores are tensors on the CPU, too."""

    def __init__(self, model):
        self.engine = on_host(model)
        self.max_positions, self.start = model.max_positions, self.engine.start

    def step(self, last_tokens, state):
        scores, after = self.engine.step(last_tokens, state)
        return TensorScores(torch.from_numpy(scores.logits)), after


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
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    source = generator.integers(3, VOCAB_SIZE, lengths.sum())
    return (source, offsets), generator.integers(1, 40, sentences).tolist()


def assert_same(model, batch, limits, options):
    found, expected = (search(each, *batch, limits, options) for each in (WithTensors(model), on_host(model)))
    for one, other in zip(found, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other]
        assert [hypothesis.log_probability for hypothesis in one] == pytest.approx(
            [hypothesis.log_probability for hypothesis in other], rel=1e-12)
    return found


@pytest.mark.parametrize("options", [
    pytest.param(options, marks=() if options.beam_size in (1, 3, 4) else pytest.mark.slow) for options in OPTIONS],
    ids=lambda options: f"beam-{options.beam_size}")
def test_n_best_lists_equal_those_of_the_search_with_arrays(options):
    generator, lengths = np.random.default_rng(options.beam_size), set()
    for seed, kind in enumerate([Transformer, RecurrentModel]):
        found = assert_same(peaked_model(seed, kind), *batch_of(generator, 11), options)
        lengths |= {len(hypothesis.tokens) for n_best in found for hypothesis in n_best}
    assert len(lengths) > 5, "hypotheses of many lengths"


@pytest.mark.slow
def test_two_thousand_sentences_have_equal_n_best_lists():
    generator = np.random.default_rng(7)
    for seed in range(40):
        beam_size = int(generator.integers(1, 13))
        penalty = [power_length_penalty, wu_length_penalty][seed % 2](float(generator.uniform(0, 1.2)))
        options = SearchOptions(beam_size, penalty, n_best=int(generator.integers(1, beam_size + 1)),
                                patience=float(generator.uniform(0.5, 3)),
                                banned_ids=generator.integers(0, VOCAB_SIZE, 5).tolist())
        model = peaked_model(seed, [Transformer, RecurrentModel][seed % 3 == 0])
        assert_same(model, *batch_of(generator, 50), options)
