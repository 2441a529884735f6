"""Divide text with inline tags for the measurement of tag placement.

    python recipes/markup/prepare.py DIRECTORY OUTPUT

DIRECTORY contains dev.en and dev.de of github.com/salesforce/localization-xml-mt (Hashimoto et al. 2019,
arXiv:2006.13425), line by line parallel. Pairs without tags are for training, the others for the test.
The recipes of this directory expect OUTPUT to be `localization_xml` in their `data.root`.
"""

import html
import re
import sys
from pathlib import Path

from seq2seq.translation.text_io import writing

TAG = re.compile(r"</?[a-zA-Z][^<>]*>")


def prepare(directory: Path, output: Path) -> dict[str, int]:
    """Write train.{en,de} (pairs without tags, as plain text) and tagged.{en,de}; return their numbers of pairs."""
    sides = [(directory / f"dev.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    pairs = list(zip(*sides, strict=True))
    tagged = [pair for pair in pairs if any(map(TAG.search, pair))]
    plain = [tuple(map(html.unescape, pair)) for pair in pairs if not any(map(TAG.search, pair))]
    output.mkdir(parents=True, exist_ok=True)
    for name, selected in (("train", plain), ("tagged", tagged)):
        for side, language in enumerate(("en", "de")):
            with writing(output / f"{name}.{language}") as file:
                file.write("".join(f"{pair[side]}\n" for pair in selected))
    return {"train": len(plain), "tagged": len(tagged)}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(prepare(Path(sys.argv[1]), Path(sys.argv[2])))
