"""Training: the loop, and start, resumption and end of a run."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, Shape, derived_seed
from seq2seq.data.epoch_plan import EpochPlan, plan_epoch
from seq2seq.data.preparation import Prepared, prepare, train_or_load_tokenizers
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.data.token_noise import TokenNoise
from seq2seq.devices import choose_device, choose_dtype, configure_process, copy_all, describe, make_deterministic
from seq2seq.errors import CheckpointError
from seq2seq.evaluation.learning_curves import draw_curves
from seq2seq.evaluation.scores import Score, check_expected, evaluate_tests, to_dict
from seq2seq.inference.load_model import stored_weights, weights_to_start_from
from seq2seq.model import build_model, trains_packed
from seq2seq.recipe import Recipe
from seq2seq.signals import Stopped, stopping_by_signal
from seq2seq.storage.averaging import MOVING_AVERAGE, average_weights, intact_weights
from seq2seq.storage.checkpoints import (
    BEST,
    list_checkpoints,
    load_bundle,
    newest_checkpoint,
    prune_checkpoints,
    save_bundle,
    save_checkpoint,
    step_of,
    update_bundle_metadata,
)
from seq2seq.storage.run_directory import Log, NoLog
from seq2seq.storage.tokenizer_files import checksums_of
from seq2seq.training import reporting
from seq2seq.training.alignment_head import alignment_settings
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup, join_process_group, translate_on_all_ranks
from seq2seq.training.divergence import Diverged, can_roll_back, divergence_error, roll_back
from seq2seq.training.gradient_accumulation import StepGradients
from seq2seq.training.guided_alignment import GuidedAlignment
from seq2seq.training.learning_rate import learning_rate
from seq2seq.training.micro_batch import gradient_of
from seq2seq.training.objective import Objective
from seq2seq.training.optimizers import build_optimizer, mean_gradient_norm, scale_gradient, update_moving_average
from seq2seq.training.run_start import open_run
from seq2seq.training.step_results import StepResult, StepResults
from seq2seq.training.synthetic_text import SYNTHETIC, with_synthetic_text
from seq2seq.training.teachers import teachers_of
from seq2seq.training.train_state import TrainState
from seq2seq.training.validation import Validation, ValidationResult, require_held_out
from seq2seq.translation.translator import Translator


def train(recipe: Recipe, run: str | Path, restart: bool | None = False) -> dict[str, dict[str, Score]]:
    """Train the recipe's model in the directory `run`, or resume that run.

    Args:
        restart: True to rename an existing run and train from the beginning. None: no, nor advise it in a finished run.
    Returns:
        Scores of the best model, by test set and metric.
    Raises:
        UserError: the user has to correct the recipe, the data or the run; the message says how.
        Stopped: a signal stopped the training. The same call resumes it.
    """
    configure_process(recipe.training.threads)
    choose_dtype(recipe.training.precision, choose_device(recipe.training.device))  # fails before a directory is made
    with join_process_group(recipe.training.device) as group:
        recipe, *_ = group.gather([recipe])                                     # all ranks use that of the main rank
        return _train(recipe, Path(run), group, restart)


def _train(recipe: Recipe, run: Path, group: ProcessGroup, restart: bool | None, synthetic: Path | None = None
           ) -> dict[str, dict[str, Score]]:
    """Train the model of a run. If the run has not begun, train its teachers first. See `train` and `Training`."""
    synthetic = synthetic or run / SYNTHETIC
    with open_run(recipe, run, group, bool(restart), require_held_out(recipe)):
        begun, = group.maximum((int(bool(list_checkpoints(run))),))
        for number, (teacher, directory) in enumerate([] if begun else teachers_of(recipe, run), 1):
            console.print_message(f"teacher {number} of {recipe.training.teachers.count}, with seed {teacher.seed}: "
                                  f"{directory}")
            _train(teacher, directory, group, restart=None, synthetic=synthetic)
        while True:
            training = Training(recipe, run, group, synthetic)
            if training.state.finished(recipe) and training.state.validated():
                reporting.print_finished(run, recipe, training.state, advise=restart is not None)
            try:
                training.loop()
                return training.test()
            except Diverged as divergence:
                possible = recipe.training.divergence != "stop" and can_roll_back(run, training.state)
                group.barrier()                                         # wait until all ranks have listed checkpoints
                if not possible:
                    raise
                if group.is_main:
                    roll_back(run, training.state)
                group.barrier()
                console.warn(f"{divergence.evidence}; rolling back to step {training.state.good_step:,}, with half the "
                             "learning rate")
            del training                                                    # frees memory before the next attempt


class Training:
    """A training: data, model, optimizer and train state of a run."""

    def __init__(self, recipe: Recipe, run: Path, group: ProcessGroup = SINGLE_PROCESS, synthetic: Path | None = None
                 ) -> None:
        """Prepare the data, and resume from the newest checkpoint if there is one.

        group: process group of `open_run`. synthetic: directory of the synthetic text, which teachers share with their
            student; None: in the run directory.
        Raises:
            UserError: the data cannot be read, or differ from the data that the checkpoint was trained on.
        """
        self.recipe, self.section, self.run, self.group = recipe, recipe.training, run, group
        self.recipe_text = recipe.to_yaml()                                     # takes 30 ms
        self.device = choose_device(self.section.device)
        self.dtype = choose_dtype(self.section.precision, self.device)
        torch.backends.cuda.matmul.allow_tf32 = self.section.precision == "tf32"
        make_deterministic(self.device)
        # Only the main rank reads the training text. The other ranks read the files that it has prepared.
        text = with_synthetic_text(recipe, run, group, synthetic)
        folder = run / "tokenizer"
        self.tokenizers = group.main_rank_first(lambda: train_or_load_tokenizers(text, folder, group.is_main))
        self.tokenizer_checksums = checksums_of(self.tokenizers)
        self.prepared = self._prepare(text)
        self.corpus = self._in_both_directions(self.prepared.corpus, epoch=0)
        self.resampled = ResampledEpochs.for_recipe(self.prepared, self.tokenizers, text, group.is_main)
        self.validation = Validation(recipe, self.tokenizers)

        sizes = self.tokenizers.source.vocab_size, self.tokenizers.target.vocab_size
        initial_weights = {} if self.section.start_from is None or list_checkpoints(run) else weights_to_start_from(
            recipe.model, sizes, recipe.directory / self.section.start_from)
        torch.manual_seed(derived_seed(recipe.seed, "parameters"))
        # Mixed precision: weights and accumulated gradients are fp32, because rounding in 16 bits loses small updates.
        # Forward and backward pass may use a copy in bf16 or fp16, whose matrix products are several times faster.
        self.model = build_model(recipe.model, *sizes)
        self.model.load_state_dict(initial_weights, strict=False)
        self.model.to(self.device).train()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.weights = list(self.model.parameters())
        self.parameters = sum(weight.numel() for weight in self.weights)
        group.broadcast(self.weights)
        self.compute_model = self.model if self.dtype == torch.float32 else copy.deepcopy(self.model).to(self.dtype)
        self.optimizer = build_optimizer(self.section, self.model.named_parameters(), self.dtype)
        self.ema_weights = [weight.detach().clone() for weight in self.weights] if self.section.ema_decay else []
        max_length = recipe.data.cleaning.max_pieces + 1
        packed = trains_packed(recipe.model, self.device, self.dtype)
        plan = (dict(group.micro_batches(step)).values() for step in self._plan(0))             # of this rank
        shape = Shape.for_plan(self.corpus, plan, max_length, bool(self.resampled)) if packed else None
        self.state = TrainState()
        self._resume()
        tensors = [*self.weights, *self.ema_weights, *self.optimizer.state().values()]
        group.require_same(self.state.step, self.dtype, tensors)
        guided = GuidedAlignment.for_training(self.prepared, self.tokenizers, self.section.guided_alignment,
                                              group.main_rank_first)
        objective = Objective(self.section.label_smoothing, self.section.consistency, guided,
                              TokenNoise.for_training(recipe, self.tokenizers))
        self.gradients = StepGradients(self.compute_model, self.weights, objective, seed=recipe.seed, shape=shape,
                                       max_length=max_length, max_tokens=self.state.most_tokens,
                                       loss_scale=self.optimizer.loss_scale)
        self.results = StepResults(self.state, self.prepared.corpus, run, self.dtype)

    def _prepare(self, text: Recipe) -> Prepared:
        """Prepare the training text on the main rank; open it on all ranks. text: result of `with_synthetic_text`."""
        arguments = text, self.tokenizers, self.run / "prepared", torch.get_num_threads()
        prepared = prepare(*arguments) if self.group.is_main else None
        name, *_ = self.group.gather([prepared.directory.name if prepared else ""])
        return prepared or prepare(*arguments, name)

    # The loop

    def loop(self) -> None:
        """Train until the last step or early stopping. Then average checkpoints if the recipe says so.

        Raises:
            Stopped: a signal stopped the training, which has saved a checkpoint.
        """
        self._print_summary()
        state, section = self.state, self.section
        log = Log(self.run, state.step, state.logged) if self.group.is_main else NoLog()
        saved_at = time.monotonic()
        try:
            with (stopping_by_signal(exit_on_second=self.group.world_size == 1) as request,
                  console.progress("training", section.max_steps, state.step, "steps") as advance):
                self._validate_if_due(log)
                for micro_batches in self._steps():
                    self._step(micro_batches)
                    advance(1)
                    if state.step % section.log_every == 0 or state.finished(self.recipe):
                        advance(0, self._log_window(log))
                    # The clock of the main rank decides, so that all ranks save at the same steps.
                    late = self.group.is_main and time.monotonic() - saved_at >= 60 * section.checkpoint_minutes
                    due, stopped_by = self.group.maximum((int(late), request.number or 0))
                    if due or stopped_by:
                        self._save(log)
                        saved_at = time.monotonic()
                    self._stop(stopped_by)
                    if self._validate_if_due(log):
                        saved_at = time.monotonic()
                self._stop(*self.group.maximum((request.number or 0,)))     # for a signal during the last validation
            self._average_checkpoints(log)
        finally:
            self._draw_curves()
            log.close()
            if self.resampled:
                self.resampled.close()
        console.print_message(f"trained {state.summary()}")

    def _stop(self, signal: int) -> None:
        """Raise Stopped if a signal has arrived. Call this only after saving. signal: number of the signal, or 0."""
        if signal:
            raise Stopped(signal, f"saved at step {self.state.step:,}; run the same command again to resume")

    def _steps(self) -> Iterator[list[np.ndarray]]:
        """Yield the micro-batches of each remaining step until the training is finished."""
        state = self.state
        while not state.finished(self.recipe):
            corpus = self.prepared.corpus
            if self.resampled:
                corpus = self.group.main_rank_first(partial(self.resampled.corpus, state.epoch))
            self.corpus = self._in_both_directions(corpus, state.epoch)
            plan = self._plan(state.epoch)
            while state.step_in_epoch < len(plan) and not state.finished(self.recipe):
                yield plan[state.step_in_epoch]
            if state.step_in_epoch >= len(plan):
                state.epoch, state.step_in_epoch = state.epoch + 1, 0

    def _in_both_directions(self, corpus: EncodedCorpus, epoch: int) -> EncodedCorpus:
        return corpus.with_reversed() if epoch < self.section.bidirectional_epochs else corpus

    def _plan(self, epoch: int) -> EpochPlan:
        return plan_epoch(self.corpus, self.section.batch_tokens, self.section.accumulation, self.recipe.seed, epoch)

    def _step(self, micro_batches: Sequence[np.ndarray]) -> None:
        """Do one optimizer step. Gradient: the sum over all micro-batches, divided by the number of target tokens."""
        began, step = time.monotonic(), self.state.step + 1
        sums, gradient = self.gradients.accumulate(self.corpus, step, self.group.micro_batches(micro_batches))
        self.state.most_tokens = self.gradients.max_tokens
        self.group.sum([gradient, sums])
        source_tokens, target_tokens = self.corpus.tokens(micro_batches)        # of all ranks
        norm = mean_gradient_norm([gradient_of(weight) for weight in self.weights], target_tokens)
        scale_gradient(gradient, norm, target_tokens, self.section.gradient_clip)
        # The device decides whether to skip the update. To decide itself, the host would have to wait for the GPU.
        self._update(self.state.rate_factor * learning_rate(self.section, step), step, skip=1 - norm.isfinite().float())
        self.optimizer.zero_grad()
        self.state.step, self.state.averaged = step, []
        self.state.step_in_epoch += 1
        self.state.add_to_window(seconds=time.monotonic() - began)
        self.results.add(StepResult(step, torch.cat([sums, norm[None]]), micro_batches, source_tokens, target_tokens))

    def _update(self, rate: float, step: int, skip: Tensor) -> None:
        self.optimizer.step(rate, skip)
        if self.ema_weights:
            update_moving_average(self.ema_weights, self.weights, self.section.ema_decay, step, skip)
        if self.compute_model is not self.model:
            copy_all(list(self.compute_model.parameters()), self.weights)

    # Reporting

    def _print_summary(self) -> None:
        dropped = sum(sum(counts["dropped"].values()) for counts in self.prepared.counts.values())
        reporting.print_training_summary(
            self.run, f"{self.parameters:,} parameters, {len(self.prepared.corpus):,} training pairs "
            f"({dropped:,} dropped in cleaning), {len(self.validation.pairs):,} validation pairs; "
            f"{str(self.dtype).removeprefix('torch.')} on {describe(self.device)}", self.state.step,
            self.section)

    def _log_window(self, log: Log) -> list[str]:
        """Log the means since the last log line, and return them as text for the progress bar."""
        self.results.read()
        rate = self.state.rate_factor * learning_rate(self.section, self.state.step)
        if means := reporting.pop_window_means(self.state, rate):
            log.write("training", self.state.step, means)
        return reporting.progress_bar_fields(means) if means else []

    def _draw_curves(self) -> None:
        if self.group.is_main:
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
        self.results.read()
        began = time.monotonic()
        with self._use_weights(self.ema_weights or self.weights):
            result = self._evaluate(log, "validation", f"step {self.state.step:,}  validation")
        self.state.add_validation(result.values()[self.section.best_metric], self.section.best_metric)
        self.state.seconds += time.monotonic() - began

    def _evaluate(self, log: Log, kind: str, title: str) -> ValidationResult:
        """Validate the weights in the model, and save them as the best bundle if their score is the best so far. Return
        the results. kind: kind of the log record. title: start of the message."""
        try:
            result = self.validation.measure(self.model, self._translator(), self.group)
        except FloatingPointError as error:
            raise divergence_error(f"step {self.state.step:,}: {error}", self.state, self.run) from error
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
            self._save_best(result)
        reporting.print_validation(title, result, better)
        return result

    def _translator(self) -> Translator:
        """Return a translator with the weights in the model, in the precision of the training."""
        return Translator.from_recipe(self.model, self.tokenizers, self.recipe, self.device,
                                      self.section.precision.replace("tf32", "fp32"))

    @contextmanager
    def _use_weights(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Put other weights into the model, and set it to evaluation mode, during the block."""
        self.gradients.micro_batch.release_graph()                              # its memory is used in the block
        trained = [weight.detach().clone() for weight in self.weights]
        self.model.eval()
        try:
            copy_all(self.weights, weights)
            yield
        finally:
            copy_all(self.weights, trained)
            self.model.train()

    def _average_checkpoints(self, log: Log) -> None:
        """Average the checkpoints that the recipe selects, and save the average if it is better than the best model."""
        steps = self.state.steps_to_average(self.section.average, self.section.best_metric)
        self.group.barrier()                                            # wait until the last checkpoint is written
        # If the recipe now selects more checkpoints than before, some of them may have been deleted already.
        paths = [path for path in list_checkpoints(self.run) if step_of(path) in steps]
        if len(paths) < 2 or self.state.averaged == (steps := [step_of(path) for path in paths]):
            return
        averaged = average_weights(intact_weights(paths))
        with self._use_weights([averaged[name].to(self.device) for name in self.names]):
            self._evaluate(log, "average", f"average of {len(paths)} checkpoints  validation")
        self.state.averaged = steps
        self._save(log)

    # Saving and resuming

    def _save_best(self, result: ValidationResult) -> None:
        if not self.group.is_main:
            return
        weights = {name: weight.cpu() for name, weight in stored_weights(self.model).items()}
        metadata = {"step": self.state.step, "parameters": self.parameters,
                    "validation": {"loss": result.loss, **to_dict(result.scores)}, "corpora": self.prepared.counts}
        save_bundle(self.run / BEST, weights, self.recipe_text, self.tokenizers.files(), metadata)

    def _save(self, log: Log) -> None:
        """Save a checkpoint, and delete older ones that are no longer needed."""
        self.results.read()
        self.state.update_good_step()                               # all ranks need good_step for a rollback
        if self.group.is_main:
            self._write_checkpoint(log)

    def _write_checkpoint(self, log: Log) -> None:
        log.flush()                                                     # the checkpoint stores the length of the log
        self.state.logged = log.records
        state = {f"optimizer.{key}": value for key, value in self.optimizer.state().items()} | {
            f"{MOVING_AVERAGE}{name}": value for name, value in zip(self.names, self.ema_weights, strict=False)}
        weights = {name: weight.cpu() for name, weight in stored_weights(self.model).items()}
        info = {"progress": asdict(self.state), "data": self.prepared.fingerprint, "precision": str(self.dtype),
                "tokenizer": self.tokenizer_checksums}
        save_checkpoint(self.run, self.state.step, weights, {key: value.cpu() for key, value in state.items()}, info)
        # If there are checkpoints of later steps, they are damaged: the run did not resume from them. Delete them.
        steps = [step for step in map(step_of, list_checkpoints(self.run)) if step <= self.state.step]
        newest = steps[-self.section.keep_checkpoints:]
        averaged = self.state.steps_to_average(self.section.average, self.section.best_metric)
        fallbacks = {self.state.good_step, self.state.candidate_step}
        prune_checkpoints(self.run, {*newest, *averaged, *(fallbacks if self.section.divergence != "stop" else ())})

    def _resume(self) -> None:
        """Restore weights, optimizer and train state from the newest intact checkpoint, if there is one."""
        checkpoint = newest_checkpoint(self.run)
        if checkpoint is None:
            return
        if checkpoint.info["tokenizer"] != self.tokenizer_checksums:
            raise CheckpointError(f"{checkpoint.path} was trained with another tokenizer: {self.run / 'tokenizer'} has "
                                  "changed since. Restore that directory, or train from the beginning with --restart.")
        if checkpoint.info["data"] != self.prepared.fingerprint:
            raise CheckpointError(f"{checkpoint.path} was trained on other text: a file or a model of data.train has "
                                  "changed since. Restore it, or train from the beginning with --restart.")
        copy_all(self.weights, [checkpoint.model[name].to(self.device) for name in self.names])
        if self.compute_model is not self.model:
            copy_all(list(self.compute_model.parameters()), self.weights)
        self.optimizer.restore({key.removeprefix("optimizer."): value for key, value in checkpoint.state.items()
                                if key.startswith("optimizer.")})
        if self.ema_weights:
            self.ema_weights = [checkpoint.state[f"{MOVING_AVERAGE}{name}"].to(self.device) for name in self.names]
        if checkpoint.info["precision"] != str(self.dtype):
            before, now = (str(dtype).removeprefix("torch.") for dtype in (checkpoint.info["precision"], self.dtype))
            console.warn(f"this run has been trained in {before} so far and now continues in {now}, because "
                         f"training.precision: auto means {now} on this device")
        self.state = TrainState(**checkpoint.info["progress"])

    # After training

    def test(self) -> dict[str, dict[str, Score]]:
        """Evaluate the best model on the recipe's test sets, save the scores in its bundle, and return them."""
        self.group.barrier()                                            # wait until the best model is written
        best = load_bundle(self.run / BEST)
        with self._use_weights([best.weights[name].to(self.device) for name in self.names]):
            translator = self._translator()
            scores = evaluate_tests(translator, self.recipe,
                                    translate=partial(translate_on_all_ranks, translator, self.group))
            alignment = alignment_settings(translator, self.recipe, self.validation.pairs)
        if not self.group.is_main:
            return scores
        if best.recipe_text != self.recipe_text:                 # keys such as `decoding` can be changed later
            save_bundle(self.run / BEST, best.weights, self.recipe_text, best.tokenizer_files, best.metadata)
        update_bundle_metadata(self.run / BEST, test={name: to_dict(score) for name, score in scores.items()},
                               **alignment)
        for warning in check_expected(scores, self.recipe.expected):
            console.warn(warning)
        return scores
