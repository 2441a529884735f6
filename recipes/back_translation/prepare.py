"""Write the training text of the back-translation recipes.

    python recipes/back_translation/prepare.py PAIRS_DIR ENGLISH_FILE [OUTPUT_DIR]

PAIRS_DIR contains train, valid and test, each as .en and .zh; ENGLISH_FILE is English text. The script copies the pairs
to OUTPUT_DIR and writes mono.en: the sentences of 3 to 30 words of ENGLISH_FILE, without duplicates and without those
that occur in the pairs. Otherwise, sentences of the test set could be part of the training text.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from seq2seq.data.corpus import read_lines
from seq2seq.errors import CorpusError

HERE = Path(__file__).parent
MIN_WORDS, MAX_WORDS = 3, 30
"""Minimum and maximum length of a sentence in words. Shorter sentences contain little to learn, and longer ones are
rare in the pairs."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the text for the back-translation recipes.")
    parser.add_argument("pairs_dir", type=Path)
    parser.add_argument("english_file", type=Path)
    parser.add_argument("output_dir", type=Path, nargs="?", default=HERE / "data")
    arguments = parser.parse_args()
    try:
        known = {line for name in ("train", "valid", "test") for line in read_lines(arguments.pairs_dir / f"{name}.en")}
        english = [line for line in dict.fromkeys(read_lines(arguments.english_file))
                   if line not in known and MIN_WORDS <= len(line.split()) <= MAX_WORDS]
    except CorpusError as error:
        print(error, file=sys.stderr)
        return 2
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        for language in ("en", "zh"):
            shutil.copy(arguments.pairs_dir / f"{name}.{language}", arguments.output_dir)
    (arguments.output_dir / "mono.en").write_text("".join(f"{line}\n" for line in english), encoding="utf-8")
    print(f"{arguments.output_dir}: {len(english):,} English sentences without a translation", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
