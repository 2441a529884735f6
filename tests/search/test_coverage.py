import math

import numpy as np
import pytest
from lookup import Table, TableState, every_translation, on_host

from seq2seq.data.batching import EncodedSide
from seq2seq.search.beam import search
from seq2seq.search.coverage import WithCoverage, coverage_bonus, coverage_penalty
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import START_ID, UNKNOWN_ID

SOURCE_LENGTH = 3


class Attentive(Table):
    """`Table` with sources of three tokens, the first of which is the sentence number. Attention depends on token and
    sentence."""

    max_positions = 31

    def attention(self, sentence, prefix):
        return np.random.default_rng([7, sentence, *prefix]).dirichlet([0.3] * SOURCE_LENGTH)

    def step(self, last_tokens, state):
        logits, after = super().step(last_tokens, state)
        return logits, AttentiveState(self, after.rows, after.sentences)


class AttentiveState(TableState):
    def __init__(self, table, rows, sentences):
        super().__init__(rows, sentences)
        self.table = table

    @property
    def attention(self):
        return np.stack([self.table.attention(sentence, prefix[1:]) for sentence, prefix in self.rows])

    def select(self, rows):
        chosen = super().select(rows)
        return AttentiveState(self.table, chosen.rows, chosen.sentences)


def test_the_penalty_follows_its_equation():
    # Wu et al. 2016, equation 14: cp(X; Y) = beta * sum over i of log(min(sum over j of p_ij, 1.0)).
    coverage = np.array([[0.5, 1.0, 1.7, 0.2], [1.0, 3.0, 2.0, 1.0]])
    assert coverage_penalty(coverage, 0.3).tolist() == pytest.approx([0.3 * (math.log(0.5) + math.log(0.2)), 0.0])
    assert np.isfinite(coverage_penalty(np.zeros((1, 5)), 1.0)).all()


@pytest.mark.parametrize("strength", [0.0, 0.4, 3.0])
def test_hypotheses_are_ranked_by_their_coverage_too(strength):
    table = Attentive()
    covering = WithCoverage(table)
    source, offsets = np.array([3, 0, 0, 5, 0, 0]), np.array([0, 3, 6], np.int32)
    both = search(covering, source, offsets, [4, 4], SearchOptions(
        40, power_length_penalty(1.0), n_best=40, banned_ids=[UNKNOWN_ID, START_ID, 5],
        bonus=coverage_bonus(strength)))
    for sentence, found in zip((3, 5), both, strict=True):
        expected = []
        for tokens, total in every_translation(table, sentence, 4):
            seen = sum(table.attention(sentence, tokens[:place]) for place in range(len(tokens) + 1))
            penalty = strength * np.log(np.minimum(seen, 1)).sum()
            expected.append((total / (len(tokens) + 1) + penalty, penalty, tokens))
        expected.sort(reverse=True)
        assert [hypothesis.tokens for hypothesis in found] == [tokens for *_, tokens in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, *_ in expected])
        assert [hypothesis.bonus for hypothesis in found] == pytest.approx([penalty for _, penalty, _ in expected])


@pytest.mark.parametrize("groups", [1, 3])
def test_the_padding_of_a_batch_need_not_be_covered(make_model, groups):
    model = WithCoverage(on_host(make_model(output_bias=True, max_positions=29)))
    sources = EncodedSide.from_lists([[3, 5, 7, 9, 11], [4], [6, 8, 10], [12] * 13, [13, 4]])

    def translations(indices):
        ids, offsets, _ = sources.gather(np.array(indices))
        return search(model, ids, offsets, [5] * len(indices), SearchOptions(
            3, power_length_penalty(1.0), n_best=3, banned_ids=[UNKNOWN_ID, START_ID], groups=groups,
            bonus=coverage_bonus(0.2)))

    together = translations([0, 1, 2, 3, 4])
    for number, expected in enumerate(together):
        (alone,) = translations([number])
        assert [hypothesis.tokens for hypothesis in alone] == [hypothesis.tokens for hypothesis in expected]
        assert [hypothesis.score for hypothesis in alone] \
            == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-6)
    bonuses = [hypothesis.bonus for each in together for hypothesis in each]
    assert max(bonuses) <= 0 and min(bonuses) < -0.01
