"""The reported attention weights are those that the model computes with."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from seq2seq.data.batching import gather
from seq2seq.errors import CheckpointError, UserError
from seq2seq.model.attention_weights import attention_maps
from seq2seq.model.packing import Sentences, pack
from seq2seq.model.rnn import RecurrentModel
from seq2seq.translation.attention_maps import Aligner, AttentionMapSelection, PairAttention, TokenizedLine, _one_layer

# The model of conftest.py has 2 encoder and 3 decoder layers with 2 heads; its batch has 4 pairs, with up to 7 source
# and 11 target tokens.


@pytest.fixture
def maps(make_model, make_batch):
    return attention_maps(make_model(), make_batch())


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
    expected = attention_maps(model, batch).cross[-1].mean(1)                   # (sentences, target, source)
    state = model.start(batch.source, batch.source_offsets, 7, keep_attention=True)
    for position in range(3):                                                   # the shortest target has 3 tokens
        _, state = model.step(batch.target_input[batch.target_offsets[:-1] + position], state)
        torch.testing.assert_close(state.attention, expected[:, position])


def test_a_recurrent_model_has_one_layer_of_cross_attention_and_no_self_attention(make_model, make_batch):
    model, batch = make_model(kind=RecurrentModel), make_batch((5, 2, 7, 3), (3, 11, 5, 7))
    maps = attention_maps(model, batch)
    assert maps.encoder == maps.decoder == []
    (cross,) = maps.cross
    assert cross.shape == (4, 2, 11, 7)
    assert cross[0, :, 3:].eq(0).all() and cross[0, :, :, 5:].eq(0).all(), "pair 0 has 3 target and 5 source tokens"
    state = model.start(batch.source, batch.source_offsets, 7, keep_attention=True)
    for position in range(3):
        _, state = model.step(batch.target_input[batch.target_offsets[:-1] + position], state)
        torch.testing.assert_close(state.attention, cross.mean(1)[:, position])


def test_relu_attention_weights_are_not_normalised(make_model, make_batch):
    for layer in attention_maps(make_model(normalize="relu"), make_batch()).cross:
        assert layer.ge(0).all() and layer[:, :, 0].sum(-1).sub(1).abs().max() > 0.1


def test_the_weights_times_the_values_are_the_output_of_the_attention(make_model, make_batch):
    model, batch = make_model(), make_batch()
    layer = model.decoder[1].cross_attention
    calls = []
    layer.register_forward_hook(lambda module, arguments, output: calls.append((arguments, output)))
    weights = attention_maps(model, batch).cross[1]
    (hidden, memory, sentences, memory_sentences), output = calls[0]
    _, values = layer.start(memory, memory_sentences)
    torch.testing.assert_close(layer.output(pack(weights @ values, sentences).flatten(1)), output)


@pytest.mark.parametrize("tied", [False, True])
def test_a_single_layer_is_that_of_all_layers_even_if_the_layers_are_one_module(make_model, make_batch, tied):
    model, batch = make_model(tied_decoder_layers=tied), make_batch()
    every = attention_maps(model, batch, ["cross"]).cross
    assert len(every) == 3 and not torch.equal(every[0], every[2])
    for layer in (1, 2, 3):
        (alone,) = attention_maps(model, batch, ["cross"], layer).cross
        assert torch.equal(alone, every[layer - 1])


@pytest.mark.parametrize("tied", [False, True])
def test_words_are_aligned_by_the_last_layer_by_default(make_model, tied):
    translator = SimpleNamespace(model=make_model(tied_decoder_layers=tied))
    assert _one_layer(translator, Aligner()) == (3, Aligner(layer=1))


def test_only_the_requested_kinds_are_returned(make_model, make_batch):
    maps = attention_maps(make_model(), make_batch(), ["cross"])
    assert maps.encoder == maps.decoder == [] and len(maps.cross) == 3


def test_computing_the_maps_leaves_the_model_unchanged_and_without_hooks(make_model, make_batch):
    model, batch = make_model(), make_batch()
    before = model(batch).hidden
    attention_maps(model, batch)
    assert torch.equal(model(batch).hidden, before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_weights_do_not_depend_on_the_other_pairs_of_the_batch(make_model, make_corpus):
    model, corpus = make_model(), make_corpus()
    together, alone = (attention_maps(model, gather(corpus, np.arange(count))) for count in (4, 1))
    for many, one in zip(together.cross, alone.cross, strict=True):
        torch.testing.assert_close(many[:1, :, :3, :5], one)


@pytest.fixture
def pair():
    """Pair of 2 source words in 3 pieces and 2 target words in 2 pieces, with one layer of 2 heads."""
    source = TokenizedLine("ab c", ["▁a", "b", "▁c"], [(0, 1), (1, 2), (2, 4)])
    target = TokenizedLine("x y", ["▁x", "▁y"], [(0, 1), (1, 3)])
    first = [[0.1, 0.1, 0.7, 0.1], [0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]]
    second = [[0.3, 0.3, 0.3, 0.1], [0.2, 0.1, 0.5, 0.2], [0.0, 0.0, 0.8, 0.2]]
    return PairAttention(source, target, {"cross": torch.tensor([[first, second]]).numpy()})


@pytest.mark.parametrize(("aligner", "links"), [
    (Aligner(head=1), {(1, 0), (0, 1)}),
    (Aligner(head=2), {(0, 0), (1, 1)}),
    (Aligner(), {(1, 0), (0, 1)}),                       # mean: x 0.4 ab, 0.5 c; y 0.55 ab, 0.3 c
    (Aligner(head=2, step="reads"), {(1, 0), (1, 1)}),   # one row later
    (Aligner(head=2, step="reads", rule="mutual"), {(1, 1)}),
])
def test_words_are_aligned_by_layer_head_step_and_rule(pair, aligner, links):
    alignment = aligner.align(pair, ("de", "en"))
    assert (alignment.source_words, alignment.target_words) == (["ab", "c"], ["x", "y"])
    assert alignment.links.keys() == links


def test_attention_to_an_added_language_token_is_attention_to_no_word(pair):
    """The token takes nearly all attention of the first target word, and little of the second."""
    tagged = TokenizedLine("ab c", [">>en<<", "▁a", "b", "▁c"], [(0, 0), *pair.source.spans])
    token, words = np.array([0.8, 0.1, 0.1])[:, None], pair.maps["cross"][0, 0]
    maps = np.concatenate((token, words * (1 - token)), axis=1)[None, None]
    alignment = Aligner().align(PairAttention(tagged, pair.target, {"cross": maps}), ("de", "en"))
    assert alignment.source_words == ["ab", "c"] and alignment.links == {(0, 1): pytest.approx(0.9 * 0.8)}
    written = TokenizedLine(">>en<< ab c", [">>en<<", "▁a", "b", "▁c"], [(0, 6), (6, 8), (8, 9), (9, 11)])
    assert Aligner().align(PairAttention(written, pair.target, {"cross": maps}), ("de", "en")).links.keys() == {
        (0, 0), (1, 1)}


def test_a_link_has_the_weight_between_its_words(pair):
    alignment = Aligner(head=1).align(pair, ("de", "en"))
    assert alignment.links == {(0, 1): pytest.approx(0.8), (1, 0): pytest.approx(0.7)}


@pytest.mark.parametrize("selection", [("encoder", 1, "mean"), ("cross", 2, "mean"), ("cross", 1, 3)])
def test_a_kind_layer_or_head_that_the_model_lacks_is_refused(pair, selection):
    with pytest.raises(UserError):
        AttentionMapSelection(*selection).maps(pair)


def test_the_mean_is_listed_before_the_single_heads(pair):
    named = AttentionMapSelection("cross", "all", "all").maps(pair)
    assert [name for name, _ in named] == ["layer 1, mean of the heads", "layer 1, head 1", "layer 1, head 2"]
    assert named[0][1][0].tolist() == pytest.approx([0.2, 0.2, 0.5, 0.1])


def test_alignment_settings_are_read_from_metadata():
    assert Aligner.from_metadata({}, "here") == Aligner()
    best = {"layer": 3, "head": 2, "step": "reads", "rule": "mutual", "aer": 0.25}
    assert Aligner.from_metadata({"alignment": best}, "here") == Aligner(3, 2, "reads", "mutual")
    with pytest.raises(CheckpointError):
        Aligner.from_metadata({"alignment": "0-0"}, "here")
    for wrong in ({"head": None}, {"layer": 0}, {"head": "all"}, {"step": "sleeps"}, {"rule": 1}):
        with pytest.raises(CheckpointError):
            Aligner.from_metadata({"alignment": best | wrong}, "here")
