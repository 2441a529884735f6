"""Ensembles and fusion against exhaustive search, and with real models."""

import numpy as np
import pytest
from lookup import Table, every_translation, on_host, translate

from seq2seq.data.batching import EncodedSide
from seq2seq.search.ensemble import Ensemble, Fusion
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


class Another(Table):
    """`Table` with other pseudo-random logits."""

    def logits(self, sentence, prefix):
        return super().logits(sentence + 1000, prefix)


class Joined:
    """Reference for `every_translation` that combines the log-probabilities of several tables with a function."""

    def __init__(self, function, *tables):
        self.function, self.tables = function, tables

    def log_probabilities(self, sentence, prefix):
        return self.function([table.log_probabilities(sentence, prefix) for table in self.tables])


def mean_probability(rows):
    return np.log(np.mean(np.exp(rows), axis=0))


def mean_log_probability(rows):
    mean = np.mean(rows, axis=0)
    return mean - np.log(np.exp(mean).sum())


def assert_finds_all(model, definition, **options):
    for sentence in range(2):
        expected = sorted(((total / (len(tokens) + 1), tokens)
                           for tokens, total in every_translation(definition, sentence, 4)), reverse=True)
        (found,) = translate(model, [sentence], beam_size=40, max_length=4, n_best=40, **options)
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in expected])


@pytest.mark.parametrize(("mean", "function"), [("probability", mean_probability),
                                                ("log_probability", mean_log_probability)])
def test_ensemble_search_equals_exhaustive_search(mean, function):
    tables = [Table(), Another(end=0.5), Table(end=-1.0)]
    assert_finds_all(Ensemble(with_positions(tables), mean), Joined(function, *tables))


def with_positions(tables):
    for table, positions in zip(tables, (31, 29, 37), strict=False):
        table.max_positions = positions
    return tables


def test_an_ensemble_of_one_model_equals_the_model():
    (table,) = with_positions([Table()])
    alone = translate(table, list(range(7)), beam_size=3, n_best=3)
    for mean in ("probability", "log_probability"):
        for members in ([table], [table, table]):
            for found, expected in zip(translate(Ensemble(members, mean), list(range(7)), beam_size=3, n_best=3), alone,
                                       strict=True):
                assert [each.tokens for each in found] == [each.tokens for each in expected]
                assert [each.score for each in found] == pytest.approx([each.score for each in expected])
    assert Ensemble(with_positions([Table(), Table(), Table()])).max_positions == 29


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_fusion_search_equals_exhaustive_search(weight):
    """Fusion score log p(y|x) + weight * log p_lm(y), which is not normalised. The language model's source is only
    `</s>`."""
    translating, speaking = with_positions([Table(), Another(end=0.5)])

    class Fused:
        def log_probabilities(self, sentence, prefix):
            return (translating.log_probabilities(sentence, prefix)
                    + weight * speaking.log_probabilities(END_ID, prefix))

    assert_finds_all(Fusion(translating, speaking, weight), Fused(), skip_log_softmax=True)


@pytest.mark.parametrize("model", [Ensemble(with_positions([Table(), Another()])),
                                   Fusion(*with_positions([Table(), Another()]), 0.7),
                                   Fusion(Ensemble(with_positions([Table(), Another()])), with_positions([Table()])[0],
                                          0.7)], ids=["ensemble", "fusion", "both"])
def test_ensembles_do_not_depend_on_the_batch(model):
    sentences = list(range(5))
    options = {"beam_size": 3, "max_length": 11, "n_best": 3, "skip_log_softmax": isinstance(model, Fusion)}
    together = translate(model, sentences, **options)
    assert [translate(model, [sentence], **options)[0] for sentence in sentences] == together


def test_the_attention_of_an_ensemble_is_the_mean_of_its_models(make_model):
    models = [on_host(make_model(seed=seed, max_positions=29)) for seed in (1, 2)]
    source, offsets, _ = EncodedSide.from_lists([[3, 5, 7, 9, 11], [4], [6, 8, 10]]).gather(np.arange(3))
    first = np.full(3, START_ID)
    state = Ensemble(models).start(source, offsets, keep_attention=True)
    assert state.attention is None
    _, state = Ensemble(models).step(first, state)
    steps = [model.step(first, model.start(source, offsets, keep_attention=True))[1] for model in models]
    np.testing.assert_allclose(state.attention, (steps[0].attention + steps[1].attention) / 2)
    fused = Fusion(models[0], models[1], 0.5)
    _, state = fused.step(first, fused.start(source, offsets, keep_attention=True))
    np.testing.assert_allclose(state.attention, steps[0].attention)
