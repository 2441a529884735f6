"""Texts that a training prints and logs: its summary, the means of a log line, the fields of the progress bar."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from seq2seq import console
from seq2seq.evaluation.learning_curves import CURVES
from seq2seq.model.loss import perplexity
from seq2seq.recipe import Recipe
from seq2seq.recipe.training_section import TrainingSection
from seq2seq.storage.int8_score import Int8Score
from seq2seq.storage.run_directory import TENSORBOARD
from seq2seq.training.clock import PHASES, as_percentages
from seq2seq.training.train_state import TrainState
from seq2seq.training.validation import ValidationResult


def print_training_summary(run: Path, sizes: str, step: int, section: TrainingSection) -> None:
    """Print the sizes of model and data, the path of the learning curves, and definitions of loss and perplexity.

    Args:
        sizes: text with the sizes of model and data, and the device.
        step: number of optimizer steps done before; 0 in a new training.
    """
    console.print_message(sizes)
    console.print_message(f"learning curves: open {run / CURVES} in a browser (updated at every validation), or run "
                          f"tensorboard --logdir {shlex.quote(str(run / TENSORBOARD))}")
    added = " and ".join(name for name, value in (
        ("label smoothing", section.label_smoothing), ("consistency training", section.consistency)) if value)
    console.print_message("loss: mean negative log-likelihood per target token, in nats"
                          f"{added and f'; the training loss includes {added}'}. perplexity: exp of the loss"
                          f"{added and f' without {added}'}.")
    if step:
        console.print_message(f"resuming after step {step:,}")


def print_finished(run: Path, recipe: Recipe, state: TrainState, advise: bool) -> None:
    """Print that a run has finished. advise: print how to continue it or train anew. False for a part of another
    command, which has other options."""
    if not advise:
        console.print_message(f"{run} has finished: {state.summary()}")
        return
    limit = "max_steps" if state.step >= recipe.training.max_steps else "early_stopping"
    rises = ", which also raises the learning rate" * (limit == "max_steps"
                                                       and recipe.training.schedule in ("linear", "cosine"))
    console.print_message(f"{run} has finished: {state.summary()}. To continue, raise training.{limit}{rises}; to "
                          "train from the beginning, use --restart.")


def pop_window_means(state: TrainState, learning_rate: float, waited: float, memory: int | None
                     ) -> dict[str, float]:
    """Return the values of a log line, mostly means since the last log line, and reset `state.window`. If all steps
    since the last log line were skipped, return {}.

    Tokens per second are those of the wall clock, and phases are shares of it, on the main rank.

    waited: seconds for which the rank that waited longest has waited for other ranks. The main rank may be the one that
        the others wait for.
    memory: peak memory of the main rank in bytes; None if it is unknown.
    """
    window, state.window = state.window, {}
    for phase in PHASES:
        state.seconds[phase] = state.seconds.get(phase, 0) + window[phase]
    if "steps" not in window:
        return {}
    tokens, seconds = window["target_tokens"], sum(window[phase] for phase in PHASES)
    return {
        "epoch": state.epoch,
        "loss": window["loss"] / tokens,
        "perplexity": perplexity(window["likelihood"], int(tokens)),
        "learning_rate": learning_rate,
        "gradient_norm": window["gradient_norm"] / window["steps"],
        "tokens_per_second": (window["source_tokens"] + tokens) / seconds,
        **{phase: window[phase] / seconds for phase in PHASES},
        "waiting": waited / seconds,
        "seconds": sum(state.seconds.values()),
        **({} if memory is None else {"peak_memory": memory}),
    }


def progress_bar_fields(means: Mapping[str, float]) -> list[str]:
    """Return the result of `pop_window_means` as texts for the progress bar, the most important first."""
    return [f"loss {means['loss']:.3f}", f"perplexity {format_number(means['perplexity'])}",
            f"epoch {means['epoch'] + 1:.0f}", f"{means['tokens_per_second']:,.0f} tokens/s",
            f"learning rate {means['learning_rate']:.2e}", f"gradient {means['gradient_norm']:.2f}",
            *as_percentages(means)]


def print_validation(title: str, result: ValidationResult, best: bool) -> None:
    """Print the results of a validation. If there are several validation corpora, also print the scores of each."""
    precision = f"  (translated in {result.precision})" if result.scores else ""
    console.print_message(f"{title}  {_as_text(result.values())}{precision}{'  (best)' if best else ''}")
    for name, scores in result.by_set.items():
        console.print_message(f"  {name}  {_as_text(scores)}")


def print_int8(score: Int8Score, name: str = "") -> None:
    """Print the validation scores in int8, as a warning if int8 loses too much. name: name of the model, if several
    have such scores."""
    start = name and f"{name}: "
    if score.loses_too_much:
        console.warn(f"{start}int8 loses too much: {score}. So int8 is not the default of this model on a CPU.")
    else:
        console.print_message(f"{start}{score}")


def _as_text(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {format_number(value)}" for name, value in values.items())


def format_number(value: float) -> str:
    """Format a number with two decimals; from one million on, in scientific notation."""
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.2e}"
