"""Attention weights of a model, for inspection.

Models do not return attention weights. Forward hooks record the arguments of each attention module and compute its
weights from the same arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.interface import Seq2Seq
from seq2seq.model.packing import Sentences
from seq2seq.model.rnn import SourceAttention, plan_active_rows

Kind = Literal["cross", "encoder", "decoder"]
KINDS: tuple[Kind, ...] = ("cross", "encoder", "decoder")


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights by layer, each (sentences, heads, queries, keys), zero in padding.

    A list is empty if the model has no such attention or it was not requested. encoder: source over source. decoder:
    target over the target before it. cross: target over source. Query i of the target is the step that reads token i of
    `target_input` and predicts token i of `target_output`.
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


@torch.no_grad()
def attention_maps(model: Seq2Seq, batch: Batch, kinds: Collection[Kind] = KINDS) -> AttentionMaps:
    """Run `model` once over `batch` with teacher forcing and return its attention weights. kinds: those to return."""
    encoder: list[Tensor] = []
    decoder: list[Tensor] = []
    cross: list[Tensor] = []
    positions: list[Tensor] = []                                                # of a recurrent model, one at a time

    def ask_self(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        kind: Kind = "decoder" if keywords["causal"] else "encoder"
        if kind in kinds:
            (decoder if kind == "decoder" else encoder).append(module.weights_of(*arguments, **keywords))

    def ask_cross(module: Any, arguments: tuple[Any, ...]) -> None:
        cross.append(module.weights_of(*arguments))

    def keep_position(module: Any, arguments: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        positions.append(output[1])

    with ExitStack() as hooks:
        for module in cast(nn.Module, model).modules():
            if isinstance(module, SelfAttention):
                hooks.callback(module.register_forward_pre_hook(ask_self, with_kwargs=True).remove)
            elif isinstance(module, CrossAttention) and "cross" in kinds:
                hooks.callback(module.register_forward_pre_hook(ask_cross).remove)
            elif isinstance(module, SourceAttention) and "cross" in kinds:
                hooks.callback(module.register_forward_hook(keep_position).remove)
        model(batch)
    if positions:
        targets = Sentences.from_offsets(batch.target_offsets, batch.longest_target)
        _, order = plan_active_rows(targets)
        order = torch.arange(len(targets), device=batch.source.device) if order is None else order
        whole = [weights.new_zeros(len(targets), *weights.shape[1:]).index_copy(0, order[: len(weights)], weights)
                 for weights in positions]
        cross.append(torch.cat(whole, 2))
    source, target = (
        Sentences.from_offsets(offsets, longest).token_mask[:, None, :, None]         # True = a query
        for offsets, longest in ((batch.source_offsets, batch.longest_source),
                                 (batch.target_offsets, batch.longest_target)))
    return AttentionMaps([weights * source for weights in encoder], [weights * target for weights in decoder],
                         [weights * target for weights in cross])
