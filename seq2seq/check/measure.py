"""What a training costs, measured on a few of its own steps, of which nothing is left on disk."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from seq2seq import console
from seq2seq.check.report import Report
from seq2seq.errors import UserError
from seq2seq.recipe import Recipe
from seq2seq.tokenizer import Tokenizers

PAIRS = 50_000
"""Read from each corpus: enough for batches as the training will have them."""
WARM_UP = 2
STEPS = 10
SECONDS = 60.0
"""No step is begun after so long."""


def measure(recipe: Recipe, tokenizers: Tokenizers | None, report: Report) -> None:
    """Train a few steps in a directory of their own; adds to the report's measured values, or to its errors.

    The first steps, which build kernels and fill caches, are not counted. Validation is not in it.
    """
    import torch

    from seq2seq.machine import settle_process
    from seq2seq.preparation import train_or_load_tokenizers
    from seq2seq.trainer import Training

    settle_process(recipe.training.threads)
    seconds: list[float] = []
    tokens = 0.0
    try:
        with tempfile.TemporaryDirectory(prefix="seq2seq-check-") as name:
            run = Path(name)
            if tokenizers:
                (run / "tokenizer").mkdir()
                tokenizers.save(run / "tokenizer")
            train_or_load_tokenizers(recipe, run / "tokenizer")                 # of the whole text
            training = Training(_shortened(recipe), run)
            cuda = training.device.type == "cuda"
            console.say(f"measuring {STEPS} steps")
            for number, parts in enumerate(islice(training._steps(), WARM_UP + STEPS)):
                before = dict(training.progress.window)
                began = time.perf_counter()
                training._step(parts)
                if cuda:
                    torch.cuda.synchronize(training.device)
                if number >= WARM_UP or number + 1 == recipe.training.max_steps:
                    seconds.append(time.perf_counter() - began)
                    tokens += sum(training.progress.window.get(key, 0) - before.get(key, 0)
                                  for key in ("source_tokens", "target_tokens"))
                if sum(seconds) > SECONDS:
                    break
            if training.sampled:
                training.sampled.close()
            peak = torch.cuda.max_memory_allocated(training.device) if cuda else _peak_of_process()
    except UserError as error:
        report.errors.append(f"--measure: {error}")
        return
    each = sum(seconds) / len(seconds)
    report.measured = {"steps": len(seconds), "seconds_a_step": each, "tokens_a_second": tokens / sum(seconds),
                       "hours": each * recipe.training.max_steps / 3600, "peak_bytes": peak}


def _shortened(recipe: Recipe) -> Recipe:
    train = tuple(spec.model_copy(update={"limit": min(spec.limit or PAIRS, PAIRS)}) for spec in recipe.data.train)
    shortened = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    return shortened.located(recipe.directory)


def _peak_of_process() -> int:
    """The most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
