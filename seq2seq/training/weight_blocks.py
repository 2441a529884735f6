"""Blocks of weights: a GPU updates all weights as one flat buffer, a CPU updates each weight by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 128
"""Each weight begins at a multiple of this number of elements of a buffer: 256 bytes in 16 bits, for matrix products.
The gaps between the weights are 0."""


class WeightBlocks:
    """Weights, and the blocks of memory in which operators of the update process them.

    With `joined`, all weights are views of one buffer, the only block. An update is then a few kernels instead of some
    for each group of weights. Otherwise, each weight is a block. Whatever has a value for each element of the weights,
    such as their gradient or Adam's moments, is divided in the same way.

    weights: the weights. blocks: tensors that share the memory of the weights.
    """

    def __init__(self, weights: Sequence[Tensor], joined: bool) -> None:
        """With `joined`, move the weights into a new buffer. All weights have the same dtype and device."""
        self.weights, self.joined = list(weights), joined
        self.sizes = [-(-weight.numel() // ALIGNMENT) * ALIGNMENT for weight in weights]
        self.blocks = self.weights
        if joined:
            self.blocks = [self.join(self.weights)]
            with torch.no_grad():
                for weight, view in zip(self.weights, self.views(self.blocks[0]), strict=True):
                    weight.set_(view)                           # type: ignore[call-overload]

    def buffer(self) -> Tensor:
        """Return a new tensor for a value of each element, (elements,); gaps are 0 if operators process them."""
        new = torch.zeros if self.joined else torch.empty
        return new(sum(self.sizes), dtype=self.weights[0].dtype, device=self.weights[0].device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the part of a buffer for each weight, as a view in the shape of the weight."""
        return [elements[: weight.numel()].view_as(weight)
                for elements, weight in zip(buffer.split(self.sizes), self.weights, strict=True)]

    def blocks_of(self, buffer: Tensor) -> list[Tensor]:
        """Return the part of a buffer for each block, as a view."""
        return [buffer] if self.joined else self.views(buffer)

    def by_weight(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """Return the part of some blocks for each weight. blocks: tensors in the shapes of `self.blocks`."""
        return self.views(blocks[0]) if self.joined else list(blocks)

    @torch.no_grad()
    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return a new buffer with these values. tensors: one in the shape of each weight."""
        buffer = self.buffer()
        torch._foreach_copy_(self.views(buffer), list(tensors))
        return buffer
