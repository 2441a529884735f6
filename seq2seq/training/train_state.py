"""Train state beside weights and optimizer: step, epoch, scores and the smoothed loss."""

from __future__ import annotations

from dataclasses import dataclass, field

from seq2seq.recipe import Average, Recipe

# Time constant, in steps, of the loss' exponential moving average, in which a single bad batch does not show.
SMOOTHING_STEPS = 50
MOST_FOLLOWED = 20.0
"""Upper limit of a step's loss in the average, in nats per token."""
LEAST_RISE, RISE_AT_FIRST = 1.0, 3.0
"""Smallest rise of the loss that counts as divergence, in nats per token. Less is noise; the second value holds until
the loss has fallen by the first one, because warm-up can raise it."""
GOOD = 0.2
"""Largest rise, as a share of a divergence, at which an earlier checkpoint is accepted as good."""

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "exact": True, "loss": False, "perplexity": False}


@dataclass
class TrainState:
    """Train state saved with every checkpoint; JSON values only.

    step: optimizer steps done. epoch, step_in_epoch: position of the next step. best_score, best_step: by the recipe's
    best_metric. validations: (step, score) of each. stale: validations since the best score. skipped: steps skipped
    because their gradient was not finite; skipped_in_row: since the last finite one. window: sums since the last log
    line. seconds: spent in training and validation. averaged: the average of checkpoints has been evaluated.
    most_tokens: largest micro-batch, in tokens, after an out-of-memory error; None: no limit. logged: number of records
    in the log; None in a checkpoint of a version that did not count them. first_loss, lowest_loss, smoothed_loss:
    first, lowest and latest value of the moving average of -log p of a target token. candidate_step: checkpoint that
    becomes good_step if the loss does not rise for 50 more steps; good_step: newest checkpoint that was followed by 50
    steps without a rise of the loss, the rollback target after divergence. rate_factor: factor of the recipe's learning
    rate, halved at each rollback. retreats: number of rollbacks.
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
    seconds: float = 0.0
    averaged: bool = False
    most_tokens: int | None = None
    logged: int | None = None
    first_loss: float | None = None
    lowest_loss: float = MOST_FOLLOWED
    smoothed_loss: float = MOST_FOLLOWED
    candidate_step: int = 0
    good_step: int = 0
    rate_factor: float = 1.0
    retreats: int = 0

    def finished(self, recipe: Recipe) -> bool:
        """Return True if all steps are done, or early stopping ends the training."""
        return self.step >= recipe.training.max_steps or 0 < recipe.training.early_stopping <= self.stale

    def validated(self) -> bool:
        """Return True if the last step has been validated."""
        return bool(self.validations) and self.validations[-1][0] == self.step

    def is_better(self, score: float, metric: str) -> bool:
        """Return True if `score` is better than the best one so far."""
        if self.best_score is None:
            return True
        return score > self.best_score if HIGHER_IS_BETTER[metric] else score < self.best_score

    def steps_to_average(self, average: Average, metric: str) -> list[int]:
        """Return the steps of the checkpoints to average, chosen from the validations so far."""
        if average.kind == "none":
            return []
        chosen = self.validations
        if average.kind == "best":
            sign = -1 if HIGHER_IS_BETTER[metric] else 1
            chosen = sorted(chosen, key=lambda entry: sign * entry[1])[:average.count]
        return sorted(int(step) for step, _ in chosen[-average.count:])

    def follow(self, loss: float) -> None:
        """Add the loss of a step to the moving average. loss: -log p, in nats per target token."""
        loss = min(loss, MOST_FOLLOWED)
        if self.first_loss is None:
            self.first_loss = self.smoothed_loss = loss
        self.smoothed_loss += (loss - self.smoothed_loss) / SMOOTHING_STEPS
        self.lowest_loss = min(self.lowest_loss, self.smoothed_loss)

    def risen(self) -> float:
        """Rise of the smoothed loss above its minimum, relative to the rise that counts as divergence (1 or more).

        Divergence is a rise by half of the loss' decrease so far, and by at least `LEAST_RISE`; by `RISE_AT_FIRST`
        while the loss has decreased by less than `LEAST_RISE`.
        """
        learnt = (self.first_loss or 0.0) - self.lowest_loss
        allowed = max(LEAST_RISE, learnt / 2) if learnt >= LEAST_RISE else RISE_AT_FIRST
        return (self.smoothed_loss - self.lowest_loss) / allowed

    def judge(self) -> None:
        """Update `good_step` and `candidate_step`; called before a checkpoint is saved."""
        # An update that spoils the weights raises the losses after it, and their moving average later still.
        if self.step >= self.candidate_step + SMOOTHING_STEPS and self.risen() < GOOD and not self.skipped_in_row:
            self.good_step, self.candidate_step = self.candidate_step, self.step

    def count(self, **amounts: float) -> None:
        """Add to the sums since the last log line."""
        for name, amount in amounts.items():
            self.window[name] = self.window.get(name, 0) + amount

    def summary(self) -> str:
        """Return a one-line summary for the user."""
        best = "" if self.best_score is None else f", best validation {self.best_score:.2f} at step {self.best_step:,}"
        skipped = f", {self.skipped:,} steps skipped" if self.skipped else ""
        seconds = self.seconds + self.window.get("seconds", 0)
        return f"{self.step:,} steps in {seconds / 60:.1f} minutes{best}{skipped}"
