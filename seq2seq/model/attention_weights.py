"""Attention weights of a model, for inspection.

A model's forward pass does not return attention weights. Hooks on its attention layers compute the weights from the
arguments of each call.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from seq2seq.data.alignment_links import Kind
from seq2seq.data.batching import Batch
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.packing import Sentences


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights of each layer, (sentences, heads, queries, keys). Weights of padding are 0.

    encoder: queries and keys are source tokens. decoder: queries and keys are target tokens; attention is causal.
    cross: queries are target tokens, keys are source tokens. Target query i belongs to the step that reads token i of
    `target_input` and predicts token i of `target_output`. context: queries and keys are source tokens; weights of the
    words of other sentences, where a model has a layer of its own for them. A list is empty if the model has no
    attention of this kind, or if this kind was not requested.
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]
    context: list[Tensor] = field(default_factory=list)

    def without_padding(self, batch: Batch) -> AttentionMaps:
        """Return the maps with 0 for queries in padding."""
        sides = (Sentences.from_offsets(batch.source_offsets, batch.longest_source),
                 Sentences.from_offsets(batch.target_offsets, batch.longest_target))
        source, target = (side.token_mask[:, None, :, None] for side in sides)   # True = a token
        return replace(self, encoder=[weights * source for weights in self.encoder],
                       decoder=[weights * target for weights in self.decoder],
                       cross=[weights * target for weights in self.cross])


class _RecordedError(Exception):
    """Exception that ends the forward pass, because the requested cross-attention is already recorded."""


def recorded_maps(model: nn.Module, batch: Batch, kinds: Collection[Kind], cross_layer: int | None) -> AttentionMaps:
    """Return the weights of all layers of the classes `SelfAttention` and `CrossAttention`. Arguments: as in
    `Model.attention_maps`."""
    maps = AttentionMaps([], [], [])
    layer = 0                                                   # number of decoder layers that were computed

    def record_self(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        kind: Kind = "decoder" if keywords["causal"] else "encoder"
        if kind in kinds:
            (maps.decoder if kind == "decoder" else maps.encoder).append(module.weights_of(*arguments, **keywords))

    def record_cross(module: Any, arguments: tuple[Any, ...]) -> None:
        nonlocal layer                                          # tied decoder layers are one module, called repeatedly
        layer += 1
        if cross_layer in (None, layer):
            maps.cross.append(module.weights_of(*arguments))
        if cross_layer == layer:
            raise _RecordedError

    with ExitStack() as hooks, suppress(_RecordedError):
        for module in model.modules():
            if isinstance(module, SelfAttention):
                hooks.callback(module.register_forward_pre_hook(record_self, with_kwargs=True).remove)
            elif isinstance(module, CrossAttention) and "cross" in kinds:
                hooks.callback(module.register_forward_pre_hook(record_cross).remove)
        model(batch)
    return maps
