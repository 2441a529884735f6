"""Optimizers, gradient clipping, and the exponential moving average of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seq2seq.recipe import TrainingSection


def build_optimizer(section: TrainingSection, parameters: Iterable[tuple[str, Tensor]]) -> Optimizer:
    """Build the recipe's optimizer: fused Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019), or Muon.

    Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) orthogonalises the momentum of each hidden matrix in
    five Newton-Schulz steps. Its updates are scaled to the size of AdamW's (Liu et al. 2025, arXiv:2502.16982), so that
    the same learning rate suits both. AdamW updates all other weights: embeddings, biases and norms.

    parameters: names and values of all parameters of the model.
    """
    named = list(parameters)
    matrices = [weight for name, weight in named if section.optimizer == "muon" and is_hidden_matrix(name, weight)]
    others = [weight for name, weight in named if all(weight is not matrix for matrix in matrices)]
    adam = torch.optim.Adam if section.optimizer == "adam" else torch.optim.AdamW
    optimizers: list[torch.optim.Optimizer] = [adam(
        others, lr=section.learning_rate, betas=section.betas, eps=section.epsilon,
        weight_decay=section.weight_decay, fused=True)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=section.learning_rate, weight_decay=section.weight_decay,
                                           adjust_lr_fn="match_rms_adamw"))
    return Optimizer(optimizers)


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Return True if Muon updates this weight: a matrix in a layer of the encoder or decoder. Embeddings, learned
    positions and the output layer are updated by AdamW."""
    return weight.dim() == 2 and name.startswith(("encoder.", "decoder."))


class Optimizer:
    """Several PyTorch optimizers used as one; each updates a part of the weights."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)

    def step(self, learning_rate: float) -> None:
        """Update all weights with this learning rate."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def zero_grad(self) -> None:
        """Set the gradients of all weights to None."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the optimizer state of a weight, such as Adam's moments, by name; empty before the first step."""
        return next((dict(optimizer.state[weight]) for optimizer in self.optimizers if weight in optimizer.state), {})

    def states(self, weights: Iterable[Tensor]) -> list[Tensor]:
        """Return the tensors of the optimizer state of these weights, in their order."""
        return [value for weight in weights for value in self.state(weight).values()]

    def restore(self, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Set the optimizer state of a weight, as returned by `state`."""
        (optimizer,) = (optimizer for optimizer in self.optimizers
                        if any(weight is other for group in optimizer.param_groups for other in group["params"]))
        optimizer.state[weight] = state


def scale_gradients(gradients: list[Tensor], norm: float, tokens: int, clip: float) -> None:
    """Divide summed gradients in place by the number of target tokens, then clip their norm to at most `clip`.

    norm: norm of the mean gradient before clipping. If it is NaN or infinite, the gradients are not changed.
    tokens: number of target tokens of the step. clip: maximum norm; 0 turns clipping off.
    """
    factor = 1 / tokens if not clip or norm <= clip else clip / (norm * tokens)
    if math.isfinite(norm):
        torch._foreach_mul_(gradients, factor)


@torch.no_grad()
def update_moving_average(ema_weights: Sequence[Tensor], weights: Sequence[Tensor], decay: float, step: int) -> None:
    """Update the exponential moving average in place: ema_weights = d ema_weights + (1 - d) weights.

    d = min(decay, (1 + step) / (10 + step)). In the first steps, d is smaller than `decay`, so that the random initial
    weights are soon forgotten, as in TensorFlow's ExponentialMovingAverage.
    """
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(ema_weights), list(weights), 1 - decay)
