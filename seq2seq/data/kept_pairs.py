"""Pairs of the training corpora that cleaning keeps, found once for the tokenizer and for the encoding of the text.

Processes share the blocks of a corpus. They judge each pair for itself, and the text stays where it is: of a pair that
passes, only its place, a hash and the numbers of its characters are written to disk. Duplicates are found afterwards,
among the hashes of a part of their range at a time. So the memory does not depend on the size of the corpora.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq import console
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.cleaning import Normalize, PairFilters, pair_digest
from seq2seq.data.corpus import Counts, Pair, count_lines, read_pairs
from seq2seq.data.parallel_text import blocks
from seq2seq.files import parse_json
from seq2seq.recipe import Corpus, Recipe
from seq2seq.storage.atomic import delete, new_directory
from seq2seq.storage.directories import as_json, read_file
from seq2seq.storage.growing_files import GrowingFiles
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import reservoir_sample
from seq2seq.tokenizers.vocabulary import as_line

BLOCK_LINES = 16_384
"""Number of pairs that a process cleans at a time."""
HASHES = 2_000_000
"""Approximate number of hashes among which duplicates are searched at a time; some 100 MB."""
CHUNK = 1 << 20
"""Number of values that are read from a file at a time."""
DESCRIPTION, ROWS = "kept.json", "rows"
COLUMNS = {"rows": np.int64, "numbers": np.int64, "hashes": np.uint64, "characters": np.int64}
"""Files with one value for each pair that passes the filters: index in the corpus, line number, hash of the texts. Only
`characters` has two values, those of both sides."""


@dataclass(frozen=True)
class TextBlock:
    """Consecutive pairs of a corpus in columns, which processes exchange in a fifth of the time of pairs.

    first: index of the first pair in the corpus. line: source without text and context, the same for all pairs of the
    corpus. contexts: None if no source has a context.
    """

    first: int
    line: Source
    numbers: list[int]
    sources: list[str]
    contexts: list[tuple[str, ...] | None] | None
    targets: list[str]

    @staticmethod
    def of(first: int, pairs: Sequence[Pair]) -> TextBlock:
        contexts = [source.context for _, source, _ in pairs]
        return TextBlock(first, replace(pairs[0][1], text="", context=None), [number for number, _, _ in pairs],
                         [source.text for _, source, _ in pairs],
                         None if all(context is None for context in contexts) else contexts,
                         [target for _, _, target in pairs])

    def pairs(self) -> Iterator[Pair]:
        line = self.line
        contexts = self.contexts or [None] * len(self.numbers)
        for number, text, context, target in zip(self.numbers, self.sources, contexts, self.targets, strict=True):
            yield number, Source(text, context, line.language, line.tag, source_language=line.source_language), target


@dataclass(frozen=True)
class KeptPairs:
    """Pairs of the training corpora that cleaning keeps.

    counts: of each corpus. sizes: number of kept pairs of each corpus. characters: number of characters of the kept
    pairs on each side.
    """

    directory: Path
    counts: list[Counts]
    sizes: list[int]
    characters: list[int]

    def rows(self, corpus: int, begin: int = 0) -> Iterator[int]:
        """Yield the indices of the kept pairs among the pairs of a corpus, without the first `begin`."""
        offset, end = sum(self.sizes[:corpus]) + begin, sum(self.sizes[:corpus + 1])
        for start in range(offset, end, CHUNK):
            yield from _read(self.directory / ROWS, np.int64, start, min(CHUNK, end - start)).tolist()

    def rows_at(self, corpus: int, places: np.ndarray) -> Iterator[int]:
        """Yield the indices among the pairs of a corpus of some of its kept pairs. places: (pairs,), ascending."""
        rows = enumerate(self.rows(corpus))
        for place in places.tolist():
            yield next(row for index, row in rows if index == place)

    def texts(self, recipe: Recipe, spec: Corpus, rows: Iterable[int]) -> Iterator[Pair]:
        """Read the pairs of a corpus with the indices `rows`, which ascend."""
        pairs = enumerate(read_pairs(recipe, spec))
        for row in rows:
            for index, pair in pairs:
                if index == row:
                    yield pair
                    break

    def sample(self, size: int, seed: int, shares: Sequence[float] | None) -> list[int]:
        """Return the indices of a sample of at most `size` of the kept pairs, in their order. The sample is uniform, or
        has the given share of each corpus, up to all of its pairs. If a corpus is smaller than its share, the others
        get the rest."""
        if shares is None or sum(self.sizes) <= size:
            return reservoir_sample(range(sum(self.sizes)), size, seed)
        found: list[int] = []
        begin = 0
        for pairs, quota in zip(self.sizes, quotas(self.sizes, shares, size), strict=True):
            found += reservoir_sample(range(begin, begin + pairs), quota, seed)
            begin += pairs
        return found


def quotas(sizes: Sequence[int], shares: Sequence[float], total: int) -> list[int]:
    """Divide `total` in proportion to `shares`, but give no corpus more than its size. `total` is at most the sum of
    the sizes."""
    given = [0] * len(sizes)
    while (rest := total - sum(given)) > 0:
        open_corpora = [index for index, size in enumerate(sizes) if given[index] < size and shares[index] > 0]
        weight = sum(shares[index] for index in open_corpora)
        if not open_corpora:
            break
        for index in open_corpora:
            given[index] = min(sizes[index], given[index] + max(1, math.floor(rest * shares[index] / weight)))
        while sum(given) > total:                                               # a minimum of 1 may exceed it
            given[given.index(max(given))] -= 1
    return given


def find_kept_pairs(recipe: Recipe, corpora: Sequence[Corpus], normalize: Sequence[Normalize], directory: Path,
                    processes: BlockProcesses) -> KeptPairs:
    """Clean the training corpora, or return the result of an earlier call with this directory. If an earlier call was
    interrupted, go on behind its last committed block.

    directory: its name must depend on everything else. normalize: see `clean`.
    """
    if not directory.exists():
        unfinished = directory.with_name(f"{directory.name}-unfinished")
        with GrowingFiles(unfinished, list(COLUMNS)) as files:
            _filter(recipe, corpora, normalize, files, processes)
            sizes = [corpus["passing"] for corpus in files.state["corpora"]]
            counts = [Counts(**corpus["counts"]) for corpus in files.state["corpora"]]
        with new_directory(directory) as new:
            _drop_duplicates(unfinished, new, sizes, counts, recipe.data.cleaning.remove_duplicates)
        delete(unfinished)
    found = parse_json(read_file(directory / DESCRIPTION))
    return KeptPairs(directory, [Counts(**counts) for counts in found["counts"]], found["sizes"], found["characters"])


def _filter(recipe: Recipe, corpora: Sequence[Corpus], normalize: Sequence[Normalize], files: GrowingFiles,
            processes: BlockProcesses) -> None:
    """Write the COLUMNS of the pairs that pass the filters. The state has one entry for each corpus that was begun:
    `done`, the number of pairs read; None if these are all. `passing`; and `counts`, see `Counts`."""
    state: dict[str, Any] = {"corpora": list(files.state.get("corpora", []))}
    done = sum(corpus["counts"]["lines"] for corpus in state["corpora"])
    with console.progress("cleaning", total_lines(recipe, corpora), done, unit="pairs") as advance:
        for number, spec in enumerate(corpora):
            corpus: dict[str, Any] = {"done": 0, "passing": 0, "counts": vars(Counts())}
            if number < len(state["corpora"]):
                corpus = state["corpora"][number]
            if corpus["done"] is None:
                continue
            read, counts = Counts(), Counts(dropped=dict(corpus["counts"]["dropped"]),
                                            examples=dict(corpus["counts"]["examples"]))
            filters, pairs = PairFilters.for_corpus(read_pairs(recipe, spec, read), recipe.data.cleaning,
                                                    len(spec.sides), recipe.languages_of(spec), normalize)
            clean_block = partial(_cleaned, filters, spec, recipe)
            lines, passing = corpus["done"], corpus["passing"]
            state["corpora"][number:] = [corpus]
            for block in processes.map(clean_block, text_blocks(pairs, lines)):
                for name, values in block.columns.items():
                    files.files[name].write(values.astype(COLUMNS[name]).tobytes())
                lines, passing = lines + block.lines, passing + len(block.columns["rows"])
                counts.add_dropped(block.counts)
                state["corpora"][number] = {"done": lines, "passing": passing,
                                            "counts": vars(replace(counts, lines=lines))}
                files.commit(state)
                advance(block.lines)
            complete = replace(read, dropped=counts.dropped, examples=counts.examples)
            state["corpora"][number] = {"done": None, "passing": passing, "counts": vars(complete)}
        files.commit(state, now=True)


def total_lines(recipe: Recipe, corpora: Sequence[Corpus]) -> int | None:
    """Return the number of lines of all corpora; None if that of one is not known before it is read."""
    lines = [count_lines(spec, recipe.data_directory) for spec in corpora]
    return None if None in lines else sum(filter(None, lines))


def text_blocks(pairs: Iterable[Pair], begin: int = 0) -> Iterator[TextBlock]:
    """Yield the pairs of a corpus in blocks, without the first `begin` pairs."""
    for number, block in enumerate(blocks(islice(pairs, begin, None), BLOCK_LINES)):
        yield TextBlock.of(begin + number * BLOCK_LINES, block)


@dataclass(frozen=True)
class _CleanedBlock:
    """Result of a block: number of its pairs, the COLUMNS of those that pass the filters, and counts of the others."""

    lines: int
    columns: dict[str, np.ndarray]
    counts: Counts


def _cleaned(filters: PairFilters, spec: Corpus, recipe: Recipe, block: TextBlock) -> _CleanedBlock:
    counts, rows, hashes, characters = Counts(), [], bytearray(), []
    languages, (source_as_seen, target_as_seen) = recipe.languages_of(spec), filters.normalize
    pairs = [(row, source, target) for row, (number, source, target) in enumerate(block.pairs())
             if number not in spec.faulty]
    for number in block.numbers if len(pairs) < len(block.numbers) else ():
        if number in spec.faulty:
            counts.count_dropped(spec.faulty[number], number)
    judged = Counts()                                                           # its examples are rows of the block
    for row, source, target in filters.passing(pairs, judged):
        rows.append(row)
        if recipe.data.cleaning.remove_duplicates:
            hashes += pair_digest(languages, source, target)
        characters.append((len(source_as_seen(as_line(replace(source, context=None)))), len(target_as_seen(target))))
    judged.examples = {reason: block.numbers[row] for reason, row in judged.examples.items()}
    counts.add_dropped(judged)
    passing = np.array(rows, np.int64)
    columns = {"rows": block.first + passing, "numbers": np.array(block.numbers, np.int64)[passing],
               "hashes": np.frombuffer(bytes(hashes), np.uint64), "characters": np.array(characters, np.int64)}
    return _CleanedBlock(len(block.numbers), columns, counts)


def _drop_duplicates(unfinished: Path, new: Path, sizes: Sequence[int], counts: Sequence[Counts], remove: bool) -> None:
    """Write the rows of the pairs that are kept, and the description of `KeptPairs`.

    sizes: number of pairs of each corpus that pass the filters. counts: updated with the numbers of duplicates.
    """
    total = sum(sizes)
    repeated = np.memmap(unfinished / "repeated", np.bool_, "w+", shape=(max(total, 1),))
    if remove:
        mark_repeated(unfinished / "hashes", repeated)
    characters, kept_sizes, begin = np.zeros(2, np.int64), [], 0
    with open(new / ROWS, "wb") as rows:
        for size, of_corpus in zip(sizes, counts, strict=True):
            kept = 0
            for start in range(begin, begin + size, CHUNK):
                length = min(CHUNK, begin + size - start)
                dropped = np.array(repeated[start:start + length])
                rows.write(_read(unfinished / "rows", np.int64, start, length)[~dropped].tobytes())
                characters += _read(unfinished / "characters", np.int64, 2 * start, 2 * length
                                    ).reshape(-1, 2)[~dropped].sum(0)
                if dropped.any():
                    numbers = _read(unfinished / "numbers", np.int64, start, length)[dropped]
                    of_corpus.add_dropped(Counts(dropped={"duplicate": len(numbers)},
                                                 examples={"duplicate": int(numbers[0])}))
                kept += int(length - dropped.sum())
            kept_sizes.append(kept)
            begin += size
    (new / DESCRIPTION).write_bytes(as_json({"sizes": kept_sizes, "characters": characters.tolist(),
                                             "counts": [vars(each) for each in counts]}))


def mark_repeated(hashes: Path, repeated: np.ndarray) -> None:
    """Set `repeated`, (pairs,) bool, where an earlier pair has the same hash. hashes: file of (pairs,) uint64."""
    total = hashes.stat().st_size // 8
    parts = max(1, math.ceil(total / HASHES))
    for part in range(parts):
        found, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        for begin in range(0, total, CHUNK):
            chunk = _read(hashes, np.uint64, begin, CHUNK)
            inside = np.flatnonzero(chunk % np.uint64(parts) == part)
            found.append(chunk[inside])
            places.append(inside + begin)
        values, where = np.concatenate(found), np.concatenate(places)
        order = np.argsort(values, kind="stable")                               # the earlier of two equal hashes first
        equal = values[order[1:]] == values[order[:-1]]
        repeated[where[order[1:][equal]]] = True


def _read(path: Path, dtype: Any, begin: int, count: int) -> np.ndarray:
    """Return the values of a file from the index `begin`, at most `count`. Unlike those of a memory map, these are no
    longer in memory when they are no longer used."""
    return np.fromfile(path, dtype, count, offset=begin * np.dtype(dtype).itemsize)
