"""Measure the use of terms that the training text does not contain.

    python recipes/robustness/measure_terms.py DATA PLAIN_MODEL TERMS_MODEL [--source de --target en] [--test NAME]

DATA contains train.SOURCE, train.TARGET, NAME.SOURCE and NAME.TARGET. The glossary has words of the test source that do
not occur in the training source in any inflection. A statistical aligner of all pairs finds their translations in the
references; only probable links of one word to one word are used. PLAIN_MODEL was trained without terms, TERMS_MODEL
with `data.augmentation.terms`. The rows of the table are translations of the lines that contain a term: without the
glossary, with terms as required phrases, with terms inline, and with both.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from seq2seq.data.glossary import Glossary, Term
from seq2seq.data.word_alignment import WordAligner
from seq2seq.documents.adherence import adherence
from seq2seq.evaluation.scores import corpus_scores
from seq2seq.tokenizers.line_splitting import alignment_units
from seq2seq.translation.translator import Translator

MIN_LETTERS = 4
MIN_WEIGHT = 0.8
"""Minimum weight of a link (`WordAligner.weights`)."""


def unseen_terms(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the words of the test set that the training source lacks, with their translations in the references."""
    pairs = [(_words(source), _words(target)) for source, target in [*train, *test]]
    aligner = WordAligner(pairs)
    known = {word.lower() for source, _ in pairs[:len(train)] for word in source}
    terms: dict[str, Counter[str]] = {}
    for source, target in pairs[len(train):]:
        links, weights = aligner.links(source, target), aligner.weights(source, target)
        sources, targets = Counter(link[0] for link in links), Counter(link[1] for link in links)
        for one, other in links:
            word, translation = source[one], target[other]
            if (word.lower() not in known and sources[one] == targets[other] == 1 and word.isalpha()
                    and translation.isalpha() and weights[other, one] >= MIN_WEIGHT
                    and min(len(word), len(translation)) >= MIN_LETTERS):
                terms.setdefault(word, Counter())[translation] += 1
    return {word: tuple(found) for word, found in terms.items()}


def _words(text: str) -> list[str]:
    return [text[begin:end] for begin, end in alignment_units(text)]


def measure(pairs: list[tuple[str, str]], translator: Translator, glossary: Glossary, used: bool, inline: bool,
            required: bool) -> str:
    """Return a row of the table: percentages of exact terms and of terms in any inflection, BLEU, and seconds."""
    began = time.monotonic()
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    if not used:
        found = translator.translate(sources)
    else:
        with_terms = replace(translator.protecting(glossary=glossary), terms_inline=inline, retries=required)
        found = with_terms.translate(sources)
    seconds = time.monotonic() - began
    texts = [best.text for best, *_ in found]
    scores = adherence(glossary, sources, texts)
    bleu = corpus_scores(texts, [references], glossary.target_language, ["bleu"])["bleu"].value
    return f"{scores['terms_exact'].value:.1f} | {scores['terms'].value:.1f} | {bleu:.2f} | {seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the use of terms that the training text does not contain.")
    parser.add_argument("data", type=Path)
    parser.add_argument("plain_model", type=Path)
    parser.add_argument("terms_model", type=Path)
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--test", default="test_2016_flickr")
    arguments = parser.parse_args()

    def read(name: str) -> list[tuple[str, str]]:
        sides = [(arguments.data / f"{name}.{language}").read_text(encoding="utf-8").removesuffix("\n").split("\n")
                 for language in (arguments.source, arguments.target)]
        return list(zip(*sides, strict=True))

    train, test = read("train"), read(arguments.test)
    terms = [Term(word, translations) for word, translations in unseen_terms(train, test).items()]
    every = Glossary(terms, arguments.source, arguments.target)
    inflected = {found.term for source, _ in train for found in every.find(source)}
    glossary = Glossary([term for term in terms if term not in inflected], arguments.source, arguments.target)
    lines = [pair for pair in test if glossary.find(pair[0])]
    print(f"{len(terms) - len(inflected)} terms in {len(lines)} of {len(test)} lines\n")
    print("| model | glossary | terms exact | terms | BLEU | seconds |\n|---|---|---|---|---|---|")
    plain, trained = (Translator.load(model, precision="reference")
                      for model in (arguments.plain_model, arguments.terms_model))
    for name, translator, label, used, inline, required in (
            ("plain", plain, "none", False, False, False), ("plain", plain, "required", True, False, True),
            ("terms", trained, "none", False, False, False), ("terms", trained, "inline", True, True, False),
            ("terms", trained, "inline and required", True, True, True)):
        print(f"| {name} | {label} | {measure(lines, translator, glossary, used, inline, required)}", flush=True)


if __name__ == "__main__":
    main()
