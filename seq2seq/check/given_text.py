"""Text that is given on the command line: pairs of text files and files with both sides, in any order."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from unicodedata import normalize

from pydantic import ValidationError

from seq2seq.data.corpus import (
    Counts,
    LinePair,
    as_lines,
    first_line_warning,
    named_languages,
    read_corpus,
    read_lines,
    read_pairs,
    record_columns,
)
from seq2seq.data.language_identification import lingua_languages
from seq2seq.data.parallel_text import zip_parallel
from seq2seq.errors import CorpusError, OptionError
from seq2seq.languages import main_language, same_code, suggestion_for
from seq2seq.recipe import Corpus, Languages, Recipe
from seq2seq.recipe.data_section import COLUMN_FORMATS, TABLE_FORMATS, Data, is_table

MAX_PAIRS_READ = 10_000
"""Number of pairs from which the languages of both sides are learned."""
MAX_LANGUAGE_CHARACTERS, MAX_LANGUAGE_LINES = 5_000, 500
"""Maximum numbers of characters and of lines from which a language is identified."""
COLUMN_OPTIONS = ("Name the columns with --source-column and --target-column: by number if line 1 is text, by name if "
                  "it is a header.")
Columns = tuple[str | None, str | None]


def corpora_of(files: Sequence[Path], columns: Columns = (None, None), languages: Sequence[str | None] = (),
               others: Sequence[Path] = ()) -> list[Corpus]:
    """Return the corpora that consist of the given files: each table, and each two consecutive text files.

    Args:
        columns: names or numbers of source and target column of the tables. If names are given for a .tsv or .csv, its
            first line is a header. If None, columns 1 and 2 are used, or the names of the languages, `source` and
            `target`, or the only two names of a .jsonl or .parquet.
        languages: codes of source and target, if known.
        others: files that are no part of the corpora, and must not be among `files`.
    """
    seen: dict[tuple[int, int], Path] = {}
    for path in (*others, *files):
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise CorpusError(f"{path} {problem}. Give the path of a text file or a table.")
        state = path.stat()
        if not state.st_size:
            raise CorpusError(f"{path} is empty. Give a file with text.")
        if (other := seen.setdefault((state.st_dev, state.st_ino), path)) is not path:
            raise OptionError(f"{other} and {path} are the same file. Give the source text and its translation, and "
                              "each file once.")
    if any(columns) and not any(map(is_table, files)):
        raise OptionError("--source-column and --target-column are for files with both sides.")
    corpora, remaining = [], list(files)
    while remaining:
        first = remaining.pop(0)
        if is_table(first):
            corpora.append(_table(first, columns, languages))
            continue
        if not remaining or is_table(remaining[0]):
            next(read_lines(first), None)                           # raises an error if it is no text
            raise OptionError(f"{first} has one side of a text. After it, give the file that matches it line by line. "
                              f"Files with both sides have names that end in {', '.join(TABLE_FORMATS)}.")
        second = remaining.pop(0)
        for _ in zip_parallel([str(first), str(second)], *map(read_lines, (first, second)), max_counted=None):
            pass                                                    # raises an error if the numbers of lines differ
        corpora.append(Corpus(source=str(first), target=str(second)))
    return corpora


def _table(path: Path, columns: Columns, languages: Sequence[str | None]) -> Corpus:
    format = Corpus.model_construct(file=str(path)).table_format
    source, target = columns
    if (source is None) != (target is None):
        raise OptionError("give both --source-column and --target-column, or neither of them.")
    if format in (".jsonl", ".parquet") and source is None:
        names = record_columns(path)
        pair = next((pair for pair in (languages, ("source", "target"), names if len(names) == 2 else ())
                     if pair and set(pair) <= set(names)), None)
        if pair is None:
            raise OptionError(f"{path}: its columns are {', '.join(names) or 'not text'}. Name two with "
                              "--source-column and --target-column.")
        source, target = pair
    if source is None or target is None:
        return Corpus(file=str(path))
    if format in COLUMN_FORMATS and all(re.fullmatch("[1-9][0-9]*", column) for column in (source, target)):
        return Corpus(file=str(path), source=int(source), target=int(target))
    return Corpus(file=str(path), source=source, target=target, header=format in COLUMN_FORMATS)


def recipe_of(corpora: Sequence[Corpus], languages: tuple[str, str],
              options: tuple[str, str] = ("--source-language", "--target-language")) -> Recipe:
    """Return a recipe for the functions of `check`: the corpora are its training and validation text. options: names of
    the options with the languages."""
    try:
        codes = Languages(source=languages[0], target=languages[1])
    except ValidationError as error:
        side, value = error.errors()[0]["loc"][0], str(error.errors()[0]["input"])
        option = options[side == "target"]
        raise OptionError(f"{option} {value}: not a language code such as de or en-GB."
                          f"{suggestion_for(value)}") from None
    if same_code(*languages):
        raise OptionError(f"source and target are the same language, {languages[0]}. Check the files, and give the "
                          f"languages with {' and '.join(options)}.")
    return Recipe(name="new", languages=codes, data=Data(train=tuple(corpora), valid=tuple(corpora[:1]))
                  ).with_directory(Path())


class GivenText:
    """Several corpora, read one after another. Their pairs have consecutive numbers."""

    def __init__(self, corpora: Sequence[Corpus], recipe: Recipe, remedy: str = COLUMN_OPTIONS) -> None:
        """recipe: recipe whose languages the corpora have. remedy: what to do if it is unclear which columns of a table
        are source and target, or whether its first line is a pair.

        Raises CorpusError if that is unclear.
        """
        self.corpora, self.recipe = corpora, recipe
        for corpus in corpora:
            if warning := first_line_warning(corpus, Path(), recipe.languages_of(corpus).codes, "data.train"):
                raise CorpusError(f"{warning.fault} {remedy}")
        self._starts = [0]                                          # number before the first pair of each corpus

    def pairs(self, counts: Counts | None = None) -> Iterator[LinePair]:
        """Yield the pairs. counts: see `read_pairs`."""
        last, self._starts = 0, []
        for corpus in self.corpora:
            start = last
            self._starts.append(start)
            for number, source, target in as_lines(read_pairs(self.recipe, corpus, counts)):
                last = start + number
                yield last, source, target

    def place(self, number: int) -> str:
        """Return the file and the line of a pair that was read; of a single corpus, only the line."""
        if len(self.corpora) == 1:
            return f"line {number:,}"
        index = bisect_left(self._starts, number) - 1
        return f"{self.corpora[index].label}:{number - self._starts[index]}"

    @property
    def label(self) -> str:
        """Name of the text in messages."""
        first, others = self.corpora[0].label, len(self.corpora) - 1
        return first + (f" and {others:,} other{'s' * (others > 1)}" if others else "")


def identify_languages(corpora: Sequence[Corpus]) -> tuple[str | None, str | None]:
    """Return the language codes of source and target: those that lingua identifies in the first lines, or, if all
    corpora are .tmx, XLIFF or PO, which are read in either direction, those that the first of them names.

    Returns None for a side whose language is not found, or without lingua.
    """
    if all(corpus.uses_recipe_languages for corpus in corpora):
        named = (named_languages(Path(str(corpus.file)), corpus.table_format) for corpus in corpora)
        return next(filter(all, named), (None, None))
    texts = [pair[1:] for corpus in corpora if not corpus.uses_recipe_languages
             for pair in islice(as_lines(read_corpus(corpus, Path())), MAX_LANGUAGE_LINES)]
    try:
        import lingua
    except ImportError:
        return None, None
    if not texts:
        return None, None
    detector = lingua.LanguageDetectorBuilder.from_all_languages().build()
    found = [detector.detect_language_of(normalize("NFC", "\n".join(side[:MAX_LANGUAGE_LINES])
                                                   [:MAX_LANGUAGE_CHARACTERS])) for side in zip(*texts, strict=True)]
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


def are_exchanged(given: Sequence[str], identified: Sequence[str | None]) -> bool:
    """Return True if each side is in the language that was given for the other side."""
    return all(code is not None and same_code(main_language(code), main_language(other))
               for code, other in zip(identified, reversed(given), strict=True))
