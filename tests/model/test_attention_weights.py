"""The reported attention weights are those that the model computes with."""


import numpy as np
import pytest
import torch

from seq2seq.data.batching import gather
from seq2seq.model.packing import Sentences, pack
from seq2seq.model.variants.rnn import RecurrentModel

# The model of conftest.py has 2 encoder and 3 decoder layers with 2 heads; its batch has 4 pairs, with up to 7 source
# and 11 target tokens.


@pytest.fixture
def maps(make_model, make_batch):
    return make_model().attention_maps(make_batch())


def test_maps_of_every_layer_have_the_shape_sentences_heads_queries_keys(maps):
    assert [tuple(layer.shape) for layer in maps.encoder] == [(4, 2, 7, 7)] * 2
    assert [tuple(layer.shape) for layer in maps.decoder] == [(4, 2, 11, 11)] * 3
    assert [tuple(layer.shape) for layer in maps.cross] == [(4, 2, 11, 7)] * 3


def test_rows_sum_to_one_over_the_keys_and_are_zero_in_padding(maps, make_batch):
    batch = make_batch()
    source, target = (Sentences.from_offsets(offsets, longest).token_mask for offsets, longest in
                      ((batch.source_offsets, 7), (batch.target_offsets, 11)))
    for layers, queries, keys in ((maps.encoder, source, source), (maps.decoder, target, target),
                                  (maps.cross, target, source)):
        for layer in layers:
            expected = queries[:, None].expand(4, 2, -1).to(layer.dtype)
            torch.testing.assert_close(layer.sum(3), expected)
            assert layer[~keys[:, None, None].expand_as(layer)].eq(0).all()
            assert layer.ge(0).all()
    for layer in maps.decoder:
        assert layer.triu(1).eq(0).all(), "decoder attention must be causal"


def test_maps_equal_the_attention_of_step_by_step_decoding(make_model, make_batch):
    model, batch = make_model(), make_batch((5, 2, 7, 3), (3, 11, 5, 7))
    expected = model.attention_maps(batch).cross[-1].mean(1)                   # (sentences, target, source)
    state = model.start(batch.source, batch.source_offsets, 7, keep_attention=True)
    for position in range(3):                                                   # the shortest target has 3 tokens
        _, state = model.step(batch.target_input[batch.target_offsets[:-1] + position], state)
        torch.testing.assert_close(state.attention, expected[:, position])


def test_a_recurrent_model_has_one_layer_of_cross_attention_and_no_self_attention(make_model, make_batch):
    model, batch = make_model(kind=RecurrentModel), make_batch((5, 2, 7, 3), (3, 11, 5, 7))
    maps = model.attention_maps(batch)
    assert maps.encoder == maps.decoder == []
    (cross,) = maps.cross
    assert cross.shape == (4, 2, 11, 7)
    assert cross[0, :, 3:].eq(0).all() and cross[0, :, :, 5:].eq(0).all(), "pair 0 has 3 target and 5 source tokens"
    state = model.start(batch.source, batch.source_offsets, 7, keep_attention=True)
    for position in range(3):
        _, state = model.step(batch.target_input[batch.target_offsets[:-1] + position], state)
        torch.testing.assert_close(state.attention, cross.mean(1)[:, position])


def test_relu_attention_weights_are_not_normalised(make_model, make_batch):
    for layer in make_model(normalize="relu").attention_maps(make_batch()).cross:
        assert layer.ge(0).all() and layer[:, :, 0].sum(-1).sub(1).abs().max() > 0.1


def test_the_weights_times_the_values_are_the_output_of_the_attention(make_model, make_batch):
    model, batch = make_model(), make_batch()
    layer = model.decoder[1].cross_attention
    calls = []
    layer.register_forward_hook(lambda module, arguments, output: calls.append((arguments, output)))
    weights = model.attention_maps(batch).cross[1]
    (hidden, memory, sentences, memory_sentences), output = calls[0]
    _, values = layer.start(memory, memory_sentences)
    torch.testing.assert_close(layer.output(pack(weights @ values, sentences).flatten(1)), output.dense())


@pytest.mark.parametrize("tied", [False, True])
def test_a_single_layer_is_that_of_all_layers_even_if_the_layers_are_one_module(make_model, make_batch, tied):
    model, batch = make_model(tied_decoder_layers=tied), make_batch()
    every = model.attention_maps(batch, ["cross"]).cross
    assert len(every) == 3 and not torch.equal(every[0], every[2])
    for layer in (1, 2, 3):
        (alone,) = model.attention_maps(batch, ["cross"], layer).cross
        assert torch.equal(alone, every[layer - 1])


def test_only_the_requested_kinds_are_returned(make_model, make_batch):
    maps = make_model().attention_maps(make_batch(), ["cross"])
    assert maps.encoder == maps.decoder == [] and len(maps.cross) == 3


def test_computing_the_maps_leaves_the_model_unchanged_and_without_hooks(make_model, make_batch):
    model, batch = make_model(), make_batch()
    before = model(batch).hidden
    model.attention_maps(batch)
    assert torch.equal(model(batch).hidden, before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_weights_do_not_depend_on_the_other_pairs_of_the_batch(make_model, make_corpus):
    model, corpus = make_model(), make_corpus()
    together, alone = (model.attention_maps(gather(corpus, np.arange(count))) for count in (4, 1))
    for many, one in zip(together.cross, alone.cross, strict=True):
        torch.testing.assert_close(many[:1, :, :3, :5], one)
