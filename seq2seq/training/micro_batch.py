"""Loss and gradient of a micro-batch: one forward and backward pass, which a GPU can repeat as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch, EncodedCorpus
from seq2seq.devices import strictly_deterministic
from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.training.objective import Objective
from seq2seq.training.optimizers import LossScale

ALIGNMENT = 4
"""Each weight's gradient begins at a multiple of 4 elements (16 bytes) of the buffer, for vector instructions."""


class MicroBatchGradient:
    """Computation of gradients by the model or its copy in bf16 or fp16. A buffer in fp32 receives all gradients.

    A pass over a small batch consists of many short kernels, which take longer to launch than to run: 1,129 kernels of
    a step with 3 + 3 layers took 65 ms on an H200, and 7 ms as a CUDA graph, which launches all of them at once.
    """

    def __init__(self, compute_model: nn.Module, weights: Sequence[Tensor], objective: Objective,
                 loss_scale: LossScale | None, one_shape: bool) -> None:
        """Arguments as for `StepGradients`. one_shape: True if batches are filled up to one shape."""
        self.compute_model, self.objective, self.loss_scale = compute_model, objective, loss_scale
        self.compute_weights = list(compute_model.parameters())
        self.dtype, self.device = weights[0].dtype, self.compute_weights[0].device
        self.sizes = [-(-weight.numel() // ALIGNMENT) * ALIGNMENT for weight in weights]
        # The labels of guided alignment are chosen on the host, so a graph cannot compute their loss.
        self.graphs = CudaGraphs(self.device, "training") if one_shape and objective.guided is None else None
        self.captured: dict[str, torch.cuda.CUDAGraph | None] = {}
        self.static: tuple[Batch, Tensor, Tensor] | None = None                 # the tensors of the graph

    def release_graph(self) -> None:
        """Delete the graph and its memory, which is about as large as all activations. A later call of `compute` makes
        a new graph, with the same results."""
        if self.graphs is not None and self.static is not None:
            self.graphs.delete(self.captured)
            self.static = None

    def buffer(self) -> Tensor:
        """Return a new tensor for the gradients of all weights, (elements,)."""
        return torch.empty(sum(self.sizes), dtype=self.dtype, device=self.device)

    def views(self, gradient: Tensor) -> list[Tensor]:
        """Return the part of a buffer for each weight, as a view in the shape of the weight."""
        return [elements[: weight.numel()].view_as(weight)
                for elements, weight in zip(gradient.split(self.sizes), self.compute_weights, strict=True)]

    def compute(self, batch: Batch, corpus: EncodedCorpus, pairs: np.ndarray, of_one_shape: bool
                ) -> tuple[Tensor, Tensor]:
        """Return the gradient of a batch, (elements,); and its loss and negative log-likelihood, (2,) float64.

        of_one_shape: True if the batch has been filled up to the shape of all batches.
        """
        batch = self.objective.add_noise(batch)
        try:
            if self.graphs is None or not of_one_shape:
                gradient, losses = self.buffer(), self._losses()
                self._write(batch, gradient, losses, corpus, pairs)
                return gradient, losses
            if self.static is None:
                self.static = batch, self.buffer(), self._losses()
            static_batch, gradient, losses = self.static
            for field in fields(batch):
                if isinstance(value := getattr(batch, field.name), Tensor):
                    getattr(static_batch, field.name).copy_(value)
            self.graphs.run(partial(self._write, *self.static, corpus, pairs), "micro-batch", self.captured)
            return gradient.clone(), losses
        finally:
            for weight in self.compute_weights:
                weight.grad = None

    def _losses(self) -> Tensor:
        return torch.empty(2, dtype=torch.float64, device=self.device)

    def _write(self, batch: Batch, gradient: Tensor, losses: Tensor, corpus: EncodedCorpus, pairs: np.ndarray) -> None:
        """Write the results of `compute` to `gradient` and `losses`."""
        for weight in self.compute_weights:                                     # a failed capture may leave gradients
            weight.grad = None
        with nullcontext() if self.graphs is None else strictly_deterministic():
            total, loss = self.objective.loss(self.compute_model, batch, corpus, pairs)
            total.backward(None if self.loss_scale is None else self.loss_scale.value)
        torch._foreach_copy_(self.views(gradient), [gradient_of(weight) for weight in self.compute_weights])
        if self.loss_scale is not None:
            gradient.div_(self.loss_scale.value)
        losses.copy_(torch.stack([loss.total.detach(), loss.negative_log_likelihood]))


def gradient_of(weight: Tensor) -> Tensor:
    """Return the gradient of a weight, which must not be None."""
    assert weight.grad is not None, "every weight must contribute to the loss of every step"
    return weight.grad
