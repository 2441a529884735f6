"""Write lists of numbers and their sorted order, as training text for a pointer network.

    python recipes/sorting/generate.py OUTPUT_DIR [--seed 1] [--lists 200000]

A line of *.numbers is a list of 1 to 20 different numbers from 0 to 99; all lengths are equally likely. The same line
of *.order contains the positions of the numbers, counted from 1, in descending order of size: for 20 5 10 it is 1 3 2.
A checksum of the list and the seed decides whether a list is held out for valid and test or belongs to train, so that
no list occurs in two splits.
"""

from __future__ import annotations

import argparse
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

MAX_NUMBER = 99
MAX_LENGTH = 20
HELD_OUT = 0.05  # share of all lists
SPLITS = {"valid": 500, "test": 2000}


def order(numbers: list[int]) -> list[int]:
    """Return the positions of the numbers, counted from 1, in descending order of size."""
    return sorted(range(1, len(numbers) + 1), key=lambda position: -numbers[position - 1])


def held_out(numbers: list[int], seed: int) -> bool:
    """Return True if the list belongs to valid or test."""
    return zlib.crc32(f"{seed} {numbers}".encode()) < HELD_OUT * 2**32


def lists(seed: int) -> Iterator[list[int]]:
    """Yield random lists endlessly."""
    rng = random.Random(seed)
    while True:
        yield rng.sample(range(MAX_NUMBER + 1), rng.randint(1, MAX_LENGTH))


def generate(size: int = 200_000, seed: int = 1) -> dict[str, list[list[int]]]:
    """Return the lists of train, valid and test; valid and test have no duplicates. size: number of lists in train."""
    train: list[list[int]] = []
    new: dict[tuple[int, ...], list[int]] = {}
    valid, test = SPLITS["valid"], SPLITS["test"]
    for numbers in lists(seed):
        if held_out(numbers, seed):
            new.setdefault(tuple(numbers), numbers)
        elif len(train) < size:
            train.append(numbers)
        if len(train) == size and len(new) >= valid + test:
            break
    others = list(new.values())
    return {"train": train, "valid": others[:valid], "test": others[valid:valid + test]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write lists of numbers and their order.")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", type=int, default=200_000, help="number of training lists")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for name, split in generate(arguments.lists, arguments.seed).items():
        for suffix, rows in (("numbers", split), ("order", map(order, split))):
            text = "".join(" ".join(map(str, row)) + "\n" for row in rows)
            (arguments.output_dir / f"{name}.{suffix}").write_text(text, encoding="utf-8", newline="\n")
        print(f"{name}: {len(split):,} lists", file=sys.stderr)


if __name__ == "__main__":
    main()
