"""Divergence of a training: detection, and rollback to the last good checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.errors import UserError
from seq2seq.storage.checkpoints import list_checkpoints, load_checkpoint, prune_checkpoints, save_checkpoint, step_of
from seq2seq.training.train_state import TrainState

ROLLBACK_RATE_FACTOR = 0.5
"""Factor by which each rollback multiplies the learning rate."""
MAX_ROLLBACKS = 5
"""Maximum number of rollbacks in a run. The next divergence ends the training."""
MAX_SKIPPED_STEPS = 10
"""Number of consecutive steps without a finite gradient that counts as divergence."""


class Diverged(UserError):
    """Divergence of the training. evidence: description of the symptom for messages, such as the rise of the loss."""

    def __init__(self, evidence: str, remedy: str) -> None:
        super().__init__(f"{evidence}: the training has diverged. {remedy}")
        self.evidence = evidence


def require_convergence(state: TrainState, run: Path) -> None:
    """Raise Diverged if the loss has risen too much, or the gradients of too many consecutive steps were not finite."""
    if state.skipped_in_row >= MAX_SKIPPED_STEPS:
        evidence = f"step {state.step:,}: {state.skipped_in_row} steps in a row had no finite gradient"
    elif state.relative_rise() >= 1:
        evidence = (f"step {state.step:,}: the moving average of the negative log-likelihood per target token has "
                    f"risen from {state.lowest_loss:.2f} to {state.smoothed_loss:.2f}")
    else:
        return
    raise divergence_error(evidence, state, run)


def divergence_error(evidence: str, state: TrainState, run: Path) -> Diverged:
    """Return the error with the evidence and the remedies that are possible in this run."""
    if state.retreats >= MAX_ROLLBACKS:
        return Diverged(evidence, f"It has been rolled back {state.retreats} times, each time with half the learning "
                                  "rate. Train from the beginning (--restart) with a longer warmup_steps or precision "
                                  "fp32, and check the text (seq2seq check).")
    restart = ("train from the beginning (--restart) with a lower training.learning_rate, a longer warmup_steps, "
               "precision fp32, or divergence: lower_rate")
    if not _has_checkpoint(run, state.good_step):
        return Diverged(evidence, f"There is no good checkpoint from before the divergence, so {restart}.")
    return Diverged(evidence, f"The checkpoint of step {state.good_step:,} in {run} is from before the divergence. To "
                              "resume from it with half the learning rate, run the same command with --set "
                              f"training.divergence=lower_rate; or {restart}.")


def can_roll_back(run: Path, state: TrainState) -> bool:
    """Return True if there is a good checkpoint and the limit of rollbacks is not reached."""
    return _has_checkpoint(run, state.good_step) and state.retreats < MAX_ROLLBACKS


def _has_checkpoint(run: Path, step: int) -> bool:
    return step in map(step_of, list_checkpoints(run))


def roll_back(run: Path, state: TrainState) -> None:
    """Roll the run back to its last good checkpoint with half the learning rate.

    If the process is killed during the rollback, the good checkpoint may still contain the old learning rate. Then the
    resumed training diverges again and is rolled back again.

    Args:
        state: train state of the diverged training. Its best score and number of skipped steps are kept.
    """
    checkpoints = {step_of(path): path for path in list_checkpoints(run)}
    good = load_checkpoint(checkpoints[state.good_step])        # raises if damaged, before others are deleted
    prune_checkpoints(run, [step for step in checkpoints if step <= state.good_step])
    progress: dict[str, Any] = {
        **good.info["progress"], "rate_factor": state.rate_factor * ROLLBACK_RATE_FACTOR,
        "retreats": state.retreats + 1, "best_score": state.best_score, "best_step": state.best_step,
        "skipped": state.skipped, "skipped_in_row": 0,
        # The good_step stored in this checkpoint is an older step, whose checkpoint may have been deleted.
        "good_step": good.step, "candidate_step": good.step,
    }
    save_checkpoint(run, good.step, good.model, good.state, {**good.info, "progress": progress})
