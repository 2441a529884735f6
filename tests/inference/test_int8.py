"""The int8 engine, compared with the model in fp32, and in a translator. test_kernels.py tests the single kernels."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers
from seq2seq.search.topk import topk as reference_topk
from torch import nn

from seq2seq.errors import RequestError
from seq2seq.inference import engines, int8
from seq2seq.inference.eager import fold_query_preparation, quantised
from seq2seq.inference.engines import load_engine
from seq2seq.inference.int8 import ENCODER_BLOCK_TOKENS, GROWTH_STEPS, Int8Engine, Int8State
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool

CPU = torch.device("cpu")
WIDE = {"d_model": 64, "feed_forward": 128}
CHOICES = [{}, {"pre_norm": True}, {"activation": "gelu"}, {"activation": "silu"}, {"positions": "learned"},
           {"output_bias": True}, {"tied_embeddings": "none"}, {"tied_decoder_layers": True}, {"num_heads": 8},
           {"scale_embedding": False}, {"score": "dot"}, {"score": "bilinear"}]
QUICK = [({}, 1), ({}, 3), ({"pre_norm": True}, 3), ({"score": "bilinear"}, 3)]


@pytest.fixture
def load(libraries):
    """Function that returns the int8 engine of a model."""
    def loaded(model):
        engine = load_engine(model, "int8", "cpu")
        assert isinstance(engine, Int8Engine)
        return engine

    return loaded


class BriefKeysAndValues(nn.Module):
    """Projection whose keys and values are rounded to bf16; the queries, which precede them, are not."""

    def __init__(self, project, queries):
        super().__init__()
        self.project, self.queries = project, queries

    def forward(self, hidden):
        projected = self.project(hidden)
        projected[:, self.queries :] = projected[:, self.queries :].bfloat16()
        return projected


class Int8Linear(nn.Module):
    """`nn.Linear` with weights and inputs in int8. Sums of products are exact on every CPU, because they are fp64."""

    def __init__(self, weight, bias):
        super().__init__()
        self.levels, self.scale = quantised(weight.detach().float())
        self.bias = 0 if bias is None else bias.detach().float()

    def forward(self, rows):
        scale = rows.abs().amax(-1, keepdim=True).float().clamp_(min=1e-12).div_(127)
        levels = (rows / scale + 0.5).floor()
        return (levels.double() @ self.levels.double().T).float() * self.scale * scale + self.bias


def rounded(model):
    """Return the PyTorch model with the rounding of the kernels: weights and inputs of products in int8, keys and
    values in bf16."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, SelfAttention | CrossAttention):
            fold_query_preparation(module)
    for module in list(copied.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, Int8Linear(child.weight, child.bias))
    for module in list(copied.modules()):
        if isinstance(module, SelfAttention):
            module.query_key_value = BriefKeysAndValues(module.query_key_value, copied.d_model)
        if isinstance(module, CrossAttention):
            module.key_value = BriefKeysAndValues(module.key_value, 0)
    copied.output_projection = Int8Linear(copied.output_weight, copied.output_bias)
    return copied


def relative_error(found, expected):
    return ((found.float() - expected).norm() / expected.norm()).item()


def logits_of_steps(model, batch, beam, steps=7):
    """Return the logits of every step of a fixed search that reorders the beam and drops a sentence."""
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    sentences, collected = len(batch.source_offsets) - 1, []
    tokens = torch.zeros(sentences, dtype=torch.int64)
    for step in range(steps):
        logits, state = model.step(tokens, state)
        collected.append(logits)
        rows = torch.arange(len(tokens)).view(sentences, -1)
        if step == 0:
            rows = rows.expand(sentences, beam)
        elif step == 2:
            rows = rows.flip(1)
        elif step == 4:
            rows, sentences = rows[[0, *range(2, sentences)]] if sentences > 2 else rows, max(sentences - 1, 2)
        if step in (0, 2, 4):
            state, sentences = state.select(rows.contiguous()), len(rows)
        tokens = torch.arange(rows.numel()) * 5 % 19 + 3 + step % 2
    return collected


@pytest.mark.parametrize(("choice", "beam"), [
    pytest.param(choice, beam, marks=() if (choice, beam) in QUICK else pytest.mark.slow)
    for choice in CHOICES for beam in (1, 3)], ids=str)
def test_int8_steps_equal_those_of_the_model_with_int8_products(make_model, make_batch, load, choice, beam):
    of_rows, of_models = [], []
    for seed in range(4):
        model = make_model(torch.float32, seed, **(WIDE | choice))
        found, expected = (torch.cat(logits_of_steps(each, make_batch(), beam))
                           for each in (load(model), rounded(model)))
        of_rows += map(relative_error, found, expected)
        of_models.append(relative_error(found, expected))
    # A number between two levels may fall on either, and the sublayers behind it see that: in some rows, never in all.
    assert np.mean(np.array(of_rows) < 1e-5) > 0.2
    assert max(of_models) < 0.05


def test_sizes_beyond_those_computed_together_give_the_same(make_model, make_batch, load):
    model = make_model(torch.float32, **WIDE, max_positions=31)
    lengths = tuple(range(1, 29)) * 4
    assert sum(lengths) > 10 * ENCODER_BLOCK_TOKENS and 3 * len(lengths) > 300
    batch = make_batch(lengths, lengths)
    found, expected = (torch.cat(logits_of_steps(each, batch, 3)) for each in (load(model), rounded(model)))
    assert relative_error(found, expected) < 0.02


def test_a_sentence_is_the_same_alone_and_among_others(make_model, make_batch, load):
    engine, whole = load(make_model(torch.float32, **WIDE)), make_batch()
    together, _ = engine.step(torch.full((4,), 7), engine.start(whole.source, whole.source_offsets,
                                                                whole.longest_source))
    for number, (begin, end) in enumerate(zip(whole.source_offsets[:-1], whole.source_offsets[1:], strict=True)):
        state = engine.start(whole.source[begin:end], torch.tensor([0, end - begin], dtype=torch.int32),
                             int(end - begin))
        assert torch.equal(engine.step(torch.full((1,), 7), state)[0][0], together[number])


def test_two_continuations_of_one_state_are_independent(make_model, make_batch, load):
    engine, batch = load(make_model(torch.float32)), make_batch()
    state = engine.start(batch.source, batch.source_offsets, batch.longest_source)
    sentences = len(batch.source_offsets) - 1
    _, state = engine.step(torch.zeros(sentences, dtype=torch.int64), state)
    here, there = torch.full((sentences,), 5), torch.full((sentences,), 7)
    _, first = engine.step(here, state)
    _, second = engine.step(there, state)
    after_first, after_second = engine.step(here, first)[0], engine.step(here, second)[0]
    assert (after_first - after_second).abs().max() > 1e-3
    assert torch.equal(engine.step(here, engine.step(here, state)[1])[0], after_first)


def test_a_cache_that_is_full_grows(make_model, make_batch, load):
    model, batch = make_model(torch.float32, **WIDE, max_positions=101), make_batch()
    for ours, theirs in zip(logits_of_steps(load(model), batch, 3, 67), logits_of_steps(rounded(model), batch, 3, 67),
                            strict=True):
        assert relative_error(ours, theirs) < 0.02


def test_cache_rows_without_hypotheses_are_removed(make_model, make_batch, load):
    model, batch = make_model(torch.float32, **WIDE, max_positions=101), make_batch()
    both = [load(model), rounded(model)]
    states = [each.start(batch.source, batch.source_offsets, batch.longest_source) for each in both]
    sentences, steps = torch.arange(4)[:, None].expand(-1, 3), 71
    states = [state.select(sentences) for state in states]
    for step in range(steps):
        logits, states = zip(*(each.step(torch.arange(12) + step % 5, state)
                               for each, state in zip(both, states, strict=True)), strict=True)
        states = [state.select(3 * sentences) for state in states]              # all go on from the first of them
        assert relative_error(*logits) < 0.02
    # A row for each sentence and step, and room for the steps to come; not one for each hypothesis and step.
    assert states[0].cache.keys_values.shape[1] <= 4 * steps + 12 * (GROWTH_STEPS + 1)


def test_requested_attention_is_computed_by_the_pytorch_model(make_model, make_batch, load):
    engine, batch = load(make_model(torch.float32)), make_batch()
    source = batch.source, batch.source_offsets, batch.longest_source
    assert isinstance(engine.start(*source), Int8State)
    state = engine.start(*source, keep_attention=True)
    assert not isinstance(state, Int8State)
    _, state = engine.step(torch.zeros(4, dtype=torch.int64), state)
    assert state.attention.shape == (4, batch.longest_source)


def test_a_sentence_beyond_the_last_position_is_refused(make_model, make_batch, load):
    engine, batch = load(make_model(torch.float32, max_positions=7)), make_batch()
    state = engine.start(batch.source, batch.source_offsets, batch.longest_source)
    with pytest.raises(ValueError, match="this model supports at most 7"):
        engine.step(torch.zeros(4, dtype=torch.int64), replace(state, position=7))
    with pytest.raises(ValueError, match="this model supports at most 7"):
        engine.start(torch.zeros(11, dtype=torch.int64), torch.tensor([0, 11], dtype=torch.int32), 11)


@pytest.mark.parametrize(("unusual", "told"), [
    ({"window": 3}, "has an attention window"), ({"copy": True}, "copies from the source"),
    ({"score": "additive"}, "has additive attention scores"), ({"normalize": "relu"}, "relu"),
    ({"selection": "hard"}, "hard attention"),
], ids=str)
def test_an_unusual_model_runs_as_auto_and_says_so_once(make_model, load, capsys, unusual, told):
    engines._say_once.cache_clear()
    made = [load_engine(make_model(torch.float32, **unusual), "int8", "cpu") for _ in range(2)]
    assert {engine.precision for engine in made} == {load_engine(make_model(torch.float32), "auto", "cpu").precision}
    assert capsys.readouterr().err.count(told) == 1


@pytest.mark.parametrize(("beam_size", "n_best", "patience"), [(1, 1, 1.0), (3, 1, 1.0), (4, 4, 2.0)])
def test_the_search_in_the_kernels_equals_the_search_in_python(make_model, make_batch, load, beam_size, n_best,
                                                                       patience):
    engine, batch = load(make_model(torch.float32, **WIDE, max_positions=61)), make_batch()
    found, expected = (search(engine, batch.source, batch.source_offsets, batch.longest_source, [1, 53, 7, 31],
                              SearchOptions(beam_size, power_length_penalty(0.6), n_best=n_best, patience=patience,
                                            banned_ids=[0, 1, 7]), engine.topk, whole)
                       for whole in (engine.whole_search, None))
    assert found == expected and max(len(each[0].tokens) for each in found) > 20


@pytest.mark.parametrize("hook", [{"logits_processors": [lambda hypotheses, logits: logits]},
                                  {"skip_log_softmax": True}, {"groups": 2},
                                  {"max_lengths": [12, 7, 7, 7]}], ids=lambda hook: next(iter(hook)))
def test_hooks_that_change_a_step_disable_the_search_in_the_kernels(make_model, make_batch, load, hook):
    engine, batch = load(make_model(torch.float32, max_positions=9)), make_batch()
    max_lengths, hooks = hook.get("max_lengths", [7] * 4), {key: hook[key] for key in hook if key != "max_lengths"}
    whole = lambda *source, **given: pytest.fail("the engine searched")         # noqa: E731
    try:
        search(engine, batch.source, batch.source_offsets, batch.longest_source, max_lengths,
               SearchOptions(2, power_length_penalty(1.0), **hooks), whole_search=whole)
    except ValueError as error:
        assert "max_lengths" in hook and "this model supports at most 9" in str(error)


def test_nan_weights_are_detected(make_model, make_batch, load):
    model = make_model(torch.float32, d_model=64)
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight[3, 5] = math.nan
    engine, batch = load(model), make_batch()
    with pytest.raises(FloatingPointError, match="not numbers"):
        search(engine, batch.source, batch.source_offsets, batch.longest_source, [7] * 4,
               SearchOptions(3, power_length_penalty(1.0)), engine.topk, engine.whole_search)


def test_silu_of_inputs_far_below_zero_is_zero(make_model, make_batch, load):
    model = make_model(torch.float32, **WIDE, activation="silu")
    with torch.no_grad():
        for layer in [*model.encoder, *model.decoder]:
            layer.feed_forward.inner.bias[3] = -120.0
    for ours, theirs in zip(*(logits_of_steps(each, make_batch(), 2) for each in (load(model), rounded(model))),
                            strict=True):
        assert relative_error(ours, theirs) < 0.02


# The choice of continuations


@pytest.fixture
def topk(make_model, load):
    return load(make_model(torch.float32)).topk


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("vocab_size", [64, 100, 1000])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_top_k_of_the_kernels_equals_that_of_search(topk, vocab_size, beam, normalised):
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(17 * beam, vocab_size, generator=generator)
    totals = -torch.rand(17, 2 * beam, generator=generator)[:, :beam]   # not in one piece, as in search
    totals[5, beam - 1] = -math.inf
    must_end = torch.arange(17) % 3 == 1
    rules = torch.tensor([0, 1, 7, 33]), must_end, 2 * beam, normalised
    found, expected = topk(logits.clone(), totals, *rules), reference_topk(logits.clone(), totals, *rules)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    possible = expected[0] > -math.inf
    assert (possible[must_end].sum(1) == beam).all() and possible[~must_end].all() == (beam > 1)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert (ours[possible] == theirs[possible]).all()


def test_missing_top_k_entries_have_score_minus_infinity(topk):
    totals, beams, ids = topk(torch.zeros(2, 5), torch.zeros(1, 2), torch.tensor([0, 1]),
                              torch.tensor([False]), 11, False)
    assert totals[0] == pytest.approx([-math.log(5)] * 6 + [-math.inf] * 5)
    pairs = zip(beams[0, :6].tolist(), ids[0, :6].tolist(), strict=True)
    assert sorted(pairs) == [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("logits", [torch.empty(3, 7, device="meta"), torch.zeros(3, 7, dtype=torch.float64)])
def test_tensors_that_are_not_fp32_on_the_cpu_use_the_python_top_k(topk, monkeypatch, logits):
    asked = (logits, torch.zeros(1, 3), torch.tensor([0]), None, 2, True)
    monkeypatch.setattr(int8, "reference_topk", lambda *given: given)
    assert topk(*asked) == asked


def test_nan_logits_give_no_candidates(topk):
    totals, _, _ = topk(torch.full((1, 70), math.nan), torch.zeros(1, 1), torch.tensor([0]),
                        torch.tensor([False]), 2, False)
    assert not (totals > -math.inf).any()


# In a translator


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    text = recipe_text(283, "d_model: 64, encoder_layers: 1, decoder_layers: 2, num_heads: 2, feed_forward: 64",
                       "beam_size: 3, max_length_ratio: 1.0, max_length_offset: 5, safety_net: false")
    return save_random_model(tmp_path_factory.mktemp("int8") / "model", text, trained_tokenizers(text), seed=5,
                             noise=0.1)


OPTIONS = [{}, {"beam_size": 1}, {"n_best": 3}, {"no_repeat_ngram": 1}, {"coverage_penalty": 0.2},
           {"word_confidence": True}]


@pytest.mark.parametrize("options", [
    pytest.param(options, marks=() if options in ({}, {"n_best": 3}) else pytest.mark.slow) for options in OPTIONS],
    ids=str)
def test_a_translator_in_int8_finds_translations_as_probable(load, bundle, options):
    exact, fast = (Translator.load(bundle, "cpu", precision) for precision in ("fp32", "int8"))
    assert fast.precision == "int8" and isinstance(fast.engine, Int8Engine)
    for found, expected in zip(*(each.translate(GERMAN, **options) for each in (fast, exact)), strict=True):
        assert found[0].score == pytest.approx(expected[0].score, abs=0.2)


@pytest.mark.parametrize("options", [{}, {"word_confidence": True}, {"word_confidence": True, "n_best": 2}], ids=str)
def test_in_int8_a_line_is_the_same_alone_and_among_others(load, bundle, options):
    translator = Translator.load(bundle, "cpu", "int8")
    together = translator.translate(GERMAN, **options)
    assert [translator.translate([line], **options)[0] for line in GERMAN] == together


def test_confidence_in_int8_is_that_of_fp32(load, bundle):
    exact, fast = (Translator.load(bundle, "cpu", precision) for precision in ("fp32", "int8"))
    pairs = [(one, other) for found, expected in zip(*(
        each.translate(GERMAN, word_confidence=True, n_best=3) for each in (fast, exact)), strict=True)
        for one in found for other in expected if one.text == other.text]
    assert len(pairs) > len(GERMAN)
    for one, other in pairs:
        assert [word.confidence for word in one.words] == pytest.approx([word.confidence for word in other.words],
                                                                        abs=0.05)


@pytest.mark.parametrize("options", [{}, *(pytest.param(options, marks=pytest.mark.slow) for options in (
    {"beam_size": 1}, {"sampling": True, "n_best": 2}, {"safety_net": True}))], ids=str)
def test_workers_in_int8_share_the_model_and_give_what_one_gives(load, bundle, options):
    lines, done = [*GERMAN, "", *GERMAN[::-1]] * 5, []
    expected = Translator.load(bundle, "cpu", "int8").translate(lines, **options)
    with TranslatorPool(bundle, 3, "cpu", "int8") as pool:
        assert pool.shared and pool.precision == "int8"
        found = list(pool.translate_stream(lines, progress=done.append, **options))
    assert found == expected and sum(done) == len(lines)


@pytest.mark.slow
def test_a_line_refused_by_workers_is_named_and_later_requests_work(load, bundle):
    with TranslatorPool(bundle, 2, "cpu", "int8") as pool:
        with pytest.raises(RequestError, match=r"line \d: min_length, prefix or required phrases need"):
            list(pool.translate_stream(GERMAN, min_length=10**6))
        assert len(list(pool.translate_stream(GERMAN))) == len(GERMAN)


def test_given_translations_are_scored_as_in_auto(load, bundle):
    pairs = [(line, line) for line in GERMAN]
    auto, fast = (pair_scores(Translator.load(bundle, "cpu", precision), pairs) for precision in ("auto", "int8"))
    assert auto == fast


def test_without_a_compiler_it_runs_as_auto_and_says_so_once(bundle, monkeypatch, capsys):
    engines._kernels.cache_clear()
    monkeypatch.setattr(engines, "usable_libraries", lambda cpu_flags: [])
    translators = [Translator.load(bundle, "cpu", "int8") for _ in range(2)]
    engines._kernels.cache_clear()
    assert {each.precision for each in translators} == {Translator.load(bundle, "cpu", "auto").precision}
    assert capsys.readouterr().err.count("translating without int8: this package has no kernels") == 1
