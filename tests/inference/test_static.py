"""Static KV caches: at the edge of every bucket, logits equal those of the eager engine. Here on a CPU."""

import math

import numpy as np
import pytest
import torch

from seq2seq.inference.static import Bucket, StaticCaches, StaticEngine
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.rnn import RecurrentModel

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
VARIANTS = {
    "post-norm": {}, "pre-norm": {"pre_norm": True, "activation": "gelu", "positions": "learned", "output_bias": True},
    "untied": {"tied_embeddings": "none", "scale_embedding": False}, "window": {"window": 5},
    "silu": {"activation": "silu", "tied_embeddings": "decoder"}, "bilinear": {"score": "bilinear"},
    "additive": {"score": "additive"}, "relu-weights": {"normalize": "relu"}, "hard": {"selection": "hard"},
}


def engine_of(make_model, dtype=torch.float64, **options):
    sizes = {"max_positions": 150, "decoder_layers": 2, "encoder_layers": 1}
    return StaticEngine(make_model(dtype, **{**sizes, **options}), "fp32", CPU)


def source_of(sentences, longest):
    """Source of random tokens whose first sentence is the longest."""
    generator = np.random.default_rng(sentences + longest)
    lengths = np.append(longest, generator.integers(1, longest + 1, sentences - 1))
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    return torch.from_numpy(generator.integers(3, 23, lengths.sum())), offsets, longest


def rows_of(sentences, beam):
    return torch.arange(sentences * beam).view(sentences, beam)


@torch.inference_mode()
def assert_same_logits(engine, source, beam, steps, capacity=1, halve_after=()):
    """Compare the logits of steps with random tokens and random reorderings.

    capacity: number of positions for which the caches have space from the start; larger ones replace them when needed.
    halve_after: numbers of steps after which only every second sentence stays.
    """
    generator, sentences = torch.Generator().manual_seed(1), len(source[1]) - 1
    state = engine.model.start(*source)
    bucket = Bucket.of(sentences, source[2], capacity)
    caches = StaticCaches(engine.transformer, engine.steps, beam, bucket)
    for tensor in (caches.keys_values, caches.memory, caches.visible, caches.source_bias):
        tensor.fill_(math.nan)                                                  # as a diverged model leaves them
    caches.fill(state)
    state = state.select(torch.arange(sentences)[:, None].expand(-1, beam))
    for step in range(1, steps + 1):
        if step > bucket.positions:
            bucket = Bucket.of(*bucket[:2], step)
            caches = moved(engine, caches, bucket, torch.arange(bucket.sentences))
        tokens = torch.randint(3, 23, (sentences * beam,), generator=generator)
        fillers = torch.zeros(bucket.sentences * beam - len(tokens), dtype=torch.int64)
        now = Bucket.of(*bucket[:2], step)
        logits = caches.step(torch.cat([tokens, fillers]), torch.tensor([step - 1]), now)
        expected, state = engine._step(tokens, state)
        assert logits.isfinite().all(), "also those of fillers"
        error = (logits[: len(tokens)] - expected).abs().max() / expected.abs().max()
        assert error <= TOLERANCE[expected.dtype], f"step {step}"
        rows = rows_of(bucket.sentences, beam)
        rows[:sentences] = rows[:sentences, :1] + torch.randint(beam, (sentences, beam), generator=generator)
        caches.select(rows.flatten(), now)
        state = state.select(rows[:sentences])
        if step in halve_after:
            kept = torch.arange(0, sentences, 2)
            state = state.select(rows_of(sentences, beam)[kept])
            sentences = len(kept)
            bucket = Bucket.of(sentences, *bucket[1:])
            caches = moved(engine, caches, bucket, torch.cat([kept, kept[:1].expand(bucket.sentences - sentences)]))


def moved(engine, caches, bucket, sentences):
    larger = StaticCaches(engine.transformer, engine.steps, caches.beam_size, bucket)
    larger.keys_values.fill_(math.nan)
    larger.copy_from(caches, sentences)
    return larger


@pytest.mark.parametrize(("numbers", "bucket"), [
    ((1, 1, 1), (1, 16, 32)), ((2, 15, 31), (2, 16, 32)), ((3, 16, 32), (4, 16, 32)), ((4, 17, 33), (4, 32, 64)),
    ((5, 32, 64), (8, 32, 64)), ((255, 33, 65), (256, 48, 128)), ((257, 1, 300), (512, 16, 512)),
    ((513, 1, 1), (768, 16, 32)),
])
def test_numbers_are_rounded_up_to_buckets(numbers, bucket):
    assert Bucket.of(*numbers) == bucket and Bucket.of(*bucket) == bucket
    assert Bucket(*bucket).contains(Bucket(*numbers)) and not Bucket(*bucket).contains(Bucket(1, bucket[1] + 1, 1))


@pytest.mark.parametrize(("name", "dtype"), [("post-norm", torch.float32),
                                             *((name, torch.float64) for name in VARIANTS)])
def test_steps_of_every_model_equal_those_of_the_eager_engine(make_model, name, dtype):
    assert_same_logits(engine_of(make_model, dtype, **VARIANTS[name]), source_of(3, 7), beam=3, steps=13)


@pytest.mark.parametrize("capacity", [1, 65])
def test_steps_at_the_edges_of_positions(make_model, capacity):
    assert_same_logits(engine_of(make_model), source_of(2, 5), beam=2, steps=66, capacity=capacity)


def test_as_many_steps_as_the_model_has_positions(make_model):
    assert_same_logits(engine_of(make_model, window=20, max_positions=37), source_of(2, 5), beam=5, steps=37)


@pytest.mark.parametrize("longest", [1, 16, 17])
def test_steps_at_the_edges_of_the_source(make_model, longest):
    assert_same_logits(engine_of(make_model), source_of(3, longest), beam=2, steps=3)


def test_the_source_may_be_as_long_as_the_model_allows(make_model):
    assert_same_logits(engine_of(make_model, max_positions=19), source_of(3, 19), beam=2, steps=19)


@pytest.mark.parametrize("sentences", [1, 4, 5, 9])
def test_steps_at_the_edges_of_sentences(make_model, sentences):
    assert_same_logits(engine_of(make_model), source_of(sentences, 5), beam=2, steps=3)


def test_sentences_leave(make_model):
    assert_same_logits(engine_of(make_model), source_of(9, 5), beam=3, steps=70, halve_after=(2, 31, 33, 64))


def test_models_that_the_engine_does_not_support(make_model):
    language_model = LanguageModel(vocab_size=23, d_model=16, layers=2, num_heads=2, feed_forward=24)
    assert StaticEngine.obstacle(make_model()) is None
    assert StaticEngine.obstacle(make_model(copy=True)) == "copies from the source"
    for other in (make_model(kind=RecurrentModel), language_model):
        assert StaticEngine.obstacle(other) == "is not an encoder-decoder Transformer"
