"""A decoder layer's step as one flat function.

The step of one sentence is some fifty operations a layer on a few hundred numbers each: calls of modules inside
modules, and what each derives anew from its arguments, take a quarter of the time. Here that is settled once. The
operations, and so the results, are those of `transformer.DecoderLayer.step`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from seq2seq.model.attention import attend
from seq2seq.model.caches import LayerCache
from seq2seq.model.transformer import DecoderLayer

Function = Callable[[Tensor], Tensor]


def _norm(norm: nn.LayerNorm) -> Function:
    """The norm without the calls around it, which take as long as itself."""
    return partial(torch.layer_norm, normalized_shape=norm.normalized_shape, weight=norm.weight, bias=norm.bias,
                   eps=norm.eps)


class FlatDecoderLayer(DecoderLayer):
    """The layer whose parts it is given, with a faster step. For inference."""

    def __init__(self, layer: DecoderLayer) -> None:
        nn.Module.__init__(self)
        for name, part in layer.named_children():
            self.add_module(name, part)
        # Looked up through modules, these would cost as much as some of the operations.
        self.pre_norm, self.weighing = layer.self_residual.pre_norm, (layer.self_attention.weighing,)
        self.norms = tuple(_norm(residual.norm) for residual in (
            layer.self_residual, layer.cross_residual, layer.feed_forward_residual))
        self.products = tuple(cast(Function, product.forward) for product in (
            layer.self_attention.query_key_value, layer.self_attention.output, layer.cross_attention.query,
            layer.cross_attention.output, layer.feed_forward.inner, layer.feed_forward.outer))
        self.activation = None if isinstance(layer.feed_forward.activation, nn.Identity) \
            else layer.feed_forward.activation

    @staticmethod
    def serves(layer: DecoderLayer) -> bool:
        """Whether the layer's attention is the softmax of scaled dot products and nothing else."""
        weighings = (layer.self_attention.weighing, layer.cross_attention.weighing)
        return not layer.cross_attention.hard and all(
            weighing.score == "scaled_dot" and weighing.normalize == "softmax" for weighing in weighings)

    def step(self, hidden: Tensor, cache: LayerCache, slot: int, target_bias: Tensor,
             source_bias: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderLayer.step`."""
        (rows, d_model), (sentences, heads, beam, taken) = hidden.shape, target_bias.shape
        (weighing,), pre_norm = self.weighing, self.pre_norm
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
        hidden = outer(projected if self.activation is None else self.activation(projected)).add_(hidden)
        return hidden if pre_norm else feed_forward_norm(hidden), asking
