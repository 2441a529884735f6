import hypothesis
import pytest
import torch
from hypothesis import strategies

from seq2seq.model.packing import Sentences, pack, pack_rows, unpack, unpack_rows

LENGTHS = (3, 1, 5, 2)
FEATURES = 7


def sentences_of(lengths):
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return Sentences.from_offsets(offsets, max(lengths))


def places(lengths):
    """Return the sentence and position of each token, computed by counting."""
    return [(number, position) for number, length in enumerate(lengths) for position in range(length)]


def test_every_token_knows_its_position_in_its_sentence():
    assert sentences_of(LENGTHS).positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1]
    assert len(sentences_of(LENGTHS)) == 4


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
@hypothesis.given(strategies.lists(strategies.integers(1, 6), min_size=1, max_size=7), strategies.integers(0, 3))
def test_pack_undoes_unpack_whatever_the_lengths(lengths, empty):
    sentences = sentences_of([*lengths, *[0] * empty])
    flat = torch.arange(sum(lengths) * 2.0).view(-1, 2)
    assert torch.equal(pack_rows(unpack_rows(flat, sentences), sentences), flat)


def plainly_unpacked(flat, lengths):
    numbers, positions = map(list, zip(*places(lengths), strict=True))
    return flat.new_zeros(len(lengths), max(lengths), flat.shape[1]).index_put(
        (torch.tensor(numbers), torch.tensor(positions)), flat)


@pytest.mark.parametrize("lengths", [LENGTHS, (3, 5, 0, 0)], ids=["sentences", "empty ones behind them"])
def test_gradients_of_unpack_equal_those_of_plain_indexing(lengths):
    flat = torch.randn(sum(lengths), FEATURES, requires_grad=True)
    arriving = torch.randn(len(lengths), max(lengths), FEATURES)                # some of it arrives at padding
    (gradient,) = torch.autograd.grad(unpack_rows(flat, sentences_of(lengths)), flat, arriving)
    (expected,) = torch.autograd.grad(plainly_unpacked(flat, lengths), flat, arriving)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("lengths", [LENGTHS, (3, 5, 0, 0)], ids=["sentences", "empty ones behind them"])
def test_gradients_of_pack_equal_those_of_plain_indexing(lengths):
    padded = torch.randn(len(lengths), max(lengths), FEATURES, requires_grad=True)
    sentences = sentences_of(lengths)
    arriving = torch.randn(sum(lengths), FEATURES)
    (gradient,) = torch.autograd.grad(pack_rows(padded, sentences), padded, arriving)
    (expected,) = torch.autograd.grad(padded[sentences.token_mask], padded, arriving)
    assert torch.equal(gradient, expected)


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
