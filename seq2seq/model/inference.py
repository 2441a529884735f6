"""Linear layers as inference wants them: weights laid out once for the processor, in bf16 or int8.

A stock layer in bf16 sorts its weights anew in each product; for the few rows of a decoding step that takes as long as
the product.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from seq2seq.model.transformer import FeedForward, Transformer


class PackedLinear(nn.Module):
    """`nn.Linear` in bf16 on a CPU, weights in oneDNN's order.

    activation: what oneDNN applies to each output as it is written, "relu" or "none".
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16().contiguous(), None)
        self.bias = None if bias is None else bias.detach().bfloat16()
        self.activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs), bf16"""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, self.activation, [], "")
        return product


class Int8Linear(nn.Module):
    """`nn.Linear` with weights and inputs in int8 and sums in int32, on a CPU.

    Weights have a scale for each output, inputs one for each row, so that a row's neighbours have no influence on it
    (as Bengio and others call it, symmetric quantisation to [-127, 127]).

    dtype: of the outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        weight = weight.detach().float()
        scale = weight.abs().amax(1).clamp_(min=1e-12) / 127
        self.packed = torch.ops.onednn.qlinear_prepack((weight / scale[:, None]).round_().to(torch.int8), None)
        self.scale, self.zero = scale, torch.zeros(len(scale), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.dtype = dtype

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs)"""
        largest = torch.linalg.vector_norm(rows, math.inf, 1, keepdim=True, dtype=torch.float32)
        scale = largest.clamp_(min=1e-12).div_(127)
        levels = (rows / scale).round_().to(torch.int8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 0, self.packed, self.scale, self.zero, None, 1.0, 0, self.dtype, "none", [], "")
        product.mul_(scale)
        return product if self.bias is None else product.add_(self.bias)


def for_inference(model: Transformer, precision: str) -> Transformer:
    """A copy that computes in `precision`: fp32, bf16 or int8. It learns nothing any more.

    precision int8: the linear layers; what lies between them is fp32.
    """
    fast = copy.deepcopy(model).eval().requires_grad_(False)
    if precision == "bf16":
        fast = fast.bfloat16()
    if precision == "fp32" or fast.output_weight.is_cuda or not torch.backends.mkldnn.is_available():
        return fast

    def converted(layer: nn.Linear, activation: str = "none") -> nn.Module:
        if precision == "int8":
            return Int8Linear(layer.weight, layer.bias)
        return PackedLinear(layer.weight, layer.bias, activation)

    for module in list(fast.modules()):
        if isinstance(module, FeedForward) and precision == "bf16" and module.activation is torch.nn.functional.relu:
            module.add_module("inner", converted(module.inner, "relu"))
            module.activation = nn.Identity()
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, converted(child))
    # In bf16 the logits of a step would be rounded to three digits; in int8 the sums are exact and come in fp32.
    fast.vocabulary = Int8Linear(fast.output_weight, fast.output_bias)
    return fast
