"""`overwrite_with_gradient` of loss.py as a Triton kernel, for GPUs.

Triton comes with PyTorch's CUDA build. This module needs it, so only loss.py imports it, inside a function.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# Logits of a row that a program holds at once, and the warps that share them: 16 for each thread. With a smaller block
# than threads, not all threads would wait for each other in the sums.
BLOCK, WARPS = 4096, 8
FP32 = torch.finfo(torch.float32)
# Running maxima begin with a finite number, because a block of -inf would otherwise compute -inf - -inf = NaN.
LOWEST = tl.constexpr(FP32.min)
LOG_TINY = tl.constexpr(math.log(FP32.tiny))


def overwrite_with_gradient(logits: Tensor, targets: Tensor, counted: Tensor, smoothing: float, differentiate: bool,
                            target_logits: Tensor, target_log_p: Tensor) -> None:
    """Compute the same as `seq2seq.model.loss.overwrite_with_gradient`, in fp32, with one kernel.

    Arguments: as there, all contiguous; logits in fp32, fp16 or bf16. A target of vocab_size or more, for which
    PyTorch's indexing raises an error, makes log p and the gradient of its row NaN, so that the step is skipped.
    """
    rows, vocab_size = logits.shape
    if not rows:
        return
    with torch.cuda.device_of(logits):                                          # Triton launches on the current device
        _overwrite_row[(rows,)](logits, vocab_size, targets, counted, smoothing - 1.0, target_logits, target_log_p,
                                DIFFERENTIATE=differentiate, BLOCK=BLOCK, num_warps=WARPS)


@triton.jit  # type: ignore[untyped-decorator]
def _overwrite_row(logits: tl.tensor, vocab_size: tl.tensor, targets: tl.tensor, counted: tl.tensor,
                   target_share: tl.tensor, target_logits: tl.tensor, target_log_p: tl.tensor,
                   DIFFERENTIATE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Process the row of the program's number. The row is read twice: for the sum of exponentials, and the gradient.

    target_share: what the gradient of the target's logit contains besides its probability.
    """
    row = tl.program_id(0).to(tl.int64)                                         # offsets may exceed 32 bits
    logits += row * vocab_size
    target = tl.load(targets + row)
    # Read before the first sum, at which the threads wait for each other: afterwards, the row is overwritten.
    target_logit = tl.load(logits + target, target < vocab_size, float("nan")).to(tl.float32)
    greatest = tl.full((), LOWEST, tl.float32)
    total = tl.where(target < vocab_size, 0.0, float("nan"))                    # of exp(logit - greatest)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        values = tl.load(logits + token, token < vocab_size, -float("inf")).to(tl.float32)
        # The maximum may ignore NaN, but the sum does not.
        larger = tl.maximum(greatest, tl.max(values, 0))
        total = total * tl.exp(greatest - larger) + tl.sum(tl.exp(values - larger), 0)
        greatest = larger
    log_p = target_logit - greatest - tl.log(total)
    tl.store(target_logits + row, target_logit)
    tl.store(target_log_p + row, tl.where(log_p < LOG_TINY, LOG_TINY, log_p))   # NaN is not below it
    if DIFFERENTIATE:
        # Multiplied, so that also an ignored row with NaN has a gradient of NaN.
        share = tl.load(counted + row).to(tl.float32)
        for begin in range(0, vocab_size, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            values = tl.load(logits + token, token < vocab_size, -float("inf")).to(tl.float32)
            gradient = tl.exp(values - greatest) / total + tl.where(token == target, target_share, 0.0)
            tl.store(logits + token, (gradient * share).to(logits.dtype.element_ty), token < vocab_size)
