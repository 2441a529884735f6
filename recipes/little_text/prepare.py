"""Draw random pairs of a corpus: 2,500, 5,000, 10,000 and 20,000. Each text is part of the next larger one.

    python recipes/little_text/prepare.py train.en train.de [--output DIRECTORY]

Writes DIRECTORY/5000/train.en and so on, and into DIRECTORY/5000/others.de the target side of all other pairs, for
back-translation. The input is written by recipes/tatoeba_zh_en/prepare.py --language de, or multi30k/prepare.py.
"""

import argparse
import random
from pathlib import Path

SIZES = (2_500, 5_000, 10_000, 20_000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw random pairs of a corpus, in several amounts.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    sides = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in (arguments.source, arguments.target)]
    if len(sides[0]) != len(sides[1]) or len(sides[0]) < max(SIZES):
        parser.error(f"the files have {len(sides[0]):,} and {len(sides[1]):,} lines; they must have equally many, at "
                     f"least {max(SIZES):,}.")
    drawn = random.Random(1).sample(range(len(sides[0])), max(SIZES))
    for size in SIZES:
        directory = arguments.output / str(size)
        directory.mkdir(parents=True, exist_ok=True)
        for path, lines in zip((arguments.source, arguments.target), sides, strict=True):
            text = "".join(f"{lines[number]}\n" for number in drawn[:size])
            (directory / f"train{path.suffix}").write_text(text, encoding="utf-8", newline="\n")
        used = set(drawn[:size])
        others = "".join(f"{line}\n" for number, line in enumerate(sides[1]) if number not in used)
        (directory / f"others{arguments.target.suffix}").write_text(others, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
