import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from seq2seq import translator as translator_module
from seq2seq.model.caches import TransformerState
from seq2seq.model.compiled import FEW_ROWS, FEW_TOKENS, CompiledState, CompiledTransformer
from seq2seq.model.inference import Int8Linear, for_inference
from seq2seq.model.kernels import CompilationError, Kernels, Norm, Pointers, library
from seq2seq.search import power_normaliser, search

# Not the sizes of a sentence alone: with more rows and tokens, the products are others.
BEAMS = (1, 3, FEW_ROWS + 1)
CHOICES = [{}, {"pre_norm": True}, {"activation": "gelu"}, {"activation": "silu"}, {"positions": "learned"},
           {"output_bias": True}, {"tied_embeddings": "none"}, {"num_heads": 7}, {"scale_embedding": False}]


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
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
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


@pytest.mark.parametrize("head_size", [7, 64])
def test_a_row_attends_to_its_own_keys_alone(compiled_library, head_size):
    heads, features = 3, 3 * head_size
    query, keys_values = torch.randn(5, features), torch.randn(13, 2 * features)
    past = torch.randint(0, 13, (5, 11), dtype=torch.int32)
    found = Kernels(compiled_library, torch.float32).attend(query, keys_values, heads, past=past)
    keys, values = (part[past].view(5, 11, heads, head_size).transpose(1, 2) for part in keys_values.chunk(2, 1))
    expected = F.scaled_dot_product_attention(query.view(5, heads, 1, head_size), keys, values).flatten(1)
    torch.testing.assert_close(found, expected)


def test_levels_are_those_of_int8_layers(compiled_library):
    rows = torch.randn(5, 17)
    levels, scale = Kernels(compiled_library, torch.float32).quantise(rows)
    assert levels.amax() <= 255 and levels.amin() >= 1
    assert ((levels.float() - 128) * scale[:, None] - rows).abs().max() <= scale.max() / 2 + 1e-6


def test_a_row_with_what_is_no_number_is_no_number(compiled_library):
    rows = torch.randn(3, 37)
    rows[1, 5] = math.nan
    rows[2, 7] = math.inf
    _, scale = Kernels(compiled_library, torch.float32).quantise(rows)
    assert scale.flatten().isnan().tolist() == [False, True, True]


def test_units_that_are_far_below_zero_are_off_and_no_more(make_model, make_batch, compile_model):
    model = make_model(torch.float32, activation="silu")
    with torch.no_grad():
        for layer in [*model.encoder, *model.decoder]:
            layer.feed_forward.inner.bias[3] = -120.0
    model = for_inference(model, "fp32")
    compiled, plain = (logits_of_steps(each, make_batch(), 2) for each in (compile_model(model), model))
    for ours, theirs in zip(compiled, plain, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
def test_products_of_levels_are_those_of_int8_layers(compiled_library):
    layer, rows, kernels = Int8Linear(torch.randn(29, 17), torch.randn(29)), torch.randn(5, 17), Kernels(
        compiled_library, torch.float32)
    levels, scale = kernels.quantise(rows)
    torch.testing.assert_close(kernels.rescale(layer.product(levels), scale, layer.bias), layer(rows))


# Compiling


def test_what_is_compiled_is_kept(compiled_library, monkeypatch):
    directory, calls = compiled_library.parent, []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: calls.append(command) or real(command, **options))
    assert library(directory) == compiled_library and [command[1:] for command in calls] == [["--version"]]
    assert [path.name for path in directory.iterdir()] == [compiled_library.name]


def test_a_library_that_cannot_be_loaded_is_compiled_again(compiled_library, tmp_path):
    place = tmp_path / compiled_library.name
    place.write_bytes(b"")
    assert library(tmp_path) == place and place.stat().st_size > 10_000


@pytest.mark.parametrize("text", [b"\x7fELF rubbish", b"#!/bin/sh\nprintf '\\351: error' >&2; exit 1\n"])
def test_a_compiler_that_cannot_be_run_or_read_is_told(tmp_path, monkeypatch, text):
    broken = tmp_path / "c++"
    broken.write_bytes(text)
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilationError, match="cannot be run|cannot compile the kernels"):
        library(tmp_path / "cache")


def test_without_a_home_it_says_so(compiled_library, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(CompilationError, match="set XDG_CACHE_HOME"):
        library()


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompilationError, match=r"there is no C\+\+ compiler"):
        library(tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'x.cpp:3: error: no such thing' >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilationError, match="broken cannot compile the kernels: x.cpp:3: error: no such thing"):
        library(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_where_nothing_can_be_compiled_it_translates_without(monkeypatch, capsys):
    def fails():
        raise CompilationError("there is no C++ compiler")

    monkeypatch.setattr(translator_module, "library", fails)
    assert not translator_module.kernels_ready()
    assert "translating without compiled kernels: there is no C++ compiler" in capsys.readouterr().err


def test_a_translator_takes_the_kernels_where_there_are_some(make_model, compiled_library, monkeypatch):
    monkeypatch.setattr(translator_module, "library", lambda: compiled_library)
    model = for_inference(make_model(torch.float32), "fp32")
    assert isinstance(translator_module._compiled(model), CompiledTransformer)


def test_a_model_without_kernels_is_left_as_it_is(make_model, capsys):
    model = for_inference(make_model(torch.float32, copy=True), "fp32")
    assert translator_module._compiled(model) is model
    assert "translating without" in capsys.readouterr().err
