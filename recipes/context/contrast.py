"""Measure how often a model prefers the right translation if only the context decides which one is right.

    python recipes/context/contrast.py RUN [--data DIRECTORY]

For each line of contrast.tsv (generate.py), the log-probabilities of the right and of the wrong translation are
compared, with the two sentences of context and without them. If the model has no context, only the second comparison
is made. Prints the accuracy in percent for pronouns and for ambiguous words, and the BLEU of isolated sentences.
"""

import argparse
from pathlib import Path

from seq2seq import Source, Translator, corpus_scores
from seq2seq.translation.scoring import pair_scores

DATA = Path(__file__).parents[2] / "runs" / "context" / "data"


def main() -> None:
    """Print the accuracies of a model."""
    parser = argparse.ArgumentParser(description="Measure how often a model prefers the right translation.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    translator = Translator.load(arguments.model, "cpu", "reference")
    rows = [line.split("\t") for line in (arguments.data / "contrast.tsv").read_text(encoding="utf-8").splitlines()]
    for label, uses_context in (("with context", True), ("without context", False)):
        if uses_context and not translator.context:
            continue
        right, wrong = ([score.log_probability for score in pair_scores(translator, [
            (Source(row[2], tuple(row[:2]) if uses_context else None), row[column]) for row in rows])]
            for column in (3, 4))
        for phenomenon in ("pronoun", "word"):
            correct = [one > other for one, other, row in zip(right, wrong, rows, strict=True) if row[5] == phenomenon]
            print(f"{phenomenon:8} {label:16} {100 * sum(correct) / len(correct):5.1f} % of {len(correct)}")
    source, target = ((arguments.data / f"isolated.{language}").read_text(encoding="utf-8").splitlines()
                      for language in ("en", "de"))
    # An empty line after each sentence ends its document.
    translated = [n_best[0].text for n_best in translator.translate([text for line in source for text in (line, "")])]
    print(f"BLEU of isolated sentences {corpus_scores(translated[::2], [target], 'de', ['bleu'])['bleu'].value:.2f}")


if __name__ == "__main__":
    main()
