"""How far a training is: the values, beside weights and optimizer, that decide what comes next."""

from __future__ import annotations

from dataclasses import dataclass, field

from seq2seq.recipe import Average, Recipe

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "exact": True, "loss": False, "perplexity": False}


@dataclass
class Progress:
    """Saved with every checkpoint; JSON values only.

    step: optimizer steps done. epoch, step_in_epoch: what the next step is made of. best_score, best_step: by the
    recipe's best_metric. validations: (step, score) of each. stale: validations since the best. skipped: steps left out
    for want of a finite gradient; skipped_in_row: those since the last good one. window: sums since the last log line.
    seconds: spent in training and validation. averaged: the average of checkpoints has been tried. most_tokens: that
    are computed together, since memory did not suffice for more. logged: records in the log; None in a checkpoint that
    did not count them.
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

    def count(self, **amounts: float) -> None:
        """Add to the sums of the window."""
        for name, amount in amounts.items():
            self.window[name] = self.window.get(name, 0) + amount

    def summary(self) -> str:
        """One line for the person."""
        best = "" if self.best_score is None else f", best validation {self.best_score:.2f} at step {self.best_step:,}"
        skipped = f", {self.skipped:,} steps skipped" if self.skipped else ""
        return f"{self.step:,} steps in {self.seconds / 60:.1f} minutes{best}{skipped}"
