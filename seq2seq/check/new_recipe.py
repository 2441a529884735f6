"""Write a first recipe for a corpus: split the text into three sets, and choose settings for the amount of text."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from unicodedata import normalize

from pydantic import ValidationError

from seq2seq.check.blocking_problems import load_or_make_tokenizers
from seq2seq.check.cost import estimate_training
from seq2seq.check.held_out_split import PAIRS_PER_HELD_OUT, HeldOut, choose_held_out
from seq2seq.check.read_corpora import CorpusReader
from seq2seq.check.results import CorpusReport, Report
from seq2seq.check.warnings import EPOCHS_WARNING_THRESHOLD, LINE_WARNINGS, frequent_kinds
from seq2seq.data.corpus import LinePair, as_lines, first_line_warnings, read_corpus, read_lines, read_pairs
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.language_identification import lingua_languages
from seq2seq.data.number_agreement import number_agreement
from seq2seq.data.parallel_text import zip_parallel
from seq2seq.data.preparation import TrainingText
from seq2seq.errors import CorpusError, OptionError, UserError
from seq2seq.evaluation.scores import sacrebleu_metric
from seq2seq.languages import main_language, same_code
from seq2seq.recipe import Corpus, Languages, Recipe, load_recipe
from seq2seq.recipe.data_section import COLUMN_FORMATS, TABLE_FORMATS, Data
from seq2seq.recipe.model_sizes import consistency_for, size_for
from seq2seq.storage.atomic import replace_directory
from seq2seq.tokenizers.canonical_text import is_blank

RECIPE_FILE = "recipe.yaml"
SPLITS = ("train", "valid", "test")
EPOCHS = 30
"""Number of epochs of the training. Most recipes in `recipes/` train for 3 to 38 epochs."""
MIN_STEPS = 1_000
"""Minimum number of steps: with fewer, the learning rate cannot rise and fall slowly enough."""
VALIDATIONS = 20
"""Number of validations of a training that is not stopped early."""
BATCH_TOKENS = {"tiny": 1024, "small": 2048, "base": 25_000}
"""Target tokens per step for each model size, as in the recipes with this size. Tiny corpora get smaller batches."""
MIN_BATCH_TOKENS = 256
"""Minimum number of target tokens per step, about 15 sentences; the gradients of smaller batches are too noisy."""
MAX_LANGUAGE_CHARACTERS, MAX_LANGUAGE_LINES = 5_000, 500
"""Maximum numbers of characters and of lines from which a language is identified."""
MAX_VALIDATED = 500
"""Maximum number of validation sentences that are translated in each validation."""
# Keys of data.cleaning that drop the lines of each kind in LINE_WARNINGS.
CLEANING = {"duplicate": "remove_duplicates: true", "identical": "remove_identical: true",
            "damaged": "remove_damaged: true"}


@dataclass
class NewRecipe:
    """Result of `write_recipe`.

    scanned: report on the whole corpus before cleaning. train: report on the training text after cleaning.
    pairs: number of pairs of each split. copies: number of pairs left out, because they repeat a held-out pair.
    """

    path: Path
    size: str
    scanned: CorpusReport
    train: CorpusReport
    pairs: dict[str, int]
    copies: int
    max_steps: int
    steps_per_epoch: int


def corpus_of(files: Sequence[Path], source_column: str | None = None, target_column: str | None = None) -> Corpus:
    """Return the corpus that consists of two text files or one table.

    Args:
        source_column, target_column: names or numbers of a table's columns. If names are given for a .tsv or .csv, its
            first line is a header. If None, columns 1 and 2 are used or, in a .tmx, the recipe's languages.
    Raises:
        UserError: a file is missing or empty, the files are neither one table nor two different text files, the text
            files have different numbers of lines (or one is not UTF-8), or the columns do not fit the format.
    """
    for path in files:
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise CorpusError(f"{path} {problem}. Give the path of a text file or a table.")
        if not path.stat().st_size:
            raise CorpusError(f"{path} is empty. Give a file with text.")
    columns = source_column, target_column
    if len(files) == 1:
        return _table(files[0], columns)
    if len(files) != 2:
        raise OptionError(f"{len(files)} files were given. Give two text files that match line by line, or one file "
                          f"with both sides ({', '.join(TABLE_FORMATS)}).")
    for path in files:
        if Corpus.model_construct(file=str(path)).table_format:
            raise OptionError(f"{path} is a table, which contains both sides. Give only this file.")
    if any(columns):
        raise OptionError("--source-column and --target-column are for one file with both sides.")
    if files[0].samefile(files[1]):
        raise OptionError(f"{files[0]} and {files[1]} are the same file. Give the source text and its translation.")
    for _ in zip_parallel([str(path) for path in files], *map(read_lines, files), max_counted=None):
        pass                                                        # raises an error if the numbers of lines differ
    return Corpus(source=str(files[0]), target=str(files[1]))


def _table(path: Path, columns: tuple[str | None, str | None]) -> Corpus:
    format = Corpus.model_construct(file=str(path)).table_format
    if format is None:
        raise OptionError(f"{path} is not a table ({', '.join(TABLE_FORMATS)}). Give two text files that match line by "
                          "line, or a table whose name ends in one of these.")
    if (columns[0] is None) != (columns[1] is None):
        raise OptionError("give both --source-column and --target-column, or neither of them.")
    if columns[0] is None or columns[1] is None:
        if format in (".jsonl", ".parquet"):
            raise OptionError(f"{path}: name its columns with --source-column and --target-column.")
        return Corpus(file=str(path))
    if format in COLUMN_FORMATS and all(column and re.fullmatch("[1-9][0-9]*", column) for column in columns):
        return Corpus(file=str(path), source=int(columns[0]), target=int(columns[1]))
    return Corpus(file=str(path), source=columns[0], target=columns[1], header=format in COLUMN_FORMATS)


def identify_languages(corpus: Corpus) -> tuple[str | None, str | None]:
    """Return the language codes of source and target according to lingua, from the first lines of the corpus.

    Returns (None, None) if lingua is not installed, or if the corpus is a .tmx without `source` and `target`; None for
    a side whose language lingua does not recognise.

    Raises:
        CorpusError: the corpus cannot be read.
    """
    if corpus.uses_recipe_languages:
        return None, None
    try:
        import lingua
    except ImportError:
        return None, None
    texts = [pair[1:] for pair in islice(as_lines(read_corpus(corpus, Path())), MAX_LANGUAGE_LINES)]
    detector = lingua.LanguageDetectorBuilder.from_all_languages().build()
    found = [detector.detect_language_of(normalize("NFC", "\n".join(side)[:MAX_LANGUAGE_CHARACTERS]))
             for side in zip(*texts, strict=True)] or [None, None]
    source, target = (language and language.iso_code_639_1.name.lower() for language in found)
    return source, target


def is_doubtful(given: str, identified: str, other: str) -> bool:
    """Return True if lingua should not identify text of the language `given` as `identified`.

    lingua takes text of a language that it does not know for a similar language: Nepali for Hindi. Such text is
    doubtful only if it is identified as `other`, the language of the other side.
    """
    known = lingua_languages()
    expected, found, others = (known.get(main_language(code)) for code in (given, identified, other))
    return expected != found and (expected is not None or found == others)


def write_recipe(corpus: Corpus, languages: tuple[str, str], output: Path, seed: int = 1) -> NewRecipe:
    """Write a new directory with a recipe and its training, validation and test text.

    The directory appears only when it is complete. The amount of text decides the settings of the recipe.

    Args:
        corpus: see `corpus_of`. languages: language codes of source and target.
        seed: seed of the split; the same corpus and seed give the same files.
    Raises:
        UserError: the directory exists or cannot be written, or the corpus cannot be read or has too few pairs.
    """
    _require_new(output)
    scanned = _scan(corpus, languages)
    recipe = _recipe_of(corpus, languages)
    frequent = frequent_kinds(scanned.findings, scanned.lines)
    held_out = choose_held_out(as_lines(read_pairs(recipe, corpus)), seed, partial(_is_suitable, languages))
    if not held_out.valid:
        raise CorpusError(
            f"{corpus.label} has too few pairs for a validation and a test set ({scanned.lines:,}). They need at least "
            f"{PAIRS_PER_HELD_OUT} different pairs with undamaged text on both sides and the same numbers. At least "
            "two of these pairs must share neither source nor target with another pair. Add text.")
    with replace_directory(output) as directory:
        pairs = _write_texts(as_lines(read_pairs(recipe, corpus)), directory, languages, held_out)
        kept = pairs["train"]
        size = size_for(kept)

        def write(batch_tokens: int, max_steps: int) -> Recipe:
            text = _recipe_text(output, languages, corpus, scanned, pairs, kept, size, frequent, batch_tokens,
                                max_steps, seed)
            (directory / RECIPE_FILE).write_text(text, encoding="utf-8", newline="\n")
            return load_recipe(directory / RECIPE_FILE)

        batch_tokens = BATCH_TOKENS[size]
        train = _read_train(write(batch_tokens, MIN_STEPS), directory)
        kept = train.report.pairs                                               # cleaning may drop many pairs
        size = size_for(kept)
        batch_tokens = BATCH_TOKENS[size]
        steps_per_epoch = _steps_per_epoch(write(batch_tokens, MIN_STEPS), train)
        while steps_per_epoch * EPOCHS_WARNING_THRESHOLD < MIN_STEPS and batch_tokens > MIN_BATCH_TOKENS:
            batch_tokens //= 2
            steps_per_epoch = _steps_per_epoch(write(batch_tokens, MIN_STEPS), train)
        max_steps = max(-(-EPOCHS * steps_per_epoch // 100) * 100, MIN_STEPS)
        write(batch_tokens, max_steps)
    return NewRecipe(output / RECIPE_FILE, size, scanned, train.report, pairs, len(held_out.copies), max_steps,
                     steps_per_epoch)


def _require_new(output: Path) -> None:
    if os.path.lexists(output):
        raise OptionError(f"{output} exists already, and nothing in it is overwritten. Name a new directory: "
                          "--output DIRECTORY")


def _recipe_of(corpus: Corpus, languages: tuple[str, str]) -> Recipe:
    """Return a recipe for the functions of `check`: the corpus is its training and validation text."""
    try:
        codes = Languages(source=languages[0], target=languages[1])
    except ValidationError as error:
        side = error.errors()[0]["loc"][0]
        raise OptionError(f"--{side} {error.errors()[0]['input']}: not a language "
                          "code such as de or en-GB.") from None
    if same_code(*languages):
        raise OptionError(f"source and target are the same language, {languages[0]}. Check the files, and give the "
                          "languages with --source and --target.")
    return Recipe(name="new", languages=codes, data=Data(train=(corpus,), valid=(corpus,))).with_directory(Path())


def _scan(corpus: Corpus, languages: tuple[str, str]) -> CorpusReport:
    """Read the whole corpus, and return a report with the number of lines of each kind.

    Raises:
        CorpusError: the corpus cannot be read, most pairs have the same text on both sides, or line 1 may be misread.
    """
    recipe = _recipe_of(corpus, languages)
    reader = CorpusReader("train", corpus, recipe)
    reader.scan(None)
    report = reader.report
    if report.error:
        raise CorpusError(report.error)
    if "identical" in report.findings and report.findings["identical"].count > report.lines / 2:
        raise CorpusError(f"{corpus.label}: of {report.lines:,} pairs, {report.findings['identical']} have the same "
                          "text on both sides. Give the source text and its translation.")
    for warning in first_line_warnings(recipe):
        raise CorpusError(f"{warning.fault} Name the columns with --source-column and --target-column: by number if "
                          "line 1 is text, by name if it is a header.")
    return report


def _is_suitable(languages: tuple[str, str], source: str, target: str) -> bool:
    """Return True if a pair may be in a validation or test set: neither side is empty or damaged, the sides are not
    equal, and their numbers agree."""
    return not any(is_blank(text) or is_damaged(text) for text in (source, target)) and source != target and (
        number_agreement(source, target, *languages) == 1)


def _write_texts(pairs: Iterable[LinePair], directory: Path, languages: tuple[str, str], held_out: HeldOut
                 ) -> dict[str, int]:
    """Write the files of all splits, and return the number of pairs of each split."""
    counts = dict.fromkeys(SPLITS, 0)
    with ExitStack() as stack:
        files = {split: [stack.enter_context((directory / f"{split}.{code}").open("w", encoding="utf-8", newline="\n"))
                         for code in languages] for split in SPLITS}
        for number, *texts in pairs:
            if number in held_out.copies:
                continue
            split = "valid" if number in held_out.valid else "test" if number in held_out.test else "train"
            counts[split] += 1
            for file, text in zip(files[split], texts, strict=True):
                file.write(f"{text}\n")
    return counts


def _read_train(recipe: Recipe, directory: Path) -> CorpusReader:
    """Train the tokenizer, and read the training text with it.

    Raises:
        UserError: the tokenizer cannot be trained.
    """
    reader = CorpusReader("train", recipe.data.train[0], recipe)
    reader.tokenizers, error = load_or_make_tokenizers(TrainingText.of(recipe), directory, use_run=False)
    if error:
        raise CorpusError(error)
    reader.read_train({}, set(), {side: set() for side in reader.spec.sides})
    if reader.report.error:
        raise CorpusError(reader.report.error)
    return reader


def _steps_per_epoch(recipe: Recipe, train: CorpusReader) -> int:
    """Return the number of optimizer steps of an epoch. Raises CorpusError if cleaning drops all pairs."""
    report = Report(recipe.name, [])
    estimate_training(TrainingText.of(recipe), [train.lengths], report)
    return int(report.training["steps_per_epoch"])


def _recipe_text(output: Path, languages: tuple[str, str], corpus: Corpus, scanned: CorpusReport,
                 pairs: dict[str, int], kept: int, size: str, frequent: Sequence[str], batch_tokens: int,
                 max_steps: int, seed: int) -> str:
    """Return the recipe as YAML with comments. kept: number of training pairs that cleaning keeps."""
    source, target = languages
    name = re.sub("[^A-Za-z0-9_.-]", "_", output.absolute().name).lstrip("_.-") or f"{source}_{target}"
    files = {split: f"{{source: {split}.{source}, target: {split}.{target}}}" for split in SPLITS}
    cleaning = "".join(f"    # {scanned.findings[kind].count:,} of {scanned.lines:,} pairs {LINE_WARNINGS[kind][1]}.\n"
                       f"    {CLEANING[kind]}\n" for kind in frequent if kind in CLEANING)
    paths = (str(path).encode("utf-8", "backslashreplace").decode() for path in corpus.paths)    # names in any encoding
    files_of_corpus = " and ".join(json.dumps(path, ensure_ascii=False) for path in paths)
    try:
        sacrebleu_metric("bleu", target)
        metrics = ""
    except UserError as error:
        metrics = f"# {error}\nmetrics: [chrf]\n"
    after_cleaning = " after cleaning" if kept != pairs["train"] else ""
    return f"""\
# {source} to {target}: {scanned.lines:,} pairs of {files_of_corpus},
# split with seed {seed}.
# Check this recipe with `seq2seq check`, then train it with `seq2seq train`.
name: {json.dumps(name)}
languages: {{source: {source}, target: {target}}}
data:
  # The keys license and url of a corpus appear in the model card, such as {{…, license: CC-BY-4.0, url: https://…}}.
  train: [{files["train"]}]  # {pairs["train"]:,} pairs
  # No sentence of these two sets occurs in the training text. Replace them by your own sets if you have some.
  valid: {files["valid"]}  # {pairs["valid"]:,} pairs
  test: {{test: {files["test"]}}}  # {pairs["test"]:,} pairs
{f"  cleaning:{chr(10)}{cleaning}" if cleaning else ""}\
# The size of the vocabulary follows from the amount of text.
tokenizer: {{vocab_size: auto}}
# Sizes: tiny, small, base, big. {size} suits {kept:,} pairs{after_cleaning}; a larger model needs more text and time.
model: {{base: {size}}}
{metrics}training:
  # Target tokens per step. Lower this number if the memory is too small.
  batch_tokens: {batch_tokens}
  learning_rate: {"7e-4" if size == "base" else "2e-3"}
  warmup_steps: {min(max_steps // 10, 4000)}
  schedule: linear
  # About {EPOCHS} epochs, and at least {MIN_STEPS:,} steps.
  max_steps: {max_steps}
  validate_every: {max(max_steps // VALIDATIONS, 1)}
  # BLEU in validation is computed on this many of the sentences, because translation takes time.
  valid_sentences: {min(pairs["valid"], MAX_VALIDATED)}
  # Stop after this many validations without improvement.
  early_stopping: {VALIDATIONS // 2}
  # Moving average of the weights, which is validated and saved as the model.
  ema_decay: 0.99
{_consistency(kept)}"""


def _consistency(pairs: int) -> str:
    value = consistency_for(pairs)
    return ("  # Consistency training helps with little text and about 30 epochs. Write 0 if you lower max_steps to "
            f"half.\n  # It doubles the time of a step.\n  consistency: {value:g}\n") if value else ""
