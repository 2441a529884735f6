"""Learning rate schedules, as functions of the step."""

from __future__ import annotations

import math

from seq2seq.recipe import TrainingSection


def learning_rate(section: TrainingSection, step: int) -> float:
    """Return the learning rate of `step`, counted from 1.

    In all schedules the rate rises linearly to `learning_rate` during the first `warmup_steps` steps. After that, with
    inverse_sqrt, it is multiplied by sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3, equation 3); with
    linear, it falls linearly to 0 at step `max_steps` + 1; with cosine, it falls to 0 at the same step along half a
    cosine (Loshchilov and Hutter 2017); with constant, it stays the same.
    """
    peak, warmup = section.learning_rate, section.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if section.schedule == "constant":
        return peak
    if section.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    # The rate reaches 0 only at max_steps + 1, so that the last step still changes the weights.
    progress = (step - warmup) / (section.max_steps + 1 - warmup)
    return peak * (1 - progress) if section.schedule == "linear" else peak * (1 + math.cos(math.pi * progress)) / 2
