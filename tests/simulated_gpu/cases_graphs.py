"""The search of the static engine with CUDA graphs: the same hypotheses as by the search on the host of a CPU."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lookup import on_host
from simulation import SimulatedGPU

from seq2seq.inference.device_search import CHECK_STEPS, Beams
from seq2seq.inference.static import Bucket, StaticEngine
from seq2seq.model import build_transformer
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID

VOCAB_SIZE = 90
# Numbers of sentences and maximum lengths of searches.
SEARCHES = [(11, 40), (1, 70), (5, 20), (11, 40)]


def random_model(seed, **options):
    """Random model in fp64 with hypotheses of many lengths."""
    torch.manual_seed(seed)
    model = build_transformer(source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, d_model=16, encoder_layers=1,
                              decoder_layers=2, num_heads=2, feed_forward=24, tied_embeddings="none", **options)
    torch.nn.init.normal_(model.output_weight, std=0.6)
    with torch.no_grad():
        model.output_weight[END_ID] *= 1.5
    return model.double().eval()


def searches(model, options, engine=None, device="cpu", sizes=SEARCHES):
    """Return the hypotheses of some searches; with an engine, by its own search."""
    generator, found = np.random.default_rng(1), []
    for sentences, longest in sizes:
        lengths = generator.integers(1, 20, sentences)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
        source = generator.integers(3, VOCAB_SIZE, lengths.sum())
        limits = [longest, *generator.integers(1, longest, sentences - 1).tolist()]
        n_best = search(engine or on_host(model), source, offsets, limits, options,
                        whole_search=engine and engine.whole_search)
        found.append([[(each.tokens, pytest.approx(each.log_probability, rel=1e-12)) for each in hypotheses]
                      for hypotheses in n_best])
    return found


def options_of(beam_size):
    return SearchOptions(beam_size, power_length_penalty(0.6), n_best=beam_size, banned_ids=[5, 7])


def on_gpu(model):
    return StaticEngine(copy.deepcopy(model).to("cuda"), "fp32", torch.device("cuda"))


@pytest.mark.parametrize(("beam_size", "options"), [
    (1, {}), (3, {"window": 6, "pre_norm": True, "positions": "learned"}),
    *(pytest.param(beam_size, options, marks=pytest.mark.slow) for beam_size, options in [
        (2, {"score": "additive", "activation": "gelu"}), (5, {"normalize": "relu"}), (12, {"selection": "hard"})])])
def test_graphs_find_what_the_search_on_the_host_finds(beam_size, options):
    model = random_model(beam_size, **options)
    expected = searches(model, options_of(beam_size))
    with SimulatedGPU() as gpu:
        engine = on_gpu(model)
        gpu.record.clear()
        assert searches(model, options_of(beam_size), engine, "cuda") == expected
        graphs = {bucket: graph for buffers in engine.buffers.values() for bucket, graph in buffers.graphs.items()}
        launches = gpu.record.operators["graph"]
    assert all(graphs.values()) and Bucket(16, 32, 32) in graphs
    assert {bucket.sentences for bucket in graphs} >= {16, 8, 1}
    assert {bucket.positions for bucket in graphs} >= {32, 64}
    # All steps of a bucket are replays, except for its first one.
    assert launches >= sum(graph.replays for graph in graphs.values()) > 60


@pytest.mark.slow
def test_a_bucket_is_captured_once(gpu):
    engine, made = on_gpu(random_model(1)), []
    capture = engine.cuda_graphs._capture
    engine.cuda_graphs._capture = lambda function: made.append(function) or capture(function)
    counts = []
    for _ in range(3):
        searches(None, options_of(2), engine, "cuda")
        counts.append(len(made))
    # In the second round, graphs of buffers that were replaced by larger ones are captured again.
    assert counts[0] < counts[1] == counts[2]
    assert len({(id(function.func.__self__), function.args) for function in made}) == len(made)


def test_after_a_failed_capture_steps_run_without_graphs(monkeypatch, capsys):
    model, failing = random_model(2), SimpleNamespace(calls=0)
    expected, advance = searches(model, options_of(3), sizes=SEARCHES[2:3]), Beams.advance

    def waiting(beams, *arguments, **options):
        rows = advance(beams, *arguments, **options)
        failing.calls += 1
        assert rows.max().item() < beams.totals.numel()                         # the host waits, after all operators
        return rows

    monkeypatch.setattr(Beams, "advance", waiting)
    with SimulatedGPU() as gpu:
        engine = on_gpu(model)
        assert searches(model, options_of(3), engine, "cuda", SEARCHES[2:3]) == expected
        assert not gpu.record.operators["graph"] and failing.calls > CHECK_STEPS
        assert not engine.cuda_graphs.enabled
    told = capsys.readouterr().err
    assert told.count("decoding without CUDA graphs, because a step could not be captured: CUDA error") == 1
