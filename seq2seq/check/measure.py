"""Measurement of a training's speed and memory on a few steps. It leaves no files on disk."""

from __future__ import annotations

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
"""Maximum number of pairs to read from each corpus; enough for batches of realistic shapes."""
STEPS = 30
"""Number of steps to run. The first half is slower, because the first steps generate kernels and allocate memory: 0.7 s
instead of 0.4 s per step for the small model on Multi30k in bf16 on two cores. Only the last third is reported."""
SECONDS = 20.0
"""Total time of the steps, in seconds, after which no further step is started."""


def measure(recipe: Recipe, tokenizers: Tokenizers, report: Report) -> None:
    """Train a few steps in a temporary directory; report their speed and peak memory, or why they cannot run.

    The reported time per step is the median of the last third of the steps. It does not include validation.
    """
    import torch

    from seq2seq.devices import choose_device, configure_process, free_memory
    from seq2seq.storage.tokenizer_files import save_tokenizers
    from seq2seq.training.run import start_training

    free = free_memory(choose_device(recipe.training.device))
    if free is not None and report.model["bytes_in_training"] > free:
        report.warnings.append(f"weights, gradients and optimizer need {report.model['bytes_in_training'] / 1e9:,.1f} "
                               f"GB, but only {free / 1e9:,.1f} GB of memory are free, so no step was run. Free some "
                               "memory, or choose a smaller model.")
        return
    configure_process(recipe.training.threads)
    seconds: list[float] = []
    tokens: list[float] = []
    try:
        with ExitStack() as stack:
            run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seq2seq-check-")))
            save_tokenizers(tokenizers.files(), run / "tokenizer")
            training = start_training(_recipe_to_measure(recipe), run)
            stack.callback(training.close)                            # before its files are deleted
            device = training.step.device
            console.print_message(f"measuring {STEPS} steps")
            for corpus, micro_batches in islice(training.batches(), STEPS):
                before = dict(training.state.window)
                start = time.perf_counter()
                training.update(corpus, micro_batches)
                training.results.read()                                         # waits until the GPU has finished
                seconds.append(time.perf_counter() - start)
                tokens.append(sum(training.state.window.get(key, 0) - before.get(key, 0)
                                  for key in ("source_tokens", "target_tokens")))
                if sum(seconds) > SECONDS:
                    break
            peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else _peak_of_process()
    except UserError as error:
        report.errors.append(str(error))
        return
    count = max(1, len(seconds) // 3)
    step_seconds = median(seconds[-count:])
    report.measured = {"steps": count, "seconds_a_step": step_seconds,
                       "tokens_a_second": sum(tokens[-count:]) / count / step_seconds,
                       "hours": step_seconds * recipe.training.max_steps / 3600, "peak_bytes": peak}


def _recipe_to_measure(recipe: Recipe) -> Recipe:
    """Return a copy of the recipe with at most PAIRS pairs per training corpus, and max_steps of at least STEPS."""
    train = tuple(spec.model_copy(update={"limit": min(spec.limit or PAIRS, PAIRS)}) for spec in recipe.data.train)
    training = recipe.training.model_copy(update={"max_steps": max(STEPS, recipe.training.max_steps)})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train}), "training": training})


def _peak_of_process() -> int | None:
    """Return the peak resident memory of this process in bytes; None on systems that do not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
