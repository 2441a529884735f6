"""The search as on a GPU, which looks for finished sentences from time to time, finds what the search on a CPU finds.

It runs with any model, and with static KV caches (`inference.static`). Here, it runs on a CPU.
"""

import gc
import math
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from lookup import on_host

from seq2seq.inference.device_search import CHECK_STEPS
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.static import StaticEngine, _StaticRun
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import Transformer
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty, wu_length_penalty
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
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    source = generator.integers(3, VOCAB_SIZE, lengths.sum())
    return (source, offsets), generator.integers(1, 40, sentences).tolist()


def device_search(model):
    """Search of any model as on a GPU."""
    engine = EagerEngine(model, "fp32", torch.device("cpu"))
    engine.model, engine._step = model, lambda *arguments: model.step(*arguments)   # tests replace `model.step`
    return engine._search_on_device


def static_search(model):
    """Search of the static engine. Its buffers serve all calls."""
    return StaticEngine(model, "fp32", torch.device("cpu")).whole_search


def assert_same(model, batch, limits, options, whole_search=None):
    """Compare with the search on a CPU. whole_search: None: `device_search`."""
    found = search(model, *batch, limits, options, whole_search=whole_search or device_search(model))
    expected = search(on_host(model), *batch, limits, options)
    for one, other in zip(found, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other]
        assert [hypothesis.log_probability for hypothesis in one] == pytest.approx(
            [hypothesis.log_probability for hypothesis in other], rel=1e-12)
    return found


@pytest.mark.parametrize("options", [
    pytest.param(options, marks=() if options.beam_size in (1, 3) else pytest.mark.slow) for options in OPTIONS],
    ids=lambda options: f"beam-{options.beam_size}")
def test_n_best_lists_equal_those_of_the_search_on_a_cpu(options):
    generator, lengths = np.random.default_rng(options.beam_size), set()
    for seed, kind in enumerate([Transformer, RecurrentModel]):
        found = assert_same(peaked_model(seed, kind), *batch_of(generator, 11), options)
        lengths |= {len(hypothesis.tokens) for n_best in found for hypothesis in n_best}
    assert len(lengths) > 5, "hypotheses of many lengths"


@pytest.mark.parametrize("options", [pytest.param(OPTIONS[0], marks=pytest.mark.slow), OPTIONS[2]],
                         ids=lambda options: f"beam-{options.beam_size}")
def test_n_best_lists_with_static_caches_equal_those_of_the_search_on_a_cpu(options):
    generator, lengths, model = np.random.default_rng(options.beam_size), set(), peaked_model(options.beam_size)
    whole_search = static_search(model)
    for sentences in (17, 1, 3, 8):                                             # the buffers are used again
        batch, limits = batch_of(generator, sentences)
        limits[-1] = 70                                                         # beyond the first two buckets
        found = assert_same(model, batch, limits, options, whole_search)
        lengths |= {len(hypothesis.tokens) for n_best in found for hypothesis in n_best}
    assert len(lengths) > 8 and max(lengths) > 10, "hypotheses of many lengths"


@pytest.mark.slow
def test_static_caches_serve_searches_with_other_options():
    generator, model = np.random.default_rng(3), peaked_model(3)
    whole_search = static_search(model)
    for options in [OPTIONS[1], OPTIONS[3], OPTIONS[1]]:
        assert_same(model, *batch_of(generator, 5), options, whole_search)


def test_a_search_with_nan_leaves_nothing_in_the_static_caches():
    generator, model = np.random.default_rng(4), peaked_model(4)
    engine = StaticEngine(model, "fp32", torch.device("cpu"))
    position = engine.model.target_positions[3]
    sound = position.clone()
    position.fill_(math.nan)
    with pytest.raises(FloatingPointError):
        search(engine, *batch_of(generator, 6)[0], [20] * 6, OPTIONS[2], whole_search=engine.whole_search)
    position.copy_(sound)
    assert_same(model, *batch_of(generator, 5), OPTIONS[2], engine.whole_search)


def test_an_engine_that_is_no_longer_used_frees_its_memory():
    engine = StaticEngine(peaked_model(5), "fp32", torch.device("cpu"))
    assert_same(engine.model, *batch_of(np.random.default_rng(5), 5), OPTIONS[1], engine.whole_search)
    references = [weakref.ref(each) for each in (engine, engine.model, *engine.buffers.values())]
    gc.disable()
    try:
        del engine
        assert len(references) > 2 and not any(reference() for reference in references), "without garbage collection"
    finally:
        gc.enable()


def test_no_sentences_need_no_search():
    empty = np.zeros(0, np.int64), np.zeros(1, np.int32)
    assert search(peaked_model(1), *empty, [], OPTIONS[0], whole_search=static_search(peaked_model(1))) == []


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
        if isinstance(model, Transformer):
            whole_search = static_search(model)
            for sentences in (50, int(generator.integers(1, 40))):
                assert_same(model, *batch_of(generator, sentences), options, whole_search)


def endless_model(seed):
    """Model that generates `</s>` only at the maximum length."""
    model = peaked_model(seed)
    with torch.no_grad():
        model.output_weight[END_ID] = 0
    return model


def test_sentences_that_are_finished_leave_the_search():
    rows, model = [], endless_model(2)
    step = model.step
    model.step = lambda tokens, state: rows.append(len(tokens)) or step(tokens, state)
    batch, _ = batch_of(np.random.default_rng(1), 12)
    device_search(model)(*batch, [3] * 9 + [3 * CHECK_STEPS] * 3, SearchOptions(2, power_length_penalty(1.0)))
    assert rows == [12] + [24] * (CHECK_STEPS - 1) + [6] * 2 * CHECK_STEPS


def test_sentences_that_are_finished_leave_the_static_caches():
    engine, steps = StaticEngine(endless_model(2), "fp32", torch.device("cpu")), []
    advance = _StaticRun.advance
    with mock.patch.object(_StaticRun, "advance", lambda decoder, length: (
            advance(decoder, length), steps.append(tuple(decoder.bucket)))):
        batch, _ = batch_of(np.random.default_rng(1), 12)
        engine.whole_search(*batch, [3] * 9 + [5 * CHECK_STEPS] * 3, SearchOptions(2, power_length_penalty(1.0)))
    assert steps == ([(16, 16, 32)] * CHECK_STEPS + [(4, 16, 32)] * 3 * CHECK_STEPS + [(4, 16, 64)] * CHECK_STEPS)
    assert {size: each.capacity.positions for size, each in engine.buffers.items()} == {16: 32, 4: 64}


def test_the_search_ends_soon_after_all_sentences_are_finished():
    rows, model = [], peaked_model(2)
    step = model.step
    model.step = lambda tokens, state: rows.append(len(tokens)) or step(tokens, state)
    batch, _ = batch_of(np.random.default_rng(1), 3)
    with torch.no_grad():
        model.output_weight[END_ID] *= 50
    device_search(model)(*batch, [100] * 3, SearchOptions(1, power_length_penalty(1.0)))
    assert len(rows) <= 4 * CHECK_STEPS and len(rows) % CHECK_STEPS == 0
