import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers

from seq2seq import translator as translator_module
from seq2seq.continuations import continuations
from seq2seq.inference import kernels as kernels_module
from seq2seq.inference.compiled import FEW_ROWS, FEW_TOKENS, STEPS_OF_ROOM, CompiledState, CompiledTransformer
from seq2seq.inference.eager import Int8Linear, for_inference
from seq2seq.inference.kernel_interface import Norm
from seq2seq.inference.kernel_library import CompilationError, library
from seq2seq.inference.kernels import TOKENS_TOGETHER, Kernels, Pointers, linear_of_levels
from seq2seq.model.caches import TransformerState
from seq2seq.search import power_normaliser, search
from seq2seq.translator import Translator

# Not the sizes of a sentence alone: with more rows and tokens, the products are others.
BEAMS = (1, 3, FEW_ROWS + 1)
CHOICES = [{}, {"pre_norm": True}, {"activation": "gelu"}, {"activation": "silu"}, {"positions": "learned"},
           {"output_bias": True}, {"tied_embeddings": "none"}, {"num_heads": 7}, {"scale_embedding": False}]
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture(scope="session")
def compiled_library(tmp_path_factory):
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("there is no C++ compiler here")
    return library(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def compile_model(compiled_library):
    def compiled(model):
        assert CompiledTransformer.serves(model)
        return CompiledTransformer(model, Kernels(compiled_library, model.target_embedding.dtype))

    return compiled


def relative_error(found, expected):
    return ((found.float() - expected).norm() / expected.norm()).item()


def logits_of_steps(model, batch, beam, steps=7):
    """Those of every step, on a way through the beam that changes order and drops a sentence."""
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


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("beam", BEAMS)
def test_compiled_steps_are_those_of_the_model(make_model, make_batch, compile_model, choice, beam):
    model = for_inference(make_model(torch.float32, **choice), "fp32")
    expected = logits_of_steps(model, make_batch(), beam)
    found = logits_of_steps(compile_model(model), make_batch(), beam)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("beam", BEAMS)
@needs_onednn
def test_in_each_precision_the_kernels_are_as_near_to_the_exact_logits(make_model, make_batch, compile_model, precision,
                                                                      beam):
    exact = make_model(torch.float32, d_model=64, feed_forward=128)
    model = for_inference(exact, precision)
    expected = torch.cat(logits_of_steps(exact, make_batch(), beam))
    found = torch.cat(logits_of_steps(compile_model(model), make_batch(), beam))
    uncompiled = relative_error(torch.cat(logits_of_steps(model, make_batch(), beam)), expected)
    assert relative_error(found, expected) < 1.3 * uncompiled + 0.002


def test_many_tokens_are_encoded_as_few_are(make_model, make_batch, compile_model):
    model = for_inference(make_model(torch.float32), "fp32")
    lengths = (11, 7, 13, 5, 17, 2, 19, 3, 11)
    assert sum(lengths) > FEW_TOKENS
    batch = make_batch(lengths, lengths)
    for ours, theirs in zip(logits_of_steps(compile_model(model), batch, 2), logits_of_steps(model, batch, 2),
                            strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


def test_two_ways_go_on_from_one_state(make_model, make_batch, compile_model):
    model, batch = compile_model(for_inference(make_model(torch.float32), "fp32")), make_batch()
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    sentences = len(batch.source_offsets) - 1
    _, state = model.step(torch.zeros(sentences, dtype=torch.int64), state)
    here, there = torch.full((sentences,), 5), torch.full((sentences,), 7)
    _, first = model.step(here, state)
    _, second = model.step(there, state)
    after_first, after_second = model.step(here, first)[0], model.step(here, second)[0]
    assert (after_first - after_second).abs().max() > 1e-3
    torch.testing.assert_close(model.step(here, model.step(here, state)[1])[0], after_first)


def test_a_cache_that_is_full_grows(make_model, make_batch, compile_model):
    model, batch = for_inference(make_model(torch.float32, max_positions=101), "fp32"), make_batch()
    compiled = compile_model(model)
    for ours, theirs in zip(logits_of_steps(compiled, batch, 3, 67), logits_of_steps(model, batch, 3, 67), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-5)


def test_what_is_part_of_no_hypothesis_any_more_leaves_the_cache(make_model, make_batch, compile_model):
    model, batch = for_inference(make_model(torch.float32, max_positions=101), "fp32"), make_batch()
    both = [compile_model(model), model]
    states = [each.start(batch.source, batch.source_offsets, batch.longest_source) for each in both]
    sentences, steps = torch.arange(4)[:, None].expand(-1, 3), 71
    states = [state.select(sentences) for state in states]
    for step in range(steps):
        logits, states = zip(*(each.step(torch.arange(12) + step % 5, state)
                               for each, state in zip(both, states, strict=True)), strict=True)
        states = [state.select(3 * sentences) for state in states]              # all go on from the first of them
        torch.testing.assert_close(*logits, rtol=1e-5, atol=5e-5)
    # A row for each sentence and step, and room for the steps to come; not one for each hypothesis and step.
    assert states[0].cache.keys_values.shape[1] <= 4 * steps + 12 * (STEPS_OF_ROOM + 1)


def test_search_finds_the_same(make_model, make_batch, compile_model):
    model, batch = for_inference(make_model(torch.float32), "fp32"), make_batch()
    options = {"beam_size": 3, "max_lengths": [17] * 4, "normaliser": power_normaliser(1.0), "n_best": 3}
    source = batch.source, batch.source_offsets, batch.longest_source
    for ours, theirs in zip(search(compile_model(model), *source, **options), search(model, *source, **options),
                            strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-5)


def test_attention_is_kept_by_the_model_itself(make_model, make_batch, compile_model):
    model, batch = compile_model(for_inference(make_model(torch.float32), "fp32")), make_batch()
    source = batch.source, batch.source_offsets, batch.longest_source
    assert isinstance(model.start(*source), CompiledState)
    state = model.start(*source, keep_attention=True)
    assert isinstance(state, TransformerState)
    _, state = model.step(torch.zeros(4, dtype=torch.int64), state)
    assert state.attention.shape == (4, batch.longest_source)


def test_a_sentence_beyond_the_last_position_is_refused_as_ever(make_model, make_batch, compile_model):
    model, batch = compile_model(for_inference(make_model(torch.float32, max_positions=7), "fp32")), make_batch()
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    with pytest.raises(ValueError, match="this model has 7 positions"):
        model.step(torch.zeros(4, dtype=torch.int64), replace(state, position=7))
    with pytest.raises(ValueError, match="this model has 7 positions"):
        model.start(torch.zeros(11, dtype=torch.int64), torch.tensor([0, 11], dtype=torch.int32), 11)


@pytest.mark.parametrize("unusual", [{"window": 3}, {"copy": True}, {"score": "additive"}, {"normalize": "relu"},
                                     {"hard": True}], ids=str)
def test_there_are_no_kernels_for_unusual_models(make_model, unusual):
    assert not CompiledTransformer.serves(for_inference(make_model(torch.float32, **unusual), "fp32"))


# The kernels themselves


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_and_norm_are_torchs(compiled_library, dtype):
    hidden, output = torch.randn(5, 17).to(dtype), torch.randn(5, 17).to(dtype)
    gain, shift, pointers = torch.randn(17), torch.randn(17), Pointers()
    norm = Norm(pointers.of(gain), pointers.of(shift), 1e-5)
    total, normed = Kernels(compiled_library, dtype).add_and_norm(hidden, output, norm)
    assert torch.equal(total, hidden + output)
    torch.testing.assert_close(normed, F.layer_norm(total.float(), (17,), gain, shift).to(dtype), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("head_size", [7, 32, 64])
def test_a_row_attends_to_its_own_keys_alone(compiled_library, head_size):
    heads, features = 3, 3 * head_size
    query, keys_values = torch.randn(5, features), torch.randn(13, 2 * features)
    past = torch.randint(0, 13, (5, 11), dtype=torch.int32)
    found = Kernels(compiled_library, torch.float32).attend(query, keys_values, heads, past=past.numpy())
    keys, values = (part[past].view(5, 11, heads, head_size).transpose(1, 2) for part in keys_values.chunk(2, 1))
    expected = F.scaled_dot_product_attention(query.view(5, heads, 1, head_size), keys, values).flatten(1)
    torch.testing.assert_close(found, expected)


@pytest.fixture
def multiply(compiled_library):
    """layer, rows -> their product by the kernels."""
    def product(layer, rows):
        pointers = Pointers()
        return Kernels(compiled_library, rows.dtype).product(linear_of_levels(pointers, layer), rows)

    return product


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 64), (5, 17, 29), (7, 256, 193), (211, 12, 70)])
def test_products_of_levels_are_those_of_int8_layers(multiply, dtype, rows, inputs, outputs):
    layer, hidden = Int8Linear(torch.randn(outputs, inputs), torch.randn(outputs)), torch.randn(rows, inputs).to(dtype)
    found, expected = multiply(layer, hidden), layer(hidden.float())
    # Halves are rounded to another level now and then.
    assert (found - expected).abs().max() < 0.02 * inputs ** 0.5 and relative_error(found, expected) < 2e-3


@needs_onednn
def test_a_row_with_what_is_no_number_gives_none_and_spoils_no_other(multiply):
    layer, rows = Int8Linear(torch.randn(70, 37), None), torch.randn(3, 37)
    whole = multiply(layer, rows)
    rows[1, 5], rows[2, 7] = math.nan, math.inf
    found = multiply(layer, rows)
    assert torch.equal(found[0], whole[0]) and found[1:].isnan().all()


@needs_onednn
def test_sizes_beyond_what_is_done_together_give_the_same(make_model, make_batch, compile_model):
    model = for_inference(make_model(torch.float32, d_model=64, feed_forward=128, max_positions=31), "int8")
    lengths = tuple(range(1, 29)) * 4
    assert sum(lengths) > 10 * TOKENS_TOGETHER and 3 * len(lengths) > 300
    batch = make_batch(lengths, lengths)
    found, expected = (torch.cat(logits_of_steps(each, batch, 3)) for each in (compile_model(model), model))
    assert relative_error(found, expected) < 0.02


@needs_onednn
def test_weights_are_laid_out_once(make_model, compile_model):
    model = for_inference(make_model(torch.float32, d_model=64), "int8")
    panels = [each for each in compile_model(model).pointers.kept if each.dtype == torch.int8]
    assert len(panels) == sum(isinstance(layer, Int8Linear) for layer in model.modules()) > 10


@needs_onednn
def test_weights_that_are_no_numbers_are_noticed(make_model, make_batch, compile_model):
    model = make_model(torch.float32, d_model=64)
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight[3, 5] = math.nan
    compiled, batch = compile_model(for_inference(model, "int8")), make_batch()
    with pytest.raises(FloatingPointError, match="not numbers"):
        search(compiled, batch.source, batch.source_offsets, batch.longest_source, beam_size=3, max_lengths=[7] * 4,
               normaliser=power_normaliser(1.0), choose=compiled.kernels.choose)


# The choice of continuations


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("vocab_size", [64, 100, 1000])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_the_kernels_choose_what_search_chooses(compiled_library, vocab_size, beam, normalised):
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(17 * beam, vocab_size, generator=generator)
    totals = -torch.rand(17, 2 * beam, generator=generator).numpy()[:, :beam]   # not in one piece, as in search
    totals[5, beam - 1] = -math.inf
    must_end = np.arange(17) % 3 == 1
    rules = torch.tensor([0, 1, 7, 33]), must_end, 2 * beam, normalised
    found = Kernels(compiled_library, torch.float32).choose(logits.clone(), totals, *rules)
    expected = continuations(logits.clone(), totals, *rules)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    possible = expected[0] > -math.inf
    assert (possible[must_end].sum(1) == beam).all() and possible[~must_end].all() == (beam > 1)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert (ours[possible] == theirs[possible]).all()


def test_of_fewer_continuations_than_asked_for_the_rest_is_hopeless(compiled_library):
    totals, beams, ids = Kernels(compiled_library, torch.float32).choose(
        torch.zeros(2, 5), np.zeros((1, 2), np.float32), torch.tensor([0, 1]), np.array([False]), 11, False)
    assert totals[0] == pytest.approx([-math.log(5)] * 6 + [-math.inf] * 5)
    assert sorted(zip(beams[0, :6], ids[0, :6], strict=True)) == [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("logits", [torch.empty(3, 7, device="meta"), torch.zeros(3, 7, dtype=torch.float64)])
def test_what_lies_elsewhere_or_is_no_fp32_is_chosen_as_without_kernels(compiled_library, monkeypatch, logits):
    asked = (logits, np.zeros((1, 3), np.float32), torch.tensor([0]), None, 2, True)
    monkeypatch.setattr(kernels_module, "continuations", lambda *given: given)
    assert Kernels(compiled_library, torch.float32).choose(*asked) == asked


def test_logits_that_are_no_numbers_leave_nothing_to_choose(compiled_library):
    logits = torch.full((1, 70), math.nan)
    totals, _, _ = Kernels(compiled_library, torch.float32).choose(logits, np.zeros((1, 1), np.float32),
                                                                   torch.tensor([0]), np.array([False]), 2, False)
    assert not (totals > -math.inf).any()


def test_units_that_are_far_below_zero_are_off_and_no_more(make_model, make_batch, compile_model):
    model = make_model(torch.float32, activation="silu")
    with torch.no_grad():
        for layer in [*model.encoder, *model.decoder]:
            layer.feed_forward.inner.bias[3] = -120.0
    model = for_inference(model, "fp32")
    compiled, plain = (logits_of_steps(each, make_batch(), 2) for each in (compile_model(model), model))
    for ours, theirs in zip(compiled, plain, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


# In a translator


def test_where_nothing_can_be_compiled_it_translates_without(monkeypatch, capsys):
    def fails():
        raise CompilationError("there is no C++ compiler")

    monkeypatch.setattr(translator_module, "library", fails)
    assert not translator_module.kernels_ready()
    assert "translating without compiled kernels: there is no C++ compiler" in capsys.readouterr().err


def test_a_translator_takes_the_kernels_where_there_are_some(make_model, compiled_library, monkeypatch):
    monkeypatch.setattr(translator_module, "library", lambda: compiled_library)
    model = for_inference(make_model(torch.float32), "fp32")
    assert isinstance(translator_module._compiled(model, translator_module.kernels_ready()), CompiledTransformer)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_onednn)])
def test_a_translator_translates_alike_with_kernels(compiled_library, monkeypatch, tmp_path, precision):
    monkeypatch.setattr(translator_module, "library", lambda: compiled_library)
    text = recipe_text(283, "d_model: 64, encoder_layers: 1, decoder_layers: 2, num_heads: 2, feed_forward: 64",
                       "beam_size: 3, max_length_ratio: 1.0, max_length_offset: 5, safety_net: false")
    bundle = save_random_model(tmp_path / "model", text, trained_tokenizers(text), seed=5, noise=0.1)
    plain, compiled = (Translator.load(bundle, "cpu", precision, compile=compile) for compile in (False, True))
    assert compiled.round_sizes == (precision == "fp32" or not compiled.model.kernels.multiplies_bytes)
    assert isinstance(compiled.model, CompiledTransformer) and compiled.choose.__func__ is Kernels.choose
    for options in ({}, {"beam_size": 1}, {"n_best": 3}, {"no_repeat_ngram": 1}, {"sampling": True}):
        both = (each.translate(GERMAN, **options) for each in (compiled, plain))
        for found, expected in zip(*both, strict=True):
            if precision == "fp32":
                assert [one.text for one in found] == [one.text for one in expected]
            assert found[0].score == pytest.approx(expected[0].score, abs=1e-4 if precision == "fp32" else 0.2)


def test_a_model_without_kernels_is_left_as_it_is(make_model, capsys):
    model = for_inference(make_model(torch.float32, copy=True), "fp32")
    assert translator_module._compiled(model, Path("kernels.so")) is model
    assert "translating without" in capsys.readouterr().err
