"""Parallel text as it lies: two files, TSV, JSONL, Parquet, TMX, the hub; and cleaning, with counts by reason.

A line ends at a line feed alone. Whatever else looks like a line end (U+0085, U+2028, a form feed) is a character.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from seq2seq.errors import CorpusError
from seq2seq.quality import LengthModel, is_damaged, number_agreement
from seq2seq.side_languages import LanguageDetector, SideLanguages
from seq2seq.tmx import read_units
from seq2seq.words import position_fault

if TYPE_CHECKING:
    from seq2seq.recipe import Cleaning, Corpus, Languages, Recipe

Pair = tuple[int, str, str]
"""Line number (from 1), source, target. Text alone, that of a language model, is the target of an empty source."""
Row = tuple[int, tuple[str, ...]]
"""Line number (from 1), and what stands there for each of the corpus's sides."""

BLOCK_BYTES = 1 << 20
SHORT = 10
"""Characters up to which the length ratio says nothing."""
LEARNED_FROM = 10_000
"""Pairs at the beginning of a corpus from which cleaning learns what is usual in it."""


@dataclass
class Counts:
    """What happened to the lines of a corpus.

    lines: read. dropped: by reason. examples: for each reason the number of its first line. carriage_returns: lines
    that ended in \\r\\n. inner_newlines: line feeds inside a field, replaced by a space. byte_order_marks: removed.
    """

    lines: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    carriage_returns: int = 0
    inner_newlines: int = 0
    byte_order_marks: int = 0

    @property
    def kept(self) -> int:
        """Lines that were not dropped."""
        return self.lines - sum(self.dropped.values())

    def drop(self, reason: str, line: int) -> None:
        """Count a line that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.examples.setdefault(reason, line)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "lines": self.lines, "kept": self.kept, "dropped": dict(self.dropped), "examples": dict(self.examples),
            "carriage_returns": self.carriage_returns, "inner_newlines": self.inner_newlines,
            "byte_order_marks": self.byte_order_marks,
        }

    def summary(self) -> str:
        """One line for the person."""
        reasons = [f"{count:,} {reason.replace('_', ' ')} (first: line {self.examples[reason]:,})"
                   for reason, count in self.dropped.items()]
        repairs = [f"{count:,} {name}" for name, count in (
            ("carriage returns removed", self.carriage_returns), ("inner line ends replaced", self.inner_newlines),
            ("byte order marks removed", self.byte_order_marks)) if count]
        return "; ".join([f"{self.lines:,} lines, {self.kept:,} kept", *reasons, *repairs])


# Reading


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a UTF-8 file (or .gz, .zst) without their line feed. Nothing else is changed.

    Raises:
        CorpusError: the file cannot be read, or holds bytes that are not UTF-8; the message names the line.
    """
    number = 0
    for number, line in enumerate(byte_lines(Path(path)), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} is not UTF-8. "
                "Convert the file (iconv -f ORIGINAL_ENCODING -t UTF-8), or mend the line."
            ) from None


def byte_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file (or .gz, .zst) as bytes, without their line feed.

    Raises:
        CorpusError: the file cannot be read.
    """
    with _opened(path) as file:
        for line in file:
            yield line.removesuffix(b"\n")


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file for reading, unpacked where its name ends in .gz or .zst.

    Raises:
        CorpusError: it cannot be read, while it is opened or later.
    """
    try:
        with _unpacked(path) as file:
            # Iterating a GzipFile itself is Python code for every line.
            yield io.BufferedReader(cast(io.RawIOBase, file), BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path} is no intact gzip file ({error}). Copy or compress it again.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}.") from error


def _unpacked(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix != ".zst":
        return open(path, "rb", buffering=0)
    return _Blocks(_unpacked_zst(path))


def _unpacked_zst(path: Path) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise CorpusError(f"{path}: to read .zst files, install zstandard: pip install 'seq2seq[zst]'") from None
    frame = None
    try:
        with open(path, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                while block:                                                    # which can hold the end of a frame
                    frame = frame or zstandard.ZstdDecompressor().decompressobj()
                    yield frame.decompress(block)
                    block, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        if frame is not None:
            raise zstandard.ZstdError("it ends in the middle")
    except zstandard.ZstdError as error:
        raise CorpusError(f"{path} is no intact zstd file ({error}). Copy or compress it again.") from error


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest and (block := next(self.blocks, None)) is not None:
            self.rest = memoryview(block)
        size = min(len(self.rest), len(buffer))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def read_pairs(recipe: Recipe, spec: Corpus, counts: Counts | None = None) -> Iterator[Pair]:
    """The pairs of one of the recipe's corpora, as its model can take them.

    Raises:
        CorpusError: as `read_corpus`; or the model points, and a target holds anything but positions of its source.
    """
    if spec.table_format == ".tmx" and spec.source is None and spec.text is None:
        spec = spec.model_copy(update=recipe.languages.model_dump())
    pairs = read_corpus(spec, recipe.data_directory, counts)
    if recipe.model.type != "pointer":
        yield from pairs
        return
    where = recipe.data_directory / str(spec.target if spec.form == "files" else spec.file or spec.label)
    for number, source, target in pairs:
        if fault := position_fault(source, target):
            raise CorpusError(f"{where}:{number}: {fault}.")
        yield number, source, target


def read_corpus(spec: Corpus, directory: Path, counts: Counts | None = None) -> Iterator[Pair]:
    """The pairs of a corpus, in its order.

    Args:
        spec: where the text lies; its relative paths start in `directory`.
        counts: receives what was read and repaired.
    Raises:
        CorpusError: text is missing, not parallel, not UTF-8, or a column is missing; with file and line.
    """
    counts = Counts() if counts is None else counts
    rows = {"files": _read_files, "table": _read_table, "hub": _read_hub}[spec.form](spec, directory)
    for number, texts in islice(rows, spec.limit):
        counts.lines += 1
        if number == 1:
            texts = tuple(_without_mark(text, counts) for text in texts)
        *source, target = (_one_line(text, counts) for text in texts)
        yield number, f"{spec.tag} {source[0]}" if spec.tag else "".join(source), target


def _without_mark(text: str, counts: Counts) -> str:
    counts.byte_order_marks += text.startswith("\ufeff")
    return text.removeprefix("\ufeff")


def _one_line(text: str, counts: Counts) -> str:
    if text.endswith("\r"):
        counts.carriage_returns += 1
        text = text[:-1]
    if "\n" in text:
        counts.inner_newlines += text.count("\n")
        text = text.replace("\r\n", " ").replace("\n", " ")
    return text


def _read_files(spec: Corpus, directory: Path) -> Iterator[Row]:
    paths = [directory / str(path) for path in spec.columns]
    first, *others = [read_lines(path) for path in paths]
    number = 0
    for number, text in enumerate(first, 1):
        texts = [text, *(line for side in others if (line := next(side, None)) is not None)]
        if len(texts) < len(paths):
            raise _not_parallel(paths, (number + sum(1 for _ in first), number - 1))
        yield number, tuple(texts)
    for side in others:
        more = sum(1 for _ in side)
        if more:
            raise _not_parallel(paths, (number, number + more))


def _not_parallel(paths: list[Path], lines: tuple[int, int]) -> CorpusError:
    return CorpusError(
        f"{paths[0]} has {lines[0]:,} lines, {paths[1]} has {lines[1]:,}. Parallel files must match line by line; "
        f"run again the step that wrote them, or cut both to {min(lines):,} lines."
    )


def _read_table(spec: Corpus, directory: Path) -> Iterator[Row]:
    path = directory / str(spec.file)
    return {".tsv": _read_tsv, ".jsonl": _read_jsonl, ".parquet": _read_parquet,
            ".tmx": _read_tmx}[str(spec.table_format)](spec, path)


def _read_tsv(spec: Corpus, path: Path) -> Iterator[Row]:
    lines = enumerate(read_lines(path), 1)
    columns = spec.columns
    if spec.header:
        names = next(lines, (1, ""))[1].removeprefix("\ufeff").removesuffix("\r").split("\t")
        for column in columns:
            if column not in names:
                raise CorpusError(f"{path}:1: no column '{column}'; the header has {', '.join(names)}.")
        places = [names.index(str(column)) for column in columns]
    else:
        places = [int(column) - 1 for column in columns]
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) <= max(places):
            raise CorpusError(f"{path}:{number}: {len(fields)} columns, but column {max(places) + 1} is asked for. "
                              "Mend the line, or name other columns in the recipe.")
        yield number, tuple(fields[place] for place in places)


def _read_jsonl(spec: Corpus, path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = json.loads(line.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}:{number}: not a JSON object ({error}). Mend or remove the line.") from None
        yield number, _fields(spec, record, f"{path}:{number}")


def _read_tmx(spec: Corpus, path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        blocks = iter(partial(file.read, BLOCK_BYTES), b"")
        languages = [str(column) for column in spec.columns]
        yield from enumerate(read_units(blocks, str(path), languages, spec.markup), 1)


def _read_parquet(spec: Corpus, path: Path) -> Iterator[Row]:
    # `datasets` takes a second to import: only who needs it waits.
    import datasets

    try:
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for number, record in enumerate(rows, 1):
            yield number, _fields(spec, record, f"{path}: row {number}")
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise CorpusError(f"{path} cannot be read as Parquet: {_first_line(error)}") from error


def _read_hub(spec: Corpus, _: Path) -> Iterator[Row]:
    import datasets

    try:
        rows = datasets.load_dataset(str(spec.hub), spec.config, split=spec.split, streaming=spec.streaming)
    except Exception as error:                                                  # the hub's errors have no common class
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise CorpusError(f"data set {spec.label} cannot be loaded: {reason} Check the name, config and split, "
                          "and the connection; data sets that are Python scripts are no longer supported.") from error
    for number, record in enumerate(rows, 1):
        yield number, _fields(spec, record, f"{spec.label}: row {number}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _fields(spec: Corpus, record: Any, where: str) -> tuple[str, ...]:
    """The texts of a record: its columns, or keys inside its `translation`."""
    if not isinstance(record, dict):
        raise CorpusError(f"{where}: expected an object with the keys {' and '.join(map(str, spec.columns))}.")
    if spec.columns[0] not in record and isinstance(record.get("translation"), dict):
        record = record["translation"]
    found = []
    for column in spec.columns:
        if column not in record:
            raise CorpusError(f"{where}: no column '{column}'; there are {', '.join(map(str, record))}.")
        value = record[column]
        if value is not None and not isinstance(value, str):
            raise CorpusError(f"{where}: column '{column}' holds {type(value).__name__}, not text.")
        found.append(_whole_characters(value or "", where))
    return tuple(found)


def _whole_characters(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{where}: character {error.start + 1} is half a surrogate pair, which no text can hold. "
                          "Mend or remove the line.") from None
    return text


# Cleaning


def clean(pairs: Iterable[Pair], cleaning: Cleaning, counts: Counts, sides: int = 2,
          languages: Languages | None = None) -> Iterator[Pair]:
    """The pairs worth training on; the others are counted by reason.

    sides: how many texts the corpus has for each pair; of one that has text alone, the source is empty and no fault,
    and nothing is compared. languages: of the two sides, where they are to be recognised.
    Equal pairs are found by 64-bit hashes: 16 bytes or so a pair, and one wrong hit in 10^19 comparisons.

    Raises:
        UserError: languages are to be recognised, but lingua is not installed or does not know one of them.
    """
    seen: set[bytes] = set()
    usual, pairs = _learn(pairs, cleaning, sides, languages)
    for number, source, target in pairs:
        reason = _fault((source, target)[-sides:], cleaning) or usual.fault(source, target)
        if reason is None and cleaning.remove_duplicates:
            digest = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
            reason = "duplicate" if digest in seen else None
            seen.add(digest)
        if reason is None:
            yield number, source, target
        else:
            counts.drop(reason, number)


@dataclass(frozen=True)
class _Usual:
    """What is usual in a corpus, as far as its cleaning asks. most: standard deviations of a length."""

    lengths: LengthModel | None = None
    most: float = 0.0
    languages: SideLanguages | LanguageDetector | None = None

    def fault(self, source: str, target: str) -> str | None:
        if self.lengths and self.lengths.deviation(len(source.strip()), len(target.strip())) > self.most:
            return "length_deviation"
        if self.languages and self.languages.wrong(source, target):
            return "wrong_language"
        return None


def _learn(pairs: Iterable[Pair], cleaning: Cleaning, sides: int, languages: Languages | None
           ) -> tuple[_Usual, Iterable[Pair]]:
    """What the first pairs say, and all pairs again. Nothing is read ahead unless the cleaning needs it."""
    detector = LanguageDetector(languages) if cleaning.language == "lingua" and languages else None
    if sides == 1 or (cleaning.max_length_deviation is None and cleaning.language != "sides"):
        return _Usual(languages=detector), pairs
    pairs = iter(pairs)
    first = list(islice(pairs, LEARNED_FROM))
    sound = [(source, target) for _, source, target in first if _fault((source, target), cleaning) is None]
    lengths = None
    if cleaning.max_length_deviation is not None:
        lengths = LengthModel.learn((len(source.strip()), len(target.strip())) for source, target in sound)
    usual = _Usual(lengths, cleaning.max_length_deviation or 0.0,
                   SideLanguages(sound) if cleaning.language == "sides" else detector)
    return usual, chain(first, pairs)


def _fault(texts: Sequence[str], cleaning: Cleaning) -> str | None:
    lengths = [len(text.strip()) for text in texts]
    if not min(lengths):
        return "empty"
    if max(lengths) > cleaning.max_characters:
        return "too_long"
    ratio = cleaning.max_length_ratio
    if ratio is not None and min(lengths) > SHORT and max(lengths) > ratio * min(lengths):
        return "length_ratio"
    if cleaning.remove_identical and len(set(texts)) < len(texts):
        return "identical"
    if cleaning.remove_damaged and any(map(is_damaged, texts)):
        return "damaged"
    least = cleaning.min_number_agreement
    if least is not None and len(texts) > 1 and number_agreement(*texts) < least:
        return "numbers"
    return None
