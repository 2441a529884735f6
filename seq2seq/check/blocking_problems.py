"""Checks for problems that would stop a training. They call functions of the training and collect the errors."""

from __future__ import annotations

from pathlib import Path

from seq2seq.check.results import Report
from seq2seq.data.preparation import TrainingText, make_tokenizers, train_or_load_tokenizers
from seq2seq.errors import UserError
from seq2seq.evaluation.scores import require_metrics
from seq2seq.inference.load_model import weights_to_start_from
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import list_checkpoints
from seq2seq.storage.locks import require_lockable
from seq2seq.storage.run_directory import compare_with_stored_recipe
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training.validation import Validation, require_text


def check_run_directory(recipe: Recipe, run: Path, report: Report) -> bool:
    """Add errors to the report if the run directory is not writable, is locked, or has checkpoints of another recipe.

    Return True if tokenizers in the run directory can be used with this recipe.
    """
    with report.collecting():
        require_lockable(run)
    with report.collecting():
        return all(change.may_change_on_resume for change in compare_with_stored_recipe(recipe, run) or ())
    return False


def load_or_make_tokenizers(text: TrainingText, run: Path, use_run: bool) -> tuple[Tokenizers | None, str | None]:
    """Load or make the tokenizers as a training does, without writing files.

    Return (tokenizers, None), or (None, error message) if the training would stop here. If there is neither a training
    corpus nor a model whose tokenizers the training uses, return (None, None).
    use_run: True to load the tokenizers of the run if it has any.
    """
    if not text.corpora and text.recipe.tokenizer_model is None and not list_checkpoints(run):
        return None, None
    try:
        if use_run:
            return train_or_load_tokenizers(text, run / "tokenizer", save=False), None
        return make_tokenizers(text), None
    except UserError as error:
        return None, str(error)


def check_held_out_sets(recipe: Recipe, tokenizers: Tokenizers | None, report: Report) -> None:
    """Add an error to the report for each problem that would stop a validation or the evaluation on the test sets."""
    sets = recipe.data.held_out()
    unreadable = {corpus.role for corpus in report.corpora if corpus.error}
    for key, spec in sets.items():
        if key in unreadable:
            continue
        with report.collecting():
            require_text(recipe, key, spec)
            if key in ("valid", "valid.0") and tokenizers is not None:
                Validation(recipe, tokenizers)
    with report.collecting():
        require_metrics(recipe)


def check_initial_weights(recipe: Recipe, tokenizers: Tokenizers, run: Path, report: Report) -> None:
    """Add an error to the report if the weights of `training.start_from` do not fit the model.

    If the run has checkpoints, nothing is checked, because a resumed training does not load these weights.
    """
    start = recipe.training.start_from
    if start is None or list_checkpoints(run):
        return
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    with report.collecting():
        weights_to_start_from(recipe.model, sizes, recipe.directory / start)
