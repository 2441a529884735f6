"""An encoder layer, and a decoder layer's step, as flat functions.

The step of one sentence is some fifty operations a layer on a few hundred numbers each: calls of modules inside
modules, and what each derives anew from its arguments, take a quarter of the time. Here that is settled once. The
operations, and so the results, are those of the layers in `transformer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from seq2seq.model.attention import CrossAttention, SelfAttention, attend
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import DecoderLayer, EncoderLayer, LayerCache, Residual

Function = Callable[[Tensor], Tensor]


def _is_usual(*attentions: SelfAttention | CrossAttention) -> bool:
    """Whether all weights are the softmax of scaled dot products."""
    return all(attention.weighing.score == "scaled_dot" and attention.weighing.normalize == "softmax"
               for attention in attentions)


def _parts(products: Sequence[nn.Module], residuals: Sequence[Residual]) -> tuple[tuple[Function, ...], ...]:
    """The functions of products and norms. Called as modules, they would take as long as some operations do."""
    return (tuple(cast(Function, product.forward) for product in products),
            tuple(cast(Function, residual.norm.forward) for residual in residuals))


class FlatEncoderLayer(EncoderLayer):
    """The layer whose parts it is given, faster. For inference on a CPU."""

    def __init__(self, layer: EncoderLayer) -> None:
        nn.Module.__init__(self)
        for name, part in layer.named_children():
            self.add_module(name, part)
        own, feed_forward = layer.self_attention, layer.feed_forward
        self.pre_norm, self.num_heads = layer.self_residual.pre_norm, own.num_heads
        self.products, self.norms = _parts(
            (own.query_key_value, own.output, feed_forward.inner, feed_forward.outer),
            (layer.self_residual, layer.feed_forward_residual))
        self.activation = feed_forward.activation

    @staticmethod
    def serves(layer: EncoderLayer) -> bool:
        """Whether its attention is the softmax of scaled dot products over the whole sentence, on a CPU."""
        return (_is_usual(layer.self_attention) and layer.self_attention.window is None
                and not layer.self_residual.norm.weight.is_cuda)

    @torch.no_grad()
    def forward(self, hidden: Tensor, sentences: Sentences) -> Tensor:
        """See `EncoderLayer.forward`."""
        (tokens, d_model), heads, pre_norm = hidden.shape, self.num_heads, self.pre_norm
        query_key_value, output, inner, outer = self.products
        self_norm, feed_forward_norm = self.norms
        head_size, rows = d_model // heads, len(sentences) * heads

        projected = query_key_value(self_norm(hidden) if pre_norm else hidden).view(-1, head_size)
        padded = projected.index_select(0, sentences.unpacking(3, heads))
        query, key, value = padded.view(3, rows, sentences.longest, head_size).unbind(0)
        scores = torch.bmm(query, key.transpose(1, 2)).mul_(1 / math.sqrt(head_size))
        of_sentences = scores.view(len(sentences), heads, sentences.longest, -1)
        of_sentences.masked_fill_(~sentences.real[:, None, None], -math.inf)
        attended = torch.bmm(scores.softmax(-1), value).view(-1, head_size)
        attended = attended.index_select(0, sentences.packing(1, heads)).view(tokens, d_model)
        hidden = output(attended).add_(hidden)
        hidden = hidden if pre_norm else self_norm(hidden)

        projected = inner(feed_forward_norm(hidden) if pre_norm else hidden)
        hidden = outer(self.activation(projected)).add_(hidden)
        return hidden if pre_norm else feed_forward_norm(hidden)


class FlatDecoderLayer(DecoderLayer):
    """The layer whose parts it is given, with a faster step. For inference."""

    def __init__(self, layer: DecoderLayer) -> None:
        nn.Module.__init__(self)
        for name, part in layer.named_children():
            self.add_module(name, part)
        own, cross, feed_forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.pre_norm = layer.self_residual.pre_norm
        self.products, self.norms = _parts(
            (own.query_key_value, own.output, cross.query, cross.output, feed_forward.inner, feed_forward.outer),
            (layer.self_residual, layer.cross_residual, layer.feed_forward_residual))
        self.activation = feed_forward.activation

    @staticmethod
    def serves(layer: DecoderLayer) -> bool:
        """Whether all attention of the layer is the softmax of scaled dot products."""
        return _is_usual(layer.self_attention, layer.cross_attention) and not layer.cross_attention.hard

    def step(self, hidden: Tensor, cache: LayerCache, slot: int, target_bias: Tensor,
             source_bias: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderLayer.step`."""
        (rows, d_model), (sentences, heads, beam, taken) = hidden.shape, target_bias.shape
        weighing, pre_norm = self.self_attention.weighing, self.pre_norm
        query_key_value, output, ask, source_output, inner, outer = self.products
        self_norm, source_norm, feed_forward_norm = self.norms

        projected = query_key_value(self_norm(hidden) if pre_norm else hidden).view(sentences, beam, 3, heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)         # (sentences, heads, beam, head_size)
        keys, values = cache.keys[:, :, :taken], cache.values[:, :, :taken]
        keys[:, :, slot : slot + beam] = key
        values[:, :, slot : slot + beam] = value
        attended = attend(query, keys, values, target_bias, weighing).transpose(1, 2).reshape(rows, d_model)
        hidden = output(attended).add_(hidden)
        hidden = hidden if pre_norm else self_norm(hidden)

        asking = source_norm(hidden) if pre_norm else hidden
        query = ask(asking).view(sentences, beam, heads, -1).transpose(1, 2)
        attended = attend(query, cache.memory_keys, cache.memory_values, source_bias, weighing)
        hidden = source_output(attended.transpose(1, 2).reshape(rows, d_model)).add_(hidden)
        hidden = hidden if pre_norm else source_norm(hidden)

        projected = inner(feed_forward_norm(hidden) if pre_norm else hidden)
        hidden = outer(self.activation(projected)).add_(hidden)
        return hidden if pre_norm else feed_forward_norm(hidden), asking
