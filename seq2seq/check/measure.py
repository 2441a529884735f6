"""Measurement of a training's speed and memory on a few steps. It leaves no files on disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from statistics import median

from seq2seq import console
from seq2seq.check.results import Report
from seq2seq.data.preparation import TrainingText
from seq2seq.errors import UserError
from seq2seq.recipe import decoding_with
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.validation import scored_pairs

PAIRS = 50_000
"""Maximum number of pairs to read from each corpus; enough for batches of realistic shapes."""
STEPS = 30
"""Number of measurements. The first half is slower, because the first steps generate kernels and allocate memory: 0.7 s
instead of 0.4 s per step for the small model on Multi30k in bf16 on two cores. Only the last third is reported."""
MIN_STEPS, MIN_REPORTED = 5, 3
"""Minimum number of measurements to make and to report, however slow they are: the time of a single step depends on its
batch and on other programs."""
STEPS_ON_GPU = 5
"""Number of steps of a measurement on a GPU. A training prepares the next batches while the GPU computes; between two
measurements, the host waits for the GPU. On a CPU, each step is measured."""
SENTENCES = 100
"""Maximum number of validation sentences to translate."""
SECONDS = 20.0
"""Total time of the steps, in seconds, after which no further measurement is started, except for MIN_STEPS."""


def measure(text: TrainingText, tokenizers: Tokenizers, report: Report, translates: bool = False) -> None:
    """Train a few steps in a temporary directory; report their speed and peak memory, or why they cannot run.

    The reported time per step is the median of the last third of the measurements, but of at least MIN_REPORTED. It
    does not include validation. The steps have the threads of the training, and on a GPU its CUDA graph. The shape of
    their batches is that of the first PAIRS: 0.2 % smaller than that of a million pairs with lengths as in news.

    translates: True to measure the time of the preparation, and of translating validation sentences, too.
    """
    from seq2seq.devices import configure_process, peak_memory, process_memory, reset_peak_memory
    from seq2seq.storage.tokenizer_files import save_tokenizers
    from seq2seq.training.memory import PROGRAM
    from seq2seq.training.optimizers import learning_rate
    from seq2seq.training.run import start_training
    from seq2seq.training.step_results import StepResult

    recipe = text.recipe
    if "free" in report.memory:
        report.warnings.append("no step was run, because the memory does not suffice.")
        return
    configure_process(recipe.training.threads)
    before = process_memory()
    first_pairs = replace(text, corpora=tuple(
        spec.model_copy(update={"limit": min(spec.limit or PAIRS, PAIRS)}) for spec in text.corpora))
    seconds: list[float] = []                                                   # mean per step of each measurement
    tokens: list[float] = []
    try:
        with ExitStack() as stack:
            run = Path(tempfile.mkdtemp(prefix="seq2seq-check-"))
            # Windows does not delete files that are still mapped into memory.
            stack.callback(shutil.rmtree, run, ignore_errors=True)
            save_tokenizers(tokenizers.files(), run / "tokenizer")
            began = time.perf_counter()
            training = start_training(recipe, run, text=first_pairs)
            preparation = time.perf_counter() - began
            stack.callback(training.close)                            # before its files are deleted
            device = training.step.device
            together = STEPS_ON_GPU if device.type == "cuda" else 1
            console.print_message(f"measuring {STEPS * together} steps")
            reset_peak_memory(str(device))
            epochs = map(training.epoch, count())
            batches = ((corpus, micro_batches) for corpus, plan in epochs for micro_batches in plan)
            start, counted = time.perf_counter(), 0
            for number, (corpus, micro_batches) in enumerate(islice(batches, STEPS * together), 1):
                rate = learning_rate(recipe.training, min(number, recipe.training.max_steps))
                numbers = training.step.update(corpus, micro_batches, number, rate)
                training.results.add(StepResult(number, numbers, micro_batches, *corpus.tokens(micro_batches)))
                counted += sum(corpus.tokens(micro_batches))
                if number % together:
                    continue
                training.results.read()                                         # waits for the GPU
                seconds.append((time.perf_counter() - start) / together)
                tokens.append(counted / together)
                if len(seconds) >= MIN_STEPS and sum(seconds) * together > SECONDS:
                    break
                start, counted = time.perf_counter(), 0
            seconds_a_sentence = _seconds_a_sentence(training) if translates else None
            peak = peak_memory(str(device))
            if peak and before and device.type == "cpu":                        # a training lacks what `check` holds
                peak -= max(0, before.now - PROGRAM)
    except UserError as error:
        report.errors.append(str(error))
        return
    last = min(len(seconds), max(MIN_REPORTED, len(seconds) // 3))
    step_seconds = median(seconds[-last:])
    report.measured = {"steps": last * together, "seconds_a_step": step_seconds,
                       "tokens_a_second": sum(tokens[-last:]) / last / step_seconds,
                       "hours": step_seconds * recipe.training.max_steps / 3600, "peak_bytes": peak}
    if translates:
        report.measured |= {"seconds_of_preparation": preparation, "seconds_a_sentence": seconds_a_sentence}


def _seconds_a_sentence(training: TrainingLoop) -> float:
    """Return the time for the translation of a validation sentence, as long as its source.

    A model that is not trained yet hardly ever ends a translation before its maximum length.
    """
    decoding = decoding_with(training.recipe.decoding, {"max_length_ratio": 1.0, "max_length_offset": 2})
    sources = [source for source, _ in scored_pairs(training.validation.pairs, SENTENCES)]
    with training.step.use_weights(training.step.weights):
        translator = replace(training.translator(), decoding=decoding)
        translator.translate(sources[:2])                                       # generates kernels
        start = time.perf_counter()
        translator.translate(sources)
    return (time.perf_counter() - start) / len(sources)
