from types import SimpleNamespace

import hypothesis
import pytest
import torch
from hypothesis import strategies

from seq2seq.model.packing import Sentences, pack, pack_rows, unpack, unpack_rows

LENGTHS = (3, 1, 5, 2)
FEATURES = 7


def sentences_of(lengths, tail=0):
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return Sentences.from_offsets(offsets, max(lengths), sum(lengths) + tail, tail > 0)


def places(lengths):
    """Return the sentence and position of each token, computed by counting."""
    return [(number, position) for number, length in enumerate(lengths) for position in range(length)]


def test_every_token_knows_its_position_in_its_sentence():
    assert sentences_of(LENGTHS).positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1]
    assert len(sentences_of(LENGTHS)) == 4


@pytest.mark.parametrize("empty", [0, 2])
def test_the_tail_is_in_no_sentence(empty):
    sentences = sentences_of([*LENGTHS, *[0] * empty], tail=3)
    assert sentences.positions.tolist() == [*sentences_of(LENGTHS).positions.tolist(), 0, 0, 0]
    assert sentences.in_tail.tolist() == [False] * 11 + [True] * 3 and sentences.tail.tolist() == [11, 12, 13]
    assert sentences.sentence.tolist()[:11] == sentences_of(LENGTHS).sentence.tolist()


def test_each_copy_of_a_batch_has_its_own_tail():
    offsets = torch.tensor([0, 3, 5, 5], dtype=torch.int32)
    batch = SimpleNamespace(filled=True, copies=2)
    sentences = Sentences.of_batch(batch, offsets, torch.tensor([0, 1, 2, 0, 1, 0, 0]).repeat(2), 3)
    assert (sentences.begins.tolist(), sentences.lengths.tolist()) == ([0, 3, 5, 7, 10, 12], [3, 2, 0] * 2)
    assert sentences.tail.tolist() == [5, 6, 12, 13]
    flat = torch.arange(1.0, 15)[:, None]
    assert pack_rows(unpack_rows(flat, sentences), sentences).flatten().tolist() == [1, 2, 3, 4, 5, 0, 0, 8, 9, 10, 11,
                                                                                   12, 0, 0]


def test_true_in_the_mask_means_a_real_token():
    assert sentences_of((2, 3)).token_mask.tolist() == [[True, True, False], [True, True, True]]


def test_unpacking_puts_every_token_at_its_sentence_and_position():
    flat = torch.randn(sum(LENGTHS), FEATURES)
    padded = unpack_rows(flat, sentences_of(LENGTHS))
    assert padded.shape == (len(LENGTHS), max(LENGTHS), FEATURES)
    for token, (sentence, position) in enumerate(places(LENGTHS)):
        assert torch.equal(padded[sentence, position], flat[token])


def test_padding_is_finite():
    flat = torch.ones(sum(LENGTHS), FEATURES)
    assert torch.equal(unpack_rows(flat, sentences_of(LENGTHS)), torch.ones(len(LENGTHS), max(LENGTHS), FEATURES))


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(strategies.lists(strategies.integers(1, 6), min_size=1, max_size=7), strategies.integers(0, 3),
                  strategies.integers(0, 3))
def test_pack_undoes_unpack_whatever_the_lengths(lengths, empty, tail):
    sentences = sentences_of([*lengths, *[0] * empty], tail)
    flat = torch.arange(1, 1 + (sum(lengths) + tail) * 2.0).view(-1, 2)
    packed = pack_rows(unpack_rows(flat, sentences), sentences)
    assert torch.equal(packed[: sum(lengths)], flat[: sum(lengths)]) and not packed[sum(lengths) :].any()


def plainly_unpacked(flat, lengths):
    numbers, positions = map(list, zip(*places(lengths), strict=True))
    return flat.new_zeros(len(lengths), max(lengths), flat.shape[1]).index_put(
        (torch.tensor(numbers), torch.tensor(positions)), flat[: sum(lengths)])


EVERY_BATCH = pytest.mark.parametrize(("lengths", "tail"), [(LENGTHS, 0), ((3, 5, 0, 0), 0), (LENGTHS, 2),
                                                            ((3, 5, 0, 0), 2)])


@EVERY_BATCH
def test_gradients_of_unpack_equal_those_of_plain_indexing(lengths, tail):
    flat = torch.randn(sum(lengths) + tail, FEATURES, requires_grad=True)
    arriving = torch.randn(len(lengths), max(lengths), FEATURES)                # some of it arrives at padding
    (gradient,) = torch.autograd.grad(unpack_rows(flat, sentences_of(lengths, tail)), flat, arriving)
    (expected,) = torch.autograd.grad(plainly_unpacked(flat, lengths), flat, arriving)
    assert torch.equal(gradient, expected)


@EVERY_BATCH
def test_gradients_of_pack_equal_those_of_plain_indexing(lengths, tail):
    padded = torch.randn(len(lengths), max(lengths), FEATURES, requires_grad=True)
    sentences = sentences_of(lengths, tail)
    arriving = torch.randn(sum(lengths) + tail, FEATURES)
    (gradient,) = torch.autograd.grad(pack_rows(padded, sentences), padded, arriving)
    (expected,) = torch.autograd.grad(padded[sentences.token_mask], padded, arriving[: sum(lengths)])
    assert torch.equal(gradient, expected)


def test_padding_that_is_not_a_number_stays_out_of_the_tail():
    padded = torch.full((2, 3, FEATURES), torch.nan)
    padded[0] = 1
    assert pack_rows(padded, sentences_of((3, 0), tail=2)).tolist() == [[1] * FEATURES] * 3 + [[0] * FEATURES] * 2


def test_parts_and_heads_are_laid_out_for_products_and_back():
    flat = torch.randn(sum(LENGTHS), 3, 2, FEATURES, requires_grad=True)
    sentences = sentences_of(LENGTHS)
    padded = unpack(flat, sentences)
    assert padded.shape == (3, len(LENGTHS), 2, max(LENGTHS), FEATURES) and padded.is_contiguous()
    for token, (sentence, position) in enumerate(places(LENGTHS)):
        assert torch.equal(padded[:, sentence, :, position], flat[token])
    for part in range(3):
        assert torch.equal(pack(padded[part], sentences), flat[:, part])
    arriving = torch.randn_like(padded)
    (gradient,) = torch.autograd.grad(padded, flat, arriving)
    for token, (sentence, position) in enumerate(places(LENGTHS)):
        assert torch.equal(gradient[token], arriving[:, sentence, :, position])
