"""Preparation of training corpora: read, clean and tokenise once, and memory-map the arrays."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from seq2seq import console
from seq2seq.compressed_files import regular_bytes
from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.data.cleaning import clean
from seq2seq.data.corpus import Counts, Pair, read_pairs
from seq2seq.errors import CheckpointError, CorpusError, TokenizerError
from seq2seq.json_reader import parse_json
from seq2seq.recipe import LINE_LIMIT_KEY, Corpus, Recipe
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checksums import (
    Check,
    crc32_of,
    crc32_of_all,
    find_damaged_file,
    has_wrong_checksum,
    require_intact_text,
    with_checksum,
)
from seq2seq.storage.directories import as_json, write_json
from seq2seq.storage.tokenizer_files import load_tokenizers, tokenizers_of_run
from seq2seq.tokenizers.tokenizer import END_ID, Tokenizers, Vocabulary, train_tokenizers

FORMAT_VERSION = 1
BLOCK_PAIRS = 8192
"""Number of pairs that are tokenised at once, and share a random seed in subword sampling."""

DESCRIPTION = "corpus.json"
SYNTHETIC = "synthetic"
"""Directory of a run's synthetic text."""
SIDES = ("source", "target")
Item = TypeVar("Item")
MOST_REPETITIONS = 10_000
"""Largest number of repetitions of the text in an epoch. The order of an epoch takes eight bytes of memory per pair."""


@dataclass(frozen=True)
class Prepared:
    """Prepared training corpus on disk.

    corpus: its ids, memory-mapped. counts: pairs read, kept and dropped, by corpus.
    fingerprint: sha256 of all ids in order; preparations with the same fingerprint give the same training.
    check: verification of the files' checksums; None if another rank does it.
    """

    directory: Path
    corpus: EncodedCorpus
    counts: dict[str, dict[str, Any]]
    fingerprint: str
    check: Check | None = None

    def require_intact(self, wait: bool) -> None:
        """Raise if the background verification of checksums has found damage.

        Args:
            wait: wait until it is finished, before anything that was trained on the data is saved.
        Raises:
            CheckpointError: a file is damaged. The next start prepares the text again.
        """
        damage = self.check.damage(wait) if self.check is not None else None
        if damage is not None:
            (self.directory / DESCRIPTION).unlink(missing_ok=True)
            raise CheckpointError(f"{damage} is damaged: it is not what was saved. Nothing that was learnt from it has "
                                  "been saved. Run the same command again: the text is prepared again, and the "
                                  "training goes on from its last checkpoint.")


def cleaned(spec: Corpus, recipe: Recipe, counts: Counts) -> Iterator[Pair]:
    """Yield the cleaned pairs of a training corpus. counts: receives the numbers of kept and dropped ones."""
    pairs = read_pairs(recipe, spec.untagged, counts)
    for number, source, target in clean(pairs, recipe.data.cleaning, counts, len(spec.sides), recipe.languages):
        yield number, spec.tagged(source), target


def training_pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the cleaned pairs of all training corpora, one corpus after another."""
    for spec in recipe.data.train:
        for _, source, target in cleaned(spec, recipe, Counts()):
            yield source, target


def train_or_load_tokenizers(recipe: Recipe, directory: Path) -> Tokenizers:
    """Load the tokenizers in `directory`, or create them if they are missing or damaged.

    They are taken from the model that the recipe names, or trained on the cleaned training text.

    Raises:
        CheckpointError: they are damaged, and the run cannot continue with others.
        TokenizerError: the text does not allow a vocabulary of this size, or the named model has no tokenizer.
    """
    return tokenizers_of_run(directory, lambda: make_tokenizers(recipe, directory.parent))


def make_tokenizers(recipe: Recipe, run: Path) -> Tokenizers:
    """Return the tokenizers that a run starts with, without writing them.

    Raises:
        TokenizerError, CheckpointError: as `train_or_load_tokenizers`.
        CorpusError: the training text cannot be read, or is damaged.
    """
    if (taken := reuse_tokenizers(recipe)) is not None:
        return taken
    console.print_message("training the tokenizer")
    require_intact_text(_paths(recipe), run / SYNTHETIC)
    points = recipe.model.type == "pointer"
    pairs = console.with_progress("reading text for the tokenizer", training_pairs(recipe), "pairs")
    languages = recipe.languages.source, recipe.languages.target
    made = train_tokenizers(pairs, recipe.tokenizer, recipe.seed,
                            target_positions=recipe.model.max_positions - 1 if points else None,
                            sides=[f"{side} ({code})" for side, code in zip(SIDES, languages, strict=True)])
    if recipe.tokenizer.vocab_size == "auto":
        console.print_message(f"tokenizer.vocab_size: auto makes {made.sizes} of this text")
    return made


def reuse_tokenizers(recipe: Recipe) -> Tokenizers | None:
    """Return the tokenizers of the model that the recipe names for them; None if it names none.

    Raises:
        TokenizerError: there are none.
    """
    model = recipe.tokenizer_model
    if model is None:
        return None
    # A run has a directory of tokenizers from its start on; in a bundle they are among the other files.
    found = load_tokenizers(model / "tokenizer" if (model / "tokenizer").is_dir() else model)
    if recipe.languages.monolingual:
        return Tokenizers(found.target, found.target)
    if found.joint != recipe.tokenizer.joint:
        raise TokenizerError(f"the tokenizer of {model} {'is joint' if found.joint else 'is not joint'}: write "
                             f"tokenizer.joint: {str(found.joint).lower()}.")
    return found


def prepare(recipe: Recipe, tokenizers: Tokenizers, parent: Path, threads: int, verifies: bool = True) -> Prepared:
    """Return the recipe's training corpora as ids under `parent`; prepares them if they are missing, damaged, or if
    text, cleaning or tokenizer have changed.

    verifies: this process verifies the checksums of the files; False: another one does.
    Raises:
        CorpusError: text cannot be read, or no pair is left.
    """
    key = _key(recipe, tokenizers)
    directory = parent / key
    check = None
    if (described := _described(directory)) is not None and verifies:
        check = _check(directory, described)
        if (damage := check.damage(wait=False)) is not None:
            console.warn(f"{damage} is damaged: it is not what was saved. The text is prepared again.")
            described = check = None
    if described is None:
        require_intact_text(_paths(recipe), parent.parent / SYNTHETIC)
        described = _write(recipe, tokenizers, directory, threads)
    return replace(_open(recipe, directory, described), check=check)


def _paths(recipe: Recipe) -> list[Path]:
    return [path for spec in recipe.resolve().data.train for path in spec.paths]


def _described(directory: Path) -> dict[str, Any] | None:
    """Read the description of the arrays; None if they are incomplete, such as files truncated by a power failure."""
    path = directory / DESCRIPTION
    if not path.exists():
        return None
    try:
        described: dict[str, Any] = parse_json(regular_bytes(path))
        if has_wrong_checksum(described):
            raise ValueError("its contents do not match its checksum")
        if lacking := [name for name, size in described["bytes"].items() if (directory / name).stat().st_size != size]:
            raise ValueError(f"{lacking[0]} has another size")
        if not described.keys() >= {"counts", "fingerprint"} or not {*described["types"]} <= {"uint16", "uint32"}:
            raise ValueError("it lacks keys, or has values that it cannot have")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        console.warn(f"{path} is damaged, or a file beside it ({error}). The text is prepared again.")
        return None
    return described


def _check(directory: Path, described: dict[str, Any]) -> Check:
    """Start verifying the arrays' checksums. For a run of an older version without checksums, record them."""
    def find_damage() -> Path | None:
        if "crc32" in described:
            return find_damaged_file(directory, described["crc32"])
        if (damage := _impossible(directory, described)) is not None:
            return damage
        crc32 = {name: crc32_of(directory / name) for name in described["bytes"]}
        replace_file(directory / DESCRIPTION, as_json(with_checksum({**described, "crc32": crc32})))
        return None

    return Check(sum(described["bytes"].values()), find_damage)


def _impossible(directory: Path, described: dict[str, Any]) -> Path | None:
    """Return a file of offsets that do not rise from 0 to the number of ids, the only check without checksums."""
    for name, dtype in zip(SIDES, described["types"], strict=True):
        side = open_side(directory, name, dtype)
        if side.offsets[0] != 0 or side.offsets[-1] != len(side.ids) or side.lengths.min(initial=1) < 1:
            return directory / f"{name}.offsets"
    return None


def _key(recipe: Recipe, tokenizers: Tokenizers) -> str:
    """Return a hash of everything that the arrays depend on: state of the files, cleaning, tokenizers, and format."""
    described = [
        FORMAT_VERSION,
        recipe.data.cleaning.model_dump(),
        [tokenizers.source.fingerprint, tokenizers.target.fingerprint],
        bool(recipe.tokenizer.subword_sampling),
        recipe.languages.model_dump(),                                          # which side of a .tmx is which
        [(spec.model_dump(exclude={"weight", LINE_LIMIT_KEY}), _file_states(spec))
         for spec in recipe.resolve().data.train],
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _file_states(spec: Corpus) -> list[tuple[int, int]]:
    states = []
    for path in spec.paths:
        with contextlib.suppress(OSError):                                      # reading will report the error
            status = path.stat()
            states.append((status.st_size, status.st_mtime_ns))
    return states


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


class SideWriter:
    """Appends tokenised sentences of one language to a file of ids and a file of offsets."""

    def __init__(self, directory: Path, name: str, tokenizer: Vocabulary) -> None:
        self.ids: BinaryIO = open(directory / f"{name}.ids", "wb")              # noqa: SIM115, closed by `close`
        self.offsets: BinaryIO = open(directory / f"{name}.offsets", "wb")      # noqa: SIM115
        self.dtype = id_type(tokenizer.vocab_size)
        self.end = 0
        self.digest = hashlib.sha256()
        self.offsets.write(np.zeros(1, np.int64).tobytes())

    def append(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """ids: (tokens,), closed sentences; lengths: (sentences,)."""
        data = ids.astype(self.dtype).tobytes()
        self.ids.write(data)
        self.offsets.write((self.end + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self.end += len(ids)
        self.digest.update(data)
        self.digest.update(lengths.astype(np.int64).tobytes())

    def close(self) -> str:
        self.ids.close()
        self.offsets.close()
        return self.digest.hexdigest()


def id_type(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest dtype for all ids: uint16 halves the memory, whose bandwidth limits gathering of batches."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def _write(recipe: Recipe, tokenizers: Tokenizers, directory: Path, threads: int) -> dict[str, Any]:
    aside = directory.with_name(directory.name + ".writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    writers = [SideWriter(aside, "source", tokenizers.source), SideWriter(aside, "target", tokenizers.target)]
    keep_text = bool(recipe.tokenizer.subword_sampling)
    every_counts: dict[str, dict[str, Any]] = {}
    total = 0
    with contextlib.ExitStack() as stack, console.progress("tokenising", None, unit="pairs") as advance:
        lines_file = stack.enter_context(open(aside / "lines", "wb"))
        corpora_file = stack.enter_context(open(aside / "corpora", "wb"))
        texts = [stack.enter_context(open(aside / f"{side}.txt", "w", encoding="utf-8", newline="\n"))
                 for side in SIDES] if keep_text else []
        for number, spec in enumerate(recipe.data.train):
            counts = Counts()
            for block in blocks(cleaned(spec, recipe, counts), BLOCK_PAIRS):
                numbers = np.array([line for line, _, _ in block], np.int64)
                sources, targets = [source for _, source, _ in block], [target for _, _, target in block]
                sides = [_encode(tokenizers.source, sources, threads), _encode(tokenizers.target, targets, threads)]
                kept = _short_enough(sides, numbers, recipe.data.cleaning.max_pieces, counts)
                for writer, (ids, lengths) in zip(writers, sides, strict=True):
                    writer.append(ids[np.repeat(kept, lengths)], lengths[kept])
                for text, lines in zip(texts, (sources, targets), strict=False):
                    text.writelines(f"{line}\n" for line, keep in zip(lines, kept, strict=True) if keep)
                lines_file.write(numbers[kept].tobytes())
                corpora_file.write(np.full(kept.sum(), number, np.int64).tobytes())
                total += int(kept.sum())
                advance(len(block))
            every_counts[_unique(spec.label, every_counts)] = counts.to_dict()
    fingerprint = hashlib.sha256("".join(writer.close() for writer in writers).encode()).hexdigest()
    if not total:
        raise CorpusError(f"no training pair is left after cleaning: {json.dumps(every_counts)}. "
                          "Check that data.train names the right files, and the limits in data.cleaning.")
    sizes = {path.name: path.stat().st_size for path in aside.iterdir()}
    described = {"pairs": total, "bytes": sizes, "counts": every_counts, "fingerprint": fingerprint,
                 "types": [np.dtype(writer.dtype).name for writer in writers], "crc32": crc32_of_all(aside)}
    write_json(aside / DESCRIPTION, with_checksum(described))
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(aside, directory)
    return described


def _unique(label: str, taken: dict[str, Any]) -> str:
    return label if label not in taken else _unique(f"{label}'", taken)


def _encode(tokenizer: Vocabulary, lines: list[str], threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat ids of sentences, each with `</s>`, and their lengths."""
    flat, offsets = tokenizer.encode_flat(lines, threads)
    lengths = np.diff(offsets)
    return np.insert(flat, offsets[1:], END_ID), lengths + 1


def _short_enough(sides: list[tuple[np.ndarray, np.ndarray]], numbers: np.ndarray, max_pieces: int,
                  counts: Counts) -> np.ndarray:
    """Return the mask of pairs within `max_pieces`, (pairs,) bool, True = kept; counts the others."""
    kept = np.maximum(sides[0][1], sides[1][1]) <= max_pieces + 1
    for line in numbers[~kept].tolist():
        counts.drop("too_many_pieces", line)
    return kept


def _open(recipe: Recipe, directory: Path, described: dict[str, Any]) -> Prepared:
    sides = [open_side(directory, name, dtype) for name, dtype in zip(SIDES, described["types"], strict=True)]
    lines = np.memmap(directory / "lines", dtype=np.int64, mode="r")
    seen = times_pairs_are_seen(recipe, np.memmap(directory / "corpora", dtype=np.int64, mode="r"))
    return Prepared(directory, EncodedCorpus(sides[0], sides[1], seen, lines), described["counts"],
                    described["fingerprint"])


def times_pairs_are_seen(recipe: Recipe, corpora: np.ndarray) -> np.ndarray | None:
    """Return the number of times that each pair is seen in an epoch, (pairs,); None: once.

    corpora: (pairs,), index in `data.train` of each pair's corpus.
    Raises:
        CorpusError: an epoch would have no pair, or more than MOST_REPETITIONS times the text.
    """
    if recipe.data.temperature == 1 and all(spec.weight == 1 for spec in recipe.data.train):
        return None
    sizes = np.bincount(corpora, minlength=len(recipe.data.train))
    asked = sum(size * spec.weight for size, spec in zip(sizes.tolist(), recipe.data.train, strict=True))
    if asked > MOST_REPETITIONS * len(corpora):
        raise CorpusError(f"data.train: with these weights an epoch has {asked:.2g} pairs, more than "
                          f"{MOST_REPETITIONS:,} times the {len(corpora):,} of the text. Lower a weight.")
    seen: np.ndarray = times_seen(sizes, [spec.weight for spec in recipe.data.train], recipe.data.temperature)[corpora]
    if seen.sum() < 1:
        raise CorpusError(f"data.train: with these weights an epoch has {seen.sum():.2g} pairs. Raise a weight.")
    return seen


def times_seen(sizes: np.ndarray, weights: Sequence[float], temperature: float) -> np.ndarray:
    """Return the number of times that each pair of a corpus is seen in an epoch, (corpora,).

    The length of an epoch does not depend on the temperature. sizes: (corpora,), in pairs.
    """
    seen = sizes * np.array(weights)
    chosen = np.where(sizes > 0, np.maximum(seen, 1e-9), 0) ** (1 / temperature)
    return chosen / chosen.sum() * seen.sum() / np.maximum(sizes, 1)


def open_side(directory: Path, name: str, dtype: Any) -> EncodedSide:
    """Return one side of a corpus on disk, memory-mapped."""
    ids = np.memmap(directory / f"{name}.ids", dtype=dtype, mode="r")
    return EncodedSide(ids, np.memmap(directory / f"{name}.offsets", dtype=np.int64, mode="r"))
