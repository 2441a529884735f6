"""Attention weights of a model, for inspection.

A model's forward pass does not return attention weights. In a Transformer, hooks on the attention modules compute the
weights from the arguments of each call. In a recurrent model, the attention module returns its weights, and a hook
stores them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from seq2seq.data.alignment_links import KINDS, Kind
from seq2seq.data.batching import Batch
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.hierarchical_context import (
    HierarchicalContext,
    Segments,
    context_weights,
    over_sources,
    within_sources,
)
from seq2seq.model.interface import Seq2Seq
from seq2seq.model.packing import Sentences
from seq2seq.model.rnn import SourceAttention, plan_active_rows


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights of each layer, (sentences, heads, queries, keys). Weights of padding are 0.

    encoder: queries and keys are source tokens. decoder: queries and keys are target tokens; attention is causal.
    cross: queries are target tokens, keys are source tokens. Target query i belongs to the step that reads token i of
    `target_input` and predicts token i of `target_output`. context: queries and keys are source tokens, see
    `hierarchical_context.context_weights`. A list is empty if the model has no attention of this kind, or if this kind
    was not requested.
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]
    context: list[Tensor] = field(default_factory=list)


class _RecordedError(Exception):
    """Exception that ends the forward pass, because the requested cross-attention is already recorded."""


@torch.no_grad()
def attention_maps(model: Seq2Seq, batch: Batch, kinds: Collection[Kind] = KINDS, cross_layer: int | None = None
                   ) -> AttentionMaps:
    """Run `model` once over `batch` with teacher forcing and return its attention weights of the given kinds.

    cross_layer: return the cross-attention of this decoder layer alone, counted from 1, and do not compute the layers
        after it. Ignored for recurrent models, which have one attention layer.
    """
    encoder: list[Tensor] = []
    decoder: list[Tensor] = []
    cross: list[Tensor] = []
    context: list[Tensor] = []
    segments: list[Segments] = []                               # if the model has hierarchical context
    recurrent_steps: list[Tensor] = []                          # cross-attention of a recurrent model, by step
    layer = 0                                                   # number of decoder layers that were computed
    sources = Sentences.from_offsets(batch.source_offsets, batch.longest_source)
    targets = Sentences.from_offsets(batch.target_offsets, batch.longest_target)

    def record_self(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        kind: Kind = "decoder" if keywords["causal"] else "encoder"
        if kind in kinds:
            (decoder if kind == "decoder" else encoder).append(module.weights_of(*arguments, **keywords))

    def record_cross(module: Any, arguments: tuple[Any, ...]) -> None:
        nonlocal layer                                          # tied decoder layers are one module, called repeatedly
        layer += 1
        if cross_layer in (None, layer):
            cross.append(module.weights_of(*arguments))
        if cross_layer == layer:
            raise _RecordedError

    def record_context(module: Any, arguments: tuple[Tensor, Segments]) -> None:
        segments.append(arguments[1])
        if "context" in kinds:
            words, sentences = module.weights(*arguments)
            context.append(context_weights(words, sentences, segments[0], sources))

    def record_step(module: Any, arguments: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        recurrent_steps.append(output[1])

    with ExitStack() as hooks, suppress(_RecordedError):
        for module in cast(nn.Module, model).modules():
            if isinstance(module, SelfAttention):
                hooks.callback(module.register_forward_pre_hook(record_self, with_kwargs=True).remove)
            elif isinstance(module, CrossAttention) and "cross" in kinds:
                hooks.callback(module.register_forward_pre_hook(record_cross).remove)
            elif isinstance(module, HierarchicalContext):
                hooks.callback(module.register_forward_pre_hook(record_context).remove)
            elif isinstance(module, SourceAttention) and "cross" in kinds:
                hooks.callback(module.register_forward_hook(record_step).remove)
        model(batch)
    if recurrent_steps:
        _, order = plan_active_rows(targets)
        order = torch.arange(len(targets), device=batch.source.device) if order is None else order
        padded = [weights.new_zeros(len(targets), *weights.shape[1:]).index_copy(0, order[: len(weights)], weights)
                  for weights in recurrent_steps]                               # a step omits finished sentences
        cross.append(torch.cat(padded, 2))
    if segments:
        cross = [over_sources(weights, segments[0], sources) for weights in cross]
        encoder = [within_sources(weights, segments[0], sources) for weights in encoder]
    source, target = (sentences.token_mask[:, None, :, None] for sentences in (sources, targets))   # True = a token
    return AttentionMaps([weights * source for weights in encoder], [weights * target for weights in decoder],
                         [weights * target for weights in cross], context)
