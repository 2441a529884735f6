"""Measures how many names and numbers a translation has carried over.

    python recipes/copying/accuracy.py DATA_DIR TRANSLATIONS

TRANSLATIONS has a line for each of DATA_DIR/test.en. A line's names are right if each of them stands in the
translation as a word, as often as in the source; likewise its numbers. Lines without any count nowhere.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path


def right(copied: list[str], translation: str) -> bool:
    """Return True if all words are in the translation."""
    return not Counter(copied) - Counter(word.strip(".,?") for word in translation.split())


def accuracy(copied: list[list[str]], translations: list[str], references: list[str]) -> dict[str, float]:
    """Shares of lines in percent: names right, numbers right, both right, and equal to the reference."""
    names, numbers, both = [], [], []
    for words, translation in zip(copied, translations, strict=True):
        both.append(right(words, translation))
        for kind, digits in ((names, False), (numbers, True)):
            if chosen := [word for word in words if word.isdigit() == digits]:
                kind.append(right(chosen, translation))
    exact = [translation == reference for translation, reference in zip(translations, references, strict=True)]
    return {title: 100 * sum(hits) / len(hits)
            for title, hits in (("names", names), ("numbers", numbers), ("both", both), ("exact", exact))}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how many names and numbers were carried over.")
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("translations", type=Path)
    arguments = parser.parse_args()
    copied, translations, references = (path.read_text(encoding="utf-8").splitlines() for path in (
        arguments.data_dir / "test.copied", arguments.translations, arguments.data_dir / "test.de"))
    if len(translations) != len(references):
        print(f"{arguments.translations} has {len(translations):,} lines, test.de has {len(references):,}. Translate "
              "the whole of test.en.", file=sys.stderr)
        return 2
    for title, share in accuracy([line.split() for line in copied], translations, references).items():
        print(f"{title:<8}{share:6.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
