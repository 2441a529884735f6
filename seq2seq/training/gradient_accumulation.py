"""Gradients of an optimizer step, summed over micro-batches, which are split when they do not fit into memory.

The gradient of a step is the sum over all its tokens, divided once, so that number and size of its micro-batches do not
change it, except for the dropout masks.
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
from seq2seq.model.loss import training_loss


class StepGradients:
    """Computes micro-batches with the model or its bf16 copy, and sums their gradients for the fp32 weights.

    most_tokens: largest micro-batch, in source and target tokens; larger ones are split. Lowered permanently after each
        out-of-memory error. None: no limit.
    """

    def __init__(self, computing: nn.Module, weights: Sequence[Tensor], *, seed: int, label_smoothing: float,
                 shape: Shape | None, longest: int, most_tokens: int | None = None) -> None:
        """shape: fixed shape of all batches; None: each has a rounded shape. longest: tokens of the longest
        sentence."""
        self.computing, self.weights = computing, weights
        self.computing_weights = list(computing.parameters())
        self.seed, self.label_smoothing = seed, label_smoothing
        # With a fixed shape, smaller batches are filled up and take as much memory, so a limit turns it off.
        self.shape = shape if most_tokens is None else None
        self.longest, self.most_tokens = longest, most_tokens

    def accumulate(self, corpus: EncodedCorpus, step: int,
                   micro_batches: Sequence[tuple[tuple[int, ...], np.ndarray]]) -> Tensor:
        """Sum the gradients of some micro-batches of a step in `weights`.

        micro_batches: with their paths: the index in the step, then 0 or 1 for every time it was split in half.
        Returns:
            (2,) float64, on the device: the training loss, and -log p of the targets in nats, summed over all tokens.
        Raises:
            UserError: memory does not suffice for a single pair.
        """
        sums = torch.zeros(2, dtype=torch.float64, device=self.computing_weights[0].device)
        gradients = list[Tensor]()
        waiting = list(micro_batches)
        while waiting:
            path, pairs = waiting.pop(0)
            pieces = list(self._small_enough(corpus, pairs))
            if len(pieces) == 1 and not self._add_micro_batch(corpus, (step, *path), pairs, sums, gradients):
                self._lower_budget(corpus, pairs)
                pieces = [pairs[::2], pairs[1::2]]
            if len(pieces) > 1:
                waiting = [((*path, number), piece) for number, piece in enumerate(pieces)] + waiting
        for weight, gradient in zip(self.weights, gradients or map(torch.zeros_like, self.weights), strict=True):
            weight.grad = gradient
        return sums

    def _small_enough(self, corpus: EncodedCorpus, pairs: np.ndarray) -> Iterator[np.ndarray]:
        if self.most_tokens is not None and len(pairs) > 1 and _tokens(corpus, pairs) > self.most_tokens:
            yield from (pairs[::2], pairs[1::2])
        elif self.shape is not None:
            yield from split_to_shape(corpus, pairs, self.shape)
        else:
            yield from split_by_length(corpus, pairs)

    def _add_micro_batch(self, corpus: EncodedCorpus, path: tuple[int, ...], pairs: np.ndarray, sums: Tensor,
                         gradients: list[Tensor]) -> bool:
        """Add gradients and sums of a micro-batch to those of the step. Returns False, adding nothing, if out of
        memory.

        path: seed of its dropout.
        """
        device = self.computing_weights[0].device
        try:
            torch.manual_seed(derived_seed(self.seed, "dropout", *path))
            batch = gather(corpus, pairs, self.shape or Shape.rounded(corpus, pairs, self.longest)).to(device)
            loss = training_loss(self.computing(batch), batch.target_output, batch.target_count, self.label_smoothing)
            loss.total.backward()
        except RuntimeError as error:
            for weight in self.computing_weights:
                weight.grad = None
            if not is_out_of_memory(error):
                raise
            return False
        found = [gradient_of(computed).to(weight.dtype)
                 for computed, weight in zip(self.computing_weights, self.weights, strict=True)]
        for weight in self.computing_weights:
            weight.grad = None
        if gradients:
            torch._foreach_add_(gradients, found)
        else:
            gradients += found
        sums += torch.stack([loss.total.detach(), loss.negative_log_likelihood]).double()
        return True

    def _lower_budget(self, corpus: EncodedCorpus, pairs: np.ndarray) -> None:
        tokens = _tokens(corpus, pairs)
        if len(pairs) == 1:
            where = "" if corpus.lines is None else f" It is on line {int(corpus.lines[pairs[0]])} of its corpus."
            raise UserError(f"memory does not suffice for a single pair of {tokens:,} tokens.{where} Take it out, "
                            "lower data.cleaning.max_pieces, or use a smaller model. The last checkpoint is intact.")
        if self.computing_weights[0].is_cuda:
            torch.cuda.empty_cache()
        self.most_tokens, self.shape = max(1, tokens // 2), None
        console.warn(f"memory did not suffice for {tokens:,} tokens at once; from here on {self.most_tokens:,} are "
                     "computed together. The gradients are the same.")


def read_sums(sums: Tensor, gradients: Sequence[Tensor]) -> tuple[float, float, float]:
    """Return the sums of `StepGradients.accumulate` and the norm of all gradients, in a single copy to the host.

    At each copy the host waits until the GPU has computed everything before it.
    """
    norm = torch.nn.utils.get_total_norm(gradients)
    loss, likelihood, value = torch.cat([sums, norm.double()[None]]).tolist()
    return loss, likelihood, value


def gradient_of(weight: Tensor) -> Tensor:
    """Return the gradient of a weight, which must have one."""
    assert weight.grad is not None, "every parameter takes part in every step"
    return weight.grad


def _tokens(corpus: EncodedCorpus, pairs: np.ndarray) -> int:
    return int(corpus.source.lengths_of(pairs).sum() + corpus.target.lengths_of(pairs).sum())
