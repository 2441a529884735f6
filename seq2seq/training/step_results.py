"""Losses and gradient norms of steps.

If they are on a GPU, they stay there until a log line, a checkpoint or a validation needs them, because the host waits
for all earlier work of the GPU whenever it reads a number from the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus
from seq2seq.training.rollback import require_convergence
from seq2seq.training.train_state import TrainState

MAX_NAMED_LINES = 20
"""Maximum number of line numbers in the warning about a skipped step."""


@dataclass(frozen=True)
class StepResult:
    """Result of an optimizer step.

    numbers: (3,) float64 on the device: training loss and negative log-likelihood of the targets, in nats, summed over
        the tokens; norm of the mean gradient.
    source_tokens, target_tokens: numbers of tokens of the step, on all ranks.
    """

    step: int
    numbers: Tensor
    micro_batches: Sequence[np.ndarray]
    source_tokens: int
    target_tokens: int


class StepResults:
    """Results of steps that the train state does not include yet."""

    def __init__(self, state: TrainState, corpus: EncodedCorpus, dtype: torch.dtype) -> None:
        """Create an empty list of results.

        corpus: training pairs, whose line numbers the warning about a skipped step names. dtype: type of the forward
            and backward pass.
        """
        self.state, self.lines, self.dtype = state, corpus.lines, dtype
        self.unread = list[StepResult]()

    def add(self, result: StepResult) -> None:
        """Add the result of a step. On a CPU, add it to the train state immediately."""
        self.unread.append(result)
        if not result.numbers.is_cuda:
            self.read()

    def read(self) -> None:
        """Add the unread results to the train state, after a single copy from the GPU."""
        if not self.unread:
            return
        results, self.unread = self.unread, []
        numbers = torch.stack([result.numbers for result in results]).tolist()
        for result, (loss, likelihood, norm) in zip(results, numbers, strict=True):
            if math.isfinite(norm):
                self.state.skipped_in_row = 0
                self.state.update_smoothed_loss(likelihood / result.target_tokens)
                self.state.add_to_window(loss=loss, likelihood=likelihood, source_tokens=result.source_tokens,
                                         target_tokens=result.target_tokens, gradient_norm=norm, steps=1)
            else:
                self._count_skipped(result)
            require_convergence(self.state)

    def _count_skipped(self, result: StepResult) -> None:
        """Count a step that was skipped because its gradient is not finite, and print a warning."""
        self.state.skipped += 1
        self.state.skipped_in_row += 1
        if self.dtype == torch.float16:                         # happens often after the loss scale has grown
            console.warn(f"step {result.step:,} is skipped, because its gradient is not finite in fp16; the loss scale "
                         "is halved")
            return
        numbers = [] if self.lines is None else sorted(
            int(self.lines[index % len(self.lines)]) for pairs in result.micro_batches for index in pairs)
        named = ", ".join(map(str, numbers[:MAX_NAMED_LINES]))
        console.warn(f"step {result.step:,} is skipped, because its gradient is not finite; line numbers of its pairs "
                     f"in the corpora: {named}{', …' if len(numbers) > MAX_NAMED_LINES else ''}")
