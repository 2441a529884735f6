"""Measured cost of a training, on a few of its own steps. Leaves nothing on disk."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median

from seq2seq import console
from seq2seq.check.report import Report
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.tokenizer import Tokenizers

PAIRS = 50_000
"""Read from each corpus: enough for batches as the training will have them."""
STEPS = 30
"""The last third counts: kernels are generated and memory is taken in the first 15 (Multi30k's small model in bf16 on
two cores: 0.7 s a step at first, then 0.4 s)."""
SECONDS = 20.0
"""No step is begun after so long."""


def measure(recipe: Recipe, tokenizers: Tokenizers, report: Report) -> None:
    """Train a few steps in a directory of their own; adds to the report's measured values, or to its errors.

    The time is the median of the steps that count. Validation is not in it.
    """
    import torch

    from seq2seq.devices import choose_device, configure_process, free_memory
    from seq2seq.training.trainer import Training

    free = free_memory(choose_device(recipe.training.device))
    if free is not None and report.model["bytes_in_training"] > free:
        report.warnings.append(f"weights, gradients and optimizer take {report.model['bytes_in_training'] / 1e9:,.1f} "
                               f"GB, and {free / 1e9:,.1f} GB of memory are free: no step was tried. Free some, or "
                               "lower the sizes of the model.")
        return
    configure_process(recipe.training.threads)
    seconds: list[float] = []
    tokens: list[float] = []
    try:
        with ExitStack() as stack:
            run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seq2seq-check-")))
            (run / "tokenizer").mkdir()
            tokenizers.save(run / "tokenizer")
            training = Training(_shortened(recipe), run)
            if training.sampled:                                                # before the directory goes
                stack.callback(training.sampled.close)
            cuda = training.device.type == "cuda"
            console.print_message(f"measuring {STEPS} steps")
            for parts in islice(training._steps(), STEPS):
                before = dict(training.state.window)
                began = time.perf_counter()
                training._step(parts)
                if cuda:
                    torch.cuda.synchronize(training.device)
                seconds.append(time.perf_counter() - began)
                tokens.append(sum(training.state.window.get(key, 0) - before.get(key, 0)
                                  for key in ("source_tokens", "target_tokens")))
                if sum(seconds) > SECONDS:
                    break
            peak = torch.cuda.max_memory_allocated(training.device) if cuda else _peak_of_process()
    except UserError as error:
        report.errors.append(str(error))
        return
    count = max(1, len(seconds) // 3)
    each = median(seconds[-count:])
    report.measured = {"steps": count, "seconds_a_step": each, "tokens_a_second": sum(tokens[-count:]) / count / each,
                       "hours": each * recipe.training.max_steps / 3600, "peak_bytes": peak}


def _shortened(recipe: Recipe) -> Recipe:
    """The recipe with less text, and with enough steps."""
    train = tuple(spec.model_copy(update={"limit": min(spec.limit or PAIRS, PAIRS)}) for spec in recipe.data.train)
    training = recipe.training.model_copy(update={"max_steps": max(STEPS, recipe.training.max_steps)})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train}), "training": training})


def _peak_of_process() -> int:
    """The most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
