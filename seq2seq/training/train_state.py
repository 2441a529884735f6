"""How far a training is: the values, beside weights and optimizer, that decide what comes next."""

from __future__ import annotations

from dataclasses import dataclass, field

from seq2seq.recipe import Average, Recipe

# The loss is followed as a running mean over about so many steps, in which a single bad batch does not show.
SMOOTHING_STEPS = 50
MOST_FOLLOWED = 20.0
"""Nats a token; no single step counts for more."""
LEAST_RISE, RISE_AT_FIRST = 1.0, 3.0
"""Nats a token. Losses that rise by less are noise, or, before so much is learnt, the rate's warming up."""
GOOD = 0.2
"""Up to this share of the rise that is a divergence, a training is taken for sound."""

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "exact": True, "loss": False, "perplexity": False}


@dataclass
class Progress:
    """Saved with every checkpoint; JSON values only.

    step: optimizer steps done. epoch, step_in_epoch: what the next step is made of. best_score, best_step: by the
    recipe's best_metric. validations: (step, score) of each. stale: validations since the best. skipped: steps left out
    for want of a finite gradient; skipped_in_row: those since the last good one. window: sums since the last log line.
    seconds: spent in training and validation. averaged: the average of checkpoints has been tried. most_tokens: that
    are computed together, since memory did not suffice for more. logged: records in the log; None in a checkpoint that
    did not count them. first_loss, lowest_loss, smoothed_loss: of the running mean of -log p of a target token.
    candidate_step: a checkpoint after which it has not risen so far; good_step: one after which it had time to, and has
    not. rate_factor: what the recipe's learning rate is multiplied by, for the divergences that have been
    gone back from (retreats: how many).
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
        """Whether no step is left: all are done, or the score has stopped to improve."""
        return self.step >= recipe.training.max_steps or 0 < recipe.training.early_stopping <= self.stale

    def validated(self) -> bool:
        """Whether the last step has been validated."""
        return bool(self.validations) and self.validations[-1][0] == self.step

    def is_better(self, score: float, metric: str) -> bool:
        """Whether `score` beats the best one so far."""
        if self.best_score is None:
            return True
        return score > self.best_score if HIGHER_IS_BETTER[metric] else score < self.best_score

    def steps_to_average(self, average: Average, metric: str) -> list[int]:
        """Steps of the validated checkpoints that the recipe wants averaged, as far as they are known by now."""
        if average.kind == "none":
            return []
        chosen = self.validations
        if average.kind == "best":
            sign = -1 if HIGHER_IS_BETTER[metric] else 1
            chosen = sorted(chosen, key=lambda entry: sign * entry[1])[:average.count]
        return sorted(int(step) for step, _ in chosen[-average.count:])

    def follow(self, loss: float) -> None:
        """Take the loss of another step into the running mean. loss: -log p, nats a target token."""
        loss = min(loss, MOST_FOLLOWED)
        if self.first_loss is None:
            self.first_loss = self.smoothed_loss = loss
        self.smoothed_loss += (loss - self.smoothed_loss) / SMOOTHING_STEPS
        self.lowest_loss = min(self.lowest_loss, self.smoothed_loss)

    def risen(self) -> float:
        """How far the loss has risen from its lowest: 1 is a training that has diverged, in which half of what was
        learnt is lost again, and a nat a token at least."""
        learnt = (self.first_loss or 0.0) - self.lowest_loss
        allowed = max(LEAST_RISE, learnt / 2) if learnt >= LEAST_RISE else RISE_AT_FIRST
        return (self.smoothed_loss - self.lowest_loss) / allowed

    def judge(self) -> None:
        """Before a checkpoint is saved: what the losses since the last ones say of those."""
        # An update that spoils the weights shows in the losses after it, and in their running mean still later.
        if self.step >= self.candidate_step + SMOOTHING_STEPS and self.risen() < GOOD and not self.skipped_in_row:
            self.good_step, self.candidate_step = self.candidate_step, self.step

    def count(self, **amounts: float) -> None:
        """Add to the sums of the window."""
        for name, amount in amounts.items():
            self.window[name] = self.window.get(name, 0) + amount

    def summary(self) -> str:
        """One line for the person."""
        best = "" if self.best_score is None else f", best validation {self.best_score:.2f} at step {self.best_step:,}"
        skipped = f", {self.skipped:,} steps skipped" if self.skipped else ""
        seconds = self.seconds + self.window.get("seconds", 0)
        return f"{self.step:,} steps in {seconds / 60:.1f} minutes{best}{skipped}"
