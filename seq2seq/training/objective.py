"""Loss that a training minimises, with everything that the recipe adds to it."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from torch import Tensor, nn

from seq2seq.data.batching import Batch, EncodedCorpus
from seq2seq.data.token_noise import TokenNoise
from seq2seq.model.consistency import loss_of_passes, two_passes
from seq2seq.model.loss import LossSum
from seq2seq.training.guided_alignment import GuidedAlignment


class Objective:
    """Loss of the batches of a training."""

    def __init__(self, label_smoothing: float, consistency: float = 0.0, guided: GuidedAlignment | None = None,
                 noise: TokenNoise | None = None) -> None:
        """Args:
            consistency: weight of the divergence between two passes with different dropout masks; 0: only one pass.
            guided: loss of the alignment head; None: no such loss. noise: noise in the input tokens; None: no noise.
        """
        self.label_smoothing, self.consistency, self.guided, self.noise = label_smoothing, consistency, guided, noise

    def add_noise(self, batch: Batch) -> Batch:
        """Return the batch with noise in its input tokens, if there is any."""
        return self.noise.apply(batch) if self.noise else batch

    def loss(self, model: nn.Module, batch: Batch, corpus: EncodedCorpus, pairs: np.ndarray) -> tuple[Tensor, LossSum]:
        """Return (loss to minimise, loss to report), both summed over target tokens. Only the loss to minimise includes
        the loss of the alignment head.

        batch: result of `add_noise`. pairs: indices of its pairs in `corpus`; only the alignment head needs them.
        """
        with self.guided.recording(model) if self.guided else nullcontext():
            together = batch.source.is_cuda and self.guided is None             # the alignment head needs each pass
            outputs = two_passes(model, batch, together) if self.consistency else [model(batch)]
        loss = loss_of_passes(outputs, batch.target_output, batch.target_count, self.label_smoothing, self.consistency)
        return (loss.total if self.guided is None else loss.total + self.guided.loss(corpus, pairs)), loss
