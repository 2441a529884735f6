"""Adherence of translations to a glossary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seq2seq import console
from seq2seq.documents.glossary import Glossary
from seq2seq.documents.protected_translation import ProtectedTranslator
from seq2seq.evaluation.scores import Score, evaluate_tests
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.context import parse_context
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.translator import Translation, Translator


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


class GlossaryEvaluation:
    """Translator of test sets that also scores the adherence of the translations to a glossary."""

    def __init__(self, translator: ProtectedTranslator) -> None:
        """translator: translator with a glossary."""
        self._translator = translator
        self._results: list[dict[str, Score]] = []

    def translate(self, lines: Sequence[str | Source], **options: Any) -> list[list[Translation]]:
        """Translate a test set; see `ProtectedTranslator.translate`."""
        n_best = self._translator.translate(lines, **options)
        assert self._translator.glossary is not None
        texts = [parse_context(line).text if self._translator.translator.context else as_line(line) for line in lines]
        scores = adherence(self._translator.glossary, texts, [best.text for best, *_ in n_best])
        if not scores:
            console.warn("no source contains a term of the glossary, so adherence to the glossary is not scored")
        self._results.append(scores)
        return n_best

    def next_scores(self) -> dict[str, Score]:
        """Return the scores of the first translated test set whose scores have not been returned yet."""
        return self._results.pop(0)

    def evaluate_tests(self, translator: Translator, recipe: Recipe, metrics: Sequence[str] | None = None,
                       ) -> dict[str, dict[str, Score]]:
        """Return the scores of each test set in the recipe; see `scores.evaluate_tests`. The glossary is used for the
        test sets in the direction of the translator, because its terms are not words of other source languages."""
        languages, tests = translator.languages, recipe.data.test
        other = [name for name, test in tests.items() if recipe.languages_of(test) != languages]
        if other:
            console.warn(f"the glossary is for {languages.source} to {languages.target}; {', '.join(other)} is "
                         "translated without it. For another direction, use --source, --reference and --language.")
        scores: dict[str, dict[str, Score]] = {}
        for names, translate in ((tests.keys() - other, self.translate), (other, None)):
            chosen = {name: test for name, test in tests.items() if name in names}
            data = recipe.data.model_copy(update={"test": chosen})
            found = evaluate_tests(translator, recipe.model_copy(update={"data": data}), metrics, translate)
            scores |= {name: one | (self.next_scores() if translate else {}) for name, one in found.items()}
        return {name: scores[name] for name in tests}
