"""Preparation of a run without a GPU: everything that a training does with the text before its first step."""

from __future__ import annotations

from pathlib import Path

from seq2seq.data.leakage import warn_about_overlap
from seq2seq.data.preparation import PREPARED, Prepared, prepare, train_or_load_tokenizers
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.devices import configure_process
from seq2seq.recipe import Recipe
from seq2seq.training.distributed import SINGLE_PROCESS
from seq2seq.training.guided_alignment import AlignmentLabels, languages_of_pairs
from seq2seq.training.run import open_run
from seq2seq.training.synthetic_text import training_text
from seq2seq.training.validation import require_held_out


def prepare_run(recipe: Recipe, run: str | Path) -> Prepared:
    """Prepare the text of a run: synthetic text, tokenizer, ids, labels of guided alignment, and the first epoch of
    subword sampling or augmentation. `train` then finds them in the directory `run`.

    An interrupted call goes on where it was. The files do not depend on interruptions or the number of processes.

    Raises:
        Stopped: Ctrl-C interrupted the work.
    """
    run = Path(run)
    configure_process(recipe.training.threads)
    with open_run(recipe, run, SINGLE_PROCESS, False, require_held_out(recipe)):
        text = training_text(recipe, run)
        warn_about_overlap(recipe, text.corpora, run / PREPARED)
        tokenizers = train_or_load_tokenizers(text, run / "tokenizer")
        prepared = prepare(text, tokenizers, run / PREPARED, recipe.training.threads)
        if recipe.training.guided_alignment:
            AlignmentLabels.load_or_make(prepared, tokenizers, languages_of_pairs(recipe), recipe.training.threads)
        if recipe.resamples_epochs:
            ResampledEpochs(prepared, tokenizers, text, processes=recipe.training.threads, ahead=False).corpus(0)
        return prepared
