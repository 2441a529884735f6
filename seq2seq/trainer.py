"""Training: the one visible loop, and what it needs to begin, to go on and to end."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq import console
from seq2seq.batching import EncodedCorpus, Shape, batches_in_order, derived_seed, gather, plan_epoch
from seq2seq.checkpoint import (
    BEST,
    average_weights,
    list_checkpoints,
    load_bundle,
    load_checkpoint,
    lock_run,
    newest_checkpoint,
    prune_checkpoints,
    save_bundle,
    save_checkpoint,
    update_bundle_metadata,
)
from seq2seq.corpus import read_corpus
from seq2seq.errors import CheckpointError, RecipeError, UserError
from seq2seq.evaluation import Score, check_expected, evaluate_tests, score_pairs, to_dict
from seq2seq.loss import negative_log_likelihood, perplexity, smoothed_cross_entropy
from seq2seq.machine import choose_device, choose_dtype, describe, settle_process
from seq2seq.model import build_model
from seq2seq.model.attention import runs_packed
from seq2seq.optim import build_optimizer, learning_rate, scale_gradients, update_moving_average
from seq2seq.preparation import Prepared, SampledEpochs, encode_pairs, prepare, training_pairs
from seq2seq.recipe import Recipe
from seq2seq.run import Log, Stopped, StopRequest, admit, move_aside, stopping_by_signal
from seq2seq.tokenizer import Tokenizers, train_tokenizers
from seq2seq.translator import Translator, stored_weights

# So many steps in a row without a finite gradient are no accident.
MOST_SKIPPED_STEPS = 10
HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "loss": False, "perplexity": False}


def train(recipe: Recipe, run: Path, restart: bool = False) -> dict[str, dict[str, Score]]:
    """Train the recipe's model in the directory `run`, or go on where that run stands.

    Args:
        restart: move an existing run aside and begin anew.
    Returns:
        Scores of the best model, by test set and metric.
    Raises:
        UserError: recipe, data or run do not allow it; the message says what to do.
        Stopped: a signal asked for it; everything is saved.
    """
    settle_process(recipe.training.threads)
    if restart:
        with lock_run(run):
            moved = move_aside(run)
        console.say(f"the old run is now {moved}")
    with lock_run(run):
        admit(recipe, run)
        training = Training(recipe, run)
        if training.progress.finished(recipe):
            console.say(f"{run} has finished: {training.progress.summary()}. To train on, raise training.max_steps; "
                        "to begin anew, use --restart.")
        else:
            training.loop()
        return training.test()


@dataclass
class Progress:
    """How far a training is: everything that decides what comes next, and what is reported. JSON values only.

    step: optimizer steps done. epoch, step_in_epoch: what the next step is made of. best_score, best_step: by the
    recipe's best_metric. validations: (step, score) of each. stale: validations since the best. skipped: steps left out
    for want of a finite gradient; skipped_in_row: those since the last good one. window: sums since the last log line.
    seconds: spent in training, validation and saving. averaged: the checkpoints have been averaged.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    best_score: float | None = None
    best_step: int = 0
    validations: list[list[float]] = field(default_factory=list)
    stale: int = 0
    skipped: int = 0
    skipped_in_row: int = 0
    window: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    averaged: bool = False

    def finished(self, recipe: Recipe) -> bool:
        """Whether no step is left to do."""
        return self.step >= recipe.training.max_steps or self.stopped_early(recipe)

    def stopped_early(self, recipe: Recipe) -> bool:
        """Whether the validation score has stopped to improve, by the recipe's patience."""
        return 0 < recipe.training.early_stopping <= self.stale

    def summary(self) -> str:
        """One line for the person."""
        best = "" if self.best_score is None else f", best validation {self.best_score:.2f} at step {self.best_step:,}"
        skipped = f", {self.skipped:,} steps skipped" if self.skipped else ""
        return f"{self.step:,} steps in {self.seconds / 60:.1f} minutes{best}{skipped}"


class Training:
    """A run in memory: data, model, optimizer, and where it stands."""

    def __init__(self, recipe: Recipe, run: Path) -> None:
        """Prepare the data and resume from the newest checkpoint, or begin.

        Raises:
            UserError: the data cannot be read, or it is not what the checkpoint was trained on.
        """
        self.recipe, self.section, self.run = recipe, recipe.training, run
        self.device = choose_device()
        self.dtype = choose_dtype(self.section.precision, self.device)
        _make_deterministic(self.device)
        self.tokenizers = _tokenizers(recipe, run)
        self.prepared: Prepared = prepare(recipe, self.tokenizers, run / "prepared", torch.get_num_threads())
        self.valid_pairs = [(source, target) for _, source, target
                            in read_corpus(recipe.data.valid, recipe.data_directory)]
        self.valid = _usable(encode_pairs(self.valid_pairs, self.tokenizers, torch.get_num_threads()),
                             recipe.model.max_positions)
        self.sampled = SampledEpochs(
            self.prepared, self.tokenizers, recipe.tokenizer.subword_sampling, recipe.data.cleaning.max_pieces,
            recipe.seed,
        ) if recipe.tokenizer.subword_sampling else None

        torch.manual_seed(derived_seed(recipe.seed, "parameters"))
        # The weights live in fp32, and so do the sums of gradients. What computes may be a copy in bf16: products in
        # it are several times faster, but a small update added to a bf16 weight would vanish.
        self.model = build_model(recipe.model, self.tokenizers.source.vocab_size, self.tokenizers.target.vocab_size)
        self.model.to(self.device).train()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.weights = list(self.model.parameters())
        self.computing: nn.Module = self.model
        if self.dtype != torch.float32:
            self.computing = copy.deepcopy(self.model).to(self.dtype)
        self.computing_weights = list(self.computing.parameters())
        self.optimizer = build_optimizer(self.section, self.weights)
        self.average = [weight.detach().clone() for weight in self.weights] if self.section.ema_decay else []
        self.progress = Progress()
        self.shape = self._fixed_shape()
        self._resume()

    # The loop

    def loop(self) -> None:
        """Train until the last step, early stopping or a signal.

        Raises:
            Stopped: by a signal, after saving.
        """
        self._announce()
        log = Log(self.run, self.progress.step)
        saved_at = time.monotonic()
        try:
            with stopping_by_signal() as request, self._bar() as bar:
                for parts in self._steps():
                    began = time.monotonic()
                    self._step(parts)
                    self._count(seconds=time.monotonic() - began)
                    bar(1)
                    if self.progress.step % self.section.log_every == 0:
                        bar(0, self._log(log))
                    last = self.progress.step == self.section.max_steps
                    if last or self.progress.step % self.section.validate_every == 0:
                        self._validate(log)
                        last = last or self.progress.stopped_early(self.recipe)
                    due = time.monotonic() - saved_at >= 60 * self.section.checkpoint_minutes
                    validated = self.progress.validations and self.progress.validations[-1][0] == self.progress.step
                    if last or due or validated or request.number is not None:
                        log.flush()
                        self._save()
                        saved_at = time.monotonic()
                    if request.number is not None and not last:
                        raise Stopped(request.number, f"saved at step {self.progress.step:,}. "
                                                      "Run the same command again to go on.")
                    if last:
                        break
            self._average_checkpoints(log)
        finally:
            log.close()
            if self.sampled:
                self.sampled.close()
        console.say(f"trained {self.progress.summary()}")

    def _steps(self) -> Iterator[list[np.ndarray]]:
        """The parts of each step from where the run stands, epoch after epoch, without end."""
        while True:
            epoch = self.progress.epoch
            self.corpus = self.sampled.corpus(epoch) if self.sampled else self.prepared.corpus
            plan = plan_epoch(self.corpus, self.section.batch_tokens, self.section.accumulation,
                              self.recipe.seed, epoch)
            for number in range(self.progress.step_in_epoch, len(plan)):
                yield plan[number]
            self.progress.epoch, self.progress.step_in_epoch = epoch + 1, 0

    def _step(self, parts: Sequence[np.ndarray]) -> None:
        """One optimizer step: the gradients of all parts are summed and divided once by the tokens of all."""
        step = self.progress.step + 1
        rate = learning_rate(self.section, step)
        loss, likelihood = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        source_tokens, target_tokens = 0, 0
        for number, part in enumerate(parts):
            torch.manual_seed(derived_seed(self.recipe.seed, "dropout", step, number))
            batch = gather(self.corpus, part, self.shape).to(self.device)
            sums = smoothed_cross_entropy(self.computing(batch), batch.target_output, batch.target_count,
                                          self.section.label_smoothing)
            sums.total.backward()
            self._collect_gradients()
            loss += sums.total.detach()
            likelihood += sums.negative_log_likelihood
            source_tokens += int(self.corpus.source.lengths[part].sum())
            target_tokens += sums.tokens
        norm = scale_gradients([_gradient(weight) for weight in self.weights], target_tokens,
                               self.section.gradient_clip)
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            if self.average:
                update_moving_average(self.average, self.weights, self.section.ema_decay, step)
            if self.computing is not self.model:
                _copy_all(self.computing_weights, self.weights)
            self.progress.skipped_in_row = 0
            self._count(loss=loss.item(), likelihood=likelihood.item(), source_tokens=source_tokens,
                        target_tokens=target_tokens, gradient_norm=norm, steps=1)
        else:
            self._skip(step, parts)
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step = step
        self.progress.step_in_epoch += 1

    def _collect_gradients(self) -> None:
        """Add the gradients of the computing copy to those of the weights."""
        if self.computing is self.model:
            return
        computed = [_gradient(weight) for weight in self.computing_weights]
        if self.weights[0].grad is None:
            for weight, gradient in zip(self.weights, computed, strict=True):
                weight.grad = gradient.float()
        else:
            torch._foreach_add_([_gradient(weight) for weight in self.weights],
                                [gradient.float() for gradient in computed])
        for weight in self.computing_weights:
            weight.grad = None

    def _skip(self, step: int, parts: Sequence[np.ndarray]) -> None:
        self.progress.skipped += 1
        self.progress.skipped_in_row += 1
        lines = self.prepared.corpus.lines
        numbers = [] if lines is None else [int(lines[index]) for part in parts for index in part]
        console.warn(f"step {step:,} has no finite gradient and is skipped (its pairs are on the lines "
                     f"{', '.join(map(str, sorted(numbers)[:20]))}{', …' if len(numbers) > 20 else ''})")
        if self.progress.skipped_in_row >= MOST_SKIPPED_STEPS:
            raise UserError(f"{self.progress.skipped_in_row} steps in a row had no finite gradient: the training has "
                            f"diverged. The checkpoints of {self.run} are intact; train anew with a lower "
                            "training.learning_rate, a longer warmup_steps, or precision fp32.")

    # Reporting

    def _bar(self) -> Any:
        return console.progress("training", self.section.max_steps, self.progress.step)

    def _announce(self) -> None:
        parameters = sum(weight.numel() for weight in self.weights)
        dropped = sum(sum(counts["dropped"].values()) for counts in self.prepared.counts.values())
        console.say(f"{parameters:,} parameters, {len(self.prepared.corpus):,} training pairs ({dropped:,} dropped in "
                    f"cleaning), {len(self.valid_pairs):,} validation pairs; "
                    f"{str(self.dtype).removeprefix('torch.')} on {describe(self.device)}")
        if self.progress.step:
            console.say(f"going on after step {self.progress.step:,}")

    def _count(self, **values: float) -> None:
        for name, value in values.items():
            self.progress.window[name] = self.progress.window.get(name, 0) + value

    def _log(self, log: Log) -> str:
        """Write the means since the last line; the same as a line for the console."""
        window, self.progress.window = self.progress.window, {}
        self.progress.seconds += window["seconds"]
        if "steps" not in window:
            return ""
        tokens = window["target_tokens"]
        values = {
            "epoch": self.progress.epoch,
            "loss": window["loss"] / tokens,
            "perplexity": perplexity(window["likelihood"], tokens),
            "learning_rate": learning_rate(self.section, self.progress.step),
            "gradient_norm": window["gradient_norm"] / window["steps"],
            "tokens_per_second": (window["source_tokens"] + tokens) / window["seconds"],
            "seconds": self.progress.seconds,
        }
        log.write("training", self.progress.step, values)
        shown = (f"epoch {values['epoch'] + 1}  loss {values['loss']:.3f}  perplexity {values['perplexity']:.2f}  "
                 f"rate {values['learning_rate']:.2e}  gradient {values['gradient_norm']:.2f}  "
                 f"{values['tokens_per_second']:,.0f} tokens/s")
        if not console.is_terminal():
            left = (self.section.max_steps - self.progress.step) * self.progress.seconds / self.progress.step
            console.say(f"step {self.progress.step:,}/{self.section.max_steps:,}  {shown}  {left / 60:.0f} min left")
        return shown

    # Validation

    def _validate(self, log: Log) -> None:
        """Loss, true perplexity and scores of real translations; keeps the bundle if it is the best."""
        began = time.monotonic()
        with self._validated_weights():
            scores = self._measure()
            values = {"loss": scores[0], "perplexity": math.exp(min(scores[0], 700)),
                      **{metric: score.value for metric, score in scores[1].items()}}
            log.write("validation", self.progress.step, values)
            score = values[self.section.best_metric]
            self.progress.validations.append([self.progress.step, score])
            better = self._is_better(score)
            if better:
                self.progress.best_score, self.progress.best_step, self.progress.stale = score, self.progress.step, 0
                self._save_best(scores[1])
            else:
                self.progress.stale += 1
        self.progress.seconds += time.monotonic() - began
        shown = "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        console.say(f"step {self.progress.step:,}  validation  {shown}{'  (best)' if better else ''}")

    def _measure(self) -> tuple[float, dict[str, Score]]:
        """Mean negative log-likelihood a token of the validation set, and scores of its translations."""
        total, tokens = 0.0, 0
        with torch.inference_mode():
            lengths = np.maximum(self.valid.source.lengths, self.valid.target.lengths)
            for indices in batches_in_order(lengths, self.section.batch_tokens):
                batch = gather(self.valid, indices).to(self.device)
                total += negative_log_likelihood(self.model(batch), batch.target_output).double().sum().item()
                tokens += batch.target_count
        translator = Translator.from_recipe(self.model, self.tokenizers, self.recipe, self.device)
        pairs = self.valid_pairs[:self.section.valid_sentences]
        return total / tokens, score_pairs(translator, pairs, metrics=("bleu", "chrf"))

    def _is_better(self, score: float) -> bool:
        best = self.progress.best_score
        if best is None:
            return True
        return score > best if HIGHER_IS_BETTER[self.section.best_metric] else score < best

    @contextmanager
    def _validated_weights(self) -> Iterator[None]:
        """The model as it is validated and kept: with the moving average's weights where there is one."""
        self.model.eval()
        kept = [weight.detach().clone() for weight in self.weights] if self.average else []
        try:
            if self.average:
                _copy_all(self.weights, self.average)
            yield
        finally:
            if self.average:
                _copy_all(self.weights, kept)
            self.model.train()

    def _save_best(self, scores: dict[str, Score]) -> None:
        weights = {name: weight.cpu() for name, weight in stored_weights(self.model).items()}
        metadata = {"step": self.progress.step, "validation": to_dict(scores), "corpora": self.prepared.counts,
                    "parameters": sum(weight.numel() for weight in self.weights)}
        save_bundle(self.run / BEST, weights, self.recipe.to_yaml(), self.tokenizers.files(), metadata)

    # Saving and going on

    def _save(self) -> None:
        state = {f"optimizer.{name}.{key}": value.cpu()
                 for name, weight in zip(self.names, self.weights, strict=True)
                 for key, value in self.optimizer.state[weight].items()}
        state |= {f"average.{name}": value.cpu() for name, value in zip(self.names, self.average, strict=False)}
        weights = {name: weight.detach().cpu() for name, weight in zip(self.names, self.weights, strict=True)}
        info = {"progress": asdict(self.progress), "data": self.prepared.fingerprint}
        save_checkpoint(self.run, self.progress.step, weights, state, info)
        prune_checkpoints(self.run, self._kept_steps())

    def _kept_steps(self) -> set[int]:
        """Steps of the newest checkpoints, and of those that will be averaged."""
        newest = [int(path.name.removeprefix("step-")) for path in list_checkpoints(self.run)]
        return set(newest[-self.section.keep_checkpoints:]) | set(self._steps_to_average())

    def _steps_to_average(self) -> list[int]:
        average, validations = self.section.average, self.progress.validations
        if average.kind == "none":
            return []
        if average.kind == "best":
            sign = -1 if HIGHER_IS_BETTER[self.section.best_metric] else 1
            validations = sorted(validations, key=lambda entry: sign * entry[1])[:average.count]
        return sorted(int(step) for step, _ in validations[-average.count:])

    def _average_checkpoints(self, log: Log) -> None:
        """Average checkpoints as the recipe says; the average is kept if it validates better than the best."""
        steps = self._steps_to_average()
        if len(steps) < 2 or self.progress.averaged:
            return
        prefix = "average." if self.average else ""
        models = []
        for step in steps:
            checkpoint = load_checkpoint(self.run / "checkpoints" / f"step-{step:08d}")
            tensors = checkpoint.state if self.average else checkpoint.model
            models.append({name: tensors[prefix + name] for name in self.names})
        averaged = average_weights(models)
        kept = [weight.detach().clone() for weight in self.weights]
        self.model.eval()
        _copy_all(self.weights, [averaged[name].to(self.device) for name in self.names])
        loss, scores = self._measure()
        values = {"loss": loss, "perplexity": math.exp(min(loss, 700)),
                  **{metric: score.value for metric, score in scores.items()}}
        log.write("average", self.progress.step, values)
        better = self._is_better(values[self.section.best_metric])
        if better:
            self.progress.best_score, self.progress.best_step = values[self.section.best_metric], self.progress.step
            self._save_best(scores)
        _copy_all(self.weights, kept)
        self.model.train()
        self.progress.averaged = True
        self._save()
        shown = "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        console.say(f"average of {len(steps)} checkpoints  validation  {shown}"
                    f"{'  (best)' if better else '  (not better: the best model stays)'}")

    def _resume(self) -> None:
        checkpoint = newest_checkpoint(self.run)
        if checkpoint is None:
            return
        if checkpoint.info["data"] != self.prepared.fingerprint:
            raise CheckpointError(f"{checkpoint.path} was trained on other text than data.train holds now. "
                                  "Restore the files, or start anew with --restart.")
        _copy_all(self.weights, [checkpoint.model[name].to(self.device) for name in self.names])
        if self.computing is not self.model:
            _copy_all(self.computing_weights, self.weights)
        for name, weight in zip(self.names, self.weights, strict=True):
            prefix = f"optimizer.{name}."
            self.optimizer.state[weight] = {key.removeprefix(prefix): value.to(self.device)
                                            for key, value in checkpoint.state.items() if key.startswith(prefix)}
        self.average = [checkpoint.state[f"average.{name}"].to(self.device)
                        for name in self.names] if self.average else []
        self.progress = Progress(**checkpoint.info["progress"])

    def _fixed_shape(self) -> Shape | None:
        """What every batch is filled to where the variable-length kernel runs, so that all have one shape."""
        if not runs_packed(torch.empty(0, dtype=self.dtype, device=self.device)):
            return None
        longest = self.recipe.data.cleaning.max_pieces + 1
        sides = self.prepared.corpus.source, self.prepared.corpus.target
        target = -(-self.section.batch_tokens // self.section.accumulation) + longest
        source = int(target * max(1.0, 1.1 * sides[0].offsets[-1] / sides[1].offsets[-1])) + longest
        # A filling sentence needs a token on each side, and a target sentence has at least two.
        dummies = -(-source // longest) + 2
        return Shape(source + dummies, target + dummies, target // 2 + dummies, longest)

    # The end

    def test(self) -> dict[str, dict[str, Score]]:
        """Translate the recipe's test sets with the best model; its scores go into the bundle."""
        bundle = load_bundle(self.run / BEST)
        for name, weight in stored_weights(self.model).items():
            weight.copy_(bundle.weights[name])
        self.model.eval()
        translator = Translator.from_recipe(self.model, self.tokenizers, self.recipe, self.device)
        scores = evaluate_tests(translator, self.recipe)
        update_bundle_metadata(self.run / BEST, test={name: to_dict(score) for name, score in scores.items()})
        for warning in check_expected(scores, self.recipe.expected):
            console.warn(warning)
        return scores


def _tokenizers(recipe: Recipe, run: Path) -> Tokenizers:
    """The run's tokenizers, trained on the cleaned training text if there are none yet."""
    directory = run / "tokenizer"
    if not directory.exists():
        with console.progress("training the tokenizer", None):
            trained = train_tokenizers(training_pairs(recipe), recipe.tokenizer, recipe.seed)
        aside = run / "tokenizer.writing"
        aside.mkdir(exist_ok=True)
        trained.save(aside)
        os.replace(aside, directory)
    return Tokenizers.load(directory)


def _usable(corpus: EncodedCorpus, max_positions: int) -> EncodedCorpus:
    """The validation pairs that the model can take whole; the others are said."""
    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    kept = np.flatnonzero(longest <= max_positions)
    if len(kept) < len(corpus):
        console.warn(f"{len(corpus) - len(kept)} validation pairs have more than {max_positions} pieces; "
                     "they count in BLEU, not in the loss")
    if not len(kept):
        raise RecipeError("data.valid has no pair that the model can take; raise model.max_positions")
    from seq2seq.batching import EncodedSide

    def taken(side: EncodedSide) -> EncodedSide:
        ids, offsets, _ = side.gather(kept)
        return EncodedSide(ids, offsets)

    return EncodedCorpus(taken(corpus.source), taken(corpus.target))


def _make_deterministic(device: torch.device) -> None:
    """The same seed gives the same weights: on a CPU to the bit for one number of threads."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    # It would also fill all fresh memory, a seventh of the time on a CPU, in case that somebody reads it unwritten.
    torch.utils.deterministic.fill_uninitialized_memory = False


@torch.no_grad()
def _copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    torch._foreach_copy_(list(targets), list(sources))


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "every parameter takes part in every step"
    return weight.grad
