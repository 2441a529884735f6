"""Embedding matrices, embedding lookup and sinusoidal positional encoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return the sinusoidal positional encoding, (length, d_model).

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.5: sin(t / 10000^(2i/D)) at index 2i, cos of the same angle at
    index 2i + 1. The CPU computes it: on the meta device, torch would first import torch._dynamo, which takes 1 second.
    """
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] / 10000 ** (
        torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


class Lookup(torch.autograd.Function):
    """Embedding lookup: (vocab_size, d_model), (tokens,) -> (tokens, d_model).

    The gradients of a token are summed in fp32 or fp64. A frequent token has hundreds of gradients in a batch. In bf16,
    a large sum would not change when a small gradient is added.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.vocab_size, ctx.dtype = weight.shape[0], weight.dtype
        return weight.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        precise = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        summed = torch.ops.aten.embedding_dense_backward(precise, tokens, ctx.vocab_size, -1, False)
        return summed.to(ctx.dtype), None


def embeddings(tied: str, source_vocab_size: int, target_vocab_size: int,
               d_model: int) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Return the target embedding, the source embedding and the output matrix, each (vocab_size, d_model).

    Elements are normally distributed with a standard deviation of 1/sqrt(d_model). Embeddings that are scaled by
    sqrt(d_model) then have unit variance, and the logits of a tied output matrix are small.

    tied: "all" (all three are one matrix), "decoder" (target and output are one matrix), or "none".
    Raises:
        ValueError: `tied` is "all", but the vocabularies differ in size.
    """
    if tied == "all" and source_vocab_size != target_vocab_size:
        raise ValueError(f"cannot tie embeddings of {source_vocab_size} source and {target_vocab_size} target ids")

    def initialise(vocab_size: int) -> nn.Parameter:
        return nn.Parameter(nn.init.normal_(torch.empty(vocab_size, d_model), std=d_model**-0.5))

    target = initialise(target_vocab_size)
    return (target, target if tied == "all" else initialise(source_vocab_size),
            initialise(target_vocab_size) if tied == "none" else target)
