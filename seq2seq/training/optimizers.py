"""Optimizers, learning rate schedules, and the loss scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from seq2seq.recipe import TrainingSection
from seq2seq.training.weight_blocks import WeightBlocks

FIRST_LOSS_SCALE, MAX_LOSS_SCALE = 128.0, 32768.0
"""First and maximum loss scale of fp16. The loss is a sum over tokens, so its gradients are larger than those of a mean
and need a smaller scale. Twice the maximum would be infinite in fp16."""
GROWTH_STEPS = 2000
"""Number of consecutive steps with finite gradients after which the loss scale doubles, as in PyTorch's GradScaler."""
LOSS_SCALE = "loss_scale"
"""Name of the loss scale in the state of the optimizer."""


def learning_rate(section: TrainingSection, step: int) -> float:
    """Return the learning rate of `step`, counted from 1.

    In all schedules the rate rises linearly to `learning_rate` during the first `warmup_steps` steps. After that, with
    inverse_sqrt, it is multiplied by sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3, equation 3); with
    linear, it falls linearly to 0 at step `max_steps` + 1; with cosine, it falls to 0 at the same step along half a
    cosine (Loshchilov and Hutter 2017); with constant, it stays the same.
    """
    peak, warmup = section.learning_rate, section.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if section.schedule == "constant":
        return peak
    if section.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    # The rate reaches 0 only at max_steps + 1, so that the last step still changes the weights.
    progress = (step - warmup) / (section.max_steps + 1 - warmup)
    return peak * (1 - progress) if section.schedule == "linear" else peak * (1 + math.cos(math.pi * progress)) / 2


def build_optimizer(section: TrainingSection, parameters: Iterable[tuple[str, Tensor]],
                    dtype: torch.dtype = torch.float32, blocks: WeightBlocks | None = None) -> Optimizer:
    """Build the recipe's optimizer: fused Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019), or Muon.

    Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) orthogonalises the momentum of each hidden matrix in
    five Newton-Schulz steps. Its updates are scaled to the RMS of AdamW's updates (Liu et al. 2025, arXiv:2502.16982),
    so that the same learning rate suits both. AdamW updates all other weights, such as embeddings, biases and norms.

    Args:
        parameters: names and values of all parameters of the model.
        dtype: type of the forward and backward pass.
        blocks: blocks of these parameters; None: each parameter is a block. Muon needs the parameters as blocks.
    """
    named = list(parameters)
    blocks = blocks or WeightBlocks([weight for _, weight in named], joined=False)
    matrices = [weight for name, weight in named if section.optimizer == "muon" and is_hidden_matrix(name, weight)]
    others = [weight for name, weight in named if all(weight is not matrix for matrix in matrices)]
    adam = torch.optim.Adam if section.optimizer == "adam" else torch.optim.AdamW
    optimizers: list[torch.optim.Optimizer] = [adam(
        blocks.blocks if blocks.joined else others, lr=section.learning_rate, betas=section.betas, eps=section.epsilon,
        weight_decay=section.weight_decay, fused=True)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=section.learning_rate, weight_decay=section.weight_decay,
                                           adjust_lr_fn="match_rms_adamw"))
    loss_scale = LossScale(named[0][1].device) if dtype == torch.float16 else None
    return Optimizer([name for name, _ in named], blocks, optimizers, loss_scale)


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Return True if Muon updates this weight: a matrix of an encoder or decoder layer. AdamW updates all other
    weights, such as embeddings, learned positions and the output layer."""
    # The names of all stacks of layers that models have.
    return weight.dim() == 2 and name.startswith(("encoder.", "decoder.", "layers.", "cells."))


class LossScale:
    """Factor of the loss in fp16; without it, small gradients would be 0 (Micikevicius et al. 2018, arXiv:1710.03740).

    The scale is halved after a step whose gradient is not finite, and doubled after GROWTH_STEPS steps with finite
    gradients. It stays on the device, because reading it would make the host wait for the GPU.

    value: () float32. finite_steps: () float32, consecutive steps with finite gradients, modulo GROWTH_STEPS.
    """

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), FIRST_LOSS_SCALE, device=device)
        self.finite_steps = torch.zeros((), device=device)

    def update(self, skip: Tensor) -> None:
        """Adapt the scale after a step. skip: () float32; 1: the gradient was not finite."""
        # In place, because a CUDA graph reads the value at its address.
        self.finite_steps.add_(1).mul_(1 - skip)
        grows = self.finite_steps >= GROWTH_STEPS
        self.value.sub_(self.value * skip, alpha=0.5).mul_(1 + grows).clamp_(max=MAX_LOSS_SCALE)
        self.finite_steps.mul_(~grows)


class Optimizer:
    """Several PyTorch optimizers used as one; each updates a part of the weights.

    names: names of all weights. blocks: the weights in blocks. loss_scale: the loss scale of fp16; None for other
    precisions.
    """

    def __init__(self, names: Sequence[str], blocks: WeightBlocks, optimizers: Sequence[torch.optim.Optimizer],
                 loss_scale: LossScale | None = None) -> None:
        self.names, self.blocks, self.optimizers = list(names), blocks, list(optimizers)
        self.loss_scale = loss_scale

    def step(self, learning_rate: float, skip: Tensor | None = None) -> None:
        """Update all weights with this learning rate.

        skip: () float32 on the device of the weights. 1: leave weights and optimizer state as they are. 0 or None:
            update them. Adam reads `skip` on the device. With Muon, the host waits for the value of `skip`.
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
        if self.loss_scale is not None and skip is not None:
            self.loss_scale.update(skip)

    def zero_grad(self) -> None:
        """Set the gradients of all weights to None."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the state tensors of all weights, such as Adam's moments, and of the loss scale. Their names are
        WEIGHT.TENSOR or loss_scale.TENSOR. Before the first step, weights have no state."""
        state = dict[str, Tensor]()
        for values, names in self._values():
            for key, value in values.items():
                joined = self.blocks.joined and value.dim()                     # the number of steps has no dimension
                parts = self.blocks.views(value) if joined else [value] * len(names)
                state |= {f"{name}.{key}": part for name, part in zip(names, parts, strict=True)}
        return state if self.loss_scale is None else state | {
            f"{LOSS_SCALE}.{key}": value for key, value in vars(self.loss_scale).items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore a result of `state`, with tensors on any device. If it has no loss scale, keep the present one."""
        of_name = dict[str, dict[str, Tensor]]()
        for key, value in state.items():
            name, _, tensor = key.rpartition(".")
            of_name.setdefault(name, {})[tensor] = value.to(self.blocks.weights[0].device)
        for values, names in self._values():
            values.clear()
            for key, value in of_name.get(names[0], {}).items():
                joined = self.blocks.joined and value.dim()
                values[key] = self.blocks.join([of_name[name][key] for name in names]) if joined else value
        if self.loss_scale is not None:
            vars(self.loss_scale).update(of_name.get(LOSS_SCALE, {}))

    def _values(self) -> Iterator[tuple[dict[str, Tensor], list[str]]]:
        """Yield the state of each block, which can be changed, with the names of the weights in the block."""
        of_blocks = [self.names] if self.blocks.joined else [[name] for name in self.names]
        names_of = {id(block): names for block, names in zip(self.blocks.blocks, of_blocks, strict=True)}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for block in group["params"]:
                    yield optimizer.state[block], names_of[id(block)]
