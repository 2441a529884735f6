"""Train state: step, epoch, scores and smoothed loss, which are saved beside weights and optimizer state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from seq2seq.recipe import Average, Recipe
from seq2seq.training.clock import PHASES, as_percentages

SMOOTHING_STEPS = 50
"""Time constant, in steps, of the loss' exponential moving average; a single bad batch hardly changes the average."""
MAX_STEP_LOSS = 20.0
"""Maximum loss of a step, in nats per token, that enters the moving average. Higher losses count as this value."""
MIN_RISE, MIN_RISE_AT_START = 1.0, 3.0
"""Minimum rise of the smoothed loss that counts as divergence, in nats per token; a smaller rise may be noise. The
second value applies until the loss has fallen by MIN_RISE, because the loss can rise during warm-up."""
MAX_RISE_AFTER_GOOD = 0.2
"""Limit of `TrainState.relative_rise`, below which `candidate_step` becomes `good_step`. A rise of 1 is divergence."""

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "exact": True, "loss": False, "perplexity": False}


@dataclass
class TrainState:
    """Train state, saved with every checkpoint. All values are JSON values.

    step: number of completed optimizer steps.
    epoch, step_in_epoch: position of the next step in the data: its epoch and its number in this epoch, both from 0.
    best_score, best_step: best validation score by the recipe's best_metric, and its step.
    validations: [step, score by best_metric] of each validation.
    stale: number of validations since the best score in `validations`.
    skipped: number of steps that were skipped because their gradient was not finite.
    skipped_in_row: number of steps skipped since the last step with a finite gradient.
    window: sums since the last log line, by name; `likelihood` is the negative log-likelihood of the targets, and each
        phase of the clock is in seconds.
    seconds: wall-clock time until the last log line, by phase; without the time between stopping and resuming.
    averaged: steps of the checkpoints whose average has been validated after the last step; empty: none.
    most_tokens: `TrainingStep.max_tokens`, which is lowered after out-of-memory errors.
    logged: number of records in the log.
    first_loss, lowest_loss, smoothed_loss: first, lowest and latest value of the moving average of the negative
        log-likelihood per target token.
    candidate_step: step of the checkpoint that becomes good_step if the loss has not risen SMOOTHING_STEPS steps later.
    good_step: step of the newest checkpoint that was accepted as good in this way. A rollback returns to it. 0: none.
    rate_factor: factor of the recipe's learning rate, halved at each rollback.
    retreats: number of rollbacks.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    best_score: float | None = None
    best_step: int = 0
    validations: list[list[float]] = field(default_factory=list)
    stale: int = 0
    skipped: int = 0
    skipped_in_row: int = 0
    window: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    averaged: list[int] = field(default_factory=list)
    most_tokens: int | None = None
    logged: int = 0
    first_loss: float | None = None
    lowest_loss: float = MAX_STEP_LOSS
    smoothed_loss: float = MAX_STEP_LOSS
    candidate_step: int = 0
    good_step: int = 0
    rate_factor: float = 1.0
    retreats: int = 0

    def finished(self, recipe: Recipe) -> bool:
        """Return True if all steps are done, or early stopping applies."""
        return self.step >= recipe.training.max_steps or 0 < recipe.training.early_stopping <= self.stale

    def validated(self) -> bool:
        """Return True if the weights after the last step have been validated."""
        return bool(self.validations) and self.validations[-1][0] == self.step

    def is_better(self, score: float, metric: str) -> bool:
        """Return True if `score` is better than the best score so far, or is the first score. If both are 0, the later
        weights are better: the first validations of a slow training often give 0."""
        if self.best_score is None or score == self.best_score == 0 and HIGHER_IS_BETTER[metric]:
            return True
        return score > self.best_score if HIGHER_IS_BETTER[metric] else score < self.best_score

    def add_validation(self, score: float, metric: str) -> None:
        """Add the score of the weights after the last step. metric: the recipe's best_metric."""
        # After a rollback, `best_score` can be that of steps which the rollback has undone.
        earlier = [earlier_score for _, earlier_score in self.validations]
        best = (max if HIGHER_IS_BETTER[metric] else min)(earlier, default=None)
        self.stale = 0 if replace(self, best_score=best).is_better(score, metric) else self.stale + 1
        self.validations.append([self.step, score])

    def steps_to_average(self, average: Average, metric: str) -> list[int]:
        """Return the steps of the checkpoints to average: the newest or the best validated steps, by `average.kind`."""
        if average.kind == "none":
            return []
        chosen = self.validations
        if average.kind == "best":
            sign = -1 if HIGHER_IS_BETTER[metric] else 1
            chosen = sorted(chosen, key=lambda entry: sign * entry[1])[:average.count]
        return sorted(int(step) for step, _ in chosen[-average.count:])

    def update_smoothed_loss(self, loss: float) -> None:
        """Add the loss of a step to the moving average. loss: negative log-likelihood in nats per target token."""
        loss = min(loss, MAX_STEP_LOSS)
        if self.first_loss is None:
            self.first_loss = self.smoothed_loss = loss
        self.smoothed_loss += (loss - self.smoothed_loss) / SMOOTHING_STEPS
        self.lowest_loss = min(self.lowest_loss, self.smoothed_loss)

    def relative_rise(self) -> float:
        """Return the rise of the smoothed loss above its minimum, divided by the rise that counts as divergence.

        The rise that counts as divergence is half of the loss' decrease so far, but at least MIN_RISE. While the loss
        has decreased by less than MIN_RISE, a rise of MIN_RISE_AT_START counts as divergence.
        """
        decrease = (self.first_loss or 0.0) - self.lowest_loss
        allowed = max(MIN_RISE, decrease / 2) if decrease >= MIN_RISE else MIN_RISE_AT_START
        return (self.smoothed_loss - self.lowest_loss) / allowed

    def update_good_step(self) -> None:
        """Update `good_step` and `candidate_step`. Call this before each checkpoint is saved."""
        # An update that damages the weights raises only the loss of later steps, and the moving average even later. So
        # a checkpoint is accepted as good only SMOOTHING_STEPS steps after it was saved.
        if (self.step >= self.candidate_step + SMOOTHING_STEPS and self.relative_rise() < MAX_RISE_AFTER_GOOD
                and not self.skipped_in_row):
            self.good_step, self.candidate_step = self.candidate_step, self.step

    def add_to_window(self, **amounts: float) -> None:
        """Add each amount to the sum of the same name since the last log line."""
        for name, amount in amounts.items():
            self.window[name] = self.window.get(name, 0) + amount

    def summary(self) -> str:
        """Return a one-line summary of the training for messages."""
        best = "" if self.best_score is None else f", best validation {self.best_score:.2f} at step {self.best_step:,}"
        skipped = f", {self.skipped:,} steps skipped" if self.skipped else ""
        seconds = {phase: self.seconds.get(phase, 0) + self.window.get(phase, 0) for phase in PHASES}
        whole = sum(seconds.values())
        shares = ", ".join(as_percentages({phase: seconds[phase] / whole for phase in PHASES})) if whole else ""
        return f"{self.step:,} steps in {whole / 60:.1f} minutes{shares and f' ({shares})'}{best}{skipped}"
