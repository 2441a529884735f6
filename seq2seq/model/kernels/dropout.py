"""Dropout that stores no mask: the backward pass draws the random bits of the forward pass again.

Element (row, column) is dropped if the 16 bits that it takes of Philox4x32-10 (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3") are less than 65,536 p. The key is the seed, the counter is (group, number of the mask, 0,
0), where a group is 8 consecutive elements of a row. So a mask depends neither on the GPU nor on the tiles of a kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def dropout(values: tl.tensor, seed: tl.tensor, number: tl.tensor, row: tl.tensor, group: tl.tensor,
            GROUPS: tl.constexpr, DROPPED: tl.constexpr) -> tl.tensor:
    """Set elements to 0 and divide the others by the share that is kept.

    values: (rows, 8 * groups). seed: pointer to an int64 number. row: (rows,). group: (groups,), indices of the groups
    of 8 elements. GROUPS: number of groups in a whole row. DROPPED: 65,536 p.
    """
    # `tl.rand` would take all 128 bits of a counter for one element, and so 8 times as long.
    place = row[:, None] * GROUPS + group[None, :]
    zero = place * 0
    a, b, c, d = tl.philox(tl.load(seed), place, zero + number, zero, zero)
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    kept = tl.interleave(words & 0xFFFF, words >> 16) >= DROPPED
    return tl.where(kept, values * (65536 / (65536 - DROPPED)), 0.0)


def draw_seed(device: torch.device) -> Tensor:
    """Draw the seed of the masks of a forward pass, (1,) int64, on the device. So each replay of a CUDA graph has
    masks of its own, and they depend on `torch.manual_seed` alone."""
    return torch.empty(1, dtype=torch.int64, device=device).random_()
