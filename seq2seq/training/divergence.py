"""Divergence of a training: detection, and rollback to the last good checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.errors import UserError
from seq2seq.storage.checkpoints import list_checkpoints, load_checkpoint, prune_checkpoints, save_checkpoint, step_of
from seq2seq.training.train_state import TrainState

RATE_AFTER_RETREAT = 0.5
MOST_RETREATS = 5
MOST_SKIPPED_STEPS = 10
"""Number of steps in a row without a finite gradient that counts as divergence."""


class Diverged(UserError):
    """The training has diverged. found: the evidence. The weights on disk are intact."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}: the training has diverged. {remedy}")
        self.found = found


def require_sane(state: TrainState, run: Path) -> None:
    """Raise Diverged if the loss has blown up, or the gradients of too many steps in a row were not finite."""
    if state.skipped_in_row >= MOST_SKIPPED_STEPS:
        found = f"step {state.step:,}: {state.skipped_in_row} steps in a row had no finite gradient"
    elif state.risen() >= 1:
        found = (f"step {state.step:,}: the running mean of -log p of a target token has risen from "
                 f"{state.lowest_loss:.2f} to {state.smoothed_loss:.2f}")
    else:
        return
    raise diverged(found, state, run)


def diverged(found: str, state: TrainState, run: Path) -> Diverged:
    """Return the error with the evidence and with the options that the user has in this run."""
    if state.retreats >= MOST_RETREATS:
        return Diverged(found, f"It has gone back {state.retreats} times, with half the learning rate each time: "
                               "train anew (--restart) with a longer warmup_steps, or precision fp32, and look at the "
                               "text (seq2seq check).")
    anew = ("train anew (--restart) with a lower training.learning_rate, a longer warmup_steps, precision fp32, or "
            "divergence: lower_rate")
    if not _is_left(state.good_step, run):
        return Diverged(found, f"No checkpoint is left from well before that: {anew}.")
    return Diverged(found, f"The checkpoint of step {state.good_step:,} in {run} is from before. To go back to it "
                           "with half the learning rate, run the same command with --set "
                           f"training.divergence=lower_rate; or {anew}.")


def can_go_back(run: Path, state: TrainState) -> bool:
    """Return True if there is a good checkpoint and the limit of rollbacks is not reached."""
    return _is_left(state.good_step, run) and state.retreats < MOST_RETREATS


def _is_left(step: int, run: Path) -> bool:
    return step in map(step_of, list_checkpoints(run))


def go_back(run: Path, state: TrainState) -> None:
    """Roll the run back to its last good checkpoint with half the learning rate.

    If the process is killed in between, the good checkpoint keeps the old rate, and the resumed training diverges and
    rolls back again.

    Args:
        state: of the diverged training. Its best model stays the best.
    """
    checkpoints = {step_of(path): path for path in list_checkpoints(run)}
    good = load_checkpoint(checkpoints[state.good_step])                     # before others are deleted
    prune_checkpoints(run, [step for step in checkpoints if step <= state.good_step])
    lowered: dict[str, Any] = {
        **good.info["progress"], "rate_factor": state.rate_factor * RATE_AFTER_RETREAT,
        "retreats": state.retreats + 1, "best_score": state.best_score, "best_step": state.best_step,
        "skipped": state.skipped, "skipped_in_row": 0,
        # The saved good_step is an older one, because this checkpoint had not proved good yet, and may be deleted.
        "good_step": good.step, "candidate_step": good.step,
    }
    save_checkpoint(run, good.step, good.model, good.state, {**good.info, "progress": lowered})
