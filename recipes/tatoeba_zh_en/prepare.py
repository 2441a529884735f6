"""Split Tatoeba's sentence pairs, as distributed by manythings.org/anki, into train, valid and test.

    python recipes/tatoeba_zh_en/prepare.py cmn.txt
    python recipes/tatoeba_zh_en/prepare.py cmn.txt --valid 500 --test 500 --seed 7
    python recipes/tatoeba_zh_en/prepare.py deu.txt --language de --output recipes/finetuning/data/tatoeba_en_de

cmn.txt is in cmn-eng.zip; each language has such an archive. Each line has an English sentence, a tab, its translation,
a tab, and the attribution (CC BY 2.0 FR).

Many sentences have several translations. If pairs were assigned to splits one by one, a test sentence would often occur
in train with another translation. Therefore pairs that share a sentence of either language, directly or through other
pairs, are assigned to the same split: no sentence of either language occurs in two splits.
"""

import argparse
import random
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from seq2seq.data.corpus import read_lines
from seq2seq.errors import CorpusError, UserError
from seq2seq.translation.text_io import writing

Pair = tuple[str, str]


def read_pairs(path: Path) -> tuple[list[Pair], int]:
    """Return the pairs in the order of the file without duplicates, and the number of duplicates.

    Raises:
        CorpusError: the file is missing or not UTF-8, or a line lacks one of the sentences.
    """
    pairs: dict[Pair, None] = {}
    lines = 0
    for lines, line in enumerate(read_lines(path), 1):
        english, other, *_ = [field.strip() for field in line.removeprefix("\ufeff").split("\t")] + ["", ""]
        if not (english and other):
            raise CorpusError(f"{path}:{lines}: expected English, a tab and a translation, found {line[:60]!r}. "
                              "Correct or remove the line.")
        pairs[english, other] = None
    return list(pairs), lines - len(pairs)


def connected(pairs: list[Pair]) -> list[list[Pair]]:
    """Return the connected components of the pairs: the smallest groups such that no sentence is in two groups."""
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def root(sentence: tuple[int, str]) -> tuple[int, str]:
        while (parent := parents.setdefault(sentence, sentence)) != sentence:
            parents[sentence] = parents[parent]
            sentence = parent
        return sentence

    for english, other in pairs:
        parents[root((0, english))] = root((1, other))
    groups = defaultdict(list)
    for pair in pairs:
        groups[root((0, pair[0]))].append(pair)
    return list(groups.values())


def split(pairs: list[Pair], sizes: dict[str, int], seed: int) -> dict[str, list[Pair]]:
    """Assign random groups to the splits of `sizes` until each has its number of pairs; the others go to train.

    Raises:
        CorpusError: there are not enough pairs.
    """
    groups = connected(pairs)
    random.Random(seed).shuffle(groups)
    splits: dict[str, list[Pair]] = {"train": [], **{name: [] for name in sizes}}
    for group in groups:
        fitting = [name for name, size in sizes.items() if len(splits[name]) + len(group) <= size]
        splits[fitting[0] if fitting else "train"] += group
    for name, size in {**sizes, "train": 1}.items():
        if len(splits[name]) < size:
            raise CorpusError(f"{len(pairs):,} pairs in {len(groups):,} groups without a common sentence: {name} gets "
                              f"only {len(splits[name]):,} of {size:,}. Decrease --valid and --test.")
    line = {pair: number for number, pair in enumerate(pairs)}
    return {name: sorted(chosen, key=line.__getitem__) for name, chosen in splits.items()}


def write(splits: dict[str, list[Pair]], language: str, output: Path) -> None:
    """Write each split as two files, English and `language`. Raises UserError if they cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output} cannot be made: {error.strerror}. Name another directory with --output.") from error
    for name, pairs in splits.items():
        with ExitStack() as stack:
            for side, ending in enumerate(("en", language)):
                file = stack.enter_context(writing(output / f"{name}.{ending}"))
                file.write("".join(f"{pair[side]}\n" for pair in pairs))


def positive(text: str) -> int:
    """Parse a positive integer. Raises ValueError."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main() -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser(
        description="Split Tatoeba's sentence pairs into train, valid and test.",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog="examples (cmn.txt is in cmn-eng.zip of manythings.org/anki):\n"
               "  python recipes/tatoeba_zh_en/prepare.py cmn.txt\n"
               "  python recipes/tatoeba_zh_en/prepare.py cmn.txt --valid 500 --test 500 --seed 7\n"
               "  python recipes/tatoeba_zh_en/prepare.py deu.txt --language de "
               "--output recipes/finetuning/data/tatoeba_en_de")
    parser.add_argument("file", type=Path, help="English, tab, its translation, tab, attribution; may be .gz")
    parser.add_argument("--language", default="zh", metavar="CODE",
                        help="language of the translations and suffix of their files (default: zh)")
    parser.add_argument("--valid", type=positive, default=1000, metavar="N",
                        help="number of pairs in valid (default: 1000)")
    parser.add_argument("--test", type=positive, default=1000, metavar="N",
                        help="number of pairs in test (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random split (default: 1)")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("data"), metavar="DIRECTORY",
                        help="directory to write to (default: the one that the recipe uses)")
    arguments = parser.parse_args()
    try:
        pairs, repeated = read_pairs(arguments.file)
        splits = split(pairs, {"valid": arguments.valid, "test": arguments.test}, arguments.seed)
        write(splits, arguments.language, arguments.output)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(pairs):,} different pairs, {repeated:,} duplicates removed")
    for name, chosen in splits.items():
        print(f"{arguments.output / name}.{{en,{arguments.language}}}: {len(chosen):,} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
