"""Preparation of training corpora: read, clean and tokenise the text once, then memory-map the arrays of ids."""

from __future__ import annotations

import contextlib
import hashlib
import json
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.cleaning import clean, normalized_pair
from seq2seq.data.corpus import Counts, Pair, read_pairs, text_checksums
from seq2seq.data.kept_pairs import KeptPairs, TextBlock, find_kept_pairs
from seq2seq.data.modifiers import NOISE_CHARACTERS
from seq2seq.data.parallel_text import blocks
from seq2seq.errors import CheckpointError, CorpusError, TokenizerError
from seq2seq.files import parse_json, sha256_of
from seq2seq.languages import same_code
from seq2seq.recipe import KEYS_WITHOUT_EFFECT, Corpus, Recipe
from seq2seq.recipe.task import TRANSLATION
from seq2seq.storage.atomic import delete, finish_directory
from seq2seq.storage.checkpoints import (
    bundle_metadata,
    list_checkpoints,
    resolve_model_path,
    stored_characters,
    stored_tags,
)
from seq2seq.storage.directories import as_json, crc32_of, digest, read_file, with_checksum
from seq2seq.storage.growing_files import STATE, GrowingFiles
from seq2seq.storage.tokenizer_files import checksums_of, tokenizers_of_model, tokenizers_of_run
from seq2seq.tokenizers.canonical_text import canonical
from seq2seq.tokenizers.context import CONTEXT_SEPARATOR, SEPARATOR_ID, parse_context, shortened
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.term_markers import TERM_MARKERS, has_term_markers
from seq2seq.tokenizers.tokenizer import END_ID, Tokenizers, Vocabulary, sample_pairs, train_tokenizers
from seq2seq.tokenizers.vocabulary import as_line

FORMAT_VERSION = 2
PREPARED, KEPT = "prepared", "kept"
"""Directory of prepared text in a run; and beginning of the names of directories in it, which are deleted when the text
is prepared (see `kept_pairs`)."""
BLOCK_PAIRS = 8192
"""Number of pairs that are tokenised in one call. In subword sampling, the pairs of one call share a random seed."""

DESCRIPTION = "corpus.json"
SIDES = ("source", "target")
ISOLATED_SHARE = 0.2
"""If the recipe has `data.context`: share of the training pairs whose context is replaced by an empty context."""
MAX_REPETITIONS = 10_000
"""Maximum number of pairs in an epoch, as a multiple of the number of pairs in the corpora. The maximum limits the
memory for the plan of an epoch, which takes 8 bytes per pair."""


@dataclass(frozen=True)
class TrainingText:
    """Text that a training reads.

    corpora: training corpora of the recipe, in which the file of a translation is the missing side of a monolingual
        corpus.
    """

    recipe: Recipe
    corpora: tuple[Corpus, ...]

    @staticmethod
    def of(recipe: Recipe) -> TrainingText:
        """Return the text of a recipe that names files for both sides of all corpora."""
        return TrainingText(recipe, recipe.data.train)


@dataclass(frozen=True)
class Prepared:
    """Prepared training corpus on disk.

    corpus: ids of all pairs, memory-mapped. counts: numbers of pairs read, kept and dropped, by corpus.
    characters: all characters of the text, by side, as the model sees them. fingerprint: sha256 of all ids and sentence
    lengths; equal fingerprints mean equal training sentences. checksums: see `text_checksums`, of all corpora.
    """

    directory: Path
    corpus: EncodedCorpus
    counts: dict[str, dict[str, Any]]
    characters: dict[str, str]
    fingerprint: str
    checksums: list[str]


class Observer:
    """Observer of the preparation of a corpus. This one ignores what it sees; that of `seq2seq check` reports it."""

    def read(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Yield the pairs of the corpus unchanged, as they are before cleaning."""
        return pairs

    def encoded(self, block: EncodedBlock) -> None:
        """Receive pairs after cleaning, before those with too many pieces are dropped."""


UNOBSERVED = Observer()


def cleaned(spec: Corpus, recipe: Recipe, counts: Counts, seen: dict[bytes, bool] | None = None,
            tokenizers: Tokenizers | None = None, observer: Observer = UNOBSERVED) -> Iterator[Pair]:
    """Yield the cleaned pairs of a training corpus, as the model sees them. With `data.context`, a share of them has an
    empty context (see ISOLATED_SHARE).

    counts: updated with the numbers of lines read and dropped. seen: hashes of the pairs of earlier corpora, see
    `clean`. tokenizers: tokenizers of the model; None: those that the recipe's section describes.
    """
    pairs = _without_faulty(observer.read(read_pairs(recipe, spec, counts)), spec.faulty, counts)
    normalize = ((canonical if recipe.tokenizer.is_canonical else str.strip,) * 2 if tokenizers is None else
                 (tokenizers.source.normalized, tokenizers.target.normalized))
    for number, source, target in clean(pairs, recipe.data.cleaning, counts, len(spec.sides),
                                        recipe.languages_of(spec), normalize, seen):
        yield number, _isolated(number, source), target


@dataclass(frozen=True)
class EncodedBlock:
    """Consecutive pairs of a corpus, and their ids.

    numbers: (pairs,), line numbers. sources, targets: texts as the model sees them.
    ids, lengths: for each side, the ids of all its texts, (tokens,), each text with `</s>`; and the number of tokens of
        each text, (pairs,).
    """

    numbers: np.ndarray
    sources: list[Source]
    targets: list[str]
    ids: tuple[np.ndarray, np.ndarray]
    lengths: tuple[np.ndarray, np.ndarray]

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """Texts of sources and targets, without contexts and tags."""
        return [source.text for source in self.sources], self.targets

    @property
    def pieces(self) -> np.ndarray:
        """Number of pieces of the longer side of each pair, (pairs,)."""
        longest: np.ndarray = np.maximum(*self.lengths) - 1                     # without `</s>`
        return longest

    def within_max_pieces(self, max_pieces: int, counts: Counts) -> EncodedBlock:
        """Return the pairs with at most `max_pieces` pieces on each side. counts: updated with the number of others."""
        kept = self.pieces <= max_pieces
        for line in self.numbers[~kept].tolist():
            counts.count_dropped("too_many_pieces", line)
        source, target = ((ids[np.repeat(kept, lengths)], lengths[kept])
                          for ids, lengths in zip(self.ids, self.lengths, strict=True))
        return EncodedBlock(self.numbers[kept], list(compress(self.sources, kept)), list(compress(self.targets, kept)),
                            (source[0], target[0]), (source[1], target[1]))


def prepared_blocks(spec: Corpus, recipe: Recipe, tokenizers: Tokenizers | None, counts: Counts,
                    seen: dict[bytes, bool], threads: int = 1, observer: Observer = UNOBSERVED
                    ) -> Iterator[EncodedBlock]:
    """Yield the pairs of a training corpus on which a model is trained, with their ids.

    counts, seen: see `cleaned`. tokenizers: see `encoded_blocks`.
    """
    pairs = cleaned(spec, recipe, counts, seen, tokenizers, observer)
    for block in encoded_blocks(pairs, recipe, tokenizers, threads):
        observer.encoded(block)
        yield block.within_max_pieces(recipe.data.cleaning.max_pieces, counts)


def encoded_blocks(pairs: Iterable[Pair], recipe: Recipe, tokenizers: Tokenizers | None, threads: int = 1
                   ) -> Iterator[EncodedBlock]:
    """Yield the pairs of a corpus with their ids, as they are prepared for the training. tokenizers: None if there are
    none, so that the texts have no ids."""
    for block in blocks(pairs, BLOCK_PAIRS):
        numbers = np.array([number for number, _, _ in block], np.int64)
        sources, targets = [source for _, source, _ in block], [target for _, _, target in block]
        if tokenizers is None:
            no_ids, no_tokens = np.zeros(0, np.int64), np.zeros(len(block), np.int64)
            yield EncodedBlock(numbers, sources, targets, (no_ids, no_ids), (no_tokens, no_tokens))
            continue
        if recipe.data.context:
            encode = partial(tokenizers.source.encode, threads=threads)
            sources = shortened(sources, encode, recipe.data.cleaning.max_pieces)
        source = _encode(tokenizers.source, sources, threads)
        target = _encode(tokenizers.target, tokenizers.target.target_lines(targets, sources), threads)
        yield EncodedBlock(numbers, sources, targets, (source[0], target[0]), (source[1], target[1]))


def _encode(tokenizer: Vocabulary, lines: Sequence[str | Source], threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the lines in one array, each line with `</s>` at its end, and the lengths of the lines."""
    flat, offsets = tokenizer.encode_flat(lines, threads)
    lengths = np.diff(offsets)
    return np.insert(flat, offsets[1:], END_ID), lengths + 1


def _without_faulty(pairs: Iterator[Pair], faulty: Mapping[int, str], counts: Counts) -> Iterator[Pair]:
    """Yield the pairs except those of lines in `faulty` (see `Corpus.faulty`), which are counted by their reason."""
    for number, source, target in pairs:
        if number in faulty:
            counts.count_dropped(faulty[number], number)
        else:
            yield number, source, target


def _isolated(line: int, source: Source) -> Source:
    """Return a source, for ISOLATED_SHARE of the line numbers without its context. They are spread evenly, and the same
    in every run, because they are chosen by Knuth's multiplicative hash, whose multiplier is near 2 ** 32 divided by
    the golden ratio."""
    is_chosen = (line * 2_654_435_761) % 2**32 < 2**32 * ISOLATED_SHARE
    return replace(source, context=()) if source.context and is_chosen else source


def train_or_load_tokenizers(text: TrainingText, directory: Path, compare_text: bool = True, save: bool = True
                             ) -> Tokenizers:
    """Load the tokenizers in `directory`. Before the first checkpoint, create them if they are missing, or if the text
    has changed.

    New tokenizers are copied from the model in `tokenizer.taken_from` or `training.start_from`, or trained on the text.
    compare_text: False for a rank that does not read the training text. save: False to write no files.
    """
    state = tokenizer_text(text, directory.parent) if compare_text else ""
    parent = directory.parent / PREPARED if save else None
    return tokenizers_of_run(directory, lambda: make_tokenizers(text, parent), state, save)


def tokenizer_text(text: TrainingText, run: Path) -> str:
    """Return a checksum of what the tokenizers of a run are made from: the text, or the tokenizers of a model; "" if
    the run has checkpoints, so that it keeps its tokenizers.
    """
    if list_checkpoints(run):
        return ""
    if (reused := reuse_tokenizers(text.recipe)) is not None:
        return digest({"model": checksums_of(reused)})
    return digest({"text": [checksums_of_files(spec, text.recipe) for spec in text.corpora]})


def checksums_of_files(spec: Corpus, recipe: Recipe) -> list[str]:
    """Return the checksums of the files of a corpus. A data set of the hub has none: it is known by its name."""
    return text_checksums(spec, recipe.data_directory) if spec.paths else []


def make_tokenizers(text: TrainingText, parent: Path | None = None) -> Tokenizers:
    """Return the tokenizers of a new run, without writing them.

    parent: directory of the prepared text, in which the places of the pairs that cleaning keeps remain for `prepare`;
        None: they are not kept.
    """
    recipe = text.recipe
    if (reused := reuse_tokenizers(recipe)) is not None:
        return reused
    targets = recipe.target_languages
    for code, other in combinations(targets, 2):
        if same_code(code, other):
            raise TokenizerError(f"the target languages {code} and {other} of data.train are two codes of one "
                                 "language, for which the model would get two language tokens. Write the same code in "
                                 "all `languages`.")
    languages = recipe.languages.source, recipe.languages.target
    target_positions = None if recipe.task.target_is_text else recipe.model.max_positions - 1
    with contextlib.ExitStack() as stack:
        directory = parent or Path(stack.enter_context(TemporaryDirectory()))
        processes = stack.enter_context(BlockProcesses(recipe.training.threads))
        kept = kept_pairs(text, (recipe.tokenizer.is_canonical,) * 2, directory, processes)
        tokenizers = train_tokenizers(sampled_pairs(text, kept), recipe.tokenizer, recipe.seed,
                                      target_positions=target_positions,
                                      sides=[f"{side} ({code})" for side, code in zip(SIDES, languages, strict=True)],
                                      symbols=[*([CONTEXT_SEPARATOR] if recipe.data.context else []),
                                               *(TERM_MARKERS if recipe.data.augmentation.terms else ())],
                                      languages=targets if len(targets) > 1 else (), characters=kept.characters)
    if recipe.tokenizer.vocab_size == "auto":
        console.print_message(f"tokenizer.vocab_size: auto chose {tokenizers.sizes} for this text")
    return tokenizers


def kept_pairs(text: TrainingText, is_canonical: tuple[bool, bool], parent: Path, processes: BlockProcesses
               ) -> KeptPairs:
    """Return the pairs that cleaning keeps; see `find_kept_pairs`. is_canonical: `Vocabulary.is_canonical`, by side."""
    key = digest({"text": _content_key(text), "canonical": is_canonical})[:16]
    normalize = tuple(canonical if each else str.strip for each in is_canonical)
    return find_kept_pairs(text.recipe, text.corpora, normalize, parent / f"{KEPT}-{key}", processes)


def sampled_pairs(text: TrainingText, kept: KeptPairs) -> Iterator[tuple[str, str]]:
    """Yield the sample of the kept pairs that the tokenizer is trained on, as text without context. If corpora have
    different weights, or a temperature, each has the share of the sample that it has of an epoch."""
    recipe = text.recipe
    weights, sizes, shares = [spec.weight for spec in text.corpora], np.array(kept.sizes), None
    if recipe.data.temperature != 1 or len(set(weights)) > 1:
        shares = (sizes * corpus_repetitions(sizes, weights, recipe.data.temperature)).tolist() if sizes.any() else None
    chosen = np.array(kept.sample(sample_pairs(recipe.tokenizer), recipe.seed, shares), np.int64)
    normalized = canonical if recipe.tokenizer.is_canonical else str.strip
    begin = 0
    with console.progress("reading text for the tokenizer", len(chosen), unit="pairs") as advance:
        for number, (spec, size) in enumerate(zip(text.corpora, kept.sizes, strict=True)):
            places = chosen[(chosen >= begin) & (chosen < begin + size)] - begin
            begin += size
            for _, source, target in kept.texts(recipe, spec, kept.rows_at(number, places)):
                advance(1)
                source, target = normalized_pair(source, target, (normalized, normalized))
                yield as_line(replace(source, context=None)), target
    console.print_message("training the tokenizer")


def reuse_tokenizers(recipe: Recipe) -> Tokenizers | None:
    """Return the tokenizers of the model in `tokenizer.taken_from` or `training.start_from`; None if neither is set."""
    model = recipe.tokenizer_model
    if model is None:
        return None
    tokenizers = tokenizers_of_model(model)
    if not recipe.task.has_source:
        return Tokenizers(tokenizers.target, tokenizers.target)
    if recipe.task.target_is_text and tokenizers.joint != recipe.tokenizer.joint:
        raise TokenizerError(f"the tokenizer of {model} {'is joint' if tokenizers.joint else 'is not joint'}: write "
                             f"tokenizer.joint: {str(tokenizers.joint).lower()}.")
    if recipe.data.augmentation.terms and not has_term_markers(tokenizers.source):
        raise TokenizerError(f"the tokenizer of {model} has no pieces {' and '.join(TERM_MARKERS)} for terms. Leave "
                             "data.augmentation.terms out, or take a tokenizer that was trained with it.")
    if recipe.data.context and tokenizers.source.encode([CONTEXT_SEPARATOR])[0][-1:] != [SEPARATOR_ID]:
        raise TokenizerError(f"the tokenizer of {model} has no piece {CONTEXT_SEPARATOR} for data.context. Take a "
                             "tokenizer that was trained with it, or let this recipe train one.")
    _require_language_tokens(recipe, tokenizers.source, model)
    return tokenizers


def _require_language_tokens(recipe: Recipe, vocabulary: Vocabulary, model: Path) -> None:
    """Raise TokenizerError if the recipe needs a language token that its tokenizer lacks. A model of a single target
    language needs it only if it is fine-tuned from a model with language tokens. model: model of the tokenizer."""
    if recipe.task is not TRANSLATION:
        return
    targets, known = recipe.target_languages, vocabulary.languages
    missing = [target for target in targets if vocabulary.language_id(target) is None]
    if missing and known and recipe.training.start_from is not None:
        raise TokenizerError(f"the model {model} has language tokens for {', '.join(known)}, but not for "
                             f"{' and '.join(missing)}. Write the code of the model in `languages`, or train a new "
                             "model.")
    if missing and len(targets) > 1:
        raise TokenizerError(f"the tokenizer of {model} has no language tokens for {' and '.join(missing)}. Take a "
                             "tokenizer that was trained with them, or let this recipe train one.")


def prepare(text: TrainingText, tokenizers: Tokenizers, parent: Path, processes: int | None = None, prepared: str = ""
            ) -> Prepared:
    """Return the training corpora as ids, stored in a subdirectory of `parent`.

    The text is prepared again if the files are missing or damaged, or if the text, the cleaning or the tokenizers have
    changed. An interrupted preparation goes on behind its last committed block. The files depend neither on
    interruptions nor on the number of processes.

    processes: number of processes; None: one for each core.
    prepared: name of the subdirectory if another rank has prepared the text and verified its checksums, else "".
    """
    directory = parent / (prepared or _content_key(text, tokenizers))
    if not prepared and not _is_intact(directory):
        delete(directory)                                                       # if it is damaged
        with BlockProcesses(processes) as pool:
            _write(text, tokenizers, directory, pool)
    return _open(text, directory, parse_json(read_file(directory / DESCRIPTION)))


def _is_intact(directory: Path) -> bool:
    """Return True if the prepared text exists and all its files have the checksums in its description."""
    if not directory.exists():
        return False
    path = directory / DESCRIPTION
    try:
        description = parse_json(read_file(path))
        if description != with_checksum(description):
            raise ValueError("its checksum is wrong")
        for path in (directory / name for name in description["crc32"]):
            if crc32_of(path) != description["crc32"][path.name]:
                raise ValueError("its checksum is wrong")
    except (CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        console.warn(f"{path} is damaged ({error}). The text is prepared again.")
        return False
    return True


def _content_key(text: TrainingText, tokenizers: Tokenizers | None = None) -> str:
    """Return a hash of everything that determines the prepared arrays, such as text files, cleaning and tokenizers.
    tokenizers: None for what does not depend on them."""
    recipe = text.recipe
    description = [
        FORMAT_VERSION,
        recipe.data.cleaning.model_dump(),
        [tokenizers.source.fingerprint, tokenizers.target.fingerprint] if tokenizers else [],
        recipe.keeps_training_text,                                             # if True, the text is stored, too
        *([recipe.data.context] if recipe.data.context else []),
        {side: "".join(sorted(known)) for side, known in known_characters(recipe).items()},
        [(spec.label, spec.model_dump(exclude={"weight", *spec.path_keys, *KEYS_WITHOUT_EFFECT}),
          checksums_of_files(spec, recipe)) for spec in text.corpora],
    ]
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


class SideWriter:
    """Appends tokenised sentences of one language to a file of ids and a file of offsets, which may have some."""

    def __init__(self, ids: BinaryIO, offsets: BinaryIO, vocab_size: int) -> None:
        self.ids, self.offsets, self.dtype = ids, offsets, id_type(vocab_size)
        self.end = ids.tell() // np.dtype(self.dtype).itemsize
        if not offsets.tell():
            offsets.write(np.zeros(1, np.int64).tobytes())

    def append(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append sentences. ids: (tokens,), each sentence with `</s>`. lengths: (sentences,), in tokens."""
        self.ids.write(ids.astype(self.dtype).tobytes())
        self.offsets.write((self.end + np.cumsum(lengths, dtype=np.int64)).tobytes())
        self.end += len(ids)


def id_type(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Return uint16 if it can hold all ids, else uint32. uint16 halves the memory traffic of gathering batches."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


@dataclass(frozen=True)
class _EncodedColumns:
    """Result of a block of kept pairs, for the files of the prepared text. numbers, ids, lengths: see `EncodedBlock`.

    texts: lines of each side, in UTF-8; empty if they are not kept. characters: those of each side.
    counts: of pairs with too many pieces.
    """

    numbers: np.ndarray
    ids: list[np.ndarray]
    lengths: list[np.ndarray]
    texts: list[bytes]
    characters: list[set[str]]
    counts: Counts


def _encoded(recipe: Recipe, tokenizers: Tokenizers, block: TextBlock) -> _EncodedColumns:
    """Encode a block of kept pairs."""
    normalize = tokenizers.source.normalized, tokenizers.target.normalized
    pairs = ((number, *normalized_pair(_isolated(number, source), target, normalize))
             for number, source, target in block.pairs())
    counts = Counts()
    (encoded,) = [block.within_max_pieces(recipe.data.cleaning.max_pieces, counts)
                  for block in encoded_blocks(pairs, recipe, tokenizers)]
    texts = [[f"{as_line(line)}\n" for line in lines] for lines in (encoded.sources, encoded.targets)
             ] if recipe.keeps_training_text else []
    return _EncodedColumns(
        encoded.numbers, [ids.astype(id_type(vocabulary.vocab_size)) for ids, vocabulary in
                          zip(encoded.ids, (tokenizers.source, tokenizers.target), strict=True)],
        list(encoded.lengths), ["".join(lines).encode() for lines in texts],
        [set().union(*texts) for texts in encoded.texts], counts)


def _write(text: TrainingText, tokenizers: Tokenizers, directory: Path, processes: BlockProcesses) -> None:
    """Write the prepared text, and delete what other preparations have left unfinished."""
    recipe, unfinished = text.recipe, directory.with_name(f"{directory.name}-unfinished")
    is_canonical = tokenizers.source.is_canonical, tokenizers.target.is_canonical
    kept = kept_pairs(text, is_canonical, directory.parent, processes)
    names = [f"{side}.{kind}" for side in SIDES for kind in ("ids", "offsets")]
    texts = [f"{side}.txt" for side in SIDES] if recipe.keeps_training_text else []
    with GrowingFiles(unfinished, [*names, "lines", "corpora", *texts]) as files:
        counts, characters = _write_files(text, tokenizers, kept, files, processes)
    for spec, of_corpus in zip(text.corpora, counts, strict=True):
        if of_corpus.forbidden_characters:
            console.warn(f"{spec.label}: {of_corpus.repairs()[-1]}")
    counts_by_corpus: dict[str, dict[str, Any]] = {}
    checksums: list[str] = []
    for spec, of_corpus in zip(text.corpora, counts, strict=True):
        counts_by_corpus[unique_label(spec.label, counts_by_corpus)] = of_corpus.to_dict()
        checksums += text_checksums(spec, recipe.data_directory, of_corpus)
    pairs = (unfinished / "lines").stat().st_size // 8
    if not pairs:
        delete(unfinished)
        raise CorpusError(f"no training pair is left after cleaning: {json.dumps(counts_by_corpus)}. "
                          "Check the files in data.train and the limits in data.cleaning.")
    fingerprint = hashlib.sha256("".join(sha256_of(unfinished / name) for name in names).encode()).hexdigest()
    types = [np.dtype(id_type(vocabulary.vocab_size)).name for vocabulary in (tokenizers.source, tokenizers.target)]
    description = {"pairs": pairs, "counts": counts_by_corpus, "fingerprint": fingerprint, "text_sha256": checksums,
                   "characters": {side: "".join(sorted(found)) for side, found in characters.items()}, "types": types,
                   "crc32": {path.name: crc32_of(path) for path in sorted(unfinished.iterdir()) if path.name != STATE}}
    (unfinished / STATE).unlink()
    finish_directory(unfinished, directory, {DESCRIPTION: as_json(description)})
    for leftover in (*directory.parent.glob(f"{KEPT}-*"), *directory.parent.glob("*-unfinished")):
        delete(leftover)


def _write_files(text: TrainingText, tokenizers: Tokenizers, kept: KeptPairs, files: GrowingFiles,
                 processes: BlockProcesses) -> tuple[list[Counts], dict[str, set[str]]]:
    """Append the kept pairs to the files. Return the counts of all corpora, and the characters of each side.

    State of the files: `corpus`, number of the corpus that is being encoded; `done`, number of its kept pairs that are;
    `counts` of the pairs with too many pieces, by corpus; `characters` of each side.
    """
    recipe, state = text.recipe, files.state
    writers = [SideWriter(files.files[f"{side}.ids"], files.files[f"{side}.offsets"], vocabulary.vocab_size)
               for side, vocabulary in zip(SIDES, (tokenizers.source, tokenizers.target), strict=True)]
    first, done = state.get("corpus", 0), state.get("done", 0)
    too_long = [Counts(**counts) for counts in state.get("counts", [vars(Counts()) for _ in text.corpora])]
    characters = {side: found | set(state.get("characters", {}).get(side, ""))
                  for side, found in known_characters(recipe).items()}
    encode = partial(_encoded, recipe, tokenizers)

    def commit(corpus: int, done: int, now: bool = False) -> None:
        files.commit({"corpus": corpus, "done": done, "counts": list(map(vars, too_long)),
                      "characters": {side: "".join(sorted(found)) for side, found in characters.items()}}, now)

    with console.progress("tokenising", sum(kept.sizes), sum(kept.sizes[:first]) + done, unit="pairs") as advance:
        for number, spec in enumerate(text.corpora[first:], first):
            pairs = kept.texts(recipe, spec, kept.rows(number, done))
            unencoded = (TextBlock.of(0, block) for block in blocks(pairs, BLOCK_PAIRS))
            sizes = _block_sizes(kept.sizes[number] - done)
            for size, block in zip(sizes, processes.map(encode, unencoded), strict=True):
                for writer, ids, lengths in zip(writers, block.ids, block.lengths, strict=True):
                    writer.append(ids, lengths)
                files.files["lines"].write(block.numbers.tobytes())
                files.files["corpora"].write(np.full(len(block.numbers), number, np.int64).tobytes())
                for side, lines in zip(SIDES, block.texts, strict=False):
                    files.files[f"{side}.txt"].write(lines)
                for side, found in zip(characters, block.characters, strict=False):
                    characters[side] |= found
                too_long[number].add_dropped(block.counts)
                done += size
                commit(number, done)
                advance(size)
            done = 0
    commit(len(text.corpora), 0, now=True)
    for counts, of_pieces in zip(kept.counts, too_long, strict=True):
        counts.add_dropped(of_pieces)
    return kept.counts, characters


def _block_sizes(pairs: int) -> list[int]:
    """Return the numbers of pairs of the blocks into which `pairs` pairs are divided."""
    return [min(BLOCK_PAIRS, pairs - begin) for begin in range(0, pairs, BLOCK_PAIRS)]


def known_characters(recipe: Recipe) -> dict[str, set[str]]:
    """Return the characters that a model sees in addition to those of its training text, by side: those that
    `data.augmentation` adds, and those of the training text of the model in `training.start_from`. If these are not
    known, return {}: then no character is known to be new, either."""
    augmentation, start = recipe.data.augmentation, recipe.training.start_from
    added = [NOISE_CHARACTERS * (augmentation.noise > 0), "".join(TERM_MARKERS) * (augmentation.terms > 0),
             string.printable * (augmentation.tags + augmentation.placeholders > 0)]
    before = ("", "") if start is None else [
        stored_characters(bundle_metadata(resolve_model_path(recipe.directory / start)), side) for side in SIDES]
    if start is not None and not any(before):
        return {}
    return {side: set("".join([*added, known])) for side, known in zip(SIDES, before, strict=True)}


def known_tags(recipe: Recipe) -> tuple[str, ...]:
    """Return the tags of the training corpora, and those of the model in `training.start_from`, which a model knows."""
    start = recipe.training.start_from
    before = () if start is None else stored_tags(bundle_metadata(resolve_model_path(recipe.directory / start)))
    return tuple(dict.fromkeys((*recipe.tags, *before)))


def prepared_text(text: TrainingText, directory: Path) -> Iterator[tuple[Source, str]]:
    """Yield the pairs in the text files of a prepared corpus. They exist if `recipe.keeps_training_text` is true."""
    languages = [text.recipe.language_of(spec) for spec in text.corpora]
    source_languages = [text.recipe.languages_of(spec).source or "" for spec in text.corpora]
    tags = [spec.tag or "" for spec in text.corpora]
    beginnings = [as_line(Source("", tag=tag)) for tag in tags]
    corpora = np.memmap(directory / "corpora", dtype=np.int64, mode="r")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(directory / f"{side}.txt", encoding="utf-8", newline="\n")) for side in SIDES]
        for number, source, target in zip(corpora, *files, strict=True):
            line = source.removesuffix("\n")
            parsed = parse_context(line) if text.recipe.data.context else Source(line)
            yield (replace(parsed, text=parsed.text.removeprefix(beginnings[number]), language=languages[number],
                           source_language=source_languages[number], tag=tags[number]), target.removesuffix("\n"))


def unique_label(label: str, taken: Mapping[str, Any]) -> str:
    """Return the label of a corpus, with an apostrophe for each other corpus of this label."""
    return label if label not in taken else unique_label(f"{label}'", taken)


def _open(text: TrainingText, directory: Path, description: dict[str, Any]) -> Prepared:
    sides = [open_side(directory, name, dtype) for name, dtype in zip(SIDES, description["types"], strict=True)]
    lines = np.memmap(directory / "lines", dtype=np.int64, mode="r")
    repetitions = pair_repetitions(text, np.memmap(directory / "corpora", dtype=np.int64, mode="r"))
    return Prepared(directory, EncodedCorpus(sides[0], sides[1], repetitions, lines), description["counts"],
                    description["characters"], description["fingerprint"], description["text_sha256"])


def pair_repetitions(text: TrainingText, corpora: np.ndarray) -> np.ndarray | None:
    """Return the average number of times that each pair occurs in an epoch, (pairs,); None if each pair occurs once.

    corpora: (pairs,), index of each pair's corpus in `text.corpora`.
    """
    temperature, weights = text.recipe.data.temperature, [spec.weight for spec in text.corpora]
    if temperature == 1 and all(weight == 1 for weight in weights):
        return None
    sizes = np.bincount(corpora, minlength=len(weights))
    epoch_pairs = sum(size * weight for size, weight in zip(sizes.tolist(), weights, strict=True))
    if epoch_pairs > MAX_REPETITIONS * len(corpora):
        raise CorpusError(f"data.train: with these weights an epoch has {epoch_pairs:.2g} pairs, more than "
                          f"{MAX_REPETITIONS:,} times the {len(corpora):,} pairs of the corpora. Lower a weight.")
    repetitions: np.ndarray = corpus_repetitions(sizes, weights, temperature)[corpora]
    if repetitions.sum() < 1:
        raise CorpusError(f"data.train: with these weights an epoch has {repetitions.sum():.2g} pairs. Raise a weight.")
    return repetitions


def corpus_repetitions(sizes: np.ndarray, weights: Sequence[float], temperature: float) -> np.ndarray:
    """Return for each corpus the average number of times that each of its pairs occurs in an epoch, (corpora,).

    Corpora are sampled in proportion to (size * weight) ** (1 / temperature). The temperature does not change the
    length of an epoch.

    sizes: (corpora,), number of pairs of each corpus. weights: `weight` of each corpus.
    """
    weighted = sizes * np.array(weights)
    shares = np.where(sizes > 0, np.maximum(weighted, 1e-9), 0) ** (1 / temperature)
    return shares / shares.sum() * weighted.sum() / np.maximum(sizes, 1)


def open_side(directory: Path, name: str, dtype: Any) -> EncodedSide:
    """Return one side of a corpus on disk, memory-mapped."""
    ids = np.memmap(directory / f"{name}.ids", dtype=dtype, mode="r")
    return EncodedSide(ids, np.memmap(directory / f"{name}.offsets", dtype=np.int64, mode="r"))
