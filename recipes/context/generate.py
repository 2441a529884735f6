"""Write English-German documents whose translation depends on the sentences before, and a contrastive test set.

    python recipes/context/generate.py OUTPUT_DIR [--seed 1] [--documents 12000]

A document has three sentences and ends with an empty line. The third sentence has a pronoun or an ambiguous word. The
first sentence decides its translation, by the gender of a noun or by the topic:

    The lamp is in the kitchen. Anna is at home. I saw it yesterday.    (die Lampe: Ich habe sie gestern gesehen.)
    We walked along the river. Paul is singing. The bank is very old.   (das Ufer, not die Bank)

Files: train, valid, test (documents), isolated (single sentences without such words), and contrast.tsv with the
context, the source, the right translation, a wrong one, and the phenomenon. All files except train have combinations of
noun and place, of person and activity, and of ambiguous word and adjective that do not occur in train.
"""

import argparse
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ARTICLES = {"m": ("Der", "er", "ihn"), "f": ("Die", "sie", "sie"), "n": ("Das", "es", "es")}
NOUNS = [("table", "Tisch", "m"), ("ball", "Ball", "m"), ("chair", "Stuhl", "m"), ("hat", "Hut", "m"),
         ("coat", "Mantel", "m"), ("cake", "Kuchen", "m"), ("apple", "Apfel", "m"), ("shoe", "Schuh", "m"),
         ("suitcase", "Koffer", "m"), ("cupboard", "Schrank", "m"), ("spoon", "Löffel", "m"), ("stone", "Stein", "m"),
         ("lamp", "Lampe", "f"), ("cup", "Tasse", "f"), ("bag", "Tasche", "f"), ("clock", "Uhr", "f"),
         ("newspaper", "Zeitung", "f"), ("bottle", "Flasche", "f"), ("flower", "Blume", "f"), ("jacket", "Jacke", "f"),
         ("door", "Tür", "f"), ("fork", "Gabel", "f"), ("guitar", "Gitarre", "f"), ("candle", "Kerze", "f"),
         ("book", "Buch", "n"), ("picture", "Bild", "n"), ("bicycle", "Fahrrad", "n"), ("glass", "Glas", "n"),
         ("knife", "Messer", "n"), ("window", "Fenster", "n"), ("shirt", "Hemd", "n"), ("bed", "Bett", "n"),
         ("piano", "Klavier", "n"), ("toy", "Spielzeug", "n"), ("car", "Auto", "n"), ("bread", "Brot", "n")]
PLACES = [("in the kitchen", "in der Küche"), ("in the garden", "im Garten"), ("in the cellar", "im Keller"),
          ("on the balcony", "auf dem Balkon"), ("at the station", "am Bahnhof"), ("in the hall", "im Flur"),
          ("in the office", "im Büro"), ("at school", "in der Schule"), ("in the hotel", "im Hotel"),
          ("in the shop", "im Laden"), ("on the roof", "auf dem Dach"), ("in the yard", "im Hof")]
ADJECTIVES = [("old", "alt"), ("new", "neu"), ("small", "klein"), ("big", "groß"), ("beautiful", "schön"),
              ("expensive", "teuer"), ("cheap", "billig"), ("heavy", "schwer"),
              ("light", "leicht"), ("clean", "sauber"), ("dirty", "schmutzig"), ("green", "grün"),
              ("blue", "blau"), ("white", "weiß"), ("black", "schwarz")]
DEGREES = [("very", "sehr"), ("quite", "ziemlich"), ("really", "wirklich"), ("not", "nicht"), ("too", "zu")]
TIMES = [("yesterday", "gestern"), ("today", "heute"), ("again", "wieder"), ("often", "oft"), ("never", "nie")]
VERBS = [("saw", "gesehen"), ("found", "gefunden"), ("bought", "gekauft"), ("sold", "verkauft"), ("painted", "gemalt"),
         ("lost", "verloren"), ("cleaned", "geputzt"), ("forgot", "vergessen")]
NAMES = ["Anna", "Paul", "Maria", "Peter", "Julia", "Jonas", "Laura", "Felix", "Clara", "Emil"]
DEEDS = [("is at home", "ist zu Hause"), ("is singing", "singt"), ("is sleeping", "schläft"),
         ("is working", "arbeitet"),
         ("is laughing", "lacht"), ("is waiting", "wartet"), ("is tired", "ist müde"), ("is ill", "ist krank"),
         ("is dancing", "tanzt"), ("is hungry", "hat Hunger")]
# Ambiguous words. Each sense has a German word, its gender, and first sentences that decide for this sense.
SENSES = {
    "bank": [("Bank", "f", [("We need some money.", "Wir brauchen etwas Geld."),
                            ("I have to pay the rent.", "Ich muss die Miete bezahlen.")]),
             ("Ufer", "n", [("We walked along the river.", "Wir gingen den Fluss entlang."),
                            ("The boat is on the lake.", "Das Boot ist auf dem See.")])],
    "bat": [("Fledermaus", "f", [("An animal lives in the cave.", "Ein Tier lebt in der Höhle."),
                                 ("It was night in the forest.", "Es war Nacht im Wald.")]),
            ("Schläger", "m", [("We are playing baseball.", "Wir spielen Baseball."),
                               ("The players are on the field.", "Die Spieler sind auf dem Feld.")])],
    "letter": [("Brief", "m", [("The postman came early.", "Der Postbote kam früh."),
                               ("I need a stamp.", "Ich brauche eine Briefmarke.")]),
               ("Buchstabe", "m", [("The child is learning the alphabet.", "Das Kind lernt das Alphabet."),
                                   ("She is reading the first word.", "Sie liest das erste Wort.")])],
    "key": [("Schlüssel", "m", [("I cannot open the house.", "Ich kann das Haus nicht öffnen."),
                                ("The lock is broken.", "Das Schloss ist kaputt.")]),
            ("Taste", "f", [("He is writing on the computer.", "Er schreibt am Computer."),
                            ("She is typing a text.", "Sie tippt einen Text.")])],
    "match": [("Streichholz", "n", [("We want to make a fire.", "Wir wollen ein Feuer machen."),
                                    ("He lights a pipe.", "Er zündet eine Pfeife an.")]),
              ("Spiel", "n", [("The team is training hard.", "Die Mannschaft trainiert hart."),
                              ("The stadium is full.", "Das Stadion ist voll.")])],
    "seal": [("Robbe", "f", [("We are at the sea.", "Wir sind am Meer."),
                             ("The zoo has new animals.", "Der Zoo hat neue Tiere.")]),
             ("Siegel", "n", [("The king signed the document.", "Der König unterschrieb die Urkunde."),
                              ("The contract is old.", "Der Vertrag ist alt.")])],
}

Sentence = tuple[str, str]
Drawn = TypeVar("Drawn")


def held_out(*words: str) -> bool:
    """Return True for the tenth of all combinations of words that does not occur in train."""
    return zlib.crc32(" ".join(words).encode()) % 10 == 0


def draw(sentence: Callable[[], tuple[Drawn, tuple[str, ...]]], unseen: bool) -> Drawn:
    """Draw a sentence whose combination of words is held out (`unseen`) or is not (not `unseen`)."""
    while True:
        drawn, words = sentence()
        if held_out(*words) == unseen:
            return drawn


class Grammar:
    """Generator of random documents. unseen: True to draw combinations of words that do not occur in train."""

    def __init__(self, seed: int, unseen: bool) -> None:
        self.random, self.unseen = random.Random(seed), unseen

    def introduction(self) -> tuple[Sentence, str]:
        """Return the first sentence of a document with a pronoun, and the gender of the sentence's noun."""
        def sentence() -> tuple[tuple[Sentence, str], tuple[str, ...]]:
            (english, german, gender), (place, ort) = self.random.choice(NOUNS), self.random.choice(PLACES)
            pair = f"The {english} is {place}.", f"{ARTICLES[gender][0]} {german} ist {ort}."
            return (pair, gender), (english, place)

        return draw(sentence, self.unseen)

    def filler(self) -> Sentence:
        """Return a sentence about a person. No pronoun refers to this person."""
        def sentence() -> tuple[Sentence, tuple[str, ...]]:
            name, (deed, tut) = self.random.choice(NAMES), self.random.choice(DEEDS)
            return (f"{name} {deed}.", f"{name} {tut}."), (name, deed)

        return draw(sentence, self.unseen)

    def with_pronoun(self) -> tuple[str, dict[str, str]]:
        """Return a sentence with a pronoun, and its translation for each gender of the noun."""
        if self.random.random() < 0.5:
            (degree, grad), (adjective, eigenschaft) = self.random.choice(DEGREES), self.random.choice(ADJECTIVES)
            return f"It is {degree} {adjective}.", {
                each: f"{words[1].capitalize()} ist {grad} {eigenschaft}." for each, words in ARTICLES.items()}
        (verb, tat), (time, zeit) = self.random.choice(VERBS), self.random.choice(TIMES)
        return f"I {verb} it {time}.", {each: f"Ich habe {words[2]} {zeit} {tat}." for each, words in ARTICLES.items()}

    def document(self) -> tuple[list[Sentence], str, str]:
        """Return three sentences, a wrong translation of the last one, and the phenomenon."""
        if self.random.random() < 0.5:
            first, gender = self.introduction()
            english, by_gender = self.with_pronoun()
            right = by_gender[gender]
            wrong = self.random.choice(sorted({*by_gender.values()} - {right}))
            return [first, self.filler(), (english, right)], wrong, "pronoun"
        word = self.random.choice(sorted(SENSES))
        order = [0, 1] if self.random.random() < 0.5 else [1, 0]
        (right, gender, cues), (other, other_gender, _) = (SENSES[word][index] for index in order)

        def sentence() -> tuple[Sentence, tuple[str, ...]]:
            (degree, grad), (adjective, eigenschaft) = self.random.choice(DEGREES), self.random.choice(ADJECTIVES)
            return (f"The {word} is {degree} {adjective}.", f"ist {grad} {eigenschaft}."), (word, degree, adjective)

        english, rest = draw(sentence, self.unseen)
        return ([self.random.choice(cues), self.filler(), (english, f"{ARTICLES[gender][0]} {right} {rest}")],
                f"{ARTICLES[other_gender][0]} {other} {rest}", "word")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="Write English-German documents and a contrastive test set.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--documents", type=int, default=12_000, help="documents for training (default: 12,000)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    def write(name: str, lines: list[str]) -> None:
        (arguments.output / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")

    for number, (name, documents) in enumerate((("train", arguments.documents), ("valid", 300), ("test", 500))):
        grammar = Grammar(arguments.seed + 1000 * number, name != "train")
        drawn = [grammar.document()[0] for _ in range(documents)]
        for side, language in enumerate(("en", "de")):
            write(f"{name}.{language}", [text for each in drawn for text in (*(pair[side] for pair in each), "")])
    grammar = Grammar(arguments.seed + 9000, True)
    single = [grammar.filler() if grammar.random.random() < 0.5 else
              grammar.introduction()[0] for _ in range(1000)]
    for side, language in enumerate(("en", "de")):
        write(f"isolated.{language}", [pair[side] for pair in single])
    rows = []
    for _ in range(1000):
        (first, second, (source, right)), wrong, phenomenon = grammar.document()
        rows.append("\t".join([first[0], second[0], source, right, wrong, phenomenon]))
    write("contrast.tsv", rows)


if __name__ == "__main__":
    main()
