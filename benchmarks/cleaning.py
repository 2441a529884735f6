"""Precision and recall of cleaning and `check` in finding bad pairs, against human labels.

    python -m benchmarks.cleaning --data noisy_en_de

The directory contains v3.en-de.en, v3.en-de.de and v3.en-de.label. Line by line, they are the English and German
sentences of v3.en-de in github.com/paracrawl/human-evaluations (CC BY-SA 4.0) and their human labels. Pairs with the
labels L (wrong language), A (misaligned) and T (bad tokenisation) count as bad. The second table evaluates the lines of
each kind that `seq2seq check` reports. For this table, lingua checks all pairs instead of a sample of 300.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from seq2seq.check import pair_checks, results
from seq2seq.check.corpus_statistics import Sample, scanned
from seq2seq.data.cleaning import clean
from seq2seq.data.corpus import Counts, read_lines
from seq2seq.errors import UserError
from seq2seq.recipe import Cleaning, Languages
from seq2seq.tokenizers.source import Source

BAD = {"L", "A", "T"}
RULES: dict[str, dict[str, Any]] = {
    "length ratio 3, duplicates": {"max_length_ratio": 3.0, "remove_duplicates": True, "remove_identical": True},
    "length ratio 2, duplicates": {"max_length_ratio": 2.0, "remove_duplicates": True, "remove_identical": True},
    "length ratio 1.5, duplicates": {"max_length_ratio": 1.5, "remove_duplicates": True, "remove_identical": True},
    "numbers": {"min_number_agreement": 0.7},
    "length deviation 3": {"max_length_deviation": 3.0},
    "wrong side": {"language": "sides"},
    "lingua": {"language": "lingua"},
    "numbers, deviation": {"min_number_agreement": 0.7, "max_length_deviation": 3.0},
    "numbers, deviation, wrong side": {"min_number_agreement": 0.7, "max_length_deviation": 3.0, "language": "sides"},
    "numbers, deviation, lingua": {"min_number_agreement": 0.7, "max_length_deviation": 3.0, "language": "lingua"},
}


@dataclass(frozen=True)
class Detection:
    """Numbers of dropped and bad pairs.

    dropped: pairs that a set of rules drops, or that `check` reports. bad: pairs with a bad label. both: bad pairs that
        are dropped.
    """

    dropped: int
    both: int
    bad: int

    @property
    def precision(self) -> float:
        """Share of the dropped pairs that are bad; 0 if no pair is dropped."""
        return self.both / self.dropped if self.dropped else 0.0

    @property
    def recall(self) -> float:
        """Share of the bad pairs that are dropped."""
        return self.both / self.bad


def measure(pairs: list[tuple[str, str]], labels: list[str], rules: dict[str, Any]) -> Detection:
    """Clean the pairs (English, German), and compare the dropped ones with the labels. rules: keys of data.cleaning."""
    numbered = [(number, Source(source), target) for number, (source, target) in enumerate(pairs)]
    kept = {number for number, _, _ in
            clean(numbered, Cleaning(**rules), Counts(), 2, Languages(source="en", target="de"))}
    return _detection(set(range(len(pairs))) - kept, labels)


def measure_check(pairs: list[tuple[str, str]], labels: list[str]) -> dict[str, Detection]:
    """Compare the lines that `check` reports with the labels, for each kind of finding."""
    corpus = results.CorpusReport("train", "v3.en-de")
    languages = Languages(source="en", target="de")
    sources = ((number, Source(source), target) for number, (source, target) in enumerate(pairs))
    sample = Sample(seed=1)
    with (mock.patch.object(results, "EXAMPLES", len(pairs)),
          mock.patch.object(pair_checks, "MAX_LANGUAGE_ID_PAIRS", len(pairs))):
        for _ in scanned(sample.draw_from(sources), corpus, 2, languages, {}):
            pass
        checker = pair_checks.CorpusChecker(sample.blocks, languages)
        checked = checker.check([(number, *pair) for number, pair in enumerate(pairs)], len(pairs))
    kinds = {kind: [finding] for kind, finding in corpus.findings.items()} | {
        "hardly_a_translation": [checked.suspects], "like the other side": [*checked.wrong_side.values()],
        "in another language (lingua)": [*checked.wrong_language.values()]}
    return {kind: _detection({line for finding in findings for line in finding.lines}, labels)
            for kind, findings in kinds.items()}


def _detection(dropped: set[int], labels: list[str]) -> Detection:
    bad = {number for number, label in enumerate(labels) if label in BAD}
    return Detection(len(dropped), len(dropped & bad), len(bad))


def main() -> None:
    """Print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIRECTORY", help="directory of the three files")
    data = parser.parse_args().data
    try:
        english, german, labels = (list(read_lines(data / f"v3.en-de.{ending}")) for ending in ("en", "de", "label"))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    pairs = list(zip(english, german, strict=True))
    print("| rules | dropped | precision | recall |\n|---|---:|---:|---:|")
    for name, rules in RULES.items():
        try:
            detection = measure(pairs, labels, rules)
        except UserError as error:
            print(f"| {name} | | | | {error}")
            continue
        _print_row(name, detection)
    print("\n| finding of check | lines | precision | recall |\n|---|---:|---:|---:|")
    for name, detection in measure_check(pairs, labels).items():
        _print_row(name, detection)


def _print_row(name: str, detection: Detection) -> None:
    print(f"| {name.replace('_', ' ')} | {detection.dropped:,} | {detection.precision:.3f} | {detection.recall:.3f} |",
          flush=True)


if __name__ == "__main__":
    main()
