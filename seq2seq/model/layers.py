"""Layers that all models share: linear layers, dropout, embeddings and sinusoidal positional encoding."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model.kernels import dropped, usable_in_16_bits

# Gain of the Glorot initialisation of Transformer layers. PyTorch and fairseq also use 1/sqrt(2) for query, key and
# value. With a gain of 1 for them, training needed hundreds of steps more to reach the same loss. Here the output
# projection and the feed-forward sublayer also have a gain of 1/sqrt(2). At the start of training, each sublayer then
# adds less to the residual stream, and a post-norm Transformer learns faster (benchmarks/README.md, "Learning").
LAYER_GAIN = 2**-0.5


class TokenLinear(nn.Linear):
    """Linear layer for all tokens of a batch. On a GPU in 16 bits, a kernel computes the gradient of its bias.

    The layers of recurrent models have few rows in a call, for which PyTorch's operators have fewer kernels.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """(…, inputs) -> (…, outputs)"""
        if torch.is_grad_enabled() and self.bias is not None and usable_in_16_bits(rows):
            from seq2seq.model.kernels.row_sums import linear

            return linear(rows, self.weight, self.bias)
        return F.linear(rows, self.weight, self.bias)


class Projected(NamedTuple):
    """Output of a sublayer, (…, d_model), stored as the terms of product + bias, because the kernel that adds the
    output to the residual stream also adds the bias. bias: (d_model,); None if `product` contains it."""

    product: Tensor
    bias: Tensor | None

    @staticmethod
    def of(layer: nn.Module, rows: Tensor) -> Projected:
        """Apply a linear layer to rows, (…, inputs)."""
        if usable_in_16_bits(rows):
            return Projected(F.linear(rows, cast(nn.Linear, layer).weight), cast(nn.Linear, layer).bias)
        return Projected(layer(rows), None)

    def dense(self) -> Tensor:
        """Compute the output, (…, d_model)."""
        return self.product if self.bias is None else self.product + self.bias


def linear(inputs: int, outputs: int, *, fused: int = 1, gain: float = 1.0, kind: type[nn.Linear] = nn.Linear,
           bias: bool = True) -> nn.Linear:
    """Return a linear layer with Glorot-uniform weights (Glorot and Bengio 2010, equation 16), and bias 0 or none.

    fused: number of matrices stacked in the weight. Each matrix is initialised like the weight of a separate layer.
    gain: factor by which the bounds of the uniform distribution are multiplied. kind: class of the layer.
    """
    layer = kind(inputs, outputs, bias=bias)
    for matrix in layer.weight.detach().chunk(fused):
        nn.init.xavier_uniform_(matrix, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def make_norm(norm_type: str, d_model: int) -> nn.Module:
    """Return a layer norm (Ba et al. 2016), or the root-mean-square norm of T5, which neither subtracts a mean nor adds
    a bias (Zhang and Sennrich 2019, arXiv:1910.07467). norm_type: "layer" or "rms"."""
    return nn.LayerNorm(d_model, eps=1e-5) if norm_type == "layer" else nn.RMSNorm(d_model, eps=1e-6)


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014) with 16-bit random numbers on CPUs.

    In training, the layer sets elements to zero with `probability` and divides the others by 1 - probability.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    @property
    def current_probability(self) -> float:
        """The probability in training, and 0 otherwise."""
        return self.probability if self.training else 0.0

    def forward(self, hidden: Tensor) -> Tensor:
        """(…) -> (…), any shape."""
        if not self.current_probability:
            return hidden
        if hidden.is_cuda:
            return F.dropout(hidden, self.probability)
        # With 16 random bits per element, the probability is a multiple of 1/65,536. PyTorch's 53 random bits take ten
        # times as long to generate.
        words = torch.empty((hidden.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: hidden.numel()].view(hidden.shape)
        zeros = dropped(self.probability)
        # The factors have the dtype of `hidden`. A boolean mask would have to be converted in forward and in backward.
        factors = torch.ge(bits, zeros - 32768, out=torch.empty_like(hidden)).mul_(65536 / (65536 - zeros))
        return hidden * factors


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return the sinusoidal positional encoding, (length, d_model).

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.5: sin(t / 10000^(2i/D)) at index 2i, cos of the same angle at
    index 2i + 1. The CPU computes it: on the meta device, torch would first import torch._dynamo, which takes 1 second.
    """
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] / 10000 ** (
        torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    )
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def fairseq_sinusoids(length: int, d_model: int) -> Tensor:
    """Return the sinusoidal positional encoding of fairseq and tensor2tensor, (length, d_model).

    The angle of frequency i at position t is (t + 2) / 10000^(i / (D/2 - 1)); the sines of all frequencies come before
    the cosines. In fairseq, a position is counted from the id of the padding symbol, which is 1, so the first is 2.
    """
    half = d_model // 2
    exponents = torch.arange(half, dtype=torch.float64, device="cpu") / max(1, half - 1)
    angles = torch.arange(2, length + 2, dtype=torch.float64, device="cpu")[:, None] / 10000**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def no_encoding(length: int, d_model: int) -> Tensor:
    """Return the encoding of relative positions, which are in the scores of attention alone: 0, (length, d_model)."""
    return torch.zeros(length, d_model)


POSITION_TABLES = {"sinusoidal": sinusoids, "fairseq": fairseq_sinusoids, "relative": no_encoding}
"""Functions that compute fixed positional encodings, by `model.positions`."""


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

    tied: "all" (all three are one matrix), "decoder" (target and output are one matrix), "inputs" (source and target
        are one matrix), or "none".
    Raises:
        ValueError: source and target are one matrix, but the vocabularies differ in size.
    """
    if tied in ("all", "inputs") and source_vocab_size != target_vocab_size:
        raise ValueError(f"cannot tie embeddings of {source_vocab_size} source and {target_vocab_size} target ids")

    def initialise(vocab_size: int) -> nn.Parameter:
        return nn.Parameter(nn.init.normal_(torch.empty(vocab_size, d_model), std=d_model**-0.5))

    target = initialise(target_vocab_size)
    return (target, target if tied in ("all", "inputs") else initialise(source_vocab_size),
            initialise(target_vocab_size) if tied in ("inputs", "none") else target)
