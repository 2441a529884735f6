"""The weights that a model is seen with are those that it computes with."""

import numpy as np
import pytest
import torch

from seq2seq.analysis.attention_maps import Aligner, Choice, SeenPair, Sentence
from seq2seq.analysis.attention_weights import attention_maps
from seq2seq.data.batching import gather
from seq2seq.errors import CheckpointError, UserError
from seq2seq.model.packing import Sentences, pack
from seq2seq.model.rnn import RecurrentModel

# conftest's model: 2 encoder and 3 decoder layers of 2 heads; its batch: 4 pairs, the longest of 7 and 11 tokens.


@pytest.fixture
def maps(make_model, make_batch):
    return attention_maps(make_model(), make_batch())


def test_every_layer_is_seen_in_its_place(maps):
    assert [tuple(layer.shape) for layer in maps.encoder] == [(4, 2, 7, 7)] * 2
    assert [tuple(layer.shape) for layer in maps.decoder] == [(4, 2, 11, 11)] * 3
    assert [tuple(layer.shape) for layer in maps.cross] == [(4, 2, 11, 7)] * 3


def test_rows_are_distributions_over_real_keys_and_zero_elsewhere(maps, make_batch):
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
        assert layer.triu(1).eq(0).all(), "the future is not seen"


def test_the_weights_are_those_that_the_steps_of_the_search_report(make_model, make_batch):
    model, batch = make_model(), make_batch((5, 2, 7, 3), (3, 11, 5, 7))
    seen = attention_maps(model, batch).cross[-1].mean(1)                       # (sentences, target, source)
    state = model.start(batch.source, batch.source_offsets, 7, keep_attention=True)
    for position in range(3):                                                   # of the shortest target
        _, state = model.step(batch.target_input[batch.target_offsets[:-1] + position], state)
        torch.testing.assert_close(state.attention, seen[:, position])


def test_a_recurrent_model_has_one_layer_of_cross_attention_and_no_other(make_model, make_batch):
    model, batch = make_model(kind=RecurrentModel), make_batch((5, 2, 7, 3), (3, 11, 5, 7))
    maps = attention_maps(model, batch)
    assert maps.encoder == maps.decoder == []
    (cross,) = maps.cross
    assert cross.shape == (4, 2, 11, 7)
    assert cross[0, :, 3:].eq(0).all() and cross[0, :, :, 5:].eq(0).all(), "its own 3 target and 5 source tokens"
    state = model.start(batch.source, batch.source_offsets, 7, keep_attention=True)
    for position in range(3):
        _, state = model.step(batch.target_input[batch.target_offsets[:-1] + position], state)
        torch.testing.assert_close(state.attention, cross.mean(1)[:, position])


def test_weights_that_no_softmax_makes_are_seen_as_they_are(make_model, make_batch):
    for layer in attention_maps(make_model(normalize="relu"), make_batch()).cross:
        assert layer.ge(0).all() and layer[:, :, 0].sum(-1).sub(1).abs().max() > 0.1


def test_the_weights_times_the_values_are_what_the_attention_returns(make_model, make_batch):
    model, batch = make_model(), make_batch()
    layer = model.decoder[1].cross_attention
    kept = []
    layer.register_forward_hook(lambda module, arguments, output: kept.append((arguments, output)))
    weights = attention_maps(model, batch).cross[1]
    (hidden, memory, sentences, memory_sentences), (output, _) = kept[0]
    _, values = layer.start(memory, memory_sentences)
    torch.testing.assert_close(layer.output(pack(weights @ values, sentences).flatten(1)), output)


def test_only_what_was_asked_for_is_kept(make_model, make_batch):
    maps = attention_maps(make_model(), make_batch(), ["cross"])
    assert maps.encoder == maps.decoder == [] and len(maps.cross) == 3


def test_looking_leaves_no_trace(make_model, make_batch):
    model, batch = make_model(), make_batch()
    before = model(batch).hidden
    attention_maps(model, batch)
    assert torch.equal(model(batch).hidden, before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_neighbour_changes_no_weights(make_model, make_corpus):
    model, corpus = make_model(), make_corpus()
    together, alone = (attention_maps(model, gather(corpus, np.arange(count))) for count in (4, 1))
    for many, one in zip(together.cross, alone.cross, strict=True):
        torch.testing.assert_close(many[:1, :, :3, :5], one)


@pytest.fixture
def pair():
    """2 source words in 3 pieces, 2 target words in 2; one layer of 2 heads."""
    source = Sentence("ab c", ["▁a", "b", "▁c"], [(0, 1), (1, 2), (2, 4)])
    target = Sentence("x y", ["▁x", "▁y"], [(0, 1), (1, 3)])
    first = [[0.1, 0.1, 0.7, 0.1], [0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]]
    second = [[0.3, 0.3, 0.3, 0.1], [0.2, 0.1, 0.5, 0.2], [0.0, 0.0, 0.8, 0.2]]
    return SeenPair(source, target, {"cross": torch.tensor([[first, second]]).numpy()})


@pytest.mark.parametrize(("aligner", "links"), [
    (Aligner(head=1), {(1, 0), (0, 1)}),
    (Aligner(head=2), {(0, 0), (1, 1)}),
    (Aligner(), {(1, 0), (0, 1)}),                       # mean: x 0.4 ab, 0.5 c; y 0.55 ab, 0.3 c
    (Aligner(head=2, step="reads"), {(1, 0), (1, 1)}),   # one row later
    (Aligner(head=2, step="reads", rule="mutual"), {(1, 1)}),
])
def test_words_are_aligned_by_layer_head_step_and_rule(pair, aligner, links):
    found = aligner.align(pair, ("de", "en"))
    assert (found.source_words, found.target_words) == (["ab", "c"], ["x", "y"])
    assert found.links.keys() == links


def test_a_link_has_the_weight_between_its_words(pair):
    found = Aligner(head=1).align(pair, ("de", "en"))
    assert found.links == {(0, 1): pytest.approx(0.8), (1, 0): pytest.approx(0.7)}


@pytest.mark.parametrize(("choice", "message"), [
    (Choice("encoder", 1, "mean"), "no encoder attention; it has cross"),
    (Choice("cross", 2, "mean"), "--layer 2: the cross attention of this model has only layer 1"),
    (Choice("cross", 1, 3), "--head 3: a layer of this model has the heads 1 to 2; or say mean"),
])
def test_what_the_model_lacks_is_refused(pair, choice, message):
    with pytest.raises(UserError, match=message):
        choice.maps(pair)


def test_all_heads_come_after_their_mean(pair):
    named = Choice("cross", "all", "all").maps(pair)
    assert [name for name, _ in named] == ["layer 1, mean of the heads", "layer 1, head 1", "layer 1, head 2"]
    assert named[0][1][0].tolist() == pytest.approx([0.2, 0.2, 0.5, 0.1])


def test_the_measured_choice_is_read_from_metadata():
    assert Aligner.measured({}, "here") == Aligner()
    best = {"layer": 3, "head": 2, "step": "reads", "rule": "mutual", "aer": 0.25}
    assert Aligner.measured({"alignment": best}, "here") == Aligner(3, 2, "reads", "mutual")
    with pytest.raises(CheckpointError, match="here: alignment is 0-0"):
        Aligner.measured({"alignment": "0-0"}, "here")
    for wrong in ({"head": None}, {"layer": 0}, {"head": "all"}, {"step": "sleeps"}, {"rule": 1}):
        with pytest.raises(CheckpointError, match="here: alignment is .*Measure again"):
            Aligner.measured({"alignment": best | wrong}, "here")
