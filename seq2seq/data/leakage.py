"""Sentences of validation and test sets that also occur in the training text, where a model can learn them by heart."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.corpus import Pair, read_pairs, text_checksums
from seq2seq.data.kept_pairs import TextBlock, text_blocks, total_lines
from seq2seq.files import parse_json
from seq2seq.languages import main_language
from seq2seq.recipe import Corpus, Recipe
from seq2seq.storage.atomic import make_directories, replace_file
from seq2seq.storage.directories import as_json, digest
from seq2seq.tokenizers.canonical_text import canonical

OVERLAP = "held_out.json"
EXAMPLES = 3
"""Maximum number of examples of each kind."""
MAX_SHARE = 0.01
"""A warning is given if more than this share of the sources, targets or pairs of a set also occurs in train. A few
sentences, such as "Thank you.", occur in every corpus."""


def comparable(text: str) -> str:
    """Return the text in the form in which sentences of training and held-out text are compared: in canonical form,
    without differences in case, white space and punctuation, and without other signs at its ends, unless it has nothing
    else. So don't is don’t, and text whose punctuation was separated from its words is the same text."""
    text = canonical(text)
    words = " ".join(text.translate(_punctuation()).split()).casefold()
    begin, end = 0, len(words)
    while begin < end and _is_sign(words[begin]):
        begin += 1
    while begin < end and _is_sign(words[end - 1]):
        end -= 1
    return words[begin:end] or " ".join(text.split()).casefold()


@cache
def _punctuation() -> dict[int, str]:
    """Return a space for all punctuation of Unicode, and for the accents that are written as apostrophes."""
    return {code: " " for code in range(0x20000) if unicodedata.category(chr(code))[0] == "P" or chr(code) in "`´"}


def _is_sign(character: str) -> bool:
    """Return True for white space and signs. Vowel signs and other combining marks are parts of words."""
    return not character.isalnum() and unicodedata.category(character)[0] != "M"


@dataclass
class Shared:
    """Held-out lines of one kind that also occur in the training text. of: number of lines that were compared. lines:
    their numbers. exact: number of those that occur without a change of case, white space, punctuation or characters
    that look the same. examples: the first lines, each with its place in the training text."""

    of: int = 0
    lines: list[int] = field(default_factory=list)
    exact: int = 0
    examples: list[str] = field(default_factory=list)


Unit = tuple[str, ...]
"""A text after its language; or, for a pair, both languages and both texts in the order of the languages."""


class HeldOutText:
    """Validation and test sets of a recipe, whose sentences are looked for in training text.

    A sentence is found on both sides of the training text if the languages fit, because a model of several directions
    may be tested in the reverse direction. If both sides have the same language, they are compared side by side.
    Memory holds the held-out text only.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._sets: dict[str, tuple[list[str], list[tuple[int, list[str]]]]] = {}       # languages, lines
        self._wanted: set[Unit] = set()
        self._found: dict[Unit, str] = {}                                       # place in the training text
        self._exact: set[Unit] = set()                                          # with texts as they are written

    def add(self, key: str, spec: Corpus, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs of a validation or test set unchanged, and add them to the sentences that are looked for.
        key: see `Data.held_out`."""
        languages, lines = _languages(self._recipe, spec), list[tuple[int, list[str]]]()
        self._sets[key] = languages, lines
        for number, source, target in pairs:
            texts = [source.text, target][-len(languages):]
            lines.append((number, texts))
            self._wanted.update(_units(languages, list(map(comparable, texts))).values())
            yield number, source, target

    def watch(self, spec: Corpus, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs of a training corpus unchanged, and look for the held-out sentences in them."""
        languages = _languages(self._recipe, spec)
        files = {side: getattr(spec, side) for side in spec.sides} if spec.form == "files" else {}
        names = {side: Path(str(file)).name for side, file in files.items() if file}
        for number, source, target in pairs:
            texts = [source.text, target][-len(languages):]
            found = _units(languages, list(map(comparable, texts)))
            if not self._wanted.isdisjoint(found.values()):
                exact = _units(languages, texts)
                for kind, unit in found.items():
                    if unit in self._wanted:
                        self._found.setdefault(unit, f"{names.get(kind, spec.label)}:{number}")
                        self._exact.add(exact[kind])
            yield number, source, target

    def found_in(self, spec: Corpus, block: TextBlock) -> tuple[int, dict[Unit, str], set[Unit]]:
        """Look for the held-out sentences in a block of a training corpus, for `add_found` in another process. Return
        the number of pairs of the block as well."""
        searched = copy(self)
        searched._found, searched._exact = {}, set()
        pairs = sum(1 for _ in searched.watch(spec, block.pairs()))
        return pairs, searched._found, searched._exact

    def add_found(self, found: Mapping[Unit, str], exact: Set[Unit]) -> None:
        """Add the result of `found_in` for the next block."""
        self._found = {**found, **self._found}
        self._exact |= exact

    def shared(self, key: str) -> dict[str, Shared]:
        """Return the lines of a set found, by kind: `source`, `target`, `pair`; `text` of a language model."""
        languages, lines = self._sets[key]
        result: dict[str, Shared] = {}
        for number, texts in lines:
            exact = _units(languages, texts)
            for kind, unit in _units(languages, list(map(comparable, texts))).items():
                shared = result.setdefault(kind, Shared())
                shared.of += 1
                if unit in self._found:
                    shared.lines.append(number)
                    shared.exact += exact[kind] in self._exact
                    if len(shared.examples) < EXAMPLES:
                        shared.examples.append(f"line {number} at {self._found[unit]}")
        return result

    def in_two_sets(self) -> Iterator[str]:
        """Yield a warning about each test set of which many lines (pairs, or texts) are in a validation set."""
        units = {key: [unit for _, texts in lines
                       for unit in list(_units(languages, list(map(comparable, texts))).values())[-1:]]
                 for key, (languages, lines) in self._sets.items()}
        for test, valid in product(units, units):
            if test.startswith("test") and valid.startswith("valid"):
                shared = sum(map(set(units[valid]).__contains__, units[test]))
                if shared > MAX_SHARE * len(units[test]):
                    yield (f"{test}: {shared:,} of {len(units[test]):,} lines are also in {valid}, by which the best "
                           "model is chosen, so that scores on this set are too high. Give another test set.")


def overlap_warning(key: str, found: Mapping[str, Shared]) -> str:
    """Return a warning about a validation or test set; "" if few of its lines were found. found: see `shared`."""
    if all(len(shared.lines) <= MAX_SHARE * shared.of for shared in found.values()):
        return ""
    return f"{_counts(key, found)}, so that scores on this set are too high. Remove them from train."


def _counts(key: str, found: Mapping[str, Shared]) -> str:
    counts = [f"{len(shared.lines):,} of {shared.of:,} {kind}s ({shared.exact:,} exactly; such as "
              f"{', '.join(shared.examples)})" for kind, shared in found.items() if shared.lines]
    return f"{key}: {', '.join(counts)} also occur in train"


def warn_about_overlap(recipe: Recipe, corpora: Sequence[Corpus], directory: Path) -> None:
    """Print how many lines of each validation and test set also occur in these training corpora; many are a warning.

    directory: the result is stored there, and used again until a text changes.
    """
    specs = [*recipe.data.held_out().items(), *(("train", spec) for spec in corpora)]
    key = digest({"comparable": 3, "texts": [[key, spec.model_dump(), recipe.languages_of(spec).codes,
                             text_checksums(spec, recipe.data_directory) if spec.paths else []]
                            for key, spec in specs]})
    stored: dict[str, Any] = {}
    with suppress(OSError, ValueError, AttributeError):
        found = parse_json((directory / OVERLAP).read_bytes())
        stored = found if found.get("key") == key else {}
    if not stored:
        stored = {"key": key, "messages": list(_messages(recipe, corpora))}
        make_directories(directory)
        replace_file(directory / OVERLAP, as_json(stored))
    for message, is_warning in stored["messages"]:
        (console.warn if is_warning else console.print_message)(message)


def _messages(recipe: Recipe, corpora: Sequence[Corpus]) -> Iterator[tuple[str, bool]]:
    """Yield a message about each validation or test set of which lines occur in train, and True if it is a warning."""
    text = HeldOutText(recipe)
    for key, spec in recipe.data.held_out().items():
        for _ in text.add(key, spec, read_pairs(recipe, spec, context=0)):
            pass
    total = total_lines(recipe, corpora)
    with (BlockProcesses(recipe.training.threads) as processes,
          console.progress("looking for held-out sentences in train", total, unit="pairs") as advance):
        for spec in corpora:
            for pairs, found, exact in processes.map(partial(text.found_in, spec), text_blocks(
                    read_pairs(recipe, spec, context=0))):
                text.add_found(found, exact)
                advance(pairs)
    yield from ((warning, True) for warning in text.in_two_sets())
    for key in recipe.data.held_out():
        shared = text.shared(key)
        if warning := overlap_warning(key, shared):
            yield warning, True
        elif any(each.lines for each in shared.values()):
            yield _counts(key, shared), False


def _languages(recipe: Recipe, spec: Corpus) -> list[str]:
    """Return the language of each side. Two sides of the same language are told apart."""
    codes = [main_language(code) for code in recipe.languages_of(spec).codes][-len(spec.sides):]
    if len(set(codes)) == len(codes):
        return codes
    return [f"{side} in {code}" for side, code in zip(spec.sides, codes, strict=True)]


def _units(languages: Sequence[str], texts: Sequence[str]) -> dict[str, Unit]:
    """Return what is compared of a line, by kind: each text that is not empty, and the pair if none is."""
    kinds = ("source", "target") if len(texts) == 2 else ("text",)
    units = {kind: (language, text) for kind, language, text in zip(kinds, languages, texts, strict=True) if text}
    if len(units) == 2:
        first, second = sorted(units.values())
        return {**units, "pair": (*first, *second)}
    return dict(units)
