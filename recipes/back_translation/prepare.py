"""Writes the text that the recipes here are trained on.

    python recipes/back_translation/prepare.py PAIRS_DIR ENGLISH_FILE [OUTPUT_DIR]

PAIRS_DIR has train, valid and test, each as .en and .zh; ENGLISH_FILE is text in English alone. OUTPUT_DIR gets the
pairs as they are, and mono.en: the sentences of ENGLISH_FILE, each once, that stand in none of the pairs. Otherwise
sentences of the test set would come back as training targets.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from seq2seq.data.corpus import read_lines
from seq2seq.errors import CorpusError

HERE = Path(__file__).parent
SHORTEST, LONGEST = 3, 30
"""Words. Shorter sentences teach little, longer ones are rare in the pairs."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the text for the back-translation recipes.")
    parser.add_argument("pairs_dir", type=Path)
    parser.add_argument("english_file", type=Path)
    parser.add_argument("output_dir", type=Path, nargs="?", default=HERE / "data")
    arguments = parser.parse_args()
    try:
        known = {line for name in ("train", "valid", "test") for line in read_lines(arguments.pairs_dir / f"{name}.en")}
        english = [line for line in dict.fromkeys(read_lines(arguments.english_file))
                   if line not in known and SHORTEST <= len(line.split()) <= LONGEST]
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
