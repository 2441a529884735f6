"""Engine of PyTorch operators for every model on every device. Other engines are tested against it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.devices import copy_to_device, dtype_of
from seq2seq.inference.tensor_scores import TensorScores, at_least_fp32
from seq2seq.model import Model
from seq2seq.recipe.decoding_section import DEFAULT_BATCH_TOKENS
from seq2seq.search.beam import WholeSearch
from seq2seq.search.interface import Scores
from seq2seq.search.scores import ArrayScores


@dataclass(frozen=True)
class TensorState:
    """Decoding state of a model in PyTorch, for search on the host (`search.interface.State`)."""

    inner: Any
    device: torch.device

    @property
    def attention(self) -> np.ndarray | None:
        return None if self.inner.attention is None else at_least_fp32(self.inner.attention).cpu().numpy()

    def select(self, rows: np.ndarray) -> TensorState:
        return TensorState(self.inner.select(copy_to_device(torch.from_numpy(rows), self.device)), self.device)


class EagerEngine:
    """Engine that decodes with a copy of `model` in `precision`: "fp32", or on a GPU also "bf16" or "fp16"."""

    def __init__(self, model: Model, precision: str, device: torch.device) -> None:
        self.model, self.precision, self.device = for_inference(model, precision, device), precision, device
        self.max_positions = model.max_positions
        self._step = self.model.make_step_function()

    @property
    def batch_tokens(self) -> int:
        return DEFAULT_BATCH_TOKENS

    @property
    def whole_search(self) -> WholeSearch | None:
        return None

    def on_device(self, source: np.ndarray, source_offsets: np.ndarray) -> tuple[Tensor, Tensor, int]:
        """Return the first arguments of `model.interface.Stepwise.start`."""
        tokens, offsets = (copy_to_device(torch.from_numpy(array), self.device)
                           for array in (source, source_offsets.astype(np.int32)))
        return tokens, offsets, int(np.diff(source_offsets).max())

    @torch.inference_mode()
    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = False) -> TensorState:
        return TensorState(self.model.start(*self.on_device(source, source_offsets), keep_attention), self.device)

    @torch.inference_mode()
    def step(self, last_tokens: np.ndarray, state: TensorState) -> tuple[Scores, TensorState]:
        logits, after = self._step(copy_to_device(torch.from_numpy(last_tokens), self.device), state.inner)
        logits = at_least_fp32(logits)
        scores = ArrayScores(logits.numpy()) if logits.device.type == "cpu" else TensorScores(logits)
        return scores, TensorState(after, self.device)

    @property
    def cross_layers(self) -> int:
        return len(self.model.cross_attentions)

    @torch.inference_mode()
    def cross_attention(self, source: np.ndarray, source_offsets: np.ndarray, targets: Sequence[Sequence[int]],
                        layer: int) -> list[np.ndarray]:
        corpus = EncodedCorpus(EncodedSide(source, source_offsets.astype(np.int64)), EncodedSide.from_lists(targets))
        batch = gather(corpus, np.arange(len(targets))).to(self.device)
        weights, = self.model.attention_maps(batch, ["cross"], layer).cross
        return [of_sentence[:, : len(target) + 1, :length] for of_sentence, target, length in
                zip(weights.float().cpu().numpy(), targets, np.diff(source_offsets), strict=True)]


def for_inference(model: Model, precision: str, device: torch.device | None = None) -> Model:
    """Return a copy of the model without gradients, for decoding. precision: see `EagerEngine`. device: device of the
    copy; None: the model's device."""
    frozen_copy = copy.deepcopy(model).to(device)
    frozen_copy.eval().requires_grad_(False)
    for attention in frozen_copy.attentions:
        attention.fold_query_preparation()
    if precision != "fp32":
        frozen_copy.to(dtype_of(precision))
    return frozen_copy
