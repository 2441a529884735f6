"""Reports of a training: its announcement, the means of a log line, and figures for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from seq2seq import console
from seq2seq.model.loss import perplexity
from seq2seq.storage.run_directory import TENSORBOARD
from seq2seq.training.learning_curves import CURVES
from seq2seq.training.train_state import TrainState


def announce(run: Path, sizes: str, step: int, smoothed: bool) -> None:
    """Say what is trained on what, where to look at it, and what the figures mean.

    Args:
        sizes: of model and data, and the device, in words.
        step: optimizer steps done before.
        smoothed: the training loss is of smoothed labels.
    """
    console.say(sizes)
    console.say(f"learning curves: {run / CURVES} in a browser, drawn anew at every validation; or "
                f"tensorboard --logdir {shlex.quote(str(run / TENSORBOARD))}")
    console.say("loss is the mean of -log p (natural logarithm) of a target token"
                f"{', in training with label smoothing' * smoothed}; perplexity is exp of it"
                f"{' without' * smoothed}: among so many equally probable tokens the model would hesitate as much")
    if step:
        console.say(f"going on after step {step:,}")


def take_window(state: TrainState, learning_rate: float) -> dict[str, float]:
    """Empty the window of sums since the last log line; return its means, none if all its steps were skipped."""
    window, state.window = state.window, {}
    state.seconds += window["seconds"]
    if "steps" not in window:
        return {}
    tokens = window["target_tokens"]
    return {
        "epoch": state.epoch,
        "loss": window["loss"] / tokens,
        "perplexity": perplexity(window["likelihood"], int(tokens)),
        "learning_rate": learning_rate,
        "gradient_norm": window["gradient_norm"] / window["steps"],
        "tokens_per_second": (window["source_tokens"] + tokens) / window["seconds"],
        "seconds": state.seconds,
    }


def progress_figures(means: Mapping[str, float]) -> list[str]:
    """The means of a window for the progress bar, the most important first."""
    return [f"loss {means['loss']:.3f}", f"perplexity {figure(means['perplexity'])}",
            f"epoch {means['epoch'] + 1:.0f}", f"{means['tokens_per_second']:,.0f} tokens/s",
            f"learning rate {means['learning_rate']:.2e}", f"gradient {means['gradient_norm']:.2f}"]


def figure(value: float) -> str:
    """Two decimals, or a power of ten where the number is huge."""
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.2e}"
