"""The native engine, compared with the model in PyTorch, and in a translator. test_kernels.py tests the kernels."""

import copy
import ctypes
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_reference import quantised
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers
from sections import native_engine, section_of
from tolerances import fp32_tolerance, relative_error
from torch import nn

from seq2seq.errors import CheckpointError, RequestError
from seq2seq.inference import engines, int8
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.engines import native_obstacle
from seq2seq.inference.int8 import GROWTH_STEPS, NativeEngine, NativeScores
from seq2seq.inference.kernel_library import PANEL
from seq2seq.inference.load_model import stored_weights
from seq2seq.inference.transformer_weights import POSITION_TABLES, expected_shapes, relative_bias
from seq2seq.model import build_model, layers
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.relative_positions import RelativePositions
from seq2seq.recipe import TransformerSection, validate_model
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.search.sampling import uniform_numbers
from seq2seq.search.scores import ArrayScores
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool

WIDE = {"d_model": 64, "feed_forward": 128}
T5 = {"positions": "relative", "pre_norm": True, "norm_type": "rms", "gated": True, "activation": "gelu_tanh",
      "bias": False, "head_size": 11, "num_heads": 3, "score": "dot", "tied_embeddings": "inputs",
      "decoder_start": "<unk>"}
CHOICES = [{}, {"pre_norm": True}, {"activation": "gelu"}, {"activation": "silu"}, {"positions": "learned"},
           {"output_bias": True}, {"tied_embeddings": "none"}, {"tied_embeddings": "decoder", "source_vocab_size": 29},
           {"positions": "fairseq", "decoder_start": "</s>"}, {"embedding_norm": True},
           {"embedding_norm": True, "pre_norm": True, "positions": "learned", "activation": "gelu"},
           {"tied_decoder_layers": True}, {"num_heads": 8}, {"scale_embedding": False}, {"score": "dot"},
           {"score": "bilinear"}, {"window": 2}, {"window": 2, "pre_norm": True}, {"encoder_layers": 3},
           {"positions": "relative"}, {"positions": "relative", "window": 2}, {"norm_type": "rms"},
           {"norm_type": "rms", "embedding_norm": True, "positions": "learned"}, {"bias": False}, {"head_size": 13},
           {"head_size": 3, "bias": False, "score": "bilinear"}, {"activation": "gelu_tanh"}, {"gated": True},
           *({"gated": True, "activation": activation, "feed_forward": 67} for activation in ("gelu", "silu")),
           T5, T5 | {"tied_decoder_layers": True, "activation": "relu", "tied_embeddings": "all"},
           {"d_model": 35, "num_heads": 5, "positions": "learned", "feed_forward": 67}]
QUICK = [({}, 1), ({}, 3), ({"pre_norm": True}, 3), ({"score": "bilinear"}, 3), ({"window": 2}, 3),
         ({"embedding_norm": True, "pre_norm": True, "positions": "learned", "activation": "gelu"}, 3),
         ({"positions": "relative", "window": 2}, 3), (T5, 3), (CHOICES[-1], 3)]


class Load:
    """Function that returns the native engine of a model. expected: returns the same in PyTorch."""

    def __init__(self, kernels):
        self.kernels, self.expected = kernels, rounded if kernels.precision == "int8" else copy.deepcopy

    def __call__(self, model, **changes):
        return native_engine(model, self.kernels, **changes)


@pytest.fixture
def load(kernels):
    return Load(kernels)


@pytest.fixture
def in_int8(kernels):
    """Function that returns the int8 engine of a model."""
    return Load(kernels) if kernels.precision == "int8" else pytest.skip("this is about int8")


class OnHost:
    """Model of PyTorch with the interface of engines."""

    def __init__(self, model, state=None):
        self.model, self.state = model, state

    def start(self, source, source_offsets, keep_attention=False):
        return OnHost(self.model, self.model.start(torch.from_numpy(source), torch.from_numpy(source_offsets),
                                                   int(np.diff(source_offsets).max()), keep_attention))

    def step(self, last_tokens, state):
        logits, after = self.model.step(torch.from_numpy(last_tokens), state.state)
        return ArrayScores(logits.numpy()), OnHost(self.model, after)

    def select(self, rows):
        return OnHost(self.model, self.state.select(torch.from_numpy(rows)))

    @property
    def attention(self):
        return self.state.attention.numpy()


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
        self.levels, self.scale = map(torch.from_numpy, quantised(weight.detach().float().numpy()))
        self.bias = 0 if bias is None else bias.detach().float()

    def forward(self, rows):
        scale = rows.abs().amax(-1, keepdim=True).float().clamp_(min=1e-12).div_(127)
        levels = (rows / scale + 0.5).floor()
        return (levels.double() @ self.levels.double().T).float() * self.scale * scale + self.bias


def rounded(model):
    """Return the PyTorch model with the rounding of the kernels: weights and inputs of products in int8, keys and
    values in bf16."""
    copied = copy.deepcopy(model)
    for attention in copied.attentions:
        attention.fold_query_preparation()
    for module in list(copied.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, Int8Linear(child.weight, child.bias))
    for module in list(copied.modules()):
        if isinstance(module, SelfAttention):
            module.query_key_value = BriefKeysAndValues(module.query_key_value, module.num_heads * module.head_size)
        if isinstance(module, CrossAttention):
            module.key_value = BriefKeysAndValues(module.key_value, 0)
    output = Int8Linear(copied.output_weight, copied.output_bias)

    @torch.no_grad()
    def step(last_tokens, state):
        hidden, after = copied.step_decoder(last_tokens, state)
        return output(hidden), after

    copied.step = step
    return copied


def source_of(batch):
    return batch.source.numpy(), batch.source_offsets.numpy()


def numbers_of_steps(model, batch, beam, steps=7, keep_attention=False):
    """Return the logits of every step of a fixed search that reorders the beam and drops a sentence; or, with
    `keep_attention`, the attention."""
    state = model.start(*source_of(batch), keep_attention=keep_attention)
    sentences, collected = len(batch.source_offsets) - 1, []
    tokens = np.zeros(sentences, np.int64)
    for step in range(steps):
        scores, state = model.step(tokens, state)
        collected.append(state.attention if keep_attention else scores.logits)
        rows = np.arange(len(tokens)).reshape(sentences, -1)
        if step == 0:
            rows = rows.repeat(beam, 1)
        elif step == 2:
            rows = rows[:, ::-1]
        elif step == 4:
            rows, sentences = rows[[0, *range(2, sentences)]] if sentences > 2 else rows, max(sentences - 1, 2)
        if step in (0, 2, 4):
            state, sentences = state.select(rows.copy()), len(rows)
        tokens = np.arange(rows.size) * 5 % 19 + 3 + step % 2
    return collected


def assert_near(load, model, numbers):
    """Assert that the engine of a model computes nearly the numbers of the model in PyTorch. In fp32, the error is
    within the tolerance. In int8, a number between two levels may fall on either, and the sublayers behind it see that;
    but the distance from the model with the same rounding is less than the error of int8 itself.

    numbers: function that returns arrays of results, of the engine or of a model on the host.
    Returns:
        Results of the engine, of the model with the rounding of the kernels, and the tolerance of fp32.
    """
    found, expected, in_fp32, exact = (
        numbers(each) for each in (load(model), *map(OnHost, (
            load.expected(model), copy.deepcopy(model), copy.deepcopy(model).double()))))
    flat = [np.concatenate([array.ravel() for array in arrays]) for arrays in (found, expected, in_fp32, exact)]
    tolerance = fp32_tolerance(*flat[2:])
    if load.kernels.precision == "fp32":
        assert relative_error(flat[0], flat[3]) < tolerance
    assert relative_error(flat[0], flat[1]) < max(relative_error(flat[1], flat[3]), tolerance)
    return found, expected, tolerance


every_choice = pytest.mark.parametrize(("choice", "beam"), [
    pytest.param(choice, beam, marks=() if (choice, beam) in QUICK else pytest.mark.slow)
    for choice in CHOICES for beam in (1, 3)], ids=str)


@every_choice
def test_steps_equal_those_of_the_model_with_products_of_the_same_precision(make_model, make_batch, load, choice, beam):
    equal_rows = []
    for seed in range(4):
        model = make_model(torch.float32, seed, **(WIDE | choice))
        *both, tolerance = assert_near(load, model, lambda each: numbers_of_steps(each, make_batch(), beam))
        equal_rows += [relative_error(*rows) < tolerance for rows in zip(*map(np.concatenate, both), strict=True)]
    assert np.mean(equal_rows) > 0.2                                            # int8 rounds to the same levels in many


def test_sizes_beyond_those_computed_together_give_the_same(make_model, make_batch, load):
    model = make_model(torch.float32, **WIDE, max_positions=31)
    lengths = tuple(range(1, 29)) * 4
    assert sum(lengths) > 1000 and 3 * len(lengths) > 300
    assert_near(load, model, lambda each: numbers_of_steps(each, make_batch(lengths, lengths), 3))


def test_a_sentence_is_the_same_alone_and_among_others(make_model, make_batch, load):
    engine, (source, offsets) = load(make_model(torch.float32, **WIDE)), source_of(make_batch())
    scores, together = engine.step(np.full(4, 7), engine.start(source, offsets, keep_attention=True))
    for number, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        state = engine.start(source[begin:end], np.array([0, end - begin]), keep_attention=True)
        alone, after = engine.step(np.full(1, 7), state)
        assert np.array_equal(alone.logits[0], scores.logits[number])
        assert np.array_equal(after.attention[0], together.attention[number, : end - begin])


@pytest.mark.parametrize("threads", [1, 2, 3, 17])
def test_results_do_not_depend_on_the_number_of_threads(make_model, make_batch, load, monkeypatch, threads):
    model, lengths = make_model(torch.float32, max_positions=31), tuple(range(1, 29)) * 2
    batch = make_batch(lengths, lengths)
    targets = [list(range(3, 3 + length % 11)) for length in lengths]

    def results():
        engine = load(model)
        return (*numbers_of_steps(engine, batch, 3), *numbers_of_steps(engine, batch, 3, keep_attention=True),
                *engine.cross_attention(*source_of(batch), targets, 2))

    monkeypatch.setattr(int8, "num_threads", lambda: 5)
    expected = results()
    monkeypatch.setattr(int8, "num_threads", lambda: threads)
    assert all(map(np.array_equal, results(), expected))


def test_kernels_use_the_threads_of_the_python_thread_that_calls_them(make_model, make_batch, load, monkeypatch):
    engine, batch, seen = load(make_model(torch.float32)), make_batch(), []
    monkeypatch.setattr(int8, "num_threads", lambda: 3)
    for name in ("encode", "step", "log_sum_exp", "sample", "topk", "cross_attention"):
        function = getattr(engine.functions, name)
        monkeypatch.setattr(engine.functions, name, lambda *given, function=function: (
            seen.append(given[-1]), function(*given)))
    scores, _ = engine.step(np.full(4, 7), engine.start(*source_of(batch)))
    scores.log_sum_exp()
    scores.sample(np.zeros(4), 1.0, 0, 1.0, 0.0)
    scores.best(np.zeros((4, 1), np.float32), np.array([0]), None, 2, False)
    engine.cross_attention(*source_of(batch), [[5]] * 4, 1)
    assert seen == [3] * 7


def test_two_continuations_of_one_state_are_independent(make_model, make_batch, load):
    engine, batch = load(make_model(torch.float32)), make_batch()
    state = engine.start(*source_of(batch))
    _, state = engine.step(np.zeros(4, np.int64), state)
    here, there = np.full(4, 5), np.full(4, 7)
    _, first = engine.step(here, state)
    _, second = engine.step(there, state)
    after_first, after_second = (engine.step(here, each)[0].logits for each in (first, second))
    assert np.abs(after_first - after_second).max() > 1e-3
    assert np.array_equal(engine.step(here, engine.step(here, state)[1])[0].logits, after_first)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_parts_of_t5_in_random_sizes_equal_the_model(make_model, make_batch, load, seed):
    random = np.random.default_rng(seed)
    choice = {key: value for key, value in T5.items() if seed == 1 or random.random() < 0.6} | {
        "d_model": int(random.choice([22, 38, 64])), "feed_forward": int(random.choice([17, 64, 131])),
        "num_heads": int(random.choice([1, 2])), "head_size": int(random.choice([1, 7, 16, 37, 64])),
        "max_positions": 307, "window": [None, 3, 131][random.integers(3)]}
    lengths = (1, *random.integers(2, 40, 5).tolist(), 171, 307)
    batch = make_batch(lengths, lengths)
    model = make_model(torch.float32, seed, **choice)
    assert_near(load, model, lambda each: numbers_of_steps(each, batch, 2, 149)[::37])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 129, 1024])
def test_the_bias_of_each_distance_is_that_of_the_model(length, causal):
    relative = RelativePositions(5, causal)
    with torch.no_grad():
        expected = relative(torch.arange(1 - length, length)).numpy()
    assert np.array_equal(relative_bias(relative.weight.detach().numpy(), causal, length), expected)


def test_a_cache_that_is_full_grows(make_model, make_batch, load):
    model = make_model(torch.float32, **WIDE, max_positions=101)
    assert_near(load, model, lambda each: numbers_of_steps(each, make_batch(), 3, 67))


def test_cache_rows_without_hypotheses_are_removed(make_model, make_batch, load):
    model, batch = make_model(torch.float32, **WIDE, max_positions=101), make_batch()
    sentences, steps, last_states = np.arange(4)[:, None].repeat(3, 1), 71, []

    def logits(each):
        state, collected = each.start(*source_of(batch)).select(sentences), []
        for step in range(steps):
            scores, state = each.step(np.arange(12) + step % 5, state)
            collected.append(scores.logits)
            state = state.select(3 * sentences)                                 # all go on from the first of them
        last_states.append(state)
        return collected

    assert_near(load, model, logits)
    # A row for each sentence and step, and room for the steps to come; not one for each hypothesis and step.
    assert last_states[0].cache.keys_values.shape[1] <= 4 * steps + 12 * (GROWTH_STEPS + 1)


def test_a_sentence_beyond_the_last_position_is_refused(make_model, make_batch, load):
    engine, batch = load(make_model(torch.float32, max_positions=7)), make_batch()
    state = engine.start(*source_of(batch))
    with pytest.raises(ValueError, match="this model supports at most 7"):
        engine.step(np.zeros(4, np.int64), replace(state, position=7))
    with pytest.raises(ValueError, match="this model supports at most 7"):
        engine.start(np.zeros(11, np.int64), np.array([0, 11]))
    engine.cross_attention(*source_of(batch), [[5] * 6] * 4, 1)
    with pytest.raises(ValueError, match="this model supports at most 7"):
        engine.cross_attention(*source_of(batch), [[5] * 7] * 4, 1)


def test_silu_of_inputs_far_below_zero_is_zero(make_model, make_batch, load):
    model = make_model(torch.float32, **WIDE, activation="silu")
    with torch.no_grad():
        for layer in [*model.encoder, *model.decoder]:
            layer.feed_forward.inner.bias[3] = -120.0
    assert_near(load, model, lambda each: numbers_of_steps(each, make_batch(), 2))


# The search


@pytest.mark.parametrize("choice", [{}, {"window": 2}, {"decoder_start": "</s>"}, T5], ids=str)
@pytest.mark.parametrize("first_id", [None, 7, 11])
@pytest.mark.parametrize(("beam_size", "n_best", "patience"), [(1, 1, 1.0), (3, 1, 1.0), (4, 4, 2.0)])
def test_the_search_in_the_kernels_equals_the_search_in_python(make_model, make_batch, load, beam_size, n_best,
                                                               patience, first_id, choice):
    engine, batch = load(make_model(torch.float32, **(WIDE | choice), max_positions=61)), make_batch()
    shortest = 1 if first_id is None else 2
    found, expected = (search(engine, *source_of(batch), [shortest, 53, 7, 31],
                              SearchOptions(beam_size, power_length_penalty(0.6), n_best=n_best, patience=patience,
                                            banned_ids=[0, 1, 7], first_id=first_id), whole)
                       for whole in (engine.whole_search, None))
    assert found == expected and max(len(each[0].tokens) for each in found) > (5 if choice is T5 else 20)
    assert first_id is None or all(one.tokens[0] == first_id for each in found for one in each)


@pytest.mark.parametrize("hook", [{"logits_processors": [lambda hypotheses, scores: scores]},
                                  {"skip_log_softmax": True}, {"groups": 2},
                                  {"max_lengths": [12, 7, 7, 7]}], ids=lambda hook: next(iter(hook)))
def test_hooks_that_change_a_step_disable_the_search_in_the_kernels(make_model, make_batch, load, hook):
    engine, batch = load(make_model(torch.float32, max_positions=9)), make_batch()
    max_lengths, hooks = hook.get("max_lengths", [7] * 4), {key: hook[key] for key in hook if key != "max_lengths"}
    whole = lambda *source, **given: pytest.fail("the engine searched")         # noqa: E731
    try:
        search(engine, *source_of(batch), max_lengths, SearchOptions(2, power_length_penalty(1.0), **hooks), whole)
    except ValueError as error:
        assert "max_lengths" in hook and "this model supports at most 9" in str(error)


@pytest.mark.parametrize("whole", [True, False])
def test_nan_weights_are_detected(make_model, make_batch, load, whole):
    model = make_model(torch.float32, d_model=64)
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight[3, 5] = math.nan
    engine = load(model)
    with pytest.raises(FloatingPointError, match="not numbers"):
        search(engine, *source_of(make_batch()), [7] * 4, SearchOptions(3, power_length_penalty(1.0)),
               engine.whole_search if whole else None)


# Attention


@every_choice
def test_kept_attention_is_the_mean_over_the_heads_of_the_last_layer(make_model, make_batch, load, choice, beam):
    model = make_model(torch.float32, **(WIDE | choice))
    found, expected, _ = assert_near(
        load, model, lambda each: numbers_of_steps(each, make_batch(), beam, keep_attention=True))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float32 and ours.shape == theirs.shape
        np.testing.assert_allclose(ours.sum(1), 1, rtol=1e-5)
        assert (ours[theirs == 0] == 0).all()


@pytest.mark.parametrize("choice", [pytest.param(choice, marks=() if (choice, 3) in QUICK else pytest.mark.slow)
                                    for choice in CHOICES], ids=str)
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_cross_attention_of_given_targets_is_that_of_the_model(make_model, make_batch, load, choice, layer):
    model, batch = make_model(torch.float32, **(WIDE | choice)), make_batch()
    offsets = batch.target_offsets.tolist()
    targets = [batch.target_input[begin + 1 : end].tolist() for begin, end in zip(offsets, offsets[1:], strict=False)]
    shapes = [(model.num_heads, len(target) + 1, source)
              for target, source in zip(targets, np.diff(batch.source_offsets), strict=True)]

    def weights(each):
        if isinstance(each, NativeEngine):
            return each.cross_attention(*source_of(batch), targets, layer)
        padded = each.model.attention_maps(batch, ["cross"], layer).cross[0].numpy()
        return [rows[:, :targets, :sources] for rows, (_, targets, sources) in zip(padded, shapes, strict=True)]

    assert load(model).cross_layers == 3
    found, _, _ = assert_near(load, model, weights)
    assert [each.shape for each in found] == shapes


@pytest.mark.parametrize("choice", [{}, {"window": 2}], ids=str)
def test_cross_attention_of_given_targets_is_that_of_steps_with_these_tokens(make_model, make_batch, load, choice):
    engine, (source, offsets) = load(make_model(torch.float32, **choice)), source_of(make_batch())
    targets, state, kept = [list(range(5, 17))] * 4, engine.start(source, offsets, keep_attention=True), []
    for token in [1, *targets[0]]:
        _, state = engine.step(np.full(4, token), state)
        kept.append(state.attention)
    forced = engine.cross_attention(source, offsets, targets, 3)
    for sentence, (weights, length) in enumerate(zip(forced, np.diff(offsets), strict=True)):
        np.testing.assert_allclose(weights.mean(0), np.array(kept)[:, sentence, :length], rtol=1e-5)


@pytest.mark.parametrize("layer", [-1, 0, 4])
def test_a_layer_that_does_not_exist_is_refused(make_model, make_batch, load, layer):
    with pytest.raises(ValueError, match=f"no decoder layer {layer}; this model has 3"):
        load(make_model(torch.float32)).cross_attention(*source_of(make_batch()), [[5]] * 4, layer)


def test_a_step_with_another_number_of_rows_is_refused(make_model, make_batch, load):
    engine = load(make_model(torch.float32))
    for rows in (3, 5):
        with pytest.raises(AssertionError):
            engine.step(np.full(rows, 7), engine.start(*source_of(make_batch())))


def test_without_sentences_there_is_no_attention(make_model, load):
    engine = load(make_model(torch.float32))
    assert engine.cross_attention(np.empty(0, np.int64), np.zeros(1, np.int32), [], 1) == []


# The weights


@pytest.mark.parametrize("choice", [
    {}, {"norm": "pre"}, {"positions": "learned"}, {"positions": "fairseq"}, {"decoder_start": "</s>"},
    {"embedding_norm": True}, {"output_bias": True}, {"tied_embeddings": "none"},
    {"tied_embeddings": "decoder"}, {"tied_decoder_layers": True}, {"score": "bilinear"}, {"score": "dot"},
    {"num_heads": 7}, {"window": 3}, {"scale_embedding": False}, {"activation": "gelu"}, {"encoder_layers": 1},
    {"tied_embeddings": "inputs"}, {"positions": "relative"}, {"norm_type": "rms", "embedding_norm": True},
    {"gated": True}, {"bias": False}, {"head_size": 5}, {"activation": "gelu_tanh"},
    {"positions": "relative", "norm": "pre", "norm_type": "rms", "gated": True, "bias": False, "head_size": 3,
     "score": "bilinear", "decoder_start": "<unk>"},
    {"tied_decoder_layers": True, "score": "bilinear", "norm": "pre", "tied_embeddings": "none", "output_bias": True,
     "positions": "learned"}], ids=str)
def test_expected_shapes_are_those_of_the_model(choice):
    section = TransformerSection(**{"d_model": 14, "num_heads": 2, "feed_forward": 17, "encoder_layers": 3,
                              "decoder_layers": 2, "max_positions": 19} | choice)
    sizes = (23, 23) if section.tied_embeddings in ("all", "inputs") else (23, 29)
    assert section.peculiarity is None
    model = build_model(section, *sizes)
    assert expected_shapes(section, sizes) == {name: tuple(weight.shape) for name, weight in
                                               stored_weights(model).items()}
    found, given = (each.model_dump(exclude={"dropout", "score"}) for each in (section_of(model), section))
    assert found == given


@pytest.mark.parametrize(("length", "d_model"), [(1, 2), (19, 14), (1024, 512)])
def test_sinusoids_are_those_of_the_model(length, d_model):
    for kind, table in POSITION_TABLES.items():
        np.testing.assert_allclose(table(length, d_model), layers.POSITION_TABLES[kind](length, d_model), atol=1e-7)


@pytest.mark.parametrize(("change", "told"), [
    ({"decoder.1.cross_attention.query.bias": None}, ["decoder.1.cross_attention.query.bias is missing", r"\(14,\)"]),
    ({"output_bias": np.zeros(23, np.float32)}, [r"output_bias is \(23,\)", "missing"]),
    ({"encoder.0.feed_forward.inner.weight": np.zeros((14, 17), np.float32)}, [r"\(14, 17\)", r"\(17, 14\)"]),
    ({"target_embedding": np.zeros((23, 14), np.int64)}, [r"\(23, 14\) of int64"]),
], ids=["missing", "surplus", "shape", "type"])
def test_weights_unlike_those_of_the_recipe_are_refused(make_model, kernels, change, told):
    model = make_model(torch.float32)
    weights = {name: weight.numpy() for name, weight in stored_weights(model).items()} | change
    given = {name: weight for name, weight in weights.items() if weight is not None}
    with pytest.raises(CheckpointError, match=".*".join(told)):
        NativeEngine(section_of(model), (23, 23), given, kernels)


def test_vocabularies_of_different_sizes_cannot_share_an_embedding(make_model, kernels):
    with pytest.raises(CheckpointError, match="23.*29"):
        NativeEngine(section_of(make_model(torch.float32)), (23, 29), {}, kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_weights_of_other_types_give_what_they_give_in_fp32(make_model, make_batch, kernels, dtype):
    model, batch = make_model(torch.float32).to(torch.float16).to(dtype), make_batch()
    found, expected = (numbers_of_steps(native_engine(each, kernels), batch, 3) for each in (model, model.float()))
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("inputs", [1, 67, 128])
def test_weights_are_quantised_with_a_scale_for_each_output(make_model, in_int8, kernels, inputs):
    outputs = 131
    weight = torch.randn(outputs, inputs) * torch.logspace(-30, 5, outputs)[:, None]
    weight[7] = 0
    weight[8] = torch.arange(inputs) % 255 - 127 + 0.5                          # halfway between two levels
    engine = in_int8(make_model(torch.float32))
    linear = engine._packed(weight.numpy(), None)
    levels, scale = quantised(weight.numpy())
    group = kernels.group
    shape = (-(-outputs // PANEL), -(-inputs // group), PANEL, group)
    found = read(linear.panels, shape, np.int8).transpose(0, 2, 1, 3).reshape(shape[0] * PANEL, -1)
    assert np.array_equal(found[:outputs, :inputs], levels) and np.count_nonzero(found) == np.count_nonzero(levels)
    assert np.array_equal(read(linear.scale, (outputs,), np.float32), scale)


def read(address, shape, dtype):
    """Return a copy of the array at an address."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape).copy()


def test_only_the_embedding_is_kept_and_the_sides_share_it(make_model, kernels):
    model = make_model(torch.float32)
    weights = {name: weight.numpy().copy() for name, weight in stored_weights(model).items()}
    kept = {name: weakref.ref(weight) for name, weight in weights.items()}
    engine = NativeEngine(section_of(model), (23, 23), weights, kernels)
    del weights
    assert [name for name, weight in kept.items() if weight() is not None] == ["target_embedding"]
    assert engine.encoder.embedding == engine.decoder.embedding
    assert engine.encoder.positions == engine.decoder.positions


def test_tied_decoder_layers_are_packed_once(make_model, load):
    decoder = load(make_model(torch.float32, tied_decoder_layers=True)).decoder
    assert len({decoder.layers[layer].inner.panels for layer in range(3)}) == 1


def test_the_model_is_made_when_it_is_needed(make_model, kernels):
    model, made = make_model(torch.float32), []
    weights = {name: weight.numpy() for name, weight in stored_weights(model).items()}
    engine = NativeEngine(section_of(model), (23, 23), weights, kernels, lambda: made.append(1) or model)
    assert not made
    assert engine.model is engine.model is model and made == [1]


@pytest.mark.parametrize(("unusual", "told"), [
    ({"type": "rnn"}, "is not an encoder-decoder Transformer"), ({"type": "language_model"}, "is not an encoder"),
    ({"copy": True}, "copies pieces of the source"), ({"context": "hierarchical"}, "context hierarchically"),
    ({"selection": "hard"}, "hard attention"), ({"selection": "structured"}, "structured attention"),
    ({"score": "additive"}, "not dot products"), ({"normalize": "relu"}, "relu"),
], ids=str)
def test_an_unusual_model_has_an_obstacle(unusual, told):
    assert told in native_obstacle(validate_model(unusual), "int8")


# The choice of continuations


@pytest.fixture
def topk(kernels):
    return lambda logits, *given: NativeScores(logits, kernels).best(*given)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("vocab_size", [64, 100, 1000])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_top_k_of_the_kernels_equals_that_of_search(topk, vocab_size, beam, normalised):
    random = np.random.default_rng(3)
    logits = 5 * random.standard_normal((17 * beam, vocab_size), np.float32)
    totals = -random.random((17, 2 * beam), np.float32)[:, :beam]               # not in one piece, as in search
    totals[5, beam - 1] = -math.inf
    must_end = np.arange(17) % 3 == 1
    rules = np.array([0, 1, 7, 33]), must_end, 2 * beam, normalised
    found, expected = topk(logits.copy(), totals, *rules), ArrayScores(logits.copy()).best(totals, *rules)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    possible = expected[0] > -math.inf
    assert (possible[must_end].sum(1) == beam).all() and possible[~must_end].all() == (beam > 1)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert (ours[possible] == theirs[possible]).all()


def test_missing_top_k_entries_have_score_minus_infinity(topk):
    totals, beams, ids = topk(np.zeros((2, 5), np.float32), np.zeros((1, 2), np.float32), np.array([0, 1]),
                              np.array([False]), 11, False)
    assert totals[0] == pytest.approx([-math.log(5)] * 6 + [-math.inf] * 5)
    pairs = zip(beams[0, :6].tolist(), ids[0, :6].tolist(), strict=True)
    assert sorted(pairs) == [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("dtypes", [(np.float64, np.float32), (np.float32, np.float64)])
def test_arrays_that_are_not_fp32_use_the_top_k_of_search(topk, monkeypatch, dtypes):
    asked = (np.zeros((3, 7), dtypes[0]), np.zeros((1, 3), dtypes[1]), np.array([0]), None, 2, True)
    monkeypatch.setattr(ArrayScores, "best", lambda self, *given: (self.logits, *given))
    assert topk(*asked) == asked


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sampling_and_log_sum_exp_of_the_kernels_equal_those_of_search(kernels, dtype):
    logits = np.random.default_rng(3).permuted(np.tile(np.linspace(-9, 9, 211), (41, 1)), axis=1).astype(dtype)
    kernels, reference = NativeScores(logits, kernels), ArrayScores(logits)
    np.testing.assert_allclose(kernels.log_sum_exp(), reference.log_sum_exp(), rtol=1e-6)
    numbers = uniform_numbers(1, np.arange(41))
    for rules in [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (2.0, 70, 0.8, 0.1), (1.0, 0, 1.0, 0.3)]:
        assert np.array_equal(kernels.sample(numbers, *rules), reference.sample(numbers, *rules))


def test_ensembles_keep_the_kernels(kernels):
    one, other = (NativeScores(np.full((2, 7), number, np.float32), kernels) for number in (1, 2))
    combined = one.plus(other, 0.5), one.mean([other]), one.mean_probability([other]), one.log_softmax()
    assert all(type(each) is NativeScores for each in combined)


def test_nan_logits_give_no_candidates(topk):
    totals, _, _ = topk(np.full((1, 70), math.nan, np.float32), np.zeros((1, 1), np.float32), np.array([0]),
                        np.array([False]), 2, False)
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
def test_a_translator_finds_translations_as_probable_as_in_pytorch(libraries, bundle, options):
    native = [Translator.load(bundle, "cpu", precision) for precision in ("fp32", "int8")]
    for fast, precision in zip(native, ("fp32", "int8"), strict=True):
        assert fast.precision == precision and isinstance(fast.engine, NativeEngine)
    exact = replace(native[0], engine=EagerEngine(native[0].model, "fp32", torch.device("cpu")))
    for expected, in_fp32, in_int8 in zip(*(each.translate(GERMAN, **options) for each in (exact, *native)),
                                          strict=True):
        assert [one.text for one in in_fp32] == [one.text for one in expected]
        assert in_fp32[0].score == pytest.approx(expected[0].score, abs=1e-4)
        assert in_int8[0].score == pytest.approx(expected[0].score, abs=0.2)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("options", [{}, {"word_confidence": True}, {"word_confidence": True, "n_best": 2}], ids=str)
def test_a_line_is_the_same_alone_and_among_others(libraries, bundle, options, precision):
    translator = Translator.load(bundle, "cpu", precision)
    together = translator.translate(GERMAN, **options)
    assert [translator.translate([line], **options)[0] for line in GERMAN] == together


def test_confidence_in_int8_is_that_of_fp32(libraries, bundle):
    exact, fast = (Translator.load(bundle, "cpu", precision) for precision in ("fp32", "int8"))
    pairs = [(one, other) for found, expected in zip(*(
        each.translate(GERMAN, word_confidence=True, n_best=3) for each in (fast, exact)), strict=True)
        for one in found for other in expected if one.text == other.text]
    assert len(pairs) > len(GERMAN)
    for one, other in pairs:
        assert [word.confidence for word in one.words] == pytest.approx([word.confidence for word in other.words],
                                                                        abs=0.05)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("options", [{}, *(pytest.param(options, marks=pytest.mark.slow) for options in (
    {"beam_size": 1}, {"sampling": True, "n_best": 2}, {"safety_net": True}))], ids=str)
def test_workers_share_the_model_and_give_what_one_gives(libraries, bundle, options, precision):
    lines, done = [*GERMAN, "", *GERMAN[::-1]] * 5, []
    expected = Translator.load(bundle, "cpu", precision).translate(lines, **options)
    with TranslatorPool(bundle, 3, "cpu", precision) as pool:
        assert pool.shared and pool.precision == precision
        found = list(pool.translate_stream(lines, progress=done.append, **options))
    assert found == expected and sum(done) == len(lines)


@pytest.mark.slow
def test_a_line_refused_by_workers_is_named_and_later_requests_work(libraries, bundle):
    with TranslatorPool(bundle, 2, "cpu", "int8") as pool:
        with pytest.raises(RequestError, match=r"line \d: min_length, prefix or required phrases need"):
            list(pool.translate_stream(GERMAN, min_length=10**6))
        assert len(list(pool.translate_stream(GERMAN))) == len(GERMAN)


def test_given_translations_are_scored_in_the_reference_precision(libraries, bundle):
    pairs = [(line, line) for line in GERMAN]
    reference, fast = (pair_scores(Translator.load(bundle, "cpu", precision), pairs)
                       for precision in ("reference", "int8"))
    assert reference == fast


def test_without_a_compiler_it_runs_in_the_reference_precision_and_says_so_once(bundle, monkeypatch, capsys):
    engines._kernels.cache_clear()
    monkeypatch.setattr(engines, "usable_libraries", lambda cpu_flags, precision: [])
    translators = [Translator.load(bundle, "cpu", "int8") for _ in range(2)]
    reference = Translator.load(bundle, "cpu", "reference")
    engines._kernels.cache_clear()
    assert isinstance(reference.engine, EagerEngine)
    assert {each.precision for each in translators} == {reference.precision}
    assert capsys.readouterr().err.count("int8 is not available, because this package has no kernels") == 1
