"""Triton kernels for Nvidia GPUs, one idea a file, each with the formula that it computes.

The modules of this folder import Triton, which PyTorch's CPU build does not have. So they are imported where `usable`
has returned True, and this module does not import Triton.
"""

from __future__ import annotations

import functools
import re

import torch
from torch import Tensor

from seq2seq import console
from seq2seq.devices import is_out_of_memory


def dropped(probability: float) -> int:
    """Return how many of 65,536 elements dropout sets to 0. Never all: the others are divided by their share."""
    return min(round(probability * 65536), 65535)


@functools.cache
def usable(device: torch.device) -> bool:
    """Return True if Triton's kernels run on a device. If a first one fails on an Nvidia GPU, warn once.

    AMD GPUs also have the device type "cuda", but their PyTorch has no CUDA.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    try:
        from seq2seq.model.kernels import probe
    except ImportError:                                                         # Triton is optional
        return False
    try:
        probe.run(device)
    except Exception as error:                                                  # of Triton, compiler or driver
        if is_out_of_memory(error):
            raise
        console.warn(f"Triton cannot run kernels on {device} ({type(error).__name__}: {error}); PyTorch's operators "
                     "compute the same, more slowly")
        return False
    return True


@functools.cache
def multiplies_in_loops(device: torch.device) -> bool:
    """Return True if Triton's matrix products of 64 rows or more in a loop are right on an Nvidia GPU. Else, warn once.

    On compute capability 10 (B200, GB200, B300), Triton before 3.7.1 lets the tensor cores read shared memory without a
    fence after the copies to it: results may be wrong, or differ from run to run (github.com/triton-lang/triton, issues
    9871 and 10590; github.com/pytorch/pytorch, issue 181248). A single launch does not show it.
    """
    import triton

    version = tuple(map(int, re.findall(r"\d+", triton.__version__)[:3]))
    if torch.cuda.get_device_capability(device)[0] != 10 or version >= (3, 7, 1):
        return True
    console.warn(f"attention on {torch.cuda.get_device_name(device)} runs on padded sentences, more slowly, because "
                 f"Triton {triton.__version__} may compute it wrong there. Install PyTorch 2.13 or later, which has "
                 "Triton 3.7.1 or later.")
    return False


def usable_in_16_bits(tensor: Tensor) -> bool:
    """Return True if the kernels for bf16 and fp16 run on the device of a tensor, and the tensor has such a dtype.

    They are compiled for compute capability 8.0 and above. Older GPUs have no bf16.
    """
    return (tensor.is_cuda and tensor.dtype in (torch.bfloat16, torch.float16)
            and torch.cuda.get_device_capability(tensor.device) >= (8, 0) and usable(tensor.device))
