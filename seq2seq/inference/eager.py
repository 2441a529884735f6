"""Engine of PyTorch operators, for every model on every device; the reference that other engines are tested against.

On a CPU in bf16, weights are packed once into the layout of oneDNN: a stock layer repacks them in each product, which
for the few rows of a decoding step takes as long as the product itself. Packing needs undocumented operators of
PyTorch; if one is missing, or its result differs from the stock layer's, the stock layer stays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model import Model
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.interface import State
from seq2seq.model.language_model import CausalLayer, LanguageModel
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import DecoderLayer, FeedForward, Transformer
from seq2seq.search.topk import topk

# Zero point of quantised inputs, which are unsigned: processors with VNNI but without AMX only multiply unsigned by
# signed bytes, and signed inputs took 400 times as long there (PyTorch 2.13).
UNSIGNED_ZERO = 128

# Up to this many rows, a product is limited by the memory bandwidth of reading its weights.
FEW_ROWS = 6


class EagerEngine:
    """Decodes with a copy of `model` in `precision`: fp32 or bf16. See `interface.Stepwise`."""

    topk = staticmethod(topk)
    whole_search = None

    def __init__(self, model: Model, precision: str, device: torch.device) -> None:
        self.model, self.precision = for_inference(model, precision, device), precision
        self.max_positions = model.max_positions
        self._step: Callable[[Tensor, Any], tuple[Tensor, Any]] = self.model.step
        if isinstance(self.model, Transformer):
            decoder = cast(list[DecoderLayer], self.model.decoder)
            self._step = partial(self.model.step, steps=[layer.stepping() for layer in decoder])
        elif isinstance(self.model, LanguageModel):
            layers = cast(list[CausalLayer], self.model.layers)
            self._step = partial(self.model.step, steps=[layer.stepping() for layer in layers])

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int, keep_attention: bool = False) -> State:
        """See `interface.Stepwise.start`."""
        return self.model.start(source, source_offsets, longest_source, keep_attention)

    def step(self, last_tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `interface.Stepwise.step`."""
        return self._step(last_tokens, state)


Network = TypeVar("Network", bound=nn.Module)


def for_inference(model: Network, precision: str, device: torch.device | None = None) -> Network:
    """Return a frozen copy of the model for decoding in `precision`, fp32 or bf16. device: None: the model's."""
    fast = copy.deepcopy(model).to(device)
    fast.eval().requires_grad_(False)
    for module in fast.modules():
        if isinstance(module, SelfAttention):
            module.weighing.fold_into(module.query_key_value)
        elif isinstance(module, CrossAttention):
            module.weighing.fold_into(module.query)
    if precision == "bf16":
        fast.bfloat16()
        if not next(fast.parameters()).is_cuda:
            _lay_out(fast)
    return fast


def _lay_out(fast: nn.Module) -> None:
    """Replace the linear layers of a bf16 model by layers with packed weights, for a CPU."""
    packs = operators_work()
    if isinstance(fast, Transformer | RecurrentModel | LanguageModel):
        # Logits in bf16 would have three digits only.
        fast.vocabulary = (Int8Linear if packs else Fp32Linear)(fast.output_weight, fast.output_bias)
    if not packs:
        return
    for module in list(fast.modules()):
        if isinstance(module, FeedForward) and module.activation is F.relu:
            module.add_module("inner", PackedLinear(module.inner.weight, module.inner.bias, "relu"))
            module.activation = nn.Identity()
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, PackedLinear(child.weight, child.bias))


@cache
def operators_work() -> bool:
    """Return True if the undocumented operators used below exist and give the results of stock layers."""
    if not torch.backends.mkldnn.is_available():
        return False
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        weight, bias, rows = (torch.randn(size, generator=generator) for size in ((64, 64), (64,), (FEW_ROWS + 1, 64)))
        expected = F.linear(rows, weight, bias)
        try:
            packed = PackedLinear(weight, bias)
            found = [packed(rows.bfloat16()), packed(rows[:1].bfloat16()), Int8Linear(weight, bias)(rows),
                     PackedLinear(weight, bias, "relu")(rows.bfloat16())]
        except (AttributeError, RuntimeError, TypeError):                       # missing, refused, or other arguments
            return False
        wanted = (expected, expected[:1], expected, expected.relu())
        return all(((ours.float() - theirs).norm() < 0.05 * theirs.norm()).item()
                   for ours, theirs in zip(found, wanted, strict=True))


class PackedLinear(nn.Module):
    """`nn.Linear` in bf16 on a CPU, with weights in oneDNN's layout.

    For up to `FEW_ROWS` rows it uses int8 weights with a scale for each output, which halves the bytes to read and
    skips oneDNN's kernel lookup (one row: a third of the time; PyTorch 2.13, AMX).

    activation: of the output, "relu" or "none".
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        weight = weight.detach().float()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), None)
        self.bias = None if bias is None else bias.detach().bfloat16()
        self.activation = activation
        self.levels, scale = quantised(weight)
        self.scale = scale.bfloat16()
        # The int8 kernel reads whole vectors, and with sizes that 64 does not divide, beyond the end.
        self.few_rows = FEW_ROWS if all(size % 64 == 0 for size in weight.shape) else 0

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs), bf16"""
        if rows.shape[0] > self.few_rows:                                       # takes half the time of `len`
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, self.activation, [], "")
            return product
        product = torch._weight_int8pack_mm(rows, self.levels, self.scale)
        if self.bias is not None:
            product.add_(self.bias)
        return product.relu_() if self.activation == "relu" else product


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise weights, (outputs, inputs), to int8 levels from -127 to 127 with a scale for each output, (outputs,)."""
    scale = weight.abs().amax(1).clamp_(min=1e-12) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """`nn.Linear` with weights and inputs in int8, sums in int32 and outputs in fp32, on a CPU.

    Output layer of models in bf16. In fp32 it took half as long again as a whole step with a beam of 5 (PyTorch 2.13,
    AVX-512 with bf16). Weights have a scale per output, inputs a scale per row, so that a row's result does not depend
    on the rest of the batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.levels, self.scale = quantised(weight.detach().float())
        self.packed = torch.ops.onednn.qlinear_prepack(self.levels, None)
        self.zero = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach().float()

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs)"""
        # Not `vector_norm`: PyTorch does not vectorise its maximum, and it took half of the product's time.
        scale = rows.abs().amax(1, keepdim=True).float().clamp_(min=1e-12).div_(127)
        # + 0.5, because the conversion to integers truncates.
        levels = (rows / scale).add_(UNSIGNED_ZERO + 0.5).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, UNSIGNED_ZERO, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], "")
        product.mul_(scale)
        return product if self.bias is None else product.add_(self.bias)


class Fp32Linear(nn.Module):
    """`nn.Linear` in fp32 for inputs of any precision."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight.detach().float(), None if bias is None else bias.detach().float()

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs)"""
        return F.linear(rows.float(), self.weight, self.bias)
