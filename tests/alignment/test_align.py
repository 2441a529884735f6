"""Words are linked by the selected layer, head, step and rule."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lookup import on_host

from seq2seq.alignment.align import link_words
from seq2seq.alignment.shown_maps import AttentionMapSelection
from seq2seq.data.alignment_links import AlignmentSettings
from seq2seq.errors import CheckpointError, UserError
from seq2seq.tokenizers.line_splitting import OUTSIDE
from seq2seq.translation.attention_maps import PairAttention, TokenizedLine
from seq2seq.translation.word_attention import one_layer


@pytest.mark.parametrize("tied", [False, True])
def test_words_are_aligned_by_the_last_layer_by_default(make_model, tied):
    translator = SimpleNamespace(engine=on_host(make_model(tied_decoder_layers=tied)))
    assert one_layer(translator, AlignmentSettings()) == (3, AlignmentSettings(layer=1))


@pytest.fixture
def pair():
    """Pair of 2 source words in 3 pieces and 2 target words in 2 pieces, with one layer of 2 heads."""
    source = TokenizedLine("ab c", ["▁a", "b", "▁c"], [(0, 1), (1, 2), (2, 4)])
    target = TokenizedLine("x y", ["▁x", "▁y"], [(0, 1), (1, 3)])
    first = [[0.1, 0.1, 0.7, 0.1], [0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]]
    second = [[0.3, 0.3, 0.3, 0.1], [0.2, 0.1, 0.5, 0.2], [0.0, 0.0, 0.8, 0.2]]
    return PairAttention(source, target, {"cross": torch.tensor([[first, second]]).numpy()})


@pytest.mark.parametrize(("aligner", "links"), [
    (AlignmentSettings(head=1), {(1, 0), (0, 1)}),
    (AlignmentSettings(head=2), {(0, 0), (1, 1)}),
    (AlignmentSettings(), {(1, 0), (0, 1)}),                       # mean: x 0.4 ab, 0.5 c; y 0.55 ab, 0.3 c
    (AlignmentSettings(head=2, step="reads"), {(1, 0), (1, 1)}),   # one row later
    (AlignmentSettings(head=2, step="reads", rule="mutual"), {(1, 1)}),
])
def test_words_are_aligned_by_layer_head_step_and_rule(pair, aligner, links):
    alignment = link_words(pair, aligner, ("de", "en"))
    assert (alignment.source_words, alignment.target_words) == (["ab", "c"], ["x", "y"])
    assert alignment.links.keys() == links


def test_attention_to_an_added_language_token_is_attention_to_no_word(pair):
    """The token takes nearly all attention of the first target word, and little of the second."""
    tagged = TokenizedLine("ab c", [">>en<<", "▁a", "b", "▁c"], [OUTSIDE, *pair.source.spans])
    token, words = np.array([0.8, 0.1, 0.1])[:, None], pair.maps["cross"][0, 0]
    maps = np.concatenate((token, words * (1 - token)), axis=1)[None, None]
    alignment = link_words(PairAttention(tagged, pair.target, {"cross": maps}), AlignmentSettings(), ("de", "en"))
    assert alignment.source_words == ["ab", "c"] and alignment.links == {(0, 1): pytest.approx(0.9 * 0.8)}
    written = TokenizedLine(">>en<< ab c", [">>en<<", "▁a", "b", "▁c"], [(0, 6), (6, 8), (8, 9), (9, 11)])
    alignment = link_words(PairAttention(written, pair.target, {"cross": maps}), AlignmentSettings(), ("de", "en"))
    assert alignment.links.keys() == {(0, 0), (1, 1)}


def test_a_link_has_the_weight_between_its_words(pair):
    alignment = link_words(pair, AlignmentSettings(head=1), ("de", "en"))
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
    assert AlignmentSettings.from_metadata({}, "here") == AlignmentSettings()
    best = {"layer": 3, "head": 2, "step": "reads", "rule": "mutual", "aer": 0.25}
    assert AlignmentSettings.from_metadata({"alignment": best}, "here") == AlignmentSettings(3, 2, "reads", "mutual")
    with pytest.raises(CheckpointError):
        AlignmentSettings.from_metadata({"alignment": "0-0"}, "here")
    for wrong in ({"head": None}, {"layer": 0}, {"head": "all"}, {"step": "sleeps"}, {"rule": 1}):
        with pytest.raises(CheckpointError):
            AlignmentSettings.from_metadata({"alignment": best | wrong}, "here")
