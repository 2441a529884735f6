"""All that would stop a training in its first minutes, found by the functions that stop it there."""

from __future__ import annotations

from pathlib import Path

from seq2seq import console
from seq2seq.check.report import Report
from seq2seq.data.preparation import make_tokenizers
from seq2seq.errors import CheckpointError, TokenizerError, UserError
from seq2seq.evaluation.scores import require_metrics
from seq2seq.model.load_model import weights_to_start_from
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import list_checkpoints
from seq2seq.storage.locks import require_lockable
from seq2seq.storage.run_directory import compare_with_stored_recipe
from seq2seq.storage.tokenizer_files import load_tokenizers
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training.validation import Validation, require_text


def look_at_run(recipe: Recipe, run: Path, report: Report) -> tuple[Recipe, bool]:
    """Find what is wrong with the directory of the run.

    Returns:
        The recipe to train with there; and True if the run's tokenizer, if it has one, would be used.
    """
    try:
        require_lockable(run)
    except UserError as error:
        report.errors.append(str(error))
    try:
        recipe, changes = compare_with_stored_recipe(recipe, run)
    except UserError as error:
        report.errors.append(str(error))
        return recipe, False
    return recipe, all(change.prolongs for change in changes or ())


def find_tokenizers(recipe: Recipe, run: Path, of_run: bool) -> tuple[Tokenizers | None, str | None]:
    """The tokenizers that a training would have, or why it would have none. Nothing is written.

    of_run: take those of the run if there are some.
    """
    directory = run / "tokenizer"
    if of_run and directory.is_dir():
        try:
            return load_tokenizers(directory), None
        except (TokenizerError, CheckpointError) as error:
            console.warn(str(error))
    if not recipe.data.train and recipe.tokenizer_model is None:
        return None, None
    try:
        return make_tokenizers(recipe, run), None
    except UserError as error:
        return None, str(error)


def look_at_held_out(recipe: Recipe, tokenizers: Tokenizers | None, report: Report) -> None:
    """Find what would stop a validation, or the tests at the end."""
    sets = {"valid": recipe.data.valid, **{f"test.{name}": spec for name, spec in recipe.data.test.items()}}
    unread = {corpus.role for corpus in report.corpora if corpus.error}
    for key, spec in sets.items():
        if key in unread:
            continue
        try:
            require_text(recipe, key, spec)
            if key == "valid" and tokenizers is not None:
                Validation(recipe, tokenizers)
        except UserError as error:
            report.errors.append(str(error))
    try:
        require_metrics(recipe.measures, recipe.languages.target)
    except UserError as error:
        report.errors.append(str(error))


def look_at_model(recipe: Recipe, tokenizers: Tokenizers, run: Path, report: Report) -> None:
    """Find out whether the weights that the training is to start from fit the model."""
    start = recipe.training.start_from
    if start is None or list_checkpoints(run):
        return
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    try:
        weights_to_start_from(recipe.model, sizes, recipe.directory / start)
    except UserError as error:
        report.errors.append(str(error))
