"""What can be said of a recipe and its data before training: faults, sizes and costs. Trains nothing."""

from __future__ import annotations

from pathlib import Path

from seq2seq import console
from seq2seq.check.cost import size_disk, size_model, size_training, size_vocabulary
from seq2seq.check.judging import Judge
from seq2seq.check.measure import measure
from seq2seq.check.reading import Reader
from seq2seq.check.report import CorpusReport, Report, percentiles
from seq2seq.check.show import show
from seq2seq.check.survey import Sample
from seq2seq.check.warnings import look_at, look_at_tokenization
from seq2seq.errors import CheckpointError, TokenizerError
from seq2seq.preparation import taken_tokenizers
from seq2seq.recipe import Recipe
from seq2seq.synthetic import without_synthetic_text
from seq2seq.tokenizer import Tokenizers, Words
from seq2seq.tokenizer_files import load_tokenizers

__all__ = ["CorpusReport", "Report", "inspect", "percentiles", "show"]


def inspect(recipe: Recipe, run: Path, measured: bool = False) -> Report:
    """Read all corpora and size up the model.

    Args:
        run: its tokenizer, if it has one of this recipe's size, makes the numbers of tokens exact.
        measured: train a few steps, aside, and tell their time and memory.
    """
    recipe, lacking = without_synthetic_text(recipe, run / "synthetic")
    tokenizers = _tokenizers(recipe, run)
    report = Report(recipe.name, [], tokens_are_exact=tokenizers is not None)
    held_out = {"valid": recipe.data.valid, **{f"test.{name}": spec for name, spec in recipe.data.test.items()}}
    readers = [Reader(role, spec, recipe, tokenizers) for role, spec in held_out.items()]
    training = [Reader("train", spec, recipe, tokenizers) for spec in recipe.data.train]
    sample = Sample(recipe.seed)
    for reader in training + readers:
        reader.survey(sample if reader in training else None)
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
    report.errors = [f"{corpus.role}: {corpus.error}" for corpus in report.corpora if corpus.error]
    if lacking:
        report.warnings.append(f"{', '.join(lacking)}: the training begins with a translation of this text; until then "
                               "it counts nowhere here.")
    for corpus in report.corpora:
        look_at(corpus, sources.get(corpus.role), found, report.warnings)
    if not {"bleu", "chrf", "ter"}.isdisjoint(recipe.measures):
        look_at_tokenization(report.corpora, report.warnings)
    size_vocabulary(recipe, tokenizers, characters, report)
    size_model(recipe, tokenizers, report)
    if recipe.data.train and not any(corpus.error for corpus in report.corpora if corpus.role == "train"):
        size_training(recipe, report)
    size_disk(recipe, run, report)
    if measured and recipe.data.train and not report.errors:
        measure(recipe, tokenizers, report)
    return report


def _tokenizers(recipe: Recipe, run: Path) -> Tokenizers | None:
    directory = run / "tokenizer"
    try:
        found = load_tokenizers(directory) if directory.is_dir() else taken_tokenizers(recipe)
    except (TokenizerError, CheckpointError) as error:
        console.warn(f"{error} Tokens are estimated instead.")
        return None
    if found is None or recipe.tokenizer_model is not None:
        return found
    of_words = recipe.tokenizer.type == "words"                                 # these may be fewer, or positions
    if of_words != isinstance(found.source, Words) or not of_words and {
            found.source.vocab_size, found.target.vocab_size} != {recipe.tokenizer.vocab_size}:
        sizes = f"{found.source.vocab_size:,} and {found.target.vocab_size:,}"
        console.warn(f"{directory} holds vocabularies of {sizes} pieces, the recipe wants "
                     f"{recipe.tokenizer.vocab_size:,} ({recipe.tokenizer.type}): the run is of another recipe. "
                     "Tokens are estimated instead.")
        return None
    return found
