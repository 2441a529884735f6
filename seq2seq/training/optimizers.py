"""Optimizers, learning-rate schedules as pure functions of the step, and averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seq2seq.recipe import TrainingSection


def learning_rate(section: TrainingSection, step: int) -> float:
    """Learning rate of `step`, which counts from 1: inverse_sqrt(0) is undefined, and a zero rate a wasted batch.

    All schedules rise linearly to `learning_rate` over `warmup_steps`, then
    inverse_sqrt falls with sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3, equation 3),
    linear falls to 0 after `max_steps`, cosine likewise along half a cosine (Loshchilov and Hutter 2017), constant
    stays.
    """
    peak, warmup = section.learning_rate, section.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    # The last step still learns: the rate would reach 0 at max_steps + 1.
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
    """Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), fused into one pass over the weights, or Muon.

    Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of each hidden matrix is made orthogonal
    by five Newton-Schulz steps, and scaled as Adam's update would be (Liu et al. 2025, arXiv:2502.16982), so that the
    same learning rate serves. Embeddings, biases and norms are left to AdamW.

    parameters: by name, all of the model.
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
    """Whether Muon is for it: a matrix between hidden states, neither embedding nor output layer nor positions."""
    return weight.dim() == 2 and name.startswith(("encoder.", "decoder."))


class Optimizer:
    """One or several of PyTorch's optimizers that share a training's weights among them."""

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        self.members = list(members)

    def step(self, rate: float) -> None:
        """Update all weights by their gradients."""
        for member in self.members:
            for group in member.param_groups:
                group["lr"] = rate
            member.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for member in self.members:
            member.zero_grad(set_to_none=True)

    def state(self, weight: Tensor) -> dict[str, Tensor]:
        """What is remembered about a weight, by name; empty before the first step."""
        return next((dict(member.state[weight]) for member in self.members if weight in member.state), {})

    def restore(self, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Remember `state` about a weight."""
        (member,) = (member for member in self.members
                     if any(weight is mine for group in member.param_groups for mine in group["params"]))
        member.state[weight] = state


def scale_gradients(gradients: list[Tensor], tokens: int, clip: float) -> float:
    """Divide summed gradients by the step's tokens, then scale them to norm `clip` if they are longer.

    clip: 0 turns it off.
    Returns:
        The norm of the mean gradient before clipping; not finite if any gradient is not.
    """
    norm = torch.nn.utils.get_total_norm(gradients).item() / tokens
    factor = 1 / tokens if not clip or norm <= clip else clip / (norm * tokens)
    if math.isfinite(norm):
        torch._foreach_mul_(gradients, factor)
    return norm


@torch.no_grad()
def update_moving_average(average: Sequence[Tensor], weights: Sequence[Tensor], decay: float, step: int) -> None:
    """average <- d average + (1 - d) weights, in place, with d = min(decay, (1 + step) / (10 + step)).

    The smaller decay of the first steps forgets the random start (as TensorFlow's ExponentialMovingAverage does).
    """
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average), list(weights), 1 - decay)
