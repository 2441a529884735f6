"""Pairs of other languages, which a model learns beside the own ones (`seq2seq init --other`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from seq2seq.check.given_text import MAX_PAIRS_READ, GivenText, recipe_of
from seq2seq.check.pair_checks import LanguageChecker
from seq2seq.errors import CorpusError, OptionError
from seq2seq.languages import is_same_language, main_language, same_code
from seq2seq.recipe import Corpus

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
    checker = LanguageChecker(pairs, recipe.languages)
    for index, side in enumerate(("source", "target")):
        if not checker.can_check or not is_same_language(codes[index], languages[index]):
            continue
        # The own text of the shared language, in the place of that of these pairs, must not look like their other side.
        mixed = [list(pair) for pair, _ in zip(cycle(pairs), own_pairs, strict=False)]
        for pair, own_pair in zip(mixed, own_pairs, strict=True):
            pair[index] = own_pair[index]
        report = checker.report((number, source, target) for number, (source, target) in enumerate(mixed, 1))
        if report.other_languages.get(side) == main_language(codes[1 - index]):
            raise CorpusError(f"{text}: the other side, not the {side}, looks like the {side} of your own pairs, "
                              f"{codes[index]}. {REMEDY}")
    return given
