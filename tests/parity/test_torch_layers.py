"""Encoder and decoder layers equal those of torch.nn with the same weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import DecoderLayer, EncoderLayer, Stream

D_MODEL, NUM_HEADS, FEED_FORWARD = 21, 3, 29
SOURCE_LENGTHS, TARGET_LENGTHS = (5, 2, 11, 3), (7, 3, 2, 13)

both_norms = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
both_activations = pytest.mark.parametrize("activation", ["relu", "gelu"])


def sentences_of(lengths):
    return Sentences.from_offsets(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), max(lengths))


def padded(flat, lengths):
    """Return (sentences, longest, d_model) with noise as padding, which must not influence any layer."""
    rows = torch.randn(len(lengths), max(lengths), flat.shape[1], dtype=flat.dtype)
    return rows.index_put(torch.where(~padding(lengths)), flat)


def padding(lengths):
    """Return the mask of torch.nn, (sentences, longest), True = padding."""
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def randomised(layer):
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer.double()


def copy_common(ours, theirs):
    ours.self_attention.query_key_value.weight.copy_(theirs.self_attn.in_proj_weight)
    ours.self_attention.query_key_value.bias.copy_(theirs.self_attn.in_proj_bias)
    ours.self_attention.output.load_state_dict(theirs.self_attn.out_proj.state_dict())
    ours.feed_forward.inner.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.outer.load_state_dict(theirs.linear2.state_dict())
    ours.self_residual.norm.load_state_dict(theirs.norm1.state_dict())


def assert_equal_with_gradients(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    arriving = torch.randn_like(ours)
    for gradient, expected in zip(torch.autograd.grad(ours, inputs, arriving),
                                  torch.autograd.grad(theirs, inputs, arriving), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-11)


@both_norms
@both_activations
def test_the_encoder_layer_equals_that_of_torch(pre_norm, activation):
    torch.manual_seed(1)
    theirs = randomised(nn.TransformerEncoderLayer(
        D_MODEL, NUM_HEADS, FEED_FORWARD, dropout=0.0, activation=getattr(F, activation), batch_first=True,
        norm_first=pre_norm))
    ours = EncoderLayer(D_MODEL, NUM_HEADS, FEED_FORWARD, 0.0, activation, pre_norm).double()
    with torch.no_grad():
        copy_common(ours, theirs)
        ours.feed_forward_residual.norm.load_state_dict(theirs.norm2.state_dict())
    hidden = torch.randn(sum(SOURCE_LENGTHS), D_MODEL, dtype=torch.float64, requires_grad=True)
    expected = theirs(padded(hidden, SOURCE_LENGTHS), src_key_padding_mask=padding(SOURCE_LENGTHS))
    output = ours(Stream(hidden, hidden), sentences_of(SOURCE_LENGTHS)).add(nn.Identity()).inputs
    assert_equal_with_gradients(output, expected[~padding(SOURCE_LENGTHS)], [hidden])


@both_norms
@both_activations
def test_the_decoder_layer_equals_that_of_torch(pre_norm, activation):
    torch.manual_seed(1)
    theirs = randomised(nn.TransformerDecoderLayer(
        D_MODEL, NUM_HEADS, FEED_FORWARD, dropout=0.0, activation=getattr(F, activation), batch_first=True,
        norm_first=pre_norm))
    ours = DecoderLayer(D_MODEL, NUM_HEADS, FEED_FORWARD, 0.0, activation, pre_norm).double()
    with torch.no_grad():
        copy_common(ours, theirs)
        cross, their_cross = ours.cross_attention, theirs.multihead_attn
        for parameter in ("weight", "bias"):
            projections = getattr(their_cross, f"in_proj_{parameter}")
            getattr(cross.query, parameter).copy_(projections[:D_MODEL])
            getattr(cross.key_value, parameter).copy_(projections[D_MODEL:])
        cross.output.load_state_dict(their_cross.out_proj.state_dict())
        ours.cross_residual.norm.load_state_dict(theirs.norm2.state_dict())
        ours.feed_forward_residual.norm.load_state_dict(theirs.norm3.state_dict())
    hidden = torch.randn(sum(TARGET_LENGTHS), D_MODEL, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(sum(SOURCE_LENGTHS), D_MODEL, dtype=torch.float64, requires_grad=True)
    future = torch.ones(max(TARGET_LENGTHS), max(TARGET_LENGTHS), dtype=torch.bool).triu(1)
    expected = theirs(
        padded(hidden, TARGET_LENGTHS), padded(memory, SOURCE_LENGTHS), tgt_mask=future, tgt_is_causal=True,
        tgt_key_padding_mask=padding(TARGET_LENGTHS), memory_key_padding_mask=padding(SOURCE_LENGTHS))
    output = ours(Stream(hidden, hidden), memory, sentences_of(TARGET_LENGTHS), sentences_of(SOURCE_LENGTHS)).add(
        nn.Identity()).inputs
    assert_equal_with_gradients(output, expected[~padding(TARGET_LENGTHS)], [hidden, memory])
