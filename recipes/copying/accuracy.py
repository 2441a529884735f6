"""Measure the share of sentences whose names and numbers are copied to the translation.

    python recipes/copying/accuracy.py DATA_DIR TRANSLATIONS

TRANSLATIONS has a line for each line of DATA_DIR/test.en. The names of a line are correct if each of them occurs in the
translation as a word, at least as often as in the source. The same holds for numbers. Lines without names do not count
for names, and lines without numbers not for numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path


def all_copied(copied: list[str], translation: str) -> bool:
    """Return True if all words occur in the translation, at least as often as in `copied`."""
    return not Counter(copied) - Counter(word.strip(".,?") for word in translation.split())


def accuracy(copied: list[list[str]], translations: list[str], references: list[str]) -> dict[str, float]:
    """Return shares of lines in percent: with correct names, correct numbers, both, and equal to the reference."""
    names: list[bool] = []
    numbers: list[bool] = []
    both: list[bool] = []
    for words, translation in zip(copied, translations, strict=True):
        both.append(all_copied(words, translation))
        for hits, digits in ((names, False), (numbers, True)):
            if selected := [word for word in words if word.isdigit() == digits]:
                hits.append(all_copied(selected, translation))
    exact = [translation == reference for translation, reference in zip(translations, references, strict=True)]
    return {title: 100 * sum(hits) / len(hits)
            for title, hits in (("names", names), ("numbers", numbers), ("both", both), ("exact", exact))}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the share of sentences with correct names and numbers.")
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("translations", type=Path)
    arguments = parser.parse_args()
    copied, translations, references = (path.read_text(encoding="utf-8").splitlines() for path in (
        arguments.data_dir / "test.copied", arguments.translations, arguments.data_dir / "test.de"))
    if len(translations) != len(references):
        print(f"{arguments.translations} has {len(translations):,} lines, test.de has {len(references):,}. Translate "
              "all lines of test.en.", file=sys.stderr)
        return 2
    for title, share in accuracy([line.split() for line in copied], translations, references).items():
        print(f"{title:<8}{share:6.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
