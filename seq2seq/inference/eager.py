"""Linear layers as inference wants them: weights laid out once for the processor, in bf16 or int8.

A stock layer in bf16 sorts its weights anew in each product; for the few rows of a decoding step that takes as long as
the product.
"""

from __future__ import annotations

import copy
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from seq2seq.inference.flat import FlatDecoderLayer
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import DecoderLayer, FeedForward, Transformer

# What stands for 0 among the unsigned levels of inputs. Processors with VNNI but without AMX multiply unsigned by
# signed bytes only; signed inputs took 400 times as long there (PyTorch 2.13).
UNSIGNED_ZERO = 128

# Up to so many rows a product takes as long as its weights need to come from memory.
FEW_ROWS = 6


class PackedLinear(nn.Module):
    """`nn.Linear` in bf16 on a CPU, weights in oneDNN's order.

    For a few rows, those of one sentence, the weights are read in int8, with a scale for each output: half the bytes,
    and no search for a kernel (one row: a third of the time; PyTorch 2.13, AMX).

    activation: what is applied to each output, "relu" or "none".
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        weight = weight.detach().float()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), None)
        self.bias = None if bias is None else bias.detach().bfloat16()
        self.activation = activation
        self.levels, scale = quantised(weight)
        self.scale = scale.bfloat16()
        # The kernel for few rows reads whole vectors; of other sizes it reads beyond the end.
        self.few_rows = FEW_ROWS if all(size % 64 == 0 for size in weight.shape) else 0

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs), bf16"""
        if rows.shape[0] > self.few_rows:                                       # half of the time of `len`
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, self.activation, [], "")
            return product
        product = torch._weight_int8pack_mm(rows, self.levels, self.scale)
        if self.bias is not None:
            product.add_(self.bias)
        return product.relu_() if self.activation == "relu" else product


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (outputs, inputs) as int8 levels from -127 to 127, and the step of each output, (outputs,)."""
    scale = weight.abs().amax(1).clamp_(min=1e-12) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """`nn.Linear` with weights and inputs in int8 and sums in int32, on a CPU.

    Weights have a scale for each output, inputs one for each row, so that a row's neighbours have no influence on it.

    dtype: of the outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.levels, self.scale = quantised(weight.detach().float())
        self.packed = torch.ops.onednn.qlinear_prepack(self.levels, None)
        self.zero = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.dtype = dtype

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs)"""
        # Not `vector_norm`, which took half of the product's time: it is not vectorised for the maximum.
        scale = rows.abs().amax(1, keepdim=True).float().clamp_(min=1e-12).div_(127)
        # What becomes a whole number loses its fraction.
        levels = (rows / scale).add_(UNSIGNED_ZERO + 0.5).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, UNSIGNED_ZERO, self.packed, self.scale, self.zero, None, 1.0, 0, self.dtype, "none", [], "")
        product.mul_(scale)
        return product if self.bias is None else product.add_(self.bias)


Network = TypeVar("Network", bound=nn.Module)


def for_inference(model: Network, precision: str) -> Network:
    """A copy that computes in `precision`: fp32, bf16 or int8. It learns nothing any more.

    precision int8: the linear layers; what lies between them is fp32.
    """
    fast = copy.deepcopy(model)
    fast.eval().requires_grad_(False)
    for module in fast.modules():
        if isinstance(module, SelfAttention):
            module.weighing.fold_into(module.query_key_value)
        elif isinstance(module, CrossAttention):
            module.weighing.fold_into(module.query)
    if precision == "bf16":
        fast.bfloat16()
    _lay_out(fast, precision)
    if isinstance(fast, Transformer):
        fast.decoder = nn.ModuleList(FlatDecoderLayer(layer) if FlatDecoderLayer.serves(layer) else layer
                                     for layer in cast(list[DecoderLayer], fast.decoder))
    return fast


def _lay_out(fast: nn.Module, precision: str) -> None:
    """Put layers of `precision` into the model."""
    if precision == "fp32" or next(fast.parameters()).is_cuda or not torch.backends.mkldnn.is_available():
        return

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
    if isinstance(fast, Transformer | RecurrentModel | LanguageModel):
        fast.vocabulary = Int8Linear(fast.output_weight, fast.output_bias)
