"""Noise changes as many tokens as it should, and never what the model has to predict."""

import math

import numpy as np
import pytest
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.data.token_noise import TokenNoise
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID

WORDS, VOCAB_SIZE = 9, 5000


def batch(sentences=4001, words=WORDS):
    lists = np.random.default_rng(1).integers(3, 30, (sentences, words)).tolist()
    corpus = EncodedCorpus(EncodedSide.from_lists(lists), EncodedSide.from_lists(lists))
    indices = np.arange(sentences)
    return gather(corpus, indices, Shape.of(corpus, indices).rounded())


def changed(noise, batch):
    torch.manual_seed(1)
    return noise.apply(batch)


def test_without_noise_the_batch_is_the_same():
    before = batch()
    state = torch.get_rng_state()
    assert TokenNoise(VOCAB_SIZE, VOCAB_SIZE).apply(before) is before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("noise", [TokenNoise(VOCAB_SIZE, VOCAB_SIZE, 0.3), TokenNoise(VOCAB_SIZE, VOCAB_SIZE, 0, 2.0),
                                   TokenNoise(VOCAB_SIZE, VOCAB_SIZE, 0.3, 2.0)], ids=["dropout", "SwitchOut", "both"])
def test_marks_of_sentences_and_targets_never_change(noise):
    before = batch()
    after = changed(noise, before)
    assert after.target_output is before.target_output and after.source_offsets is before.source_offsets
    for side, mark in (("source", END_ID), ("target_input", START_ID)):
        old, new = getattr(before, side), getattr(after, side)
        assert torch.equal(new[(old == END_ID) | (old == START_ID)], old[(old == END_ID) | (old == START_ID)])
        assert not ((new != old) & ((new == START_ID) | (new == END_ID))).any() and (old == mark).any()
        assert (new != old).any() and new.max() < VOCAB_SIZE
    again = changed(noise, before)
    assert torch.equal(again.source, after.source) and torch.equal(again.target_input, after.target_input)


def test_language_tokens_are_neither_changed_nor_drawn():
    before = batch()
    languages = tuple(range(5, 20))
    after = changed(TokenNoise(VOCAB_SIZE, VOCAB_SIZE, 0.3, 5.0, languages), before)
    kept = torch.isin(before.source, torch.tensor(languages))
    assert kept.any() and torch.equal(after.source[kept], before.source[kept])
    assert not torch.isin(after.source[~kept], torch.tensor(languages)).any()
    assert (after.source != before.source).any()


def test_word_dropout_replaces_its_share_by_the_unknown_token():
    before = batch()
    after = changed(TokenNoise(VOCAB_SIZE, VOCAB_SIZE, 0.2), before)
    for side in ("source", "target_input"):
        old, new = getattr(before, side), getattr(after, side)
        assert (new == UNKNOWN_ID)[(old != END_ID) & (old != START_ID)].float().mean().item() == pytest.approx(
            0.2, abs=0.01)
        assert torch.equal(new[new != UNKNOWN_ID], old[new != UNKNOWN_ID])


def test_token_cutoff_gives_its_share_of_the_words_an_id_of_their_own():
    before = batch()
    languages = tuple(range(5, 20))
    after = TokenNoise(VOCAB_SIZE, VOCAB_SIZE + 7, language_ids=languages).cut(before, 0.05)
    assert after.target_output is before.target_output and after.source_offsets is before.source_offsets
    for side, new_id in (("source", VOCAB_SIZE), ("target_input", VOCAB_SIZE + 7)):
        old, new = getattr(before, side), getattr(after, side)
        kept = torch.isin(old, torch.tensor([START_ID, END_ID, *languages]))
        assert (new == new_id)[~kept].float().mean().item() == pytest.approx(0.05, abs=0.005)
        assert torch.equal(new[kept | (new != new_id)], old[kept | (new != new_id)])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_switch_out_replaces_as_many_tokens_as_its_distribution_says(temperature):
    before = batch()
    after = changed(TokenNoise(VOCAB_SIZE, VOCAB_SIZE, 0, temperature), before)
    weights = [math.exp(-number / temperature) for number in range(WORDS + 1)]
    expected = sum(number * weight for number, weight in enumerate(weights)) / sum(weights)
    for side in ("source", "target_input"):
        replaced = (getattr(after, side) != getattr(before, side)).sum().item() / 4000
        assert replaced == pytest.approx(expected, rel=0.06)                    # a random token may be the same



def test_replacements_come_from_the_vocabulary_of_their_side():
    after = changed(TokenNoise(40, 60, 0, 1000.0), batch())
    assert 30 <= after.source.max() < 40 <= after.target_input.max() < 60
