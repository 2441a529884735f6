"""Gradient accumulation: the gradients of an optimizer step are summed over micro-batches.

Micro-batches that do not fit into memory are split. The summed gradient is divided once, by the number of target tokens
of the step. So the number and the size of the micro-batches affect the gradient only through the dropout masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, Shape, derived_seed, gather, split_by_length, split_to_shape
from seq2seq.devices import is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.training.micro_batch import MicroBatchGradient
from seq2seq.training.objective import Objective
from seq2seq.training.optimizers import LossScale


class StepGradients:
    """Accumulator of gradients: computes them micro-batch by micro-batch, and adds them up in fp32.

    max_tokens: maximum number of tokens of a micro-batch, source and target together; larger micro-batches are split.
        It is lowered permanently after each out-of-memory error. None: no limit.
    """

    def __init__(self, compute_model: nn.Module, weights: Sequence[Tensor], objective: Objective, *, seed: int,
                 shape: Shape | None, max_length: int, max_tokens: int | None = None,
                 loss_scale: LossScale | None = None) -> None:
        """Create an accumulator.

        Args:
            compute_model: model that computes loss and gradients: the model itself, or a copy in bf16 or fp16.
            weights: fp32 weights, in the order of the model's parameters.
            shape: shape that all batches are filled up to, so that a GPU can compute their gradients by one CUDA graph;
                None: each batch is filled up to its own `Shape.rounded`.
            max_length: maximum number of tokens of a sentence, `</s>` included.
            loss_scale: factor of the loss in the backward pass, by which the gradients are divided later; None: 1.
        """
        self.micro_batch = MicroBatchGradient(compute_model, weights, objective, loss_scale, shape is not None)
        self.weights, self.device, self.seed = weights, self.micro_batch.device, seed
        # All batches that are filled up to the fixed shape need the same memory, however few tokens they have. So if
        # the number of tokens is limited, the fixed shape is not used.
        self.shape = shape if max_tokens is None else None
        self.max_length, self.max_tokens = max_length, max_tokens

    def accumulate(self, corpus: EncodedCorpus, step: int,
                   micro_batches: Sequence[tuple[tuple[int, ...], np.ndarray]]) -> tuple[Tensor, Tensor]:
        """Compute the gradients of some micro-batches of a step, and store their sum in the `grad` of each weight.

        micro_batches: (path, indices of the pairs) of each micro-batch, as `ProcessGroup.micro_batches` returns them.
        Returns:
            sums: (2,) float64, on the device of the model: training loss and negative log-likelihood of the targets, in
                nats, summed over the tokens of these micro-batches.
            gradient: (elements,), in the dtype of the weights; all gradients, in the order of the weights.
        Raises:
            UserError: memory does not suffice for a single pair.
        """
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        gradient: Tensor | None = None
        pending = list(micro_batches)
        while pending:
            path, pairs = pending.pop(0)
            splits = list(self._split_to_fit(corpus, pairs))
            if len(splits) == 1:
                new = self._gradient_of_micro_batch(corpus, (step, *path), pairs, sums)
                if new is None:
                    self._lower_max_tokens(corpus, pairs)
                    splits = [pairs[::2], pairs[1::2]]
                else:
                    gradient = new if gradient is None else gradient.add_(new)
            if len(splits) > 1:
                pending = [((*path, number), split) for number, split in enumerate(splits)] + pending
        if gradient is None:                                                    # a rank without micro-batches
            gradient = self.micro_batch.buffer().zero_()
        for weight, view in zip(self.weights, self.micro_batch.views(gradient), strict=True):
            weight.grad = view
        return sums, gradient

    def _split_to_fit(self, corpus: EncodedCorpus, pairs: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the micro-batch, or parts of it if it exceeds `max_tokens` or `shape` or has very different lengths."""
        if self.max_tokens is not None and len(pairs) > 1 and _tokens(corpus, pairs) > self.max_tokens:
            yield from (pairs[::2], pairs[1::2])
        elif self.shape is not None:
            yield from split_to_shape(corpus, pairs, self.shape)
        else:
            yield from split_by_length(corpus, pairs)

    def _gradient_of_micro_batch(self, corpus: EncodedCorpus, path: tuple[int, ...], pairs: np.ndarray,
                                 sums: Tensor) -> Tensor | None:
        """Return the gradient of a micro-batch, (elements,), and add its loss and negative log-likelihood to `sums`.

        path: number of the step, then the path of the micro-batch. The seed of the dropout masks is derived from it.
        Returns:
            None if memory does not suffice; `sums` is then unchanged.
        """
        try:
            torch.manual_seed(derived_seed(self.seed, "dropout", *path))
            batch = gather(corpus, pairs, self.shape or Shape.rounded(corpus, pairs, self.max_length)).to(self.device)
            gradient, losses = self.micro_batch.compute(batch, corpus, pairs, of_one_shape=self.shape is not None)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        sums += losses
        return gradient

    def _lower_max_tokens(self, corpus: EncodedCorpus, pairs: np.ndarray) -> None:
        """Set `max_tokens` to half the tokens of a micro-batch for which memory did not suffice.

        Raises:
            UserError: the micro-batch is a single pair.
        """
        tokens = _tokens(corpus, pairs)
        if len(pairs) == 1:
            where = "" if corpus.lines is None else f" The pair is on line {int(corpus.lines[pairs[0]])} of its corpus."
            raise UserError(f"memory does not suffice for a single pair of {tokens:,} tokens.{where} Remove it, "
                            "lower data.cleaning.max_pieces, or use a smaller model. The last checkpoint is intact.")
        if self.device.type == "cuda":
            self.micro_batch.release_graph()
            torch.cuda.empty_cache()
        self.max_tokens, self.shape = max(1, tokens // 2), None
        console.warn(f"memory did not suffice for a micro-batch of {tokens:,} tokens; from now on, micro-batches of "
                     f"more than {self.max_tokens:,} tokens are split. Except for dropout, gradients stay the same.")


def _tokens(corpus: EncodedCorpus, pairs: np.ndarray) -> int:
    return int(corpus.source.lengths_of(pairs).sum() + corpus.target.lengths_of(pairs).sum())
