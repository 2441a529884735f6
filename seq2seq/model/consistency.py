"""Consistency training (R-Drop): the predictions of two passes with different dropout masks should agree.

Wu et al. 2021 (arXiv:2106.14448, equations 1 to 4): L = -log p(y) - log q(y) + a/2 (KL(p || q) + KL(q || p)), where p
and q are the distributions of the two passes. The loss here is L / 2, so that it is as large as the loss of one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.interface import Logits, Output
from seq2seq.model.loss import LossSum, smoothed_cross_entropy


def two_passes(model: nn.Module, batch: Batch, together: bool) -> list[Output]:
    """Return the outputs of two passes over a batch.

    together: True: compute both as one pass over the batch and a copy of it. On a GPU, this is faster, because a kernel
        on a small batch takes about as long for twice the rows. On a CPU, it is slower.
    """
    if not together:
        return [model(batch), model(batch)]

    output = model(replace(
        batch, source=batch.source.repeat(2), source_positions=batch.source_positions.repeat(2),
        target_input=batch.target_input.repeat(2), target_output=batch.target_output.repeat(2),
        target_positions=batch.target_positions.repeat(2), copies=2))
    return [replace(output, hidden=hidden) for hidden in output.hidden.chunk(2)]


def consistency_loss(outputs: Sequence[Output], target: Tensor, tokens: int, label_smoothing: float,
                     consistency: float) -> LossSum:
    """Return the training loss of two passes over the same batch with different dropout masks.

    Args:
        outputs: output of each pass, of type `Logits`, without hard attention.
        consistency: a in the equation of the module docstring, the weight of the divergence of the passes.
        target, tokens, label_smoothing: as in `smoothed_cross_entropy`.
    Returns:
        The loss. `log_probabilities` is the mean over both passes.
    """
    passes = [output for output in outputs if isinstance(output, Logits)]
    hidden = torch.stack([output.hidden for output in passes], 1).flatten(0, 1)
    loss = smoothed_cross_entropy(replace(passes[0], hidden=hidden), target.repeat_interleave(2), tokens,
                                  label_smoothing, consistency / 2)
    return LossSum(loss.total / 2, loss.log_probabilities.view(-1, 2).mean(1), tokens)
