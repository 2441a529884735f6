"""Adherence of translations to a glossary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seq2seq import console
from seq2seq.data.glossary import Glossary
from seq2seq.evaluation.scores import Score, Translate, evaluate_tests
from seq2seq.formats.placeholders import Placeholders
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.source import Source
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator


def adherence(glossary: Glossary, sources: Sequence[str], translations: Sequence[str]) -> dict[str, Score]:
    """Return the percentage of the terms in the sources whose prescribed translations are in the translations.

    `terms_exact` counts only the form in the glossary, ignoring case. `terms` counts every inflection. The signatures
    of the scores contain the number of terms. If the sources contain no term, there are no scores.
    """
    total = 0
    kept = {"terms_exact": 0, "terms": 0}
    for source, translation in zip(sources, translations, strict=True):
        found = glossary.find(source)
        total += len({one.term for one in found})
        for name in kept:
            kept[name] += len({one.term for one in found}) - len(
                glossary.missing(found, translation, exact=name == "terms_exact"))
    form = {"terms_exact": "exact", "terms": "inflected"}
    return {name: Score(100 * count / total, f"terms:{total}|form:{form[name]}") for name, count in kept.items()
            } if total else {}


def report_columns(glossary: Glossary | None, sources: Sequence[str], translations: Sequence[str]) -> dict[str, str]:
    """Return how many placeholders of the sources and which percentages of their terms are in the translations, as
    cells of a report, by column (see `report_page.Columns`)."""
    placeholders, columns = Placeholders(), {}
    expected = list(map(placeholders.counts, sources))
    if total := sum(counts.total() for counts in expected):
        kept = sum((wanted & placeholders.counts(text)).total() for wanted, text in zip(expected, translations,
                                                                                        strict=True))
        columns["placeholders and tags kept"] = f"{kept:,} of {total:,}"
    if glossary is not None:
        scores = adherence(glossary, sources, translations)
        columns |= {title: f"{scores[name].value:.1f} %" if name in scores else ""
                    for title, name in (("terms, exact", "terms_exact"), ("terms, any inflection", "terms"))}
    return columns


def recording_adherence(translator: Translator) -> tuple[Translate, list[dict[str, Score]]]:
    """Return a function that translates like a translator, and a list to which each call of the function adds the
    `adherence` of the best translations to the glossary of the translator. Without a glossary, it adds nothing. A
    warning says if no source has a term. Sources can have a context and a tag."""
    adherences: list[dict[str, Score]] = []

    def translate(lines: Sequence[str | Source], **options: Any) -> list[list[Translation]]:
        n_best = translator.translate(lines, **options)
        if translator.glossary is not None:
            texts = [translator.source(line).text for line in lines]
            adherences.append(adherence(translator.glossary, texts, [best.text for best, *_ in n_best]))
            if not adherences[-1]:
                console.warn("no source contains a term of the glossary, so adherence to the glossary is not scored")
        return n_best

    return translate, adherences


def evaluate_tests_with_glossary(translator: Translator, recipe: Recipe, metrics: Sequence[str] | None = None
                                 ) -> dict[str, dict[str, Score]]:
    """Return the scores of each test set in the recipe, with adherence to the glossary; see `scores.evaluate_tests`.

    The glossary is used for the test sets in the direction of the translator, because its terms are not words of other
    source languages. translator: with the glossary.
    """
    languages, tests = translator.languages, recipe.data.test
    other = [name for name, test in tests.items() if recipe.languages_of(test) != languages]
    if other:
        console.warn(f"the glossary is for {languages.source} to {languages.target}; {', '.join(other)} is "
                     "translated without it. For another direction, use --source, --reference and --target-language.")
    translate, adherences = recording_adherence(translator)
    scores: dict[str, dict[str, Score]] = {}
    with_glossary = [name for name in tests if name not in other]
    for names, function in ((with_glossary, translate), (other, replace(translator, glossary=None).translate)):
        scores |= evaluate_tests(translator, recipe, metrics, function, names)
    for name, found in zip(with_glossary, adherences, strict=True):
        scores[name] |= found
    return {name: scores[name] for name in tests}
