"""Optimizers, learning rate schedules as functions of the step, and the moving average of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seq2seq.recipe import TrainingSection


def learning_rate(section: TrainingSection, step: int) -> float:
    """Return the learning rate of `step`, counted from 1.

    All schedules rise linearly to `learning_rate` over `warmup_steps`. Then inverse_sqrt falls with
    sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3, equation 3), linear falls linearly to 0 at
    `max_steps` + 1, cosine along half a cosine (Loshchilov and Hutter 2017), and constant stays the same.
    """
    peak, warmup = section.learning_rate, section.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    # The rate reaches 0 at max_steps + 1, so that the last step still learns.
    progress = min(1.0, (step - warmup) / (section.max_steps + 1 - warmup)) if section.max_steps >= warmup else 1.0
    match section.schedule:
        case "inverse_sqrt":
            return peak * math.sqrt(max(warmup, 1) / step)
        case "linear":
            return peak * (1 - progress)
        case "cosine":
            return peak * (1 + math.cos(math.pi * progress)) / 2
        case "constant":
            return peak


def build_optimizer(section: TrainingSection, parameters: Iterable[tuple[str, Tensor]]) -> Optimizer:
    """Build the recipe's optimizer: fused Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019), or Muon.

    Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) orthogonalises the momentum of each hidden matrix in
    five Newton-Schulz steps, and scales it like Adam's update (Liu et al. 2025, arXiv:2502.16982), so that the same
    learning rate fits. AdamW updates embeddings, biases and norms.

    parameters: all parameters of the model, with their names.
    """
    named = list(parameters)
    matrices = [weight for name, weight in named if section.optimizer == "muon" and is_hidden_matrix(name, weight)]
    others = [weight for name, weight in named if all(weight is not matrix for matrix in matrices)]
    kind = torch.optim.Adam if section.optimizer == "adam" else torch.optim.AdamW
    members: list[torch.optim.Optimizer] = [kind(
        others, lr=section.learning_rate, betas=section.betas, eps=section.epsilon,
        weight_decay=section.weight_decay, fused=True)]
    if matrices:
        members.append(torch.optim.Muon(matrices, lr=section.learning_rate, weight_decay=section.weight_decay,
                                        adjust_lr_fn="match_rms_adamw"))
    return Optimizer(members)


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Return True if Muon updates this weight: a matrix of the layers, not of embeddings, positions or the output."""
    return weight.dim() == 2 and name.startswith(("encoder.", "decoder."))


class Optimizer:
    """One or several PyTorch optimizers, each for some of the weights."""

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        self.members = list(members)

    def step(self, rate: float) -> None:
        """Update all weights with this learning rate."""
        for member in self.members:
            for group in member.param_groups:
                group["lr"] = rate
            member.step()

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for member in self.members:
            member.zero_grad(set_to_none=True)

    def state(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the optimizer state of a weight, by name; empty before the first step."""
        return next((dict(member.state[weight]) for member in self.members if weight in member.state), {})

    def restore(self, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Set the optimizer state of a weight."""
        (member,) = (member for member in self.members
                     if any(weight is mine for group in member.param_groups for mine in group["params"]))
        member.state[weight] = state


def scale_gradients(gradients: list[Tensor], norm: float, tokens: int, clip: float) -> None:
    """Divide summed gradients by the step's tokens, then scale them to norm `clip` if it is exceeded.

    norm: of the mean gradient before clipping. If it is not finite, the gradients are left alone.
    clip: 0 turns it off.
    """
    factor = 1 / tokens if not clip or norm <= clip else clip / (norm * tokens)
    if math.isfinite(norm):
        torch._foreach_mul_(gradients, factor)


@torch.no_grad()
def update_moving_average(average: Sequence[Tensor], weights: Sequence[Tensor], decay: float, step: int) -> None:
    """Update the exponential moving average in place: d average + (1 - d) weights, d = min(decay, (1 + step) / (10 +
    step)).

    The smaller decay in the first steps discards the random initialisation, as in TensorFlow's
    ExponentialMovingAverage.
    """
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average), list(weights), 1 - decay)
