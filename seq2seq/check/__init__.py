"""Checks of a recipe and its data before training: errors, warnings and costs. They leave no files on disk.

The same reading of text serves two commands that write files: `new_recipe` proposes a recipe for a text (`seq2seq
init`), and `adapt` trains a model further on the text of a domain.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from seq2seq.check.blocking_problems import (
    check_held_out_sets,
    check_initial_weights,
    check_run_directory,
    load_or_make_tokenizers,
)
from seq2seq.check.corpus_statistics import Sample
from seq2seq.check.cost import (
    estimate_disk,
    estimate_gpus,
    estimate_model,
    estimate_training,
    estimate_vocabulary,
)
from seq2seq.check.measure import measure
from seq2seq.check.pair_checks import CorpusChecker
from seq2seq.check.print_report import show_report
from seq2seq.check.read_corpora import CorpusReader
from seq2seq.check.results import CorpusReport, Report, percentiles
from seq2seq.check.warnings import (
    add_corpus_warnings,
    add_direction_warnings,
    add_epoch_warnings,
    add_lookalike_warnings,
    add_tokenization_warnings,
    add_vocabulary_warnings,
    add_warnings_about_steps,
    add_word_warnings,
)
from seq2seq.data.corpus import first_line_warnings
from seq2seq.data.leakage import HeldOutText
from seq2seq.data.preparation import SIDES, known_characters
from seq2seq.errors import CorpusError
from seq2seq.recipe import Recipe
from seq2seq.training.synthetic_text import existing_text, monolingual_pairs

__all__ = ["CorpusReport", "Report", "check_recipe", "percentiles", "show_report"]


def check_recipe(recipe: Recipe, run: Path, measured: bool = False, translates: bool = False) -> Report:
    """Check a recipe: read all corpora, load or train the tokenizer, estimate the cost, and report problems.

    Args:
        run: run directory of the training. If it contains tokenizers for this recipe, they are used.
        measured: True to train a few steps in a temporary directory, and report their time and memory.
        translates: see `measure`.
    """
    report = Report(recipe.name, [], warnings=[
        f"{warning.fault} {warning.remedy}" for warning in first_line_warnings(recipe)])
    uses_run_tokenizer = check_run_directory(recipe, run, report)
    run_errors = list(report.errors)                                            # another --run-dir solves these
    add_direction_warnings(recipe, report.warnings)
    text, missing = existing_text(recipe, run)
    tokenizers, tokenizer_error = load_or_make_tokenizers(text, run, uses_run_tokenizer)
    report.tokens_are_exact = tokenizers is not None and not missing and not recipe.resamples_epochs
    samples = {recipe.languages_of(spec): Sample(recipe.seed) for spec in text.corpora}
    held_out, seen = HeldOutText(recipe), dict[bytes, bool]()
    held_out_readers = [CorpusReader(role, spec, recipe, tokenizers, partial(held_out.add, role, spec))
                        for role, spec in recipe.data.held_out().items()]
    train_readers = [CorpusReader("train", spec, recipe, tokenizers, samples[recipe.languages_of(spec)].draw_from,
                                  partial(held_out.watch, spec), seen=seen) for spec in text.corpora]
    for reader in held_out_readers:
        reader.read_held_out()
    for reader in train_readers:
        reader.read_train()
    for spec in recipe.data.train:
        if spec.translated_by and spec.label in missing:
            for _ in held_out.watch(spec, monolingual_pairs(spec, recipe)):
                pass
    for reader in held_out_readers:
        if not reader.report.error:
            reader.report.in_train = held_out.shared(reader.report.role)
    report.warnings += held_out.in_two_sets()
    characters = {side: set[str]().union(*(reader.alphabet[side] for reader in train_readers))
                  for side in recipe.data.valid[0].sides}
    known = dict.fromkeys(SIDES, set[str]())
    if tokenizers is not None:
        with report.collecting():
            known = known_characters(recipe)
    if recipe.task.has_source and recipe.task.target_is_text:
        checkers = {languages: CorpusChecker(sample.blocks, languages) for languages, sample in samples.items()}
        report.warnings += dict.fromkeys(checker.fault for checker in checkers.values() if checker.fault)
        for reader in train_readers + held_out_readers:
            if reader.languages in checkers:                                    # other directions have no training text
                reader.check_pairs(checkers[reader.languages])
    report.corpora = [reader.report for reader in train_readers + held_out_readers]
    report.errors += [f"{corpus.role}: {corpus.error}" for corpus in report.corpora if corpus.error]
    if missing:
        report.warnings.append(f"{', '.join(missing)}: training will first translate this text. This report does not "
                               "include the translations, which add steps to each epoch.")
    for reader in train_readers + held_out_readers:
        corpus = reader.report
        add_corpus_warnings(corpus, recipe.data.cleaning, report.warnings)
        add_lookalike_warnings(corpus, recipe.tokenizer.is_canonical if tokenizers is None else
                               tokenizers.target.is_canonical, report.warnings)
        if any(characters.values()) and known and not missing:
            side = next(iter(characters))
            reader.add_unseen(characters[side] | known["source" if side == "source" else "target"], report.warnings)
    if not {"bleu", "chrf", "ter"}.isdisjoint(recipe.measures):
        add_tokenization_warnings(report.corpora, report.warnings)
    add_warnings_about_steps(recipe, report.warnings)
    add_word_warnings(recipe, report.warnings)
    add_vocabulary_warnings(recipe, report.corpora, report.warnings)
    check_held_out_sets(recipe, tokenizers, report)
    estimate_vocabulary(recipe, tokenizers, characters, report)
    estimate_model(recipe, report)
    if train_readers and not any(reader.report.error for reader in train_readers):
        problems = report.warnings if missing else report.errors                # translations may add enough pairs
        if not any(reader.report.pairs for reader in train_readers):
            problems.append("train: no pair is left after cleaning. Check that data.train names the right files, and "
                            "that the limits in data.cleaning are not too strict.")
        elif tokenizer_error is not None:
            problems.append(tokenizer_error)
        elif tokenizers is not None:
            try:
                estimate_training(text, [reader.lengths for reader in train_readers], report)
                estimate_gpus(recipe, report)
                add_epoch_warnings(recipe.training, report.training, report.warnings)
            except CorpusError as error:
                problems.append(str(error))
    if tokenizers is not None:
        check_initial_weights(recipe, tokenizers, run, report)
    estimate_disk(recipe, run, report)
    report.errors, report.warnings = list(dict.fromkeys(report.errors)), list(dict.fromkeys(report.warnings))
    if measured and tokenizers is not None and report.training and report.errors == run_errors:
        measure(text, tokenizers, report, translates)
    return report
