"""Loss of hard attention, whose samples have no gradient."""

from __future__ import annotations

from torch import Tensor

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model.interface import HardAttentionSample


def score_function_loss(sample: HardAttentionSample, log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Return the score-function (REINFORCE) loss of hard attention.

    With respect to the attention weights q, the gradient of this loss is an unbiased estimate of the gradient of
    -E[log p] (Williams 1992): d E[log p] = E[(log p - baseline) d log q(sample)]. The loss also contains half the
    squared error of the baseline. In a recurrent decoder, the loss ignores that a sample affects log p of later tokens.

    Args:
        log_probabilities: (tokens,), log p of the targets given the sampled positions.
        target: (tokens,) int64; targets of IGNORE_INDEX are ignored.
    """
    counted = target != IGNORE_INDEX
    # The learned baseline predicts only the difference from the mean log p of the other tokens, because Adam would need
    # a thousand steps to learn this mean.
    mean_of_others = (log_probabilities.sum() - log_probabilities) / (counted.sum() - 1).clamp(min=1)
    advantage = log_probabilities - mean_of_others - sample.baseline.float()
    terms = advantage.square() / 2 - advantage.detach() * sample.log_probability.float()
    return (terms * counted).sum()
