"""The training loop: epochs, optimizer steps, log lines, validation and checkpoints, until the last step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus
from seq2seq.data.corpus import read_pairs
from seq2seq.data.epoch_plan import EpochPlan, delete_plans, open_plan, plan_epoch
from seq2seq.data.preparation import Prepared, known_tags, unique_label
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.devices import (
    choose_floating_point,
    describe,
    free_memory,
    kind,
    peak_memory,
    process_memory,
    reset_peak_memory,
)
from seq2seq.evaluation.learning_curves import draw_curves
from seq2seq.evaluation.scores import to_dict
from seq2seq.inference.load_model import StoredModel, as_arrays, stored_weights
from seq2seq.recipe import Recipe
from seq2seq.recipe.data_section import file_name
from seq2seq.signals import Stopped, stopping_by_signal
from seq2seq.storage.averaging import average_intact
from seq2seq.storage.background_writer import BackgroundWriter
from seq2seq.storage.checkpoints import (
    HELD_OUT,
    LICENCE_OF_START,
    VALIDATED,
    checkpoint_by_step,
    licence_of,
    prune_checkpoints,
    save_best,
    save_checkpoint,
)
from seq2seq.storage.run_directory import Log, NoLog
from seq2seq.storage.tokenizer_files import checksums_of
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training import log_lines
from seq2seq.training.distributed import ProcessGroup
from seq2seq.training.optimizers import learning_rate
from seq2seq.training.rollback import Diverged
from seq2seq.training.step import TrainingStep
from seq2seq.training.step_results import StepResult, StepResults
from seq2seq.training.train_state import TrainState
from seq2seq.training.validation import Validation, ValidationResult
from seq2seq.translation.translator import Translator

KEPT_TO_RESUME = 2
"""Number of the newest checkpoints to keep, whether they were saved at a validation or not: the training resumes from
the second one if the first one is damaged."""


@dataclass
class TrainingLoop:
    """Training of a run, as `start_training` prepares it.

    prepared: training text. resampled: text of each epoch; None if all epochs have the same text.
    step: model and optimizer. state: train state, in which the training resumes. start_from: checksum of the weights of
    the model in `training.start_from`; None if the recipe has none.
    """

    recipe: Recipe
    run: Path
    group: ProcessGroup
    tokenizers: Tokenizers
    prepared: Prepared
    resampled: ResampledEpochs | None
    validation: Validation
    step: TrainingStep
    state: TrainState
    start_from: str | None = None

    def __post_init__(self) -> None:
        self.section, self.device = self.recipe.training, self.step.device
        self.parameters = sum(weight.numel() for weight in self.step.model.parameters())
        self.results = StepResults(self.state, self.prepared.corpus, self.step.dtype)
        self.clock = self.step.clock
        self.writer = BackgroundWriter()
        self.saved_at = time.monotonic()
        start = self.section.start_from
        self.licence_of_start = None if start is None else licence_of(self.recipe.directory / start)

    @property
    def has_ended(self) -> bool:
        """True if no step and no validation is left."""
        return self.state.finished(self.recipe) and self.state.validated()

    def train(self) -> None:
        """Train until the last step or early stopping. Then average checkpoints if the recipe says so.

        Raises:
            Stopped: a signal stopped the training, which has saved a checkpoint.
        """
        had_ended = self.has_ended
        if not had_ended:
            self._print_summary()
        log = Log(self.run, self.state.step, self.state.logged) if self.group.is_main else NoLog()
        self.clock.pop()                                                        # the preparation
        reset_peak_memory(str(self.device))
        try:
            with self.writer:
                self._train_to_last_step(log)
                self._average_checkpoints(log)
                self._finish_writing()
        finally:
            self._draw_curves()
            log.close()
            self.close()
        self._read()
        if not had_ended:
            console.print_message(f"trained {self.state.summary()}")

    def free_step(self) -> None:
        """Free the weights and optimizer state of a training that has ended. The best model is evaluated without them.
        """
        del self.step

    def _train_to_last_step(self, log: Log) -> None:
        state, section = self.state, self.section
        with (stopping_by_signal(exit_on_second=self.group.world_size == 1) as request,
              console.progress("training", section.max_steps, state.step, "steps") as advance):
            self._validate_if_due(log)
            for corpus, micro_batches in self.batches():
                self.update(corpus, micro_batches)
                advance(1)
                if state.step % section.log_every == 0 or state.finished(self.recipe):
                    advance(0, self._log_window(log))
                # The clock of the main rank decides, so that all ranks save at the same steps.
                late = self.group.is_main and self._is_late()
                due, stopped_by = self._maximum(int(late), request.number or 0)
                if due or stopped_by:
                    self._save(log)
                self._stop(stopped_by)
                if self._validate_if_due(log) or due:
                    # Other ranks wait for the main rank's files here, not in a sum of NCCL, which has a time limit.
                    with self.clock.phase("waiting"):
                        self.group.barrier()
            self._stop(*self._maximum(request.number or 0))                     # for a signal in the last validation

    def close(self) -> None:
        """Stop encoding further epochs, and delete the files of the epochs."""
        if self.resampled:
            self.resampled.close()
        if self.group.is_main:
            delete_plans(self.prepared.directory)

    # Steps

    def batches(self) -> Iterator[tuple[EncodedCorpus, list[np.ndarray]]]:
        """Yield for each remaining step the text of its epoch, and the indices of the pairs of each micro-batch."""
        state = self.state
        while not state.finished(self.recipe):
            with self.clock.phase("reading"):
                corpus, plan = self.epoch(state.epoch)
            while state.step_in_epoch < len(plan) and not state.finished(self.recipe):
                with self.clock.phase("reading"):
                    micro_batches = plan[state.step_in_epoch]
                yield corpus, micro_batches
            if state.step_in_epoch >= len(plan):
                state.epoch, state.step_in_epoch = state.epoch + 1, 0

    def epoch(self, number: int) -> tuple[EncodedCorpus, EpochPlan]:
        """Return the text of an epoch, counted from 0, and its plan. Call this for one epoch after another.

        The main rank makes the plan and writes it to a file, so that all ranks of a machine share its memory.
        """
        corpus, section = self.prepared.corpus, self.section
        if self.resampled:
            corpus = self.group.main_rank_first(partial(self.resampled.corpus, number))
        directory, accumulation = self.prepared.directory, section.accumulation

        def plan() -> EpochPlan:
            if self.group.is_main:
                made = plan_epoch(corpus, section.batch_tokens, accumulation, self.recipe.seed, number)
                made.save(directory, number)
            return open_plan(directory, number, corpus, accumulation)

        return corpus, self.group.main_rank_first(plan)

    def update(self, corpus: EncodedCorpus, micro_batches: Sequence[np.ndarray]) -> None:
        """Do one optimizer step. The arguments are a result of `batches`."""
        number = self.state.step + 1
        numbers = self.step.update(corpus, micro_batches, number, self._learning_rate(number))
        self.state.most_tokens = self.step.max_tokens
        self.state.step, self.state.averaged = number, []
        self.state.step_in_epoch += 1
        self.results.add(StepResult(number, numbers, micro_batches, *corpus.tokens(micro_batches)))

    def _learning_rate(self, number: int) -> float:
        return self.state.rate_factor * learning_rate(self.section, number)

    def _maximum(self, *numbers: int) -> list[int]:
        """Return the maximum of each number over all ranks."""
        with self.clock.phase("waiting"):
            return self.group.maximum(numbers)

    def _stop(self, signal: int) -> None:
        """Raise Stopped if a signal has arrived. Call this only after saving. signal: number of the signal, or 0."""
        if signal:
            self._finish_writing()
            raise Stopped(signal, f"saved at step {self.state.step:,}; run the same command again to resume")

    # Log lines

    def _print_summary(self) -> None:
        dropped = sum(sum(counts["dropped"].values()) for counts in self.prepared.counts.values())
        trained = sum(weight.numel() for weight in self.step.weights)
        frozen = f" ({trained:,} of them trained)" if trained < self.parameters else ""
        log_lines.print_training_summary(
            self.run, f"{self.parameters:,} parameters{frozen}, {len(self.prepared.corpus):,} training pairs "
            f"({dropped:,} dropped in cleaning), {len(self.validation.pairs):,} validation pairs; "
            f"{str(self.step.dtype).removeprefix('torch.')} on {describe(str(self.device))}", self.state.step,
            self.section)

    def _log_window(self, log: Log) -> list[str]:
        """Log the means since the last log line, and return them as text for the progress bar."""
        self._read()
        waited, = self._maximum(round(1e6 * self.state.window["waiting"]))
        memory = peak_memory(str(self.device))
        if means := log_lines.pop_window_means(self.state, self._learning_rate(self.state.step), waited / 1e6, memory):
            log.write("training", self.state.step, means)
        return log_lines.progress_bar_fields(means) if means else []

    def _read(self) -> None:
        """Bring the train state up to date: results and times of the steps."""
        self.results.read()
        self.state.add_to_window(**self.clock.pop())

    def _draw_curves(self) -> None:
        if self.group.is_main:
            with self.clock.phase("saving"):
                draw_curves(self.run, self.section.best_metric, self.section.label_smoothing > 0)

    # Validation

    def _validate_if_due(self, log: Log) -> bool:
        """If a validation is due at this step and not done yet, validate, save and return True; else return False."""
        state = self.state
        due = state.step % self.section.validate_every == 0 or state.finished(self.recipe)
        if not state.step or not due or state.validated():
            return False
        self._validate(log)
        self._save(log)
        self._draw_curves()
        return True

    def _validate(self, log: Log) -> None:
        self._read()
        self._require_same_weights()                                    # before the bundle of a best score is saved
        with self.clock.phase("validating"):
            with self.step.use_weights(self.step.ema_weights or self.step.weights):
                result = self._evaluate(log, "validation", f"step {self.state.step:,}  validation")
            self.state.add_validation(result.values()[self.section.best_metric], self.section.best_metric)

    def _average_checkpoints(self, log: Log) -> None:
        """Average the checkpoints that the recipe selects, and save the average if it is better than the best model."""
        self._finish_writing()
        paths = self.group.from_main_rank(self._checkpoints_to_average)
        steps = list(paths)
        if len(paths) < 2 or steps == self.state.averaged:
            return
        # Only the main rank reads the checkpoints, because all ranks must evaluate the same average.
        weights: Sequence[Tensor] = [weight.detach().clone() for weight in self.step.weights]
        count = len(paths)
        if self.group.is_main:
            averaged, count = average_intact(list(paths.values()))
            weights = [averaged[name].to(self.device) for name in self.step.names]
        with self.clock.phase("validating"), self.step.use_weights(weights):
            self.group.broadcast(self.step.weights)
            self._evaluate(log, "average", f"average of {count} checkpoints  validation")
        self.state.averaged = steps
        self._save(log)

    def _checkpoints_to_average(self) -> dict[int, Path]:
        """Return the checkpoints that the recipe selects, by step. If it now selects more than before, some of them may
        have been deleted already."""
        selected = self.state.steps_to_average(self.section.average, self.section.best_metric)
        return {step: path for step, path in checkpoint_by_step(self.run).items() if step in selected}

    def _evaluate(self, log: Log, kind: str, title: str) -> ValidationResult:
        """Validate the weights in the model, and save them as the best bundle if their score is the best so far. Return
        the results. kind: kind of the log record. title: start of the message."""
        try:
            result = self.validation.measure(self.step.model, self.translator(), self.group)
        except FloatingPointError as error:
            raise Diverged(f"step {self.state.step:,}: {error}") from error
        values = result.values()
        log.write(kind, self.state.step, values | ({"precision": result.precision} if result.scores else {}))
        for name, scores in result.by_set.items():
            log.write(f"{kind} of {name}", self.state.step, scores)
        score = values[self.section.best_metric]
        equal = kind == "average" and score == self.state.best_score            # both can be 0, see `is_better`
        better = not equal and self.state.is_better(score, self.section.best_metric)
        if better:
            # The bundle is saved before the checkpoint with its score. If the process is killed in between, the
            # validation is repeated. In the reverse order, the best score could be saved without its bundle.
            self.state.best_score, self.state.best_step = score, self.state.step
            self._save_best(kind, result)
        log_lines.print_validation(title, result, better)
        return result

    def translator(self, weights: dict[str, np.ndarray] | None = None) -> Translator:
        """Return a translator: on a CPU in the reference precision, on a GPU in the precision of the training.

        weights: by name; None: those in the model of the step. They must not change while the translator is in use.
        """
        device = str(self.device)
        precision = "reference" if kind(device) == "cpu" else choose_floating_point(self.section.precision, device)
        if weights is None:
            weights = as_arrays(stored_weights(self.step.model))
        stored = StoredModel(None, self.recipe, self.tokenizers, weights, {"tags": list(self.tags)})
        return Translator.of_model(stored, device, precision)

    # Saving

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags with which the model reads sources; see `known_tags`."""
        return known_tags(self.recipe)

    @property
    def corpus_counts(self) -> dict[str, Any]:
        """Counts of the training corpora, by the names that a bundle has of them."""
        names = [str(corpus.for_bundle().name) for corpus in self.recipe.data.train]
        counts: dict[str, Any] = {}
        for name, of_corpus in zip(names, self.prepared.counts.values(), strict=True):
            counts[unique_label(name, counts)] = of_corpus
        return counts

    @cached_property
    def held_out_pairs(self) -> dict[str, int]:
        """Number of pairs of each validation and test corpus, by its key, for the model card."""
        return {key: sum(1 for _ in read_pairs(self.recipe, spec, context=0))
                for key, spec in self.recipe.data.held_out().items()}

    def _save_best(self, kind: str, result: ValidationResult) -> None:
        if not self.group.is_main:
            return
        weights = {name: weight.cpu() for name, weight in stored_weights(self.step.model).items()}
        metadata = {"step": self.state.step, "parameters": self.parameters,
                    "validation": {"loss": result.loss, **to_dict(result.scores)}, "corpora": self.corpus_counts,
                    HELD_OUT: self.held_out_pairs,
                    "characters": self.prepared.characters, "tags": list(self.tags)}
        if (start := self.section.start_from) is not None:
            metadata["trained_from"] = file_name(start)
            if self.licence_of_start:
                metadata[LICENCE_OF_START] = self.licence_of_start
        name = f"{'average' if kind == 'average' else 'step'}-{self.state.step:08d}"
        with self.clock.phase("saving"):
            save_best(self.run, name, weights, self.recipe, self.tokenizers.files(), metadata)

    def _is_late(self) -> bool:
        """Return True if a checkpoint is due by the clock. None is due while the previous one is still being written,
        for example to a file system that stalls: the training goes on."""
        minutes, writing = self.section.checkpoint_minutes, self.writer.is_writing()
        return minutes == 0 or (time.monotonic() - self.saved_at >= 60 * minutes and not writing)

    def _save(self, log: Log) -> None:
        """Save a checkpoint, and delete older ones that are no longer needed. A thread does both while the training
        goes on, with a copy of weights and state, because the next steps change them."""
        self._read()
        self._require_same_weights()
        self.state.update_good_step()                               # all ranks need good_step for a rollback
        self.saved_at = time.monotonic()
        if self.group.is_main:
            self._finish_writing()                                      # so that there is only one copy at a time
            with self.clock.phase("saving"):
                self.state.logged = log.records
                if self._has_memory_for_copy():
                    self.writer.start(self._copy_to_write(log))
                else:
                    self._copy_to_write(log, copies=False)()

    def _require_same_weights(self) -> None:
        with self.clock.phase("waiting"):
            self.group.require_same_weights(self.state.step, self.step.blocks.blocks)

    def _finish_writing(self) -> None:
        with self.clock.phase("saving"):
            self.writer.wait()

    def _has_memory_for_copy(self) -> bool:
        """Return True if there is memory for a copy of what a checkpoint has, and for the next steps beside it. If not,
        the training waits while the checkpoint is written. On a GPU, the copy is needed in any case."""
        free, used = free_memory("cpu"), process_memory()
        if kind(str(self.device)) != "cpu" or free is None or used is None:
            return True
        copied = sum(tensor.nbytes for tensor in (*self.step.model.parameters(), *self.step.state().values()))
        return copied + max(0, used.peak - used.now) < free

    def _copy_to_write(self, log: Log, copies: bool = True) -> Callable[[], None]:
        """Return a function that writes a checkpoint of the present state. copies: False if the function is called
        before the state changes."""
        step = self.state.step
        weights = {name: weight.to("cpu", copy=copies) for name, weight in stored_weights(self.step.model).items()}
        tensors = {name: value.to("cpu", copy=copies) for name, value in self.step.state().items()}
        info = {"progress": asdict(self.state), VALIDATED: self.state.validated(), "precision": str(self.step.dtype),
                "data": self.prepared.fingerprint, "data_files": self.prepared.checksums,
                "validation": self.validation.fingerprint, "validation_files": self.validation.checksums,
                "tokenizer": checksums_of(self.tokenizers), "start_from": self.start_from}
        validated = {int(step) for step, _ in self.state.validations}
        averaged = self.state.steps_to_average(self.section.average, self.section.best_metric)
        fallbacks = {self.state.good_step, self.state.candidate_step} if self.section.divergence != "stop" else set()

        def write() -> None:
            log.sync()                                                  # the checkpoint stores the length of the log
            save_checkpoint(self.run, step, weights, tensors, info)
            # If there are checkpoints of later steps, they are damaged: the run did not resume from them. Delete them.
            steps = [each for each in checkpoint_by_step(self.run) if each <= step]
            newest = [*steps[-min(KEPT_TO_RESUME, self.section.keep_checkpoints):],
                      *[each for each in steps if each in validated][-self.section.keep_checkpoints:]]
            prune_checkpoints(self.run, {*newest, *averaged, *fallbacks})

        return write
