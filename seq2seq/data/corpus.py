"""Readers of parallel text: two files, TSV, CSV, JSONL, Parquet, TMX, XLIFF, PO, and the Hugging Face hub.

Only a line feed ends a line. Other line separators (U+0085, U+2028, a form feed) are ordinary characters.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seq2seq.data.hub import hub_fault
from seq2seq.data.parallel_text import NotParallelError, zip_parallel
from seq2seq.errors import CorpusError
from seq2seq.files import (
    BLOCK_BYTES,
    MAX_FILE_BYTES,
    MAX_LINE_BYTES,
    NotJson,
    bounded_lines,
    opened,
    parse_json,
    sha256_of,
)
from seq2seq.formats.block import naming, wide_encoding
from seq2seq.formats.catalogue import catalogue_of, languages_of, read_catalogue
from seq2seq.formats.csv_table import columns_of
from seq2seq.formats.tables import row_of_line
from seq2seq.formats.tmx_pairs import UnitReader, first_languages, read_units
from seq2seq.formats.xliff_pairs import XliffReader
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.context import PreviousSentences
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.tokenizers.whole_words import position_fault

if TYPE_CHECKING:
    from seq2seq.recipe import Corpus, Recipe

Pair = tuple[int, Source, str]
"""Line number (from 1), source, target. Monolingual text is the target of pairs with an empty source."""
LinePair = tuple[int, str, str]
"""Line number (from 1), source as a line of text, target."""
Row = tuple[int, tuple[str, ...]]
"""Line number (from 1), and the text of each column that is read: the sides, then `document` if it is set."""


@dataclass
class Counts:
    """Statistics of reading and cleaning a corpus.

    lines: number of lines read. dropped: number of lines dropped, by reason. examples: line number of the first
    line dropped, by reason. carriage_returns: number of texts that ended in \\r. inner_newlines: number of line
    feeds inside a field, replaced by spaces. byte_order_marks: number of byte order marks removed.
    forbidden_characters: number of characters that XML does not allow, replaced by U+FFFD. first_forbidden: line of the
    first of them in the file. unfinished: number of messages of a catalogue, or units of an XLIFF file, that were not
    read because their translation is missing or has still to be reviewed. sha256: checksum of the texts of a data set
    of the hub, if they were all read.
    """

    lines: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    carriage_returns: int = 0
    inner_newlines: int = 0
    byte_order_marks: int = 0
    forbidden_characters: int = 0
    first_forbidden: int = 0
    unfinished: int = 0
    sha256: str = ""

    @property
    def kept(self) -> int:
        """Number of lines that were not dropped."""
        return self.lines - sum(self.dropped.values())

    def count_dropped(self, reason: str, line: int) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.examples.setdefault(reason, line)

    def add_dropped(self, other: Counts) -> None:
        """Add the lines that were dropped from later lines of the same corpus."""
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
            self.examples.setdefault(reason, other.examples[reason])

    def add_forbidden(self, line: int) -> None:
        """Count a character that XML does not allow. line: its line in the file."""
        self.forbidden_characters += 1
        self.first_forbidden = self.first_forbidden or line

    def add_unfinished(self) -> None:
        """Count a message or unit that was not read."""
        self.unfinished += 1

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {**asdict(self), "kept": self.kept}

    def summary(self) -> str:
        """Return a one-line summary for the user."""
        reasons = [f"{count:,} {reason.replace('_', ' ')} (first: line {self.examples[reason]:,})"
                   for reason, count in self.dropped.items()]
        return "; ".join([f"{self.lines:,} lines, {self.kept:,} kept", *reasons, *self.repairs()])

    def repairs(self) -> list[str]:
        """Return the numbers of characters removed or replaced, and of messages not read, in words."""
        return [f"{count:,} {name}" for name, count in (
            ("carriage returns removed", self.carriage_returns), ("inner line breaks replaced", self.inner_newlines),
            ("byte order marks removed", self.byte_order_marks),
            ("characters that XML does not allow replaced by U+FFFD (first: line "
             f"{self.first_forbidden:,} of the file)", self.forbidden_characters),
            ("messages without a finished translation not read", self.unfinished)) if count]


# Reading


def read_lines(path: str | Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, unchanged but without line feeds. The file may be compressed (.gz, .zst).

    max_line_bytes: maximum length of a line in bytes.
    """
    for number, line in enumerate(byte_lines(Path(path), max_line_bytes), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            encoding = number == 1 and wide_encoding(line) or "ORIGINAL_ENCODING"
            raise CorpusError(
                f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8. "
                f"Convert the file (iconv -f {encoding} -t UTF-8), or correct the line.") from None


def read_texts(path: str | Path) -> list[str]:
    r"""Return the lines of a file. As in `read_corpus`, the byte order mark and the `\r` of `\r\n` are removed."""
    lines = [line.removesuffix("\r") for line in read_lines(path)]
    return [line.removeprefix("\ufeff") for line in lines[:1]] + lines[1:]


def byte_lines(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file, which may be compressed (.gz, .zst), as bytes without the line feed."""
    remedy = "cut it into sentences, or raise the corpus's max_line_bytes."
    with opened(path) as file:
        for line in bounded_lines(file, str(path), max_line_bytes, remedy):
            yield line.removesuffix(b"\n")


def read_pairs(recipe: Recipe, spec: Corpus, counts: Counts | None = None, context: int | None = None
               ) -> Iterator[Pair]:
    """Yield the pairs of one of the recipe's corpora. Targets of some models must be source positions.

    context: number of sentences in the context of each source; None: `data.context` of the recipe.
    """
    if spec.is_only_named:
        raise CorpusError(f"{spec.label} is only a name: the recipe of a bundle names no text. Name the run of the "
                          "model, its recipe, or files.")
    if spec.uses_recipe_languages:
        spec = spec.model_copy(update=recipe.languages_of(spec).model_dump())
    pairs = read_corpus(spec, recipe.data_directory, counts, recipe.data.context if context is None else context,
                        recipe.language_of(spec), recipe.languages_of(spec).source or "")
    if recipe.task.target_is_text:
        yield from pairs
        return
    where = recipe.data_directory / str(spec.target if spec.form == "files" else spec.file or spec.label)
    for number, source, target in pairs:
        if fault := position_fault(source.text, target):
            raise CorpusError(f"{where}:{number}: {fault}.")
        yield number, source, target


def validation_pairs(recipe: Recipe) -> Iterator[Pair]:
    """Yield the pairs of all validation corpora; see `read_pairs`."""
    for spec in recipe.data.valid:
        yield from read_pairs(recipe, spec)


def read_corpus(spec: Corpus, directory: Path, counts: Counts | None = None, context: int = 0, language: str = "",
                source_language: str = "") -> Iterator[Pair]:
    """Yield the pairs of a corpus in order.

    Args:
        spec: section of the recipe for this corpus. Paths in it are relative to `directory`.
        counts: updated with the number of lines read, and the numbers of characters removed or replaced.
        context: number of source sentences in the context of each source; 0: sources have no context.
        language, source_language: see `Source`.
    """
    counts = Counts() if counts is None else counts
    read = {"files": _read_files, "table": _read_table, "hub": _read_hub}[spec.form]
    rows: Iterator[Row] = islice(read(spec, directory, counts), spec.limit)
    if spec.form == "hub":
        rows = _with_checksum(rows, counts)
    previous, document = PreviousSentences(context), ""
    line = Source("", language=language, tag=spec.tag, source_language=source_language)
    for number, texts in rows:
        counts.lines += 1
        if number == 1:
            counts.byte_order_marks += sum(text.startswith("\ufeff") for text in texts)
            texts = tuple(text.removeprefix("\ufeff") for text in texts)
        *source, target = (_replace_line_breaks(text, counts) for text in texts[:len(spec.sides)])
        before, document = document, "".join(texts[len(spec.sides):])
        yield number, previous.source(replace(line, text="".join(source)), before != document), target


def count_lines(spec: Corpus, directory: Path) -> int | None:
    """Return the number of line feeds in the first file of a corpus, at most `limit`, for a progress bar; None if pairs
    are no lines. That takes a hundredth of the time of reading the lines."""
    if not spec.paths or spec.form == "table" and spec.table_format not in (".tsv", ".jsonl"):
        return None
    count = 0
    with opened(directory / spec.paths[0]) as file:
        while block := file.read(BLOCK_BYTES):
            count += block.count(b"\n")
    return count if spec.limit is None else min(count, spec.limit)


def text_checksums(spec: Corpus, directory: Path, counts: Counts | None = None) -> list[str]:
    """Return the sha256 of each file of a corpus, or of the texts of a data set of the hub, up to its `limit`.

    counts: counts of a reader that has read the whole corpus; a data set of the hub is then not read again.
    """
    if spec.form == "hub":
        counts = counts or Counts()
        for _ in () if counts.sha256 else read_corpus(spec, directory, counts):
            pass
        return [counts.sha256]
    return [_sha256_of(directory / path) for path in spec.paths]


def _sha256_of(path: Path) -> str:
    try:
        state = path.stat()
        return _sha256_of_state(path.absolute(), state.st_ino, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}.") from error


@cache
def _sha256_of_state(path: Path, *_state: int) -> str:
    """Return the sha256 of a file. As long as its state is the same, it is read once: 22 GB of text take 25 seconds."""
    return sha256_of(path)


def as_lines(pairs: Iterable[Pair]) -> Iterator[LinePair]:
    """Yield the pairs with their sources as lines of text."""
    return ((number, as_line(source), target) for number, source, target in pairs)


def _with_checksum(rows: Iterator[Row], counts: Counts) -> Iterator[Row]:
    """Yield the rows. At the end, set `counts.sha256`."""
    digest = hashlib.sha256()
    for number, texts in rows:
        digest.update(json.dumps(texts).encode())
        yield number, texts
    counts.sha256 = digest.hexdigest()


def _replace_line_breaks(text: str, counts: Counts) -> str:
    if text.endswith("\r"):
        counts.carriage_returns += 1
        text = text[:-1]
    if "\n" in text:
        counts.inner_newlines += text.count("\n")
        text = text.replace("\r\n", " ").replace("\n", " ")
    return text


def _read_files(spec: Corpus, directory: Path, _counts: Counts) -> Iterator[Row]:
    paths = [directory / str(path) for path in spec.columns]
    sides = [read_lines(path, spec.max_line_bytes) for path in paths]
    try:
        yield from enumerate(zip_parallel([str(path) for path in paths], *sides, max_counted=None), 1)
    except NotParallelError as error:
        # With `limit` set to the length of the shorter file, `seq2seq check` can compare the texts of both files.
        advice = (f" To find the first line without a match, write `limit: {error.shorter}` in this corpus and run "
                  "seq2seq check, which searches the text for this line.") if error.shorter else ""
        raise CorpusError(f"{error}{advice}") from None


def _read_table(spec: Corpus, directory: Path, counts: Counts) -> Iterator[Row]:
    path = directory / str(spec.file)
    if spec.table_format in (".tmx", ".xlf", ".xliff"):
        return _read_units(spec, path, counts)
    if spec.table_format == ".po":
        return _read_catalogue(spec, path, counts)
    return {".tsv": _read_columns, ".csv": _read_columns, ".jsonl": _read_jsonl, ".parquet": _read_parquet
            }[str(spec.table_format)](spec, path)


def _read_columns(spec: Corpus, path: Path) -> Iterator[Row]:
    lines = _table_lines(spec, path)
    columns = spec.columns
    if spec.header:
        names = next(lines, (1, []))[1] or [""]
        names[0], names[-1] = names[0].removeprefix("\ufeff"), names[-1].removesuffix("\r")
        for column in columns:
            if column not in names:
                raise CorpusError(f"{path}:1: no column '{column}'; the header has {', '.join(names)}.")
            if names.count(str(column)) > 1:
                raise CorpusError(f"{path}:1: several columns have the name '{column}'. Rename all but one of them.")
        indices = [names.index(str(column)) for column in columns]
    else:
        indices = [int(column) - 1 for column in columns]
    empty = ("",) * len(indices)
    for number, fields in lines:
        if not fields:
            yield number, empty
            continue
        if len(fields) <= max(indices):
            found = f"{len(fields)} column{'s' * (len(fields) > 1)}"
            raise CorpusError(f"{path}:{number}: {found}, but column {max(indices) + 1} is needed. In a "
                              f"{spec.table_format}, {'commas' if spec.table_format == '.csv' else 'tabs'} separate "
                              "columns. Correct the line, or choose other columns.")
        yield number, tuple(fields[index] for index in indices)


class FirstLineWarning(NamedTuple):
    """Warning about the columns of a table, with a remedy for recipes."""

    fault: str
    remedy: str


def first_line_warnings(recipe: Recipe) -> Iterator[FirstLineWarning]:
    """Yield the warning of each of the recipe's tables; see `first_line_warning`."""
    for steps, spec in recipe.data.corpora_with_keys():
        codes = recipe.languages_of(spec).codes
        if warning := first_line_warning(spec, recipe.data_directory, codes, ".".join(map(str, ("data", *steps)))):
            yield warning


def first_line_warning(spec: Corpus, directory: Path, languages: Sequence[str], key: str) -> FirstLineWarning | None:
    """Return a warning if the columns of a table are not chosen, and its first line has more than two or names them.
    Unreadable files cause no warning.

    directory: base directory of the corpus' path. languages: codes of source and target. key: recipe key of the corpus,
    for the remedy.
    """
    path = directory / str(spec.file)
    if not spec.has_numbered_columns or spec.source is not None or spec.text is not None or not path.is_file():
        return None
    try:
        line, fields = next(((line, fields) for line, fields in _table_lines(spec, path) if fields), (1, []))
    except CorpusError:
        return None
    if len(fields) > 2:
        return FirstLineWarning(
            f"{path}: line {line} has {len(fields)} columns; columns 1 and 2 are read as source and target.",
            f"If this is right, write `source: 1, target: 2` in {key}; if not, write the right column numbers.")
    names = [field.strip("\ufeff\r ") for field in fields]
    source, target = columns_of(names, languages)
    if len(names) < 2 or source == target:                                      # also if neither is known
        return None
    source = 1 - target if source is None and target is not None else source
    target = 1 - source if target is None and source is not None else target
    assert source is not None and target is not None
    return FirstLineWarning(
        f"{path}: line {line}, {' and '.join(map(repr, names))}, looks like a header; it is read as a pair, and "
        "columns 1 and 2 as source and target.",
        f"Write `header: true, source: {json.dumps(names[source])}, target: {json.dumps(names[target])}` in {key}; "
        "if the line is a pair, write `source: 1, target: 2`.")


def _table_lines(spec: Corpus, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line of a TSV or CSV file. TSV has no quotes. A blank line, which ends a
    document, has no fields.

    The byte order mark of the file is kept at the beginning of the first field, and the `\\r` of `\\r\\n` at the end of
    the last field. `read_corpus` removes and counts them.
    """
    width, first, csv = 0, 1, spec.table_format == ".csv"
    separator = "," if csv else "\t"
    with naming(str(path), CorpusError):
        for number, line in enumerate(read_lines(path, spec.max_line_bytes), 1):
            if is_blank(line):
                yield number, []
                continue
            fields = row_of_line(line, number, separator, has_quotes=csv)
            if not width:
                width, first = len(fields), number
            if len(fields) > width or csv and len(fields) < width:
                raise CorpusError(f"{path}:{number}: {len(fields)} columns, but line {first:,} has {width}. " + (
                    'Put text with commas in double quotes, such as "yes, sir", or correct the line.' if csv else
                    "Is there a tab inside the text? Correct the line."))
            yield number, fields


def _read_jsonl(spec: Corpus, path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path, spec.max_line_bytes), 1):
        if is_blank(line):
            yield number, ("",) * len(spec.columns)
        else:
            yield number, _texts_of_record(spec, _record(line, f"{path}:{number}"), f"{path}:{number}")


def _record(line: str, where: str) -> Any:
    """Return the JSON value of a line. where: its file and number, for errors."""
    try:
        return parse_json(line.removeprefix("\ufeff"))
    except NotJson as error:
        raise CorpusError(f"{where}: not a JSON object ({error}). Correct or remove the line.") from None


def _read_units(spec: Corpus, path: Path, counts: Counts) -> Iterator[Row]:
    languages = [str(column) for column in spec.columns]
    new_reader = UnitReader if spec.table_format == ".tmx" else partial(XliffReader, languages)
    with opened(path) as file:
        blocks = iter(partial(file.read, BLOCK_BYTES), b"")
        units = read_units(blocks, str(path), languages, spec.markup, spec.limit, spec.max_line_bytes,
                           counts.add_forbidden, counts.add_unfinished, new_reader)
        yield from enumerate(units, 1)


def _read_catalogue(spec: Corpus, path: Path, counts: Counts) -> Iterator[Row]:
    with opened(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CorpusError(f"{path} has more than {MAX_FILE_BYTES:,} bytes. Divide it into several files.")
    yield from read_catalogue(data, str(path), list(map(str, spec.columns)), counts.add_unfinished)


def named_languages(path: Path, format: str | None) -> tuple[str, str]:
    """Return the languages that a .tmx, XLIFF or PO file names for its sides; "" for a side without a name.

    Those of a .tmx are the languages of its first unit, if it has two. The messages of a catalogue are English unless
    its header says otherwise.
    """
    with opened(path) as file:
        if format == ".po":
            source, target = languages_of(catalogue_of(file.read(MAX_FILE_BYTES), str(path)))
            return source or "en", target
        reader = UnitReader if format == ".tmx" else partial(XliffReader, ())
        codes = first_languages(iter(partial(file.read, BLOCK_BYTES), b""), str(path), reader)
    return (codes[0], codes[1]) if len(codes) == 2 else ("", "")


def record_columns(path: Path) -> list[str]:
    """Return the names of the columns with text of a .jsonl or .parquet file, or of the texts in its `translation`,
    according to its first record.
    """
    record: Any = {}
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            with path.open("rb") as opened_file:
                batch = next(pyarrow.parquet.ParquetFile(opened_file).iter_batches(batch_size=1), None)
                record = batch.to_pylist()[0] if batch is not None else {}
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise CorpusError(f"{path} cannot be read as Parquet: {_first_line(error)}") from error
    else:
        for number, line in enumerate(read_lines(path), 1):
            if not is_blank(line):
                record = _record(line, f"{path}:{number}")
                break
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    return [name for name, value in record.items() if isinstance(value, str)] if isinstance(record, dict) else []


def _read_parquet(spec: Corpus, path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with path.open("rb") as opened_file:                                    # open() does not expand * and ?
            file = pyarrow.parquet.ParquetFile(opened_file)
            existing = file.schema_arrow.names
            # Other columns are not read: they may be large, or contain values without a Python equivalent.
            needed = [name for name in existing if name in (*spec.columns, "translation")]
            missing = next((name for name in spec.columns if name not in existing), None)
            if missing is not None and "translation" not in existing:
                raise CorpusError(f"{path}: no column '{missing}'; the columns are {', '.join(existing)}.")
            records = (record for batch in file.iter_batches(columns=needed) for record in batch.to_pylist())
            for number, record in enumerate(records, 1):
                yield number, _texts_of_record(spec, record, f"{path}: row {number}")
    except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{path} cannot be read as Parquet: {_first_line(error)}") from error


def _read_hub(spec: Corpus, _directory: Path, _counts: Counts) -> Iterator[Row]:
    if os.path.isdir(str(spec.hub)):
        if has_magic(path := os.path.realpath(str(spec.hub))):
            raise CorpusError(f"data set {spec.label} cannot be loaded: the datasets library interprets the name of "
                              f"its directory, {path}, as a pattern. Rename the directory so that its path has no *, ? "
                              "or [.")
    elif fault := hub_fault(f"datasets/{spec.hub}"):
        raise CorpusError(f"data set {spec.label} cannot be loaded: {fault}")
    import datasets

    try:
        rows = datasets.load_dataset(str(spec.hub), spec.config, split=spec.split, streaming=spec.streaming)
        # Reading is inside `try`, because streamed data sets are downloaded while they are read.
        for number, record in enumerate(rows, 1):
            yield number, _texts_of_record(spec, record, f"{spec.label}: row {number}")
    except CorpusError:
        raise
    except Exception as error:                                                  # the hub's errors have no common class
        reason = f"{type(error).__name__}: {_first_line(error).rstrip('.')}."
        raise CorpusError(f"data set {spec.label} cannot be loaded: {reason} Check its name, config and split in the "
                          "recipe, and the network connection. The datasets library no longer loads data sets that are "
                          "Python scripts.") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _texts_of_record(spec: Corpus, record: Any, where: str) -> tuple[str, ...]:
    """Return the texts in a record's columns. If the record lacks the first column but has an object `translation`, the
    columns are keys of this object. The value null, also of `translation`, gives empty text."""
    if not isinstance(record, dict):
        raise CorpusError(f"{where}: expected an object with the keys {' and '.join(map(str, spec.columns))}.")
    if spec.columns[0] not in record and "translation" in record:
        beside = {key: record[key] for key in record.keys() & {spec.document}}
        inner = record["translation"]
        if inner is None:
            inner = dict.fromkeys(spec.columns[:len(spec.sides)])
        if isinstance(inner, dict):
            record = beside | inner
    texts = []
    for column in spec.columns:
        if column not in record:
            raise CorpusError(f"{where}: no column '{column}'; the columns are {', '.join(map(str, record))}.")
        value = record[column]
        if column == spec.document and value is not None:
            value = str(value)
        if value is not None and not isinstance(value, str):
            raise CorpusError(f"{where}: column '{column}' contains {type(value).__name__}, not text.")
        texts.append(_reject_surrogates(value or "", where))
    return tuple(texts)


def _reject_surrogates(text: str, where: str) -> str:
    """Return the text unchanged, or raise CorpusError if UTF-8 cannot encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{where}: character {error.start + 1} is half a surrogate pair, which UTF-8 cannot encode. "
                          "Correct or remove the line.") from None
    return text
