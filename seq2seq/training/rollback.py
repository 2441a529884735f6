"""Divergence of a training: detection, and rollback to the last good checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from seq2seq.errors import UserError
from seq2seq.recipe import Recipe
from seq2seq.recipe.advice import Proposal, advice
from seq2seq.storage.checkpoints import checkpoint_by_step, load_checkpoint, prune_checkpoints, save_checkpoint
from seq2seq.training.train_state import TrainState

ROLLBACK_RATE_FACTOR = 0.5
"""Factor by which each rollback multiplies the learning rate."""
MAX_ROLLBACKS = 5
"""Maximum number of rollbacks in a run. The next divergence ends the training."""
MAX_SKIPPED_STEPS = 10
"""Number of consecutive steps without a finite gradient that counts as divergence."""


class Diverged(UserError):
    """Divergence of the training. evidence: description of the symptom for messages, such as the rise of the loss."""

    def __init__(self, evidence: str, remedy: str = "") -> None:
        super().__init__(f"{evidence}: the training has diverged.{f' {remedy}' * bool(remedy)}")
        self.evidence = evidence


def require_convergence(state: TrainState) -> None:
    """Raise Diverged if the loss has risen too much, or the gradients of too many consecutive steps were not finite."""
    if state.skipped_in_row >= MAX_SKIPPED_STEPS:
        raise Diverged(f"step {state.step:,}: {state.skipped_in_row} steps in a row had no finite gradient")
    if state.relative_rise() >= 1:
        raise Diverged(f"step {state.step:,}: the moving average of the negative log-likelihood per target token has "
                       f"risen from {state.lowest_loss:.2f} to {state.smoothed_loss:.2f}")


def remedy_of(recipe: Recipe, state: TrainState, run: Path, dtype: torch.dtype) -> str:
    """Return what can be done about the divergence of a run that cannot be rolled back, or (`divergence: stop`) is not.
    dtype: type of its computations."""
    slower: list[Proposal | str] = ["a longer training.warmup_steps"]
    if dtype != torch.float32 or recipe.training.precision == "tf32":
        slower.append("training.precision: fp32")
    if state.retreats >= MAX_ROLLBACKS:
        return (f"It has been rolled back {state.retreats} times, each time with half the learning rate. Train from "
                f"the beginning (--restart) with {advice(recipe, slower)}, and check the text (seq2seq check).")
    lower_rate = Proposal("training.divergence: lower_rate", "training.divergence", "lower_rate")
    restart = advice(recipe, ["a lower training.learning_rate", *slower, lower_rate])
    restart = f"train from the beginning (--restart) with {restart}"
    if not _has_checkpoint(run, state.good_step):
        return f"There is no good checkpoint from before the divergence, so {restart}."
    return (f"The checkpoint of step {state.good_step:,} in {run} is from before the divergence. To resume from it "
            "with half the learning rate, run the same command with --set training.divergence=lower_rate; or "
            f"{restart}.")


def can_roll_back(run: Path, state: TrainState) -> bool:
    return _has_checkpoint(run, state.good_step) and state.retreats < MAX_ROLLBACKS


def _has_checkpoint(run: Path, step: int) -> bool:
    return step in checkpoint_by_step(run)


def roll_back(run: Path, state: TrainState) -> None:
    """Roll the run back to its last good checkpoint with half the learning rate.

    If the process is killed during the rollback, the good checkpoint may still contain the old learning rate. Then the
    resumed training diverges again and is rolled back again.

    Args:
        state: train state of the diverged training. Its best score, time and number of skipped steps are kept.
    """
    checkpoints = checkpoint_by_step(run)
    good = load_checkpoint(checkpoints[state.good_step])        # raises if damaged, before others are deleted
    prune_checkpoints(run, [step for step in checkpoints if step <= state.good_step])
    progress: dict[str, Any] = {
        **good.info["progress"], "rate_factor": state.rate_factor * ROLLBACK_RATE_FACTOR,
        "retreats": state.retreats + 1, "best_score": state.best_score, "best_step": state.best_step,
        "skipped": state.skipped, "skipped_in_row": 0, "seconds": state.seconds,
        # The good_step stored in this checkpoint is an older step, whose checkpoint may have been deleted.
        "good_step": good.step, "candidate_step": good.step,
    }
    save_checkpoint(run, good.step, good.model, good.state, {**good.info, "progress": progress})
