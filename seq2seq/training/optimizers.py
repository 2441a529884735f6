"""Optimizers, gradient clipping, and the exponential moving average of weights."""

from __future__ import annotations

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

    def step(self, learning_rate: float, skip: Tensor | None = None) -> None:
        """Update all weights with this learning rate.

        skip: () float32 on the device of the weights; 1: leave weights and optimizer state as they are. Adam reads it
            on the device. Muon makes the host wait for it. None: 0.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            if isinstance(optimizer, torch.optim.Muon):
                if skip is not None and skip.item():
                    continue
            else:
                optimizer.found_inf = skip                                      # type: ignore[attr-defined]
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


def mean_gradient_norm(gradients: list[Tensor], tokens: int) -> Tensor:
    """Return the norm of the mean gradient, () float64. gradients: sums over the step's target tokens."""
    return torch.nn.utils.get_total_norm(gradients).double() / tokens


def scale_gradient(gradient: Tensor, norm: Tensor, tokens: int, clip: float) -> None:
    """Divide a summed gradient in place by the step's target tokens, then clip its norm to at most `clip`.

    norm: of the mean gradient before clipping, () float64. clip: maximum norm; 0 turns clipping off.
    """
    factor = torch.full_like(norm, 1 / tokens)
    if clip:
        factor = torch.where(norm <= clip, factor, clip / (norm * tokens))
    gradient.mul_(factor)


@torch.no_grad()
def update_moving_average(ema_weights: Sequence[Tensor], weights: Sequence[Tensor], decay: float, step: int,
                          skip: Tensor) -> None:
    """Update the exponential moving average in place: ema_weights = d ema_weights + (1 - d) weights.

    d = min(decay, (1 + step) / (10 + step)). In the first steps, d is smaller than `decay`, so that the random initial
    weights are soon forgotten, as in TensorFlow's ExponentialMovingAverage.

    skip: () float32 on the device of the weights; 1: leave the average as it is.
    """
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(ema_weights), list(weights), [(1 - decay) * (1 - skip)] * len(weights))
