"""Pairs of other languages, which a model learns beside the own ones (`seq2seq init --other`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from seq2seq.check.given_text import MAX_PAIRS_READ, GivenText, recipe_of
from seq2seq.check.pair_checks import LanguageChecker
from seq2seq.errors import CorpusError, OptionError
from seq2seq.languages import is_same_language, main_language, same_code
from seq2seq.recipe import Corpus, Languages

Pair = tuple[str, str]
REMEDY = "Exchange its sides: give its files (of a table, its columns or languages) in the other order."


def pairs_of_others(corpora: Sequence[Corpus], codes: tuple[str, str], own: GivenText) -> GivenText:
    """Return the pairs of other languages. codes: of their source and target.

    Raises OptionError or CorpusError if the languages are those of the own pairs, or if the sides are exchanged: the
    language that they share with the own pairs must be on the same side, or the model would learn nothing for it.
    """
    languages = own.recipe.languages.codes
    # A language has one code in the recipe: that of the own pairs.
    source, target = (next((mine for mine in languages if same_code(mine, code)), code) for code in codes)
    codes = source, target
    recipe, text = recipe_of(corpora, codes, ("--other-source", "--other-target")), f"--other {corpora[0].label}"
    if set(codes) == set(languages):
        raise OptionError(f"{text}: the languages are those of your own pairs, {codes[0]} and {codes[1]}. Give these "
                          "pairs as training text, without --other. If they are in other languages, give "
                          "--other-source or --other-target.")
    for side, code, other in zip(("source", "target"), codes, reversed(languages), strict=True):
        if is_same_language(code, other):
            raise OptionError(f"{text}: the {side} is in {code}, the language of the other side of your own pairs. "
                              f"{REMEDY}")
    given = GivenText(corpora, recipe)
    pairs, own_pairs = ([pair[1:] for pair in islice(each.pairs(), MAX_PAIRS_READ)] for each in (given, own))
    for index, side in enumerate(("source", "target")):
        if not is_same_language(codes[index], languages[index]):
            continue
        # The text of the shared language must be the same on both: in the place of that of the other pairs, the own one
        # must not look like their other side, nor theirs like the own other side.
        if (_looks_exchanged(index, own_pairs, pairs, recipe.languages)
                or _looks_exchanged(index, pairs, own_pairs, own.recipe.languages)):
            raise CorpusError(f"{text}: the {side} does not look like the {side} of your own pairs, {codes[index]}. "
                              f"{REMEDY} Or correct the languages.")
    return given


def _looks_exchanged(index: int, texts: Sequence[Pair], pairs: Sequence[Pair], languages: Languages) -> bool:
    """Return True if the texts of a side look like the other side of some pairs. index: of the side. languages: of the
    pairs, from which they are learned."""
    checker = LanguageChecker(pairs, languages)
    if not checker.can_check:
        return False
    mixed = [list(pair) for pair, _ in zip(cycle(pairs), texts, strict=False)]
    for pair, text in zip(mixed, texts, strict=True):
        pair[index] = text[index]
    report = checker.report((number, source, target) for number, (source, target) in enumerate(mixed, 1))
    return report.other_languages.get(("source", "target")[index]) == main_language(languages.codes[1 - index])
