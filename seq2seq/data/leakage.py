"""Sentences of validation and test sets that also occur in the training text, where a model can learn them by heart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seq2seq import console
from seq2seq.data.corpus import Pair, read_pairs
from seq2seq.languages import main_language
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizers.canonical_text import canonical

EXAMPLES = 3
"""Maximum number of examples of each kind."""
MAX_SHARE = 0.01
"""A warning is given if more than this share of the sources, targets or pairs of a set also occurs in train. A few
sentences, such as "Thank you.", occur in every corpus."""
_OUTER_PUNCTUATION = re.compile(r"^[\W_]+|[\W_]+$")


def comparable(text: str) -> str:
    """Return the text in the form in which sentences of training and held-out text are compared: in canonical form,
    without differences in case and white space, and without punctuation at its ends, unless it has nothing else."""
    folded = " ".join(canonical(text).split()).casefold()
    return _OUTER_PUNCTUATION.sub("", folded) or folded


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


def overlap_warning(key: str, found: Mapping[str, Shared]) -> str:
    """Return a warning about a validation or test set; "" if few of its lines were found. found: see `shared`."""
    if all(len(shared.lines) <= MAX_SHARE * shared.of for shared in found.values()):
        return ""
    return f"{_counts(key, found)}, so that scores on this set are too high. Remove them from train."


def _counts(key: str, found: Mapping[str, Shared]) -> str:
    counts = [f"{len(shared.lines):,} of {shared.of:,} {kind}s ({shared.exact:,} exactly; such as "
              f"{', '.join(shared.examples)})" for kind, shared in found.items() if shared.lines]
    return f"{key}: {', '.join(counts)} also occur in train"


def warn_about_overlap(recipe: Recipe, corpora: Iterable[Corpus]) -> None:
    """Print how many lines of each validation and test set also occur in these training corpora; many are a warning."""
    text = HeldOutText(recipe)
    for key, spec in recipe.data.held_out().items():
        for _ in text.add(key, spec, read_pairs(recipe, spec, context=0)):
            pass
    watched = (pair for spec in corpora for pair in text.watch(spec, read_pairs(recipe, spec, context=0)))
    for _ in console.with_progress("looking for held-out sentences in train", watched, "pairs"):
        pass
    for key in recipe.data.held_out():
        found = text.shared(key)
        if warning := overlap_warning(key, found):
            console.warn(warning)
        elif any(shared.lines for shared in found.values()):
            console.print_message(_counts(key, found))


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
