"""Write English-German sentences in which names and numbers must be copied to the translation.

    python recipes/copying/generate.py OUTPUT_DIR [--seed 1] [--pairs 20000]

Each sentence is a template filled with people, places and numbers. Names are random sequences of syllables. Each name
and number occurs in only one split, so the test measures whether a model copies names that are not in its training
data. The same line of *.copied lists the names and numbers of the sentence for accuracy.py.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SPLITS = {"valid": 300, "test": 1000}  # numbers of sentences; --pairs is the number for train
NAMES = {"train": 1000, "valid": 100, "test": 400}
PLACES = {"train": 400, "valid": 50, "test": 150}
NUMBERS = {"train": 1000, "valid": 100, "test": 400}
LARGEST_NUMBER = 99_999

ONSETS = ["b", "br", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v",
          "w", "z", "sh", "ch"]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "io", "ou"]
CODAS = ["", "", "", "n", "r", "l", "s", "m", "nd", "rt", "k", "x"]
MARKS = ".,?"
PLACE_ENDINGS = ["ford", "ham", "burg", "stad", "mont", "wick", "dale", "grad"]

# A and B are people, P and Q places, N and M numbers, THINGS and OTHERS plural nouns.
TEMPLATES = """
A bought N THINGS in P. = A hat in P N THINGS gekauft.
A sold N THINGS to B. = A hat B N THINGS verkauft.
A and B live in P. = A und B wohnen in P.
A has been living in P for N days. = A wohnt seit N Tagen in P.
Did A see B in P? = Hat A B in P gesehen?
A wants to travel from P to Q. = A möchte von P nach Q reisen.
From P to Q it is N kilometres. = Von P nach Q sind es N Kilometer.
B waited N minutes for A. = B hat N Minuten auf A gewartet.
Room N belongs to A. = Das Zimmer N gehört A.
A counted N THINGS, but B counted M. = A hat N THINGS gezählt, aber B hat M gezählt.
My friend A comes from P. = Mein Freund A kommt aus P.
Please give A the N THINGS. = Bitte gib A die N THINGS.
Where did A find so many THINGS? = Wo hat A so viele THINGS gefunden?
The train to P leaves from platform N. = Der Zug nach P fährt von Gleis N ab.
A wrote a letter to B yesterday. = A hat B gestern einen Brief geschrieben.
In P there are N THINGS and M OTHERS. = In P gibt es N THINGS und M OTHERS.
I have never been to P, but A has. = Ich war noch nie in P, aber A schon.
A is older than B. = A ist älter als B.
Tomorrow A will bring N THINGS to P. = Morgen bringt A N THINGS nach P.
Nobody in P knows A. = Niemand in P kennt A.
The house of A has the number N. = Das Haus von A hat die Nummer N.
A lost all THINGS on the way to P. = A hat auf dem Weg nach P alle THINGS verloren.
"""
THINGS = {
    "apples": "Äpfel", "books": "Bücher", "horses": "Pferde", "chairs": "Stühle", "lamps": "Lampen", "stones": "Steine",
    "keys": "Schlüssel", "letters": "Briefe", "bottles": "Flaschen", "birds": "Vögel", "coins": "Münzen",
    "tickets": "Fahrkarten", "flowers": "Blumen", "shirts": "Hemden", "clocks": "Uhren", "boats": "Boote",
}


@dataclass(frozen=True)
class Pair:
    """A sentence in both languages. copied: its names and numbers, in the order of the English text."""

    english: str
    german: str
    copied: list[str]


def name(rng: random.Random) -> str:
    """Draw a name of two or three syllables."""
    syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.randint(2, 3))]
    return "".join(syllables).capitalize()


def place(rng: random.Random) -> str:
    return (rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) + rng.choice(PLACE_ENDINGS)).capitalize()


def number(rng: random.Random) -> str:
    """Draw a number; all lengths are equally likely."""
    length = rng.randint(2, len(str(LARGEST_NUMBER)))
    return str(rng.randrange(10 ** (length - 1), 10**length))


def disjoint_words(draw: Callable[[random.Random], str], sizes: dict[str, int], rng: random.Random,
                   taken: set[str]) -> dict[str, list[str]]:
    """Draw different words for each split, none of which is in `taken`, and add them to `taken`. sizes: number of words
    of each split."""
    words: dict[str, list[str]] = {}
    for split, size in sizes.items():
        words[split] = []
        while len(words[split]) < size:
            word = draw(rng)
            if word not in taken:
                taken.add(word)
                words[split].append(word)
    return words


def sentence(rng: random.Random, people: list[str], places: list[str], numbers: list[str]) -> Pair:
    """Draw a template and fill its slots; two slots of the same kind get different words."""
    english, german = rng.choice(TEMPLATES.strip().splitlines()).split(" = ")
    slots = dict(zip("ABPQNM", [*rng.sample(people, 2), *rng.sample(places, 2), *rng.sample(numbers, 2)], strict=True))
    things = dict(zip(("THINGS", "OTHERS"), rng.sample(sorted(THINGS), 2), strict=True))
    copied = [slots[word.rstrip(MARKS)] for word in english.split() if word.rstrip(MARKS) in slots]
    translated = {slot: THINGS[thing] for slot, thing in things.items()}
    return Pair(fill(english, slots | things), fill(german, slots | translated), copied)


def fill(text: str, slots: dict[str, str]) -> str:
    """Fill the slots of a text; punctuation marks after a slot are kept."""
    without_marks = [(word.rstrip(MARKS), word) for word in text.split()]
    return " ".join(slots.get(slot, slot) + word[len(slot):] for slot, word in without_marks)


def generate(pairs: int = 20_000, seed: int = 1) -> dict[str, list[Pair]]:
    """Return the pairs of train, valid and test."""
    rng = random.Random(seed)
    taken = {word.rstrip(MARKS) for word in TEMPLATES.split()}                  # names must not be words of templates
    people, places, numbers = (disjoint_words(draw, sizes, rng, taken) for draw, sizes in (
        (name, NAMES), (place, PLACES), (number, NUMBERS)))
    return {split: [sentence(rng, people[split], places[split], numbers[split]) for _ in range(size)]
            for split, size in {"train": pairs, **SPLITS}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write English-German sentences with names and numbers.")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20_000, help="number of training pairs")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for split, pairs in generate(arguments.pairs, arguments.seed).items():
        columns = {"en": [pair.english for pair in pairs], "de": [pair.german for pair in pairs],
                   "copied": [" ".join(pair.copied) for pair in pairs]}
        for suffix, lines in columns.items():
            text = "".join(f"{line}\n" for line in lines)
            (arguments.output_dir / f"{split}.{suffix}").write_text(text, encoding="utf-8", newline="\n")
        print(f"{split}: {len(pairs):,} pairs", file=sys.stderr)


if __name__ == "__main__":
    main()
