import itertools
import math

import numpy as np
import pytest
import torch
from lookup import VOCAB_SIZE, WORDS, Table, every_translation, on_host, translate

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty, wu_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID

# Length penalties


def test_length_penalties_follow_their_equations():
    # Wu et al. 2016, section 7: ((5 + |Y|) / (5 + 1))^alpha.
    assert wu_length_penalty(0.6)(1) == 1
    assert wu_length_penalty(2.0)(13) == pytest.approx(9)
    assert power_length_penalty(0.5)(9) == pytest.approx(3)
    assert power_length_penalty(0.0)(7) == wu_length_penalty(0.0)(7) == 1


# Greedy and exhaustive search


def test_a_beam_of_one_is_greedy():
    table = Table()
    for sentence in range(11):
        tokens, total = [], 0.0
        while END_ID not in tokens:
            row = table.log_probabilities(sentence, tokens)
            choices = [END_ID] if len(tokens) == 6 else [END_ID, *WORDS]
            tokens.append(max(choices, key=lambda token, row=row: row[token]))
            total += row[tokens[-1]]
        ((found,),) = translate(table, [sentence], beam_size=1, max_length=7)
        assert found.tokens == tokens[:-1]
        assert found.log_probability == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("length_penalty", [power_length_penalty(0.0), power_length_penalty(0.6),
                                            wu_length_penalty(1.0)])
def test_a_beam_as_wide_as_the_search_space_equals_exhaustive_search(length_penalty):
    # 1 + 3 + 9 + 27 targets of at most four tokens, </s> included.
    table = Table()
    for sentence in range(2):
        expected = sorted(
            ((total / length_penalty(len(tokens) + 1), total, tokens)
             for tokens, total in every_translation(table, sentence, 4)), reverse=True)
        (found,) = translate(table, [sentence], beam_size=40, max_length=4, length_penalty=length_penalty, n_best=40)
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, _, tokens in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _, _ in expected])
        assert [hypothesis.log_probability for hypothesis in found] == pytest.approx([each for _, each, _ in expected])


def plain_beam_search(table, sentence, beam_size, max_length, alpha):
    """Reference beam search: the definition, one sentence and one candidate at a time."""
    beam, finished = [([], 0.0)], []
    for length in range(1, max_length + 1):
        candidates = [
            ([*tokens, token], total + table.log_probabilities(sentence, tokens)[token])
            for tokens, total in beam
            for token in ([END_ID] if length == max_length else [END_ID, *WORDS])
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[1])[: 2 * beam_size]
        finished += [(total / length**alpha, tokens[:-1]) for tokens, total in candidates[:beam_size]
                     if tokens[-1] == END_ID]
        beam = [candidate for candidate in candidates if candidate[0][-1] != END_ID][:beam_size]
        if len(finished) >= beam_size:
            break
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beam_size]


@pytest.mark.parametrize(("beam_size", "alpha", "end"), [(2, 0.0, -1.0), (3, 1.0, 1.0), (5, 1.0, -1.0)])
def test_beam_search_follows_its_definition(beam_size, alpha, end):
    table = Table(end=end)
    for sentence in range(7):
        expected = plain_beam_search(table, sentence, beam_size, 6, alpha)
        (found,) = translate(table, [sentence], beam_size=beam_size, max_length=6, alpha=alpha, n_best=beam_size)
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in expected])


# Batches


def test_no_sentences_need_no_search():
    table = Table()
    assert translate(table, [], beam_size=2) == [] and not table.rows_of_steps


@pytest.mark.parametrize(("beam_size", "end"), [(1, 0.0), (2, 2.0), (5, -1.0)])
def test_translations_do_not_depend_on_the_batch(beam_size, end):
    table, sentences = Table(end=end), list(range(13))
    together = translate(table, sentences, beam_size=beam_size, max_length=11, n_best=beam_size)
    alone = [translate(table, [sentence], beam_size=beam_size, max_length=11, n_best=beam_size)[0]
             for sentence in sentences]
    assert together == alone
    assert translate(table, sentences[::-1], beam_size=beam_size, max_length=11, n_best=beam_size) == alone[::-1]


def test_finished_sentences_are_removed_before_the_next_step():
    table = Table(end=0.0)
    found = translate(table, list(range(23)), beam_size=1, max_length=13)
    assert sum(table.rows_of_steps) == sum(len(hypothesis.tokens) + 1 for (hypothesis,) in found)   # a step a word


def test_a_real_model_translates_a_sentence_independently_of_the_batch(make_model):
    model = make_model(output_bias=True, max_positions=29)
    sources = EncodedSide.from_lists([[3, 5, 7, 9, 11], [4], [6, 8, 10], [12] * 7, [13, 4]])

    def translations(indices):
        ids, offsets, _ = sources.gather(np.array(indices))
        return search(on_host(model), ids, offsets, [23] * len(indices),
                      SearchOptions(3, power_length_penalty(1.0), n_best=3, banned_ids=[UNKNOWN_ID, START_ID]))

    together = translations([0, 1, 2, 3, 4])
    for number, expected in enumerate(together):
        (alone,) = translations([number])
        assert [hypothesis.tokens for hypothesis in alone] == [hypothesis.tokens for hypothesis in expected]
        assert [hypothesis.score for hypothesis in alone] \
            == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-12)


@torch.no_grad()
def test_the_score_recomputed_by_teacher_forcing_equals_the_reported_one(make_model):
    model = make_model(output_bias=True, max_positions=29)
    sources = [[3, 5, 7, 9, 11], [4], [6, 8, 10]]
    ids, offsets, _ = EncodedSide.from_lists(sources).gather(np.arange(3))
    found = search(on_host(model), ids, offsets, [7, 11, 13],
                   SearchOptions(5, wu_length_penalty(0.7), n_best=5, banned_ids=[UNKNOWN_ID, START_ID]))
    assert [len(each) for each in found] == [5, 5, 5]
    for source, hypotheses in zip(sources, found, strict=True):
        for hypothesis in hypotheses:
            corpus = EncodedCorpus(EncodedSide.from_lists([source]), EncodedSide.from_lists([hypothesis.tokens]))
            batch = gather(corpus, np.array([0]))
            log_probabilities = model.forward(batch).dense().log_softmax(1)
            total = log_probabilities.gather(1, batch.target_output[:, None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-9)
            assert hypothesis.score == pytest.approx(total / ((6 + len(hypothesis.tokens)) / 6) ** 0.7, abs=1e-9)


# What comes out


def test_fewer_hypotheses_come_back_where_fewer_exist():
    # At most one word and </s>: the empty target and three words.
    (found,) = translate(Table(), [3], beam_size=7, max_length=2, n_best=7)
    assert sorted(hypothesis.tokens for hypothesis in found) == [[], [3], [4], [6]]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_hypothesis_that_reaches_the_longest_length_must_end_there(beam_size):
    table = Table(end=-100.0)
    limits = [1, 2, 5, 3]
    for (hypothesis,), limit in zip(translate(table, [1, 2, 3, 4], beam_size=beam_size, max_length=limits), limits,
                                    strict=True):
        assert len(hypothesis.tokens) == limit - 1
        assert hypothesis.log_probability < -90                                 # </s> costs what the model says


def test_banned_ids_never_appear_and_keep_their_probability():
    found = translate(Table(), list(range(11)), beam_size=5, max_length=7, n_best=5)
    assert {token for each in found for hypothesis in each for token in hypothesis.tokens} <= set(WORDS)
    table = Table()
    ((hypothesis,),) = translate(table, [3], beam_size=1, max_length=1)
    assert hypothesis.log_probability == pytest.approx(table.log_probabilities(3, [])[END_ID])
    free = translate(Table(), list(range(11)), beam_size=5, max_length=7, n_best=5, banned=())
    assert not {token for each in free for hypothesis in each for token in hypothesis.tokens} <= set(WORDS)


def test_logits_in_half_precision_are_summed_in_fp32():
    exact, rough = (translate(Table(dtype), list(range(5)), beam_size=3) for dtype in (np.float32, np.float16))
    assert all(not math.isnan(hypothesis.score) for (hypothesis,) in rough)
    for (hypothesis,), (other,) in zip(exact, rough, strict=True):
        assert other.score == pytest.approx(hypothesis.score, abs=0.2)


def test_logits_processors_see_the_targets_so_far_and_their_lines():
    seen = []

    def no_word_after_itself(hypotheses, scores):
        seen.append((hypotheses.tokens.copy(), list(hypotheses.lines)))
        sentences, beam, length = hypotheses.tokens.shape
        assert scores.logits.shape == (sentences * beam, VOCAB_SIZE) and len(hypotheses.lines) == sentences
        if length:
            scores.assign(np.arange(len(hypotheses.rows)), hypotheses.rows[:, -1], -math.inf)

    table = Table(end=-1.0)
    found = translate(table, [2, 3, 5], beam_size=3, max_length=7, n_best=3, logits_processors=[no_word_after_itself])
    for hypotheses in found:
        for hypothesis in hypotheses:
            assert all(one != next_one for one, next_one in itertools.pairwise(hypothesis.tokens))
    assert [tokens.shape[2] for tokens, _ in seen] == list(range(len(seen)))
    assert seen[0][1] == [0, 1, 2]
    plain = translate(table, [2, 3, 5], beam_size=3, max_length=7, n_best=3)
    assert plain != found


class Sure(Table):
    """Model that generates 3 4 3 4 3 4 </s> with probability 0.99 per token; `</s>` has most of the rest."""

    def logits(self, sentence, prefix):
        row = np.full(self.vocab_size, -9.0)
        row[END_ID] = -7.0
        row[END_ID if len(prefix) >= 6 else (3, 4)[len(prefix) % 2]] = 0.0
        return row


def test_with_patience_early_hypotheses_do_not_end_the_search():
    ((hasty, *_),) = translate(Sure(), [0], beam_size=3, max_length=11, alpha=1.0)
    ((patient, *others),) = translate(Sure(), [0], beam_size=3, max_length=11, alpha=1.0, patience=3.0, n_best=3)
    assert len(hasty.tokens) < 6 and patient.tokens == [3, 4, 3, 4, 3, 4]
    assert patient.score > hasty.score and len(others) == 2


def test_patience_does_not_apply_to_greedy_search():
    plain, patient = (translate(Table(), [2, 3, 5], beam_size=1, max_length=13, patience=each) for each in (1.0, 5.0))
    assert plain == patient
