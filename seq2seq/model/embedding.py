"""Embedding matrices, embedding lookup and sinusoidal positional encoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return the sinusoidal positional encoding, (length, d_model).

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.5: sin(t / 10000^(2i/D)) at 2i, cos at 2i + 1. Always computed on
    the CPU, because on the meta device torch would import torch._dynamo for it.
    """
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] / 10000 ** (
        torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


class Lookup(torch.autograd.Function):
    """Embedding lookup: (vocab_size, d_model), (tokens,) -> (tokens, d_model)."""

    # Gradients are summed in fp32: a frequent word gets hundreds of them, and in bf16 all but the first few would be
    # rounded away.
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
    """Return the matrices of target, source and output, each (vocab_size, d_model).

    The standard deviation is 1/sqrt(d_model), so that scaled embeddings have unit variance and tied outputs small
    logits.

    tied: "all" (one matrix), "decoder" (target and output are one), "none".
    Raises:
        ValueError: vocabularies of different size cannot share one matrix.
    """
    if tied == "all" and source_vocab_size != target_vocab_size:
        raise ValueError(f"cannot tie embeddings of {source_vocab_size} source and {target_vocab_size} target ids")

    def drawn(vocab_size: int) -> nn.Parameter:
        return nn.Parameter(nn.init.normal_(torch.empty(vocab_size, d_model), std=d_model**-0.5))

    target = drawn(target_vocab_size)
    return (target, target if tied == "all" else drawn(source_vocab_size),
            drawn(target_vocab_size) if tied == "none" else target)
