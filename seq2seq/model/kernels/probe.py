"""The smallest kernel. If it runs, the compiler, the driver and Triton fit together, and the other kernels run, too."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def run(device: torch.device) -> None:
    """Add 1 to a number, and wait for it.

    Raises:
        Exception: of any kind, if Triton, the compiler or the driver fails, or the number is wrong.
    """
    number = torch.zeros(1, device=device)
    with torch.cuda.device_of(number):                                          # Triton launches on the current device
        _add_one[(1,)](number)
    if number.item() != 1:
        raise RuntimeError(f"0 + 1 = {number.item()}")


@triton.jit  # type: ignore[untyped-decorator]
def _add_one(number: tl.tensor) -> None:
    tl.store(number, tl.load(number) + 1)
