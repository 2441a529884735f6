"""Cross-entropy of a chunk of logits: log p of each target, and softmax - (1 - e) one-hot in place of the logits.

This is the work of `model.loss.overwrite_with_gradient`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# Number of logits that a program processes at once, and its number of warps: 4,096 / (8 * 32) = 16 logits per thread.
# If BLOCK were smaller than the number of threads, a sum would not synchronise all threads.
BLOCK, WARPS = 4096, 8
FP32 = torch.finfo(torch.float32)
# The running maximum begins with a finite number, because in a block of -inf, -inf - -inf would be NaN.
LOWEST = tl.constexpr(FP32.min)
LOG_TINY = tl.constexpr(math.log(FP32.tiny))


def overwrite_with_gradient(logits: Tensor, targets: Tensor, counted: Tensor, smoothing: float, differentiate: bool,
                            target_logits: Tensor, target_log_p: Tensor) -> None:
    """Compute the same as `model.loss.overwrite_with_gradient`, in fp32, with one kernel. It has the same arguments.

    The logits are fp32, fp16 or bf16. Their rows may have a larger stride than vocab_size; what lies between them is
    overwritten. A stride that is a multiple of 16 makes the kernel read and write 16 bytes at once. All other tensors
    must be contiguous. If a target is vocab_size or more, the kernel sets log p and the gradient of the row to NaN, so
    that the trainer skips the step. PyTorch would raise an error.
    """
    rows, vocab_size = logits.shape
    if not rows:
        return
    with torch.cuda.device_of(logits):                                          # Triton launches on the current device
        _overwrite_row[(rows,)](logits, logits.stride(0), vocab_size, targets, counted, smoothing - 1.0, target_logits,
                                target_log_p, DIFFERENTIATE=differentiate, BLOCK=BLOCK, num_warps=WARPS)


@triton.jit  # type: ignore[untyped-decorator]
def _overwrite_row(logits: tl.tensor, stride: tl.tensor, vocab_size: tl.tensor, targets: tl.tensor,
                   counted: tl.tensor, target_share: tl.tensor, target_logits: tl.tensor, target_log_p: tl.tensor,
                   DIFFERENTIATE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Process the row whose index is the program id. Read it twice: for the sum of exponentials and for the gradient.

    target_share: number added to the target's probability to get the gradient of its logit: smoothing - 1.
    """
    row = tl.program_id(0).to(tl.int64)                                         # offsets may exceed 32 bits
    logits += row * stride
    target = tl.load(targets + row)
    # Load the target's logit before the second loop overwrites it. The sums in the first loop synchronise the threads.
    target_logit = tl.load(logits + target, target < vocab_size, float("nan")).to(tl.float32)
    greatest = tl.full((), LOWEST, tl.float32)
    total = tl.where(target < vocab_size, 0.0, float("nan"))                    # sum of exp(logit - greatest)
    for begin in range(0, vocab_size, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        # The bound of the load is the stride, which is a multiple of 16 more often than the vocabulary's size.
        values = tl.load(logits + token, token < stride, -float("inf")).to(tl.float32)
        values = tl.where(token < vocab_size, values, -float("inf"))
        # The maximum may ignore NaN, but the sum does not.
        larger = tl.maximum(greatest, tl.max(values, 0))
        total = total * tl.exp(greatest - larger) + tl.sum(tl.exp(values - larger), 0)
        greatest = larger
    log_p = target_logit - greatest - tl.log(total)
    tl.store(target_logits + row, target_logit)
    tl.store(target_log_p + row, tl.where(log_p < LOG_TINY, LOG_TINY, log_p))   # NaN stays NaN
    if DIFFERENTIATE:
        # The gradient is multiplied by 0 or 1, so that a NaN in a row that does not count stays NaN.
        share = tl.load(counted + row).to(tl.float32)
        for begin in range(0, vocab_size, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            values = tl.load(logits + token, token < stride, -float("inf")).to(tl.float32)
            gradient = tl.exp(values - greatest) / total + tl.where(token == target, target_share, 0.0)
            tl.store(logits + token, (gradient * share).to(logits.dtype.element_ty), token < stride)
