"""Engine of PyTorch operators for every model on every device. Other engines are tested against it.

In bf16 on a CPU, `nn.Linear` packs the weights into oneDNN's layout for each matrix product. For the few rows of a
decoding step, packing takes as long as the product. This engine packs the weights once, with undocumented operators of
PyTorch. If one of these operators is missing or returns wrong results, the engine uses `nn.Linear`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.devices import copy_to_device, dtype_of
from seq2seq.inference.device_search import StepwiseRun, decode
from seq2seq.inference.kernel_library import INPUT_ZERO_POINT
from seq2seq.inference.tensor_scores import TensorScores, at_least_fp32
from seq2seq.model import Model
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.attention_scores import Weighing
from seq2seq.model.attention_weights import attention_maps
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer
from seq2seq.recipe.decoding_section import DEFAULT_BATCH_TOKENS
from seq2seq.search.beam import WholeSearch
from seq2seq.search.beams import Hypothesis
from seq2seq.search.interface import Scores
from seq2seq.search.options import SearchOptions
from seq2seq.search.scores import ArrayScores

# Maximum number of rows for which `PackedLinear` uses int8 weights. With so few rows, a matrix product takes only as
# long as reading the weights from memory, so weights with fewer bytes make the product faster.
FEW_ROWS = 6


@dataclass(frozen=True)
class TensorState:
    """Decoding state of a model in PyTorch, for search on the host (`search.interface.State`)."""

    inner: Any
    device: torch.device

    @property
    def attention(self) -> np.ndarray | None:
        return None if self.inner.attention is None else at_least_fp32(self.inner.attention).cpu().numpy()

    def select(self, rows: np.ndarray) -> TensorState:
        return TensorState(self.inner.select(torch.from_numpy(rows).to(self.device)), self.device)


class EagerEngine:
    """Engine that decodes with a copy of `model` in `precision`, "fp32", "bf16" or "fp16"."""

    def __init__(self, model: Model, precision: str, device: torch.device) -> None:
        self.model, self.precision, self.device = for_inference(model, precision, device), precision, device
        self.max_positions = model.max_positions
        self._step: Callable[[Tensor, Any], tuple[Tensor, Any]] = self.model.step
        if isinstance(self.model, Transformer | LanguageModel):
            layers = self.model.decoder if isinstance(self.model, Transformer) else self.model.layers
            steps = [cast(DecoderLayer | EncoderLayer, layer).make_step_function() for layer in layers]
            self._step = partial(self.model.step, steps=steps)

    @property
    def batch_tokens(self) -> int:
        """See `engines.Engine.batch_tokens`."""
        return DEFAULT_BATCH_TOKENS

    @property
    def whole_search(self) -> WholeSearch | None:
        """See `engines.Engine.whole_search`. On a GPU, the search runs there and does not wait for it in each step."""
        return self._search_on_device if self.device.type == "cuda" else None

    @torch.inference_mode()
    def _search_on_device(self, source: np.ndarray, source_offsets: np.ndarray, max_lengths: Sequence[int],
                          options: SearchOptions) -> list[list[Hypothesis]]:
        state = self.model.start(*self.on_device(source, source_offsets))
        banned = copy_to_device(torch.from_numpy(options.banned), self.device)
        return decode(StepwiseRun(self._step, state, max_lengths, options, banned), max_lengths)

    def on_device(self, source: np.ndarray, source_offsets: np.ndarray) -> tuple[Tensor, Tensor, int]:
        """Return the first arguments of `model.interface.Stepwise.start`."""
        tokens, offsets = (copy_to_device(torch.from_numpy(array), self.device)
                           for array in (source, source_offsets.astype(np.int32)))
        return tokens, offsets, int(np.diff(source_offsets).max())

    @torch.inference_mode()
    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = False) -> TensorState:
        """See `search.interface.Stepwise.start`."""
        return TensorState(self.model.start(*self.on_device(source, source_offsets), keep_attention), self.device)

    @torch.inference_mode()
    def step(self, last_tokens: np.ndarray, state: TensorState) -> tuple[Scores, TensorState]:
        """See `search.interface.Stepwise.step`."""
        logits, after = self._step(copy_to_device(torch.from_numpy(last_tokens), self.device), state.inner)
        logits = at_least_fp32(logits)
        scores = ArrayScores(logits.numpy()) if logits.device.type == "cpu" else TensorScores(logits)
        return scores, TensorState(after, self.device)

    @property
    def cross_layers(self) -> int:
        """See `engines.Engine.cross_layers`."""
        modules = self.model.named_modules(remove_duplicate=False)              # tied layers count, too
        return sum(isinstance(module, CrossAttention) for _, module in modules)

    @torch.inference_mode()
    def cross_attention(self, source: np.ndarray, source_offsets: np.ndarray, targets: Sequence[Sequence[int]],
                        layer: int) -> list[np.ndarray]:
        """See `engines.Engine.cross_attention`."""
        corpus = EncodedCorpus(EncodedSide(source, source_offsets.astype(np.int64)), EncodedSide.from_lists(targets))
        batch = gather(corpus, np.arange(len(targets))).to(self.device)
        weights, = attention_maps(self.model, batch, ["cross"], layer).cross
        return [of_sentence[:, : len(target) + 1, :length] for of_sentence, target, length in
                zip(weights.float().cpu().numpy(), targets, np.diff(source_offsets), strict=True)]


Network = TypeVar("Network", bound=nn.Module)


def for_inference(model: Network, precision: str, device: torch.device | None = None) -> Network:
    """Return a copy of the model without gradients, for decoding in `precision`: "fp32", "bf16" or "fp16".

    device: device of the copy; None: the model's device.
    """
    frozen_copy = copy.deepcopy(model).to(device)
    frozen_copy.eval().requires_grad_(False)
    for module in frozen_copy.modules():
        if isinstance(module, SelfAttention | CrossAttention):
            fold_query_preparation(module)
    if precision != "fp32":
        frozen_copy.to(dtype_of(precision))
        if not next(frozen_copy.parameters()).is_cuda:
            _replace_linear_layers(frozen_copy)
    return frozen_copy


@torch.no_grad()
def fold_query_preparation(attention: SelfAttention | CrossAttention) -> None:
    """Convert dot and bilinear attention scores to scaled dot products with the same results.

    The transformation of the queries, `Weighing.prepare`, becomes part of the query projection.
    """
    weighing = attention.weighing
    if isinstance(weighing, Weighing) and weighing.score in ("dot", "bilinear"):
        layer = attention.query if isinstance(attention, CrossAttention) else attention.query_key_value
        weight, bias = weighing.prepared_parameters(layer)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
        weighing.score, weighing.weight = "scaled_dot", None


def _replace_linear_layers(model: nn.Module) -> None:
    """Replace the linear layers of a bf16 model on a CPU by layers with packed weights."""
    packed = packed_operators_work()
    if isinstance(model, Transformer | RecurrentModel | LanguageModel):
        # The output layer returns logits in fp32, because bf16 has only two to three significant digits.
        model.output_projection = (Int8Linear if packed else Fp32Linear)(model.output_weight, model.output_bias)
    if not packed:
        return
    for module in list(model.modules()):
        if isinstance(module, FeedForward) and module.activation is F.relu:
            module.add_module("inner", PackedLinear(module.inner.weight, module.inner.bias, "relu"))
            module.activation = nn.Identity()
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, PackedLinear(child.weight, child.bias))


@cache
def packed_operators_work() -> bool:
    """Return True if the undocumented operators exist and their results differ from `nn.Linear` by less than 5 %."""
    if not torch.backends.mkldnn.is_available():
        return False
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        weight, bias, rows = (torch.randn(size, generator=generator) for size in ((64, 64), (64,), (FEW_ROWS + 1, 64)))
        expected = F.linear(rows, weight, bias)
        try:
            packed = PackedLinear(weight, bias)
            outputs = [packed(rows.bfloat16()), packed(rows[:1].bfloat16()), Int8Linear(weight, bias)(rows),
                       PackedLinear(weight, bias, "relu")(rows.bfloat16())]
        except (AttributeError, RuntimeError, TypeError):                       # an operator is missing or has changed
            return False
        references = (expected, expected[:1], expected, expected.relu())
        return all(((output.float() - reference).norm() < 0.05 * reference.norm()).item()
                   for output, reference in zip(outputs, references, strict=True))


class PackedLinear(nn.Module):
    """`nn.Linear` in bf16 on a CPU, with weights in oneDNN's layout.

    For up to `FEW_ROWS` rows, it uses int8 weights with a scale for each output. They have half the bytes of bf16
    weights, and need no oneDNN kernel lookup. A one-row product takes a third of the bf16 time (PyTorch 2.13, AMX).

    activation: activation function of the output, "relu" or "none".
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        super().__init__()
        weight = weight.detach().float()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), None)
        self.bias = None if bias is None else bias.detach().bfloat16()
        self.activation = activation
        self.levels, scale = quantised(weight)
        self.scale = scale.bfloat16()
        # The int8 kernel reads whole vectors. If the number of inputs or outputs is not a multiple of 64, the kernel
        # would read beyond the end of the weights.
        self.few_rows = FEW_ROWS if all(size % 64 == 0 for size in weight.shape) else 0

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs), bf16. There may be more dimensions before the last one."""
        if rows.shape[0] > self.few_rows or rows.dim() > 2:                     # `len(rows)` takes twice as long
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, self.activation, [], "")
            return product
        product = torch._weight_int8pack_mm(rows, self.levels, self.scale)
        if self.bias is not None:
            product.add_(self.bias)
        return product.relu_() if self.activation == "relu" else product


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise weights, (outputs, inputs), to int8: return levels from -127 to 127, and scales, (outputs,)."""
    scale = weight.abs().amax(1).clamp_(min=1e-12) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """`nn.Linear` on a CPU with weights and inputs in int8, sums in int32 and outputs in fp32.

    It is the output layer of bf16 models. With an output layer in fp32, a decoding step with a beam of 5 took 1.5 times
    as long (PyTorch 2.13, AVX-512 with bf16). The weights have a scale for each output. The inputs have a scale for
    each row, so the result of a row does not depend on the other rows of the batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.levels, self.scale = quantised(weight.detach().float())
        self.packed = torch.ops.onednn.qlinear_prepack(self.levels, None)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int64)          # of the int8 weights
        self.bias = None if bias is None else bias.detach().float()

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs)"""
        # `vector_norm` also computes max |x|, but is not vectorised, and took half as long as the matrix product.
        scale = rows.abs().amax(1, keepdim=True).float().clamp_(min=1e-12).div_(127)
        # The conversion to uint8 truncates, so 0.5 is added to round to the nearest integer.
        levels = (rows / scale).add_(INPUT_ZERO_POINT + 0.5).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, INPUT_ZERO_POINT, self.packed, self.scale, self.zero_points, None, 1.0, 0, torch.float32,
            "none", [], "")
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
