"""A run from its start to its end: lock, start or resumption, rollback after divergence, and test."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from seq2seq import console
from seq2seq.data.alignment_links import AlignmentSettings
from seq2seq.data.batching import EncodedCorpus, Shape, derived_seed
from seq2seq.data.corpus import first_line_warnings
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.data.leakage import warn_about_overlap
from seq2seq.data.preparation import (
    PREPARED,
    Prepared,
    TrainingText,
    prepare,
    reuse_tokenizers,
    train_or_load_tokenizers,
)
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.devices import (
    allow_tf32,
    available_cores,
    choose_device,
    choose_dtype,
    choose_floating_point,
    configure_process,
)
from seq2seq.errors import CheckpointError, RecipeError, UserError
from seq2seq.evaluation.scores import ScoresByTest, check_expected, evaluate_tests, to_dict
from seq2seq.inference.engines import native_obstacle
from seq2seq.inference.load_model import weights_to_start_from
from seq2seq.model import Model, build_model
from seq2seq.model.consistency import TokenCutoff
from seq2seq.recipe import Corpus, Recipe, decoding_with
from seq2seq.signals import Stopped, stopping_by_ctrl_c
from seq2seq.storage.checkpoints import (
    RECIPE,
    Bundle,
    Checkpoint,
    append_scores,
    bundle_recipe,
    delete_leftovers,
    list_checkpoints,
    load_bundle,
    load_checkpoint,
    newest_checkpoint,
    resolve_model_path,
    save_best,
    warn_if_unfinished,
    weights_checksum,
)
from seq2seq.storage.int8_score import Int8Score
from seq2seq.storage.locks import HOLDER, lock_run
from seq2seq.storage.run_directory import check_recipe_of_run, rename_old_run, store_recipe
from seq2seq.storage.tokenizer_files import checksums_of
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training import log_lines
from seq2seq.training.alignment_head import alignment_settings
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup, join_process_group, translate_lines
from seq2seq.training.guided_alignment import GuidedAlignment
from seq2seq.training.loop import TrainingLoop
from seq2seq.training.memory import warn_if_memory_is_short
from seq2seq.training.rollback import Diverged, can_roll_back, remedy_of, roll_back
from seq2seq.training.step import TrainingStep
from seq2seq.training.synthetic_text import SYNTHETIC, training_text
from seq2seq.training.train_state import TrainState
from seq2seq.training.validation import Validation, require_held_out
from seq2seq.translation.translator import Translator

SHAPE_STEPS = 10_000
"""Maximum number of steps that decide the shape of batches, so that a training on a large corpus starts quickly. Few of
the later batches are larger, and these are split."""
DIRECTORY_SECONDS = 90
"""Maximum time until a file that the main rank has written is visible on other machines. Network file systems cache
lists of files, also the absence of one, for 30 to 60 seconds."""


def train(recipe: Recipe, run: str | Path, restart: bool = False, advise: bool = True, compares_text: bool = True
          ) -> ScoresByTest:
    """Train the recipe's model in the directory `run`, or resume that run.

    Args:
        restart: True to rename an existing run and train from the beginning.
        advise: True to say in a finished run how to continue it. Other commands than `train` have other options.
        compares_text: True to warn of validation and test sentences that are also in the training text.
    Returns:
        Scores of the best model, by test set and metric.
    Raises:
        Stopped: a signal stopped the training. The same call resumes it.
    """
    section = recipe.training
    configure_process(section.threads)
    with join_process_group(section.device, section.precision) as group:
        recipe, *_ = group.gather([recipe])                                     # all ranks use that of the main rank
        return _train(recipe, Path(run), group, restart, advise, compares_text)


def _train(recipe: Recipe, run: Path, group: ProcessGroup, restart: bool, advise: bool, compares_text: bool
           ) -> ScoresByTest:
    """Train the model of a run. See `train`."""
    with _without_second_restart(restart), open_run(recipe, run, group, restart, require_held_out(recipe)):
        _set_up(recipe)                                                     # also for the translation of text
        if group.is_main and not list_checkpoints(run):
            models = [recipe.training.start_from, *chain(*(spec.translated_by or () for spec in recipe.data.train))]
            warn_if_unfinished(recipe.directory / model for model in models if model)
        text = training_text(recipe, run, group)
        if group.is_main and compares_text and not list_checkpoints(run):
            warn_about_overlap(recipe, text.corpora, run / PREPARED)
        while True:
            training = start_training(recipe, run, group, text)
            if training.has_ended:
                log_lines.print_finished(run, recipe, training.state, advise)
            try:
                training.train()
                training.free_step()
                return evaluate_best_model(training)
            except Diverged as divergence:
                possible = recipe.training.divergence != "stop" and group.from_main_rank(
                    partial(can_roll_back, run, training.state))
                if not possible:
                    remedy = remedy_of(recipe, training.state, run, training.step.dtype)
                    raise Diverged(divergence.evidence, remedy) from divergence
                if group.is_main:
                    roll_back(run, training.state)
                group.barrier()
                console.warn(f"{divergence.evidence}; rolling back to step {training.state.good_step:,}, with half the "
                             "learning rate")
            del training                                                    # frees memory before the next attempt


# Start


@contextmanager
def _without_second_restart(restart: bool) -> Iterator[None]:
    """Let the message of a training that was stopped say how it is resumed if it began with --restart."""
    try:
        yield
    except Stopped as stopped:
        if not restart:
            raise
        message = str(stopped).replace("the same command again", "the same command without --restart")
        raise Stopped(stopped.exit_code - 128, message) from None


@contextmanager
def open_run(recipe: Recipe, run: Path, group: ProcessGroup, restart: bool, held_out_crc32: int) -> Iterator[None]:
    """Lock the run directory during the block, remove what a killed training has left in it, and store the recipe.

    Args:
        restart: True to rename an existing run.
        held_out_crc32: checksum of the validation and test text, which must be the same for all ranks.
    Raises:
        Stopped: Ctrl-C interrupted the block.
    """
    with ExitStack() as stack:
        lock = ""
        if group.is_main:
            if restart and run.exists():
                with lock_run(run):
                    console.print_message(f"the old run was renamed to {rename_old_run(recipe, run)}")
            lock = stack.enter_context(lock_run(run))
        require_same_files(run, lock, held_out_crc32, group)
        if group.is_main:
            delete_leftovers(run)
            for warning in first_line_warnings(recipe) if not list_checkpoints(run) else ():
                console.warn(f"{warning.fault} {warning.remedy}")
            check_recipe_of_run(recipe, run)
        with stopping_by_ctrl_c():                  # outside the training loop, for example while text is translated
            yield


def require_same_files(run: Path, lock: str, held_out_crc32: int, group: ProcessGroup) -> None:
    """Check that all ranks see the main rank's run directory, and have the same validation and test text.

    lock: contents of the lock file, on the main rank.
    """
    if group.world_size == 1:
        return
    lock, *_ = group.gather([lock])                                     # after the main rank has written the file

    def sees_lock() -> bool:
        try:
            return (run / HOLDER).read_text(encoding="utf-8", errors="replace") == lock
        except OSError:
            return False

    deadline = time.monotonic() + DIRECTORY_SECONDS
    while not (sees := sees_lock()) and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = group.gather([(sees, held_out_crc32)])
    for name, (sees, crc32) in zip(group.names, ranks, strict=True):
        if not sees:
            raise UserError(f"{name} does not see the run directory {run} of {group.names[0]}. Name a --run-dir on a "
                            "file system that all machines share.")
        if crc32 != ranks[0][1]:
            raise UserError(f"the validation or test text of {name} differs from that of {group.names[0]}. Copy the "
                            "text of data.valid and data.test to all machines.")


def _set_up(recipe: Recipe) -> tuple[torch.device, torch.dtype]:
    """Make this process compute deterministically, and fp32 as fp32 (see `TrainingStep.update`). Return device and
    dtype."""
    device = torch.device(choose_device(recipe.training.device))
    allow_tf32(False)
    make_deterministic()
    return device, choose_dtype(recipe.training.precision, str(device))


def make_deterministic() -> None:
    """Let PyTorch use deterministic algorithms where it has some; `TrainingStep` reports where it has none.

    On a CPU, results are bit-identical for the same number of threads."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default, deterministic mode also fills uninitialised memory, which takes a seventh of the training time on a
    # CPU.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def start_training(recipe: Recipe, run: Path, group: ProcessGroup = SINGLE_PROCESS,
                   text: TrainingText | None = None) -> TrainingLoop:
    """Prepare text, model and optimizer of a run, and resume from its newest checkpoint if there is one.

    group: process group of `open_run`. text: text of the training; None: `training_text` of the run.
    """
    section = recipe.training
    device, dtype = _set_up(recipe)
    # Only the main rank reads the training text. The other ranks read the files that it has prepared.
    text = text or training_text(recipe, run, group)
    tokenizers = group.main_rank_first(lambda: train_or_load_tokenizers(text, run / "tokenizer", group.is_main))
    prepared = _prepare(text, tokenizers, run, group)
    # On a CPU, the training itself uses all cores.
    spare = 1 if device.type == "cpu" else max(1, available_cores() - int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    resampled = ResampledEpochs(prepared, tokenizers, text, group.is_main,
                                processes=spare) if recipe.resamples_epochs else None
    validation = Validation(recipe, tokenizers)

    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    if group.is_main:
        warn_if_memory_is_short(recipe, sizes, str(device), choose_floating_point(section.precision, str(device)),
                                prepared.corpus)
    initial_weights = {} if section.start_from is None or list_checkpoints(run) else weights_to_start_from(
        recipe.model, sizes, recipe.directory / section.start_from)
    torch.manual_seed(derived_seed(recipe.seed, "parameters"))
    model = build_model(recipe.model, *sizes)
    model.load_state_dict(initial_weights, strict=False)
    model.to(device).train()
    group.broadcast(list(model.parameters()))
    max_length = recipe.data.cleaning.max_pieces + 1
    shape = None
    if model.trains_packed(dtype):
        # The same shape on all ranks: the matrix products of a GPU round differently for other sizes.
        shape = group.from_main_rank(lambda: _shape(recipe, prepared.corpus, group, max_length))
    elif model.trains_packed(dtype, head_size=64):
        size = model.attentions[0].head_size
        console.print_message(f"attention heads of {size} features (model.d_model / model.num_heads) are padded on a "
                              "GPU. Heads of 16, 32, 64 or 128 features train faster: unpadded, and with CUDA graphs.")
    if section.guided_alignment and not model.cross_attentions:
        raise RecipeError(f"training.guided_alignment: a model of type {recipe.model.type} has no Transformer decoder, "
                          "a head of which could be trained. Remove the key.")
    if section.consistency and type(model).loss is not Model.loss:
        raise RecipeError(f"training.consistency: a model of type {recipe.model.type} has a loss of its own, and the "
                          "two passes are compared by the usual one. Remove the key.")
    guided = GuidedAlignment.for_training(prepared, tokenizers, recipe, group.main_rank_first)
    step = TrainingStep(model, section, dtype, seed=recipe.seed, max_length=max_length, shape=shape, guided=guided,
                        cutoff=TokenCutoff(*sizes, tuple(tokenizers.source.languages.values())), group=group)
    state, checkpoint = TrainState(), newest_checkpoint(run) if group.is_main else None
    # On a network file system, another rank may not see the newest checkpoint yet.
    newest = group.from_main_rank(lambda: checkpoint.path if checkpoint else None)
    if newest is not None and not group.is_main:
        checkpoint = load_checkpoint(newest)
    model_checksums = group.from_main_rank(partial(_checksums_of_models, recipe))
    if checkpoint is not None:
        _require_same_data(checkpoint, tokenizers, text, prepared, validation, model_checksums, run)
        if group.is_main:
            store_recipe(recipe, run)
        step.restore(checkpoint.model, checkpoint.state)
        if checkpoint.info["precision"] != str(dtype):
            before, now = (str(each).removeprefix("torch.") for each in (checkpoint.info["precision"], dtype))
            console.warn(f"this run has been trained in {before} so far and now continues in {now}, because "
                         f"training.precision: auto means {now} on this device")
        state = TrainState(**checkpoint.info["progress"])
        step.max_tokens = state.most_tokens
    group.require_same(state.step, dtype, [*step.weights, *step.ema_weights, *step.optimizer.state().values()])
    return TrainingLoop(recipe, run, group, tokenizers, prepared, resampled, validation, step, state,
                        model_checksums["start_from"])


def _shape(recipe: Recipe, corpus: EncodedCorpus, group: ProcessGroup, max_length: int) -> Shape:
    """Return the shape of all batches of a training on a GPU, from the first steps of the first epoch."""
    section = recipe.training
    plan = plan_epoch(corpus, section.batch_tokens, section.accumulation, recipe.seed, epoch=0)
    computed = (dict(group.of_all_ranks(corpus, step)).values() for step in islice(plan, SHAPE_STEPS))
    return Shape.for_plan(corpus, computed, max_length)


def _prepare(text: TrainingText, tokenizers: Tokenizers, run: Path, group: ProcessGroup) -> Prepared:
    """Prepare the training text on the main rank; open it on all ranks."""
    arguments = text, tokenizers, run / PREPARED, text.recipe.training.threads
    prepared = prepare(*arguments) if group.is_main else None
    name, *_ = group.gather([prepared.directory.name if prepared else ""])
    return prepared or prepare(*arguments, name)


def _checksums_of_models(recipe: Recipe) -> dict[str, Any]:
    """Return the checksum of the weights in `training.start_from`, and those of the tokenizer files of the model whose
    tokenizer the training uses; None for a model that the recipe does not have."""
    start, reused = recipe.training.start_from, reuse_tokenizers(recipe)
    return {"start_from": None if start is None else weights_checksum(resolve_model_path(recipe.directory / start)),
            "tokenizer": None if reused is None else checksums_of(reused)}


def _require_same_data(checkpoint: Checkpoint, tokenizers: Tokenizers, text: TrainingText, prepared: Prepared,
                       validation: Validation, models: Mapping[str, Any], run: Path) -> None:
    """Raise CheckpointError if a checkpoint was trained with other tokenizers, on other text or from another model, or
    validated on other text. Checksums decide, wherever text and models are now.

    models: see `_checksums_of_models`.
    """
    info, recipe = checkpoint.info, text.recipe
    remedy = "or train from the beginning with --restart."
    if info["tokenizer"] != checksums_of(tokenizers):
        raise CheckpointError(f"{checkpoint.path} was trained with another tokenizer: {run / 'tokenizer'} has changed "
                              f"since. Restore that directory, {remedy}")
    if models["tokenizer"] not in (None, info["tokenizer"]):
        raise CheckpointError(f"{checkpoint.path} was trained with another tokenizer than that of "
                              f"{recipe.tokenizer_model}. Name the model whose tokenizer it has, {remedy}")
    if info["start_from"] != models["start_from"]:
        raise CheckpointError(f"{checkpoint.path} was trained from another model than that in training.start_from, "
                              f"{recipe.tokenizer_model}. Name the model from which it was trained, {remedy}")
    if info["data"] != prepared.fingerprint:
        changed = _changed(text.corpora, recipe, run, info["data_files"], prepared.checksums)
        raise CheckpointError(f"{checkpoint.path} was trained on other text: {changed or 'that of data.train'} changed "
                              f"since. Undo this change, {remedy}")
    if info["validation"] != validation.fingerprint:
        changed = _changed(recipe.data.valid, recipe, run, info["validation_files"], validation.checksums)
        raise CheckpointError(f"{checkpoint.path} was validated on other text: {changed or 'that of data.valid'} "
                              "changed since, so that older and newer scores cannot be compared to choose the best "
                              f"model. Undo this change, {remedy}")


def _changed(corpora: Sequence[Corpus], recipe: Recipe, run: Path, before: Sequence[str], now: Sequence[str]) -> str:
    """Return the names of the files and data sets with another checksum than before. before, now: see
    `text_checksums`, of all corpora."""
    names: list[str] = []
    synthetic = (run / SYNTHETIC).resolve()
    for corpus in corpora:
        paths = [recipe.data_directory / path for path in corpus.paths]
        names += [f"the generated side of {corpus.label}" if path.parent.resolve() == synthetic else str(path)
                  for path in paths] or [corpus.label]
    # Only the main rank knows the names of generated text, and its message is the one that is shown.
    changed = [name for name, old, new in zip(names, before, now, strict=False) if old != new]
    return " and ".join(dict.fromkeys(changed))


# End


def evaluate_best_model(training: TrainingLoop) -> ScoresByTest:
    """Evaluate the best model on the recipe's test sets, and return the scores. Write the model again as a bundle with
    its scores and alignment settings, which becomes the best of the run."""
    recipe, run = training.recipe, training.run
    # On a network file system, another rank may still see an older pointer to the best bundle.
    best = load_bundle(training.group.from_main_rank(partial(resolve_model_path, run)))
    plain = training.translator(best.weights)
    alignment = alignment_settings(plain, recipe, training.validation.pairs)
    # The bundle gets these settings, with which `seq2seq evaluate` places tags and terms.
    translator = replace(plain, aligner=AlignmentSettings.from_metadata(alignment, str(best.directory)))
    scores = evaluate_tests(translator, recipe, translate=partial(translate_lines, translator, training.group))
    int8 = _int8_score(training, best, plain)
    if not training.group.is_main:
        return scores
    tests = {name: to_dict(score) for name, score in scores.items()}
    metadata = {**best.metadata, "test": tests, **alignment, **(int8.metadata() if int8 else {})}
    tested = best.directory
    if metadata != best.metadata or best.recipe_text != recipe.for_bundle().to_yaml():
        name = f"tested-{best.metadata.get('step', training.state.step):08d}"
        tested = save_best(run, name, best.weights, recipe, best.tokenizer_files, metadata)
    append_scores(tested, "test", tests)
    if int8:
        append_scores(tested, "int8", int8.metadata()["int8"])
        log_lines.print_int8(int8)
    for warning in check_expected(scores, recipe.expected):
        console.warn(warning)
    return scores


def _int8_score(training: TrainingLoop, best: Bundle, translator: Translator) -> Int8Score | None:
    """Return the validation BLEU of the best model in int8 and in the precision of its validation.

    The BLEU of its validation is used if the recipe still has the same search. translator: has the best model.

    Returns:
        None if validation has no BLEU, or if a rank cannot use the model in int8.
    """
    recipe, validation, group = training.recipe, training.validation, training.group
    impossible, = group.maximum((int(native_obstacle(recipe.model, "int8") is not None),))
    if "bleu" not in recipe.measures or impossible:
        return None
    score = best.metadata.get("validation", {}).get("bleu")
    before = bundle_recipe(best.recipe_text, best.directory / RECIPE, best.metadata)
    if score is None or before.decoding != recipe.decoding:
        score = to_dict({"bleu": validation.bleu(translator, group)})["bleu"]
    # A shortlist is made after the training, and validation knows no best attention head yet.
    fast = replace(Translator.load(best.directory, "cpu", "int8"), characters=None, aligner=AlignmentSettings(),
                   decoding=decoding_with(recipe.decoding, {"shortlist": 0}))
    return Int8Score(validation.bleu(fast, group).value, score["value"], score["precision"], validation.sentences,
                     score["signature"])
