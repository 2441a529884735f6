"""The search of the static engine with CUDA graphs: the same hypotheses as by the search on the host of a CPU."""

import copy
import gc
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lookup import on_host
from simulation import SimulatedGPU

from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.engines import torch_engine
from seq2seq.model import build_model, build_transformer
from seq2seq.recipe import validate_model
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID

static = pytest.importorskip("seq2seq.inference.static", exc_type=ImportError)
StaticEngine, Caches, _StaticRun, rounded = static.StaticEngine, static.Caches, static._StaticRun, static.rounded
CHECK_STEPS = static.CHECK_STEPS

pytestmark = pytest.mark.usefixtures("search_kernels")

VOCAB_SIZE = 90
# Numbers of sentences and maximum lengths of searches.
SEARCHES = [(3, 12), (1, 14)]


def random_model(seed, **options):
    """Random model with hypotheses of many lengths."""
    torch.manual_seed(seed)
    model = build_transformer(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, **{
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 1, "feed_forward": 24,
        "tied_embeddings": "none", **options})
    torch.nn.init.normal_(model.output_weight, std=0.6)
    with torch.no_grad():
        model.output_weight[END_ID] *= 1.5
    return model.eval()


def source_of(generator, sentences):
    lengths = generator.integers(1, 20, sentences)
    return (generator.integers(3, VOCAB_SIZE, lengths.sum()),
            np.concatenate([[0], lengths.cumsum()]).astype(np.int32))


def searches(model, options, engine=None, sizes=SEARCHES):
    """Return the hypotheses of some searches; with an engine, by its own search."""
    generator, found = np.random.default_rng(1), []
    for sentences, longest in sizes:
        source = source_of(generator, sentences)
        shortest = 1 if options.first_id is None else 2
        limits = [longest, *generator.integers(shortest, longest, sentences - 1).tolist()]
        n_best = search(engine or on_host(model), *source, limits, options,
                        whole_search=engine and engine.whole_search)
        found.append([[(each.tokens, pytest.approx(each.log_probability, abs=1e-4)) for each in hypotheses]
                      for hypotheses in n_best])
    return found


def options_of(beam_size):
    return SearchOptions(beam_size, power_length_penalty(0.6), n_best=beam_size, banned_ids=[5, 7])


def storage_of(engine):
    (storage,) = engine.storages.values()
    return storage


def on_gpu(model):
    return StaticEngine(copy.deepcopy(model).to("cuda"), "fp32", torch.device("cuda"))


@pytest.mark.parametrize(("beam_size", "options"), [
    (1, {}), (3, {"window": 3, "num_heads": 2, "decoder_layers": 2, "pre_norm": True, "positions": "learned"}),
    *(pytest.param(beam_size, options, marks=pytest.mark.slow) for beam_size, options in [
        (2, {"score": "bilinear", "output_bias": True}), (5, {"scale_embedding": False}), (12, {"window": 2})])])
def test_graphs_find_what_the_search_on_the_host_finds(beam_size, options):
    model = random_model(beam_size, **options)
    expected = searches(model, options_of(beam_size))
    with SimulatedGPU() as gpu:
        engine = on_gpu(model)
        gpu.record.clear()
        assert searches(model, options_of(beam_size), engine) == expected
        graphs, launches = storage_of(engine).graphs, gpu.record.operators["graph"]
    # No graph depends on the lengths of sources or the position.
    assert all(graphs.values()) and {4, 1} <= graphs.keys() <= {4, 2, 1}
    # All steps are replays, except for the first one with each number of sentences.
    assert launches >= sum(graph.replays for graph in graphs.values()) > 12


@pytest.mark.parametrize("beam_size", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_graphs_find_what_begins_with_a_given_token(gpu, beam_size):
    model, options = random_model(beam_size), replace(options_of(beam_size), first_id=11)
    engine = on_gpu(model)
    found = searches(model, options, engine)
    assert found == searches(model, options) and storage_of(engine).graphs
    assert all(tokens[0] == 11 for batch in found for n_best in batch for tokens, _ in n_best)


@pytest.mark.parametrize("beam_size", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_search_that_needs_more_places_copies_the_cache(monkeypatch, beam_size):
    monkeypatch.setattr(static, "MORE_POSITIONS", -18)
    model, grown = random_model(2), []
    expected = searches(model, options_of(beam_size))
    with SimulatedGPU():
        engine = on_gpu(model)
        monkeypatch.setattr(Caches, "add_places", lambda caches, delete, add=Caches.add_places: (
            grown.append(len(storage_of(engine).graphs)), add(caches, delete)))
        assert searches(model, options_of(beam_size), engine) == expected
    assert any(grown), "with graphs that are captured again"


def test_a_cache_that_cannot_grow_stays_as_it_is(gpu):
    class Full(torch.Tensor):
        def new_empty(self, *_):
            raise torch.OutOfMemoryError("full")

    engine = on_gpu(random_model(1))
    caches = engine._storage_for(options_of(2), 1, 1, 8).caches
    cache, caches.history = caches.cache, torch.zeros(8).as_subclass(Full)
    with pytest.raises(torch.OutOfMemoryError):
        caches.add_places(engine.delete_graphs)
    assert caches.cache is cache and caches.sizes == (1, 1, 8)


@pytest.mark.slow
def test_searches_with_other_options_have_another_storage(gpu):
    model = random_model(3)
    engine = on_gpu(model)
    for options in (options_of(3), SearchOptions(3, power_length_penalty(0.6), 3, patience=2.0), options_of(2),
                    SearchOptions(2, power_length_penalty(0.6), 2)):
        before = list(engine.storages.values())
        assert searches(model, options, engine) == searches(model, options)
        assert list(engine.storages.values())[-1] not in before and len(engine.storages) <= static.MAX_STORAGES


def test_searches_with_alternating_beam_sizes_keep_their_graphs(gpu, monkeypatch):
    model, captured = random_model(1), []
    engine, one = on_gpu(model), SEARCHES[:1]
    capture = engine.cuda_graphs._capture
    engine.cuda_graphs._capture = lambda function: captured.append(function) or capture(function)
    for beam_size in (2, 1):                                                    # the larger one needs larger caches
        searches(None, options_of(beam_size), engine, one)
    number = len(captured)
    for beam_size in (2, 1, 2):
        assert searches(model, options_of(beam_size), engine, one) == searches(model, options_of(beam_size), None, one)
    assert len(captured) == number > 1
    monkeypatch.setattr(static, "MAX_STORAGES", 2)
    deleted = [storage.graphs for storage in engine.storages.values()]
    engine._storage_for(options_of(3), 1, 1, 1)
    assert not any(deleted) and len(engine.storages) == 1


@pytest.mark.slow
def test_a_number_of_sentences_is_captured_once(gpu):
    engine, counts, made = on_gpu(random_model(1)), [], []
    capture = engine.cuda_graphs._capture
    engine.cuda_graphs._capture = lambda function: made.append(function) or capture(function)
    for _ in range(3):
        searches(None, options_of(2), engine)
        counts.append(len(made))
    assert len(storage_of(engine).graphs) <= counts[0] and counts[1:] == counts[:1] * 2


@pytest.mark.slow
def test_more_sentences_than_a_power_of_two(gpu):
    model = random_model(4)
    engine = on_gpu(model)
    assert searches(model, options_of(1), engine, [(67, 3)]) == searches(model, options_of(1), None, [(67, 3)])
    assert max(storage_of(engine).graphs) == 96


def test_after_a_failed_capture_steps_run_without_graphs(monkeypatch, capsys):
    model, failing = random_model(2), SimpleNamespace(calls=0)
    expected, advance = searches(model, options_of(3), sizes=SEARCHES[:1]), static.advance

    def waiting(beams, *arguments):
        advance(beams, *arguments)
        failing.calls += 1
        assert beams.finished_count.max().item() >= 0                         # the host waits, after all operators

    monkeypatch.setattr(static, "advance", waiting)
    with SimulatedGPU() as gpu:
        engine = on_gpu(model)
        assert searches(model, options_of(3), engine, SEARCHES[:1]) == expected
        assert not gpu.record.operators["graph"] and failing.calls > CHECK_STEPS
        assert not engine.cuda_graphs.enabled
    told = capsys.readouterr().err
    assert told.count("decoding without CUDA graphs, because a step could not be captured: CUDA error") == 1


def test_a_search_with_nan_leaves_nothing_in_the_cache(gpu):
    model = random_model(4)
    engine = on_gpu(model)
    position = engine.model.target_positions[3]
    sound = position.clone()
    position.fill_(math.nan)
    with pytest.raises(FloatingPointError):
        searches(model, options_of(3), engine, SEARCHES[:1])
    position.copy_(sound)
    assert searches(model, options_of(3), engine, SEARCHES[:1]) == searches(model, options_of(3), None, SEARCHES[:1])


def test_finished_sentences_leave_the_search(monkeypatch, gpu):
    model, steps = random_model(2), []
    with torch.no_grad():
        model.output_weight[END_ID] = 0                                         # `</s>` only at the maximum length
    advance = _StaticRun.advance
    monkeypatch.setattr(_StaticRun, "advance", lambda run, length: (steps.append(run.sentences), advance(run, length)))
    engine = on_gpu(model)
    engine.whole_search(*source_of(np.random.default_rng(1), 5), [3] * 4 + [CHECK_STEPS + 3],
                        SearchOptions(1, power_length_penalty(1.0)))
    assert steps == [8] * CHECK_STEPS + [1] * 3
    assert storage_of(engine).clock.tolist() == [CHECK_STEPS + 3, sum(steps)], "the places of those that stay"


def test_the_search_ends_soon_after_all_sentences_are_finished(monkeypatch, gpu):
    model, steps = random_model(2), []
    with torch.no_grad():
        model.output_weight[END_ID] *= 50
    advance = _StaticRun.advance
    monkeypatch.setattr(_StaticRun, "advance", lambda run, length: (steps.append(length), advance(run, length)))
    found = on_gpu(model).whole_search(*source_of(np.random.default_rng(1), 2), [100] * 2,
                                       SearchOptions(1, power_length_penalty(1.0)))
    assert all(len(hypotheses) == 1 for hypotheses in found)
    assert len(steps) <= 4 * CHECK_STEPS and len(steps) % CHECK_STEPS == 0


@pytest.mark.parametrize(("beam_size", "max_maxima"), [(17, 16_384), (3, 2)])
def test_larger_beams_and_vocabularies_are_searched_on_the_host(gpu, monkeypatch, beam_size, max_maxima):
    monkeypatch.setattr("seq2seq.model.kernels.select_top.MAX_MAXIMA", max_maxima)
    model, options = random_model(5), options_of(beam_size)
    engine = on_gpu(model)
    assert searches(model, options, engine, [(3, 9)]) == searches(model, options, None, [(3, 9)])
    assert not engine.storages


def test_an_engine_that_is_no_longer_used_frees_its_memory(gpu):
    engine = on_gpu(random_model(5))
    searches(None, options_of(2), engine, SEARCHES[:1])
    references = [weakref.ref(each) for each in (engine, engine.model, engine.caches, storage_of(engine))]
    gc.disable()
    try:
        del engine
        assert not any(reference() for reference in references), "without garbage collection"
    finally:
        gc.enable()


@pytest.mark.parametrize("options", [{"score": "additive"}, {"normalize": "relu"}, {"selection": "hard"},
                                     {"copy": True}, {"type": "rnn"}, {"type": "language_model"}, {"d_model": 512}],
                         ids=str)
def test_models_that_the_engine_does_not_serve(gpu, options):
    sizes = {"d_model": 16, "decoder_layers": 1, "num_heads": 2}
    model = build_model(validate_model({**sizes, **options}), VOCAB_SIZE, VOCAB_SIZE)
    assert not isinstance(torch_engine(model, "fp32", "cuda"), StaticEngine)
    assert not StaticEngine.serves(random_model(1).double(), torch.device("cuda"))


def test_old_gpus_search_on_the_host():
    with SimulatedGPU(capability=(7, 5)):
        assert type(torch_engine(random_model(1), "fp32", "cuda")) is EagerEngine
    with SimulatedGPU():
        assert type(torch_engine(random_model(1), "fp32", "cuda")) is StaticEngine


@pytest.mark.parametrize(("number", "found"), [(1, 1), (3, 4), (32, 32), (33, 64), (64, 64), (65, 96), (1310, 1312)])
def test_numbers_of_sentences_are_rounded_up(number, found):
    assert rounded(number) == found
