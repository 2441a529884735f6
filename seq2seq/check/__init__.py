"""Checks of a recipe and its data before training: faults, sizes and costs. Leaves nothing on disk."""

from __future__ import annotations

from pathlib import Path

from seq2seq.check.blocking_problems import find_tokenizers, look_at_held_out, look_at_model, look_at_run
from seq2seq.check.corpus_statistics import Sample
from seq2seq.check.cost import size_disk, size_model, size_training, size_vocabulary
from seq2seq.check.measure import measure
from seq2seq.check.pair_checks import Judge
from seq2seq.check.print_report import show_report
from seq2seq.check.read_corpora import Reader
from seq2seq.check.report import CorpusReport, Report, percentiles
from seq2seq.check.warnings import (
    look_at,
    look_at_epochs,
    look_at_languages,
    look_at_tokenization,
    look_at_vocabulary,
    look_at_words,
)
from seq2seq.data.corpus import first_line_warnings
from seq2seq.errors import CorpusError
from seq2seq.recipe import Recipe
from seq2seq.training.synthetic_text import without_synthetic_text

__all__ = ["CorpusReport", "Report", "inspect", "percentiles", "show_report"]


def inspect(recipe: Recipe, run: Path, measured: bool = False) -> Report:
    """Read all corpora, train the tokenizer and size up the model; find all that would stop a training early.

    Args:
        run: where the training would be; its tokenizer is used if it has one, otherwise one is trained.
        measured: train a few steps, aside, and tell their time and memory.
    Raises:
        UserError: text that a model is to make cannot be made.
    """
    report = Report(recipe.name, [], warnings=list(first_line_warnings(recipe)))
    recipe, uses_tokenizer = look_at_run(recipe, run, report)
    recipe, lacking = without_synthetic_text(recipe, run / "synthetic")
    held_out = {"valid": recipe.data.valid, **{f"test.{name}": spec for name, spec in recipe.data.test.items()}}
    readers = [Reader(role, spec, recipe) for role, spec in held_out.items()]
    training = [Reader("train", spec, recipe) for spec in recipe.data.train]
    sample = Sample(recipe.seed)
    for reader in training + readers:
        reader.survey(sample if reader in training else None)
    tokenizers, fault = None, None
    if not any(reader.report.error for reader in training):
        tokenizers, fault = find_tokenizers(recipe, run, uses_tokenizer)
    report.tokens_are_exact = tokenizers is not None and not lacking and not recipe.tokenizer.subword_sampling
    for reader in training + readers:
        reader.tokenizers = tokenizers
    sources: dict[str, list[str]] = {}
    for reader in readers:
        sources[reader.report.role] = reader.read_held_out()
    wanted = {source for lines in sources.values() for source in lines if source.strip()}
    found: set[str] = set()
    characters: dict[str, set[str]] = {side: set() for side in recipe.data.valid.sides}
    for reader in training:
        reader.read_train(wanted, found, characters)
    # Positions are no language, and text alone has nothing to be compared with.
    if len(recipe.data.valid.sides) == 2 and recipe.model.type != "pointer":
        judge = Judge(sample.stretches, recipe.languages)
        if judge.fault:
            report.warnings.append(judge.fault)
        for reader in training + readers:
            reader.judge(judge, reader.report.lines)
    report.corpora = [reader.report for reader in training + readers]
    report.errors += [f"{corpus.role}: {corpus.error}" for corpus in report.corpora if corpus.error]
    if lacking:
        report.warnings.append(f"{', '.join(lacking)}: the training begins with a translation of this text; until then "
                               "it counts nowhere here.")
    for corpus in report.corpora:
        look_at(corpus, sources.get(corpus.role), found, recipe.languages, report.warnings)
    if not {"bleu", "chrf", "ter"}.isdisjoint(recipe.measures):
        look_at_tokenization(report.corpora, report.warnings)
    look_at_languages(recipe.languages, report.warnings)
    look_at_words(recipe, report.warnings)
    look_at_vocabulary(recipe, report.corpora, report.warnings)
    look_at_held_out(recipe, tokenizers, report)
    size_vocabulary(recipe, tokenizers, characters, report)
    size_model(recipe, report)
    if training and not any(reader.report.error for reader in training):
        faults = report.warnings if lacking else report.errors                  # more text may mend them
        if not any(reader.report.pairs for reader in training):
            faults.append("train: no pair is left after cleaning. Check that data.train names the right files, and the "
                          "limits in data.cleaning.")
        elif fault is not None:
            faults.append(fault)
        elif tokenizers is not None:
            try:
                size_training(recipe, [reader.lengths for reader in training], report)
                look_at_epochs(recipe.training, report.training, report.warnings)
            except CorpusError as error:
                faults.append(str(error))
    if tokenizers is not None:
        look_at_model(recipe, tokenizers, run, report)
    size_disk(recipe, run, report)
    if measured and tokenizers is not None and report.training and not report.errors:
        measure(recipe, tokenizers, report)
    return report
