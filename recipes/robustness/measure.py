"""Measure BLEU of a model on a test set in capitals, in title case, without final stops, and with typos.

    python recipes/robustness/measure.py MODEL SOURCE REFERENCE [--seed 1]

MODEL is a run or a bundle. Each slice has all lines of SOURCE, changed by one modifier of the training. REFERENCE
is changed in the same way, but never gets typos. The column `cased` compares the translation with the changed
reference: a source in capitals should have a translation in capitals. The column `lower case` compares both in lower
case, so that it shows whether the words are right, whatever their case.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from seq2seq.data.modifiers import robustness_slices
from seq2seq.evaluation.scores import corpus_scores
from seq2seq.translation.translator import Translator


def measure(translate: Callable[[list[str]], list[str]], languages: tuple[str, str], sources: Sequence[str],
            references: Sequence[str], seed: int = 1) -> dict[str, tuple[float, float]]:
    """Return cased and lower-case BLEU of each slice. translate: function that translates lines."""
    scores = {}
    for name, (lines, expected) in robustness_slices(sources, references, languages, seed).items():
        translations = translate(lines)
        lower = [text.lower() for text in translations], [text.lower() for text in expected]
        cased, uncased = (corpus_scores(hypotheses, [wanted], languages[1], ["bleu"])["bleu"].value
                          for hypotheses, wanted in ((translations, expected), lower))
        scores[name] = cased, uncased
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure BLEU of a model on changed copies of a test set.")
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="seed of the typos")
    arguments = parser.parse_args()
    translator = Translator.load(arguments.model, precision="reference")
    sources, references = (path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
                           for path in (arguments.source, arguments.reference))
    if len(sources) != len(references):
        parser.error(f"{arguments.source} has {len(sources):,} lines, {arguments.reference} has {len(references):,}. "
                     "They must match line by line.")
    print("| slice | cased | lower case |\n|---|---|---|")

    def translate(lines: list[str]) -> list[str]:
        return [translations[0].text for translations in translator.translate(lines)]

    scores = measure(translate, translator.languages.pair, sources, references, arguments.seed)
    for name, (cased, uncased) in scores.items():
        print(f"| {name} | {cased:.2f} | {uncased:.2f} |")


if __name__ == "__main__":
    main()
