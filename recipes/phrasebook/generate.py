"""Write the English-Chinese phrasebook: parallel text from the synchronous grammar in grammar.txt.

    python recipes/phrasebook/generate.py OUTPUT_DIR [--seed 1] [--pairs 30000] [--alignments]

Each pair is a tree drawn from the grammar and realised in both languages. The test set measures whether a model can
combine known words in new ways. For this, some pairs of words are *held out*, chosen by a checksum of the two words and
the seed. Held-out pairs of words never occur together in a sentence of train, and every sentence of valid and test
contains one such pair. The single words and the kinds of sentences are frequent in train; only their combinations are
new. No sentence of valid or test, English or Chinese, occurs in train, and none of test occurs in valid. Numbers in
digits are never held out, and have many zeros.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, combinations
from pathlib import Path

GRAMMAR = Path(__file__).with_name("grammar.txt")
SPLITS = {"valid": 500, "test": 500}
HELD_OUT = 0.012  # share of all pairs of words; small, so that train contains nearly all combinations of every word
COMMON = 20  # minimum number of occurrences in train of every English word of valid and test
INDICES = "¹²³⁴⁵⁶⁷⁸⁹"
PUNCTUATION = {".": "。", "?": "？", ",": "，"}
CATEGORY = re.compile(r"(\*?)([A-Z]\w*(?:\[[\w.]+\])?)(?:\.([^.]+))?")
VOWEL = re.compile(r"(?!uni|use)[aeiou]", re.IGNORECASE)


@dataclass(frozen=True)
class Word:
    """A word of the grammar, with its forms by column name. kind: its word class."""

    kind: str
    english: dict[str, str]
    chinese: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.kind}:{next(iter(self.english.values()))}"


@dataclass(frozen=True)
class Part:
    """A symbol of a rule: a category if `kind` is set, else the literal `text`.

    Symbols with the same `link` in both languages correspond. forms: requested grammatical forms. star: True for the
    head of the phrase.
    """

    text: str
    link: str | None
    kind: str = ""
    forms: tuple[str, ...] = ()
    star: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule of the grammar. weight: relative frequency among the rules of its category."""

    english: list[Part]
    chinese: list[Part]
    weight: int


@dataclass(frozen=True)
class Tree:
    """A rule with the tree or word drawn for each of its categories, by link."""

    rule: Rule
    children: dict[str | None, Tree | Word]


@dataclass(frozen=True)
class Pair:
    """A sentence in both languages.

    links: pairs (i, j) of corresponding English and Chinese tokens, counted from 0; punctuation marks are tokens.
    loose: pairs of literal words that a rule does not link to each other, but which correspond as a group, such as `the
        … that` and `的` in: the X that … = … 的 X.
    words: names of the grammar's words in the sentence, sorted.
    """

    english_tokens: list[str]
    chinese_tokens: list[str]
    links: list[tuple[int, int]]
    loose: list[tuple[int, int]]
    words: list[str]

    @property
    def english(self) -> str:
        text = re.sub(r" ([.,?])", r"\1", " ".join(self.english_tokens))
        return text[0].upper() + text[1:]

    @property
    def chinese(self) -> str:
        return "".join(self.chinese_tokens)

    @property
    def alignment(self) -> str:
        """The gold alignment of English words, separated by white space, and Chinese characters, as in `seq2seq align`.

        3-5 is a sure link: only word 3 corresponds to character 5. 3?5 is a possible link: several words correspond to
        the character together (post office = 邮局), or the grammar does not link the words (`loose`).
        """
        words, word = [], -1
        for token in self.english_tokens:                               # punctuation belongs to the word before it
            word += token not in PUNCTUATION
            words.append(word)
        ends = list(accumulate(len(token) for token in self.chinese_tokens))

        def characters(links: list[tuple[int, int]]) -> set[tuple[int, int]]:
            return {(words[i], position) for i, j in links
                    for position in range(ends[j] - len(self.chinese_tokens[j]), ends[j])}

        linked = characters(self.links)
        several = Counter(character for _, character in linked)
        return " ".join(f"{word}{'-' if several[character] == 1 else '?'}{character}"
                        for word, character in sorted(linked | characters(self.loose)))


def chinese_number(number: int) -> str:
    """Return a number from 1 to 99,999 in spoken Chinese: 12,345 is 一万两千三百四十五, 10,005 is 一万零五."""
    text = ""
    for unit, name in (10000, "万"), (1000, "千"), (100, "百"), (10, "十"), (1, ""):
        digit = number // unit % 10
        if digit:
            gap = text and number // (unit * 10) % 10 == 0
            digits = "零一两三四五六七八九" if unit >= 100 else "零一二三四五六七八九"
            text += "零" * bool(gap) + digits[digit] + name
    return text.removeprefix("一") if 10 <= number < 20 else text


def draw_number(low: int, high: int, rng: random.Random) -> int:
    """Draw a number; all lengths are equally likely, and digits are often 0, because zeros are difficult in Chinese."""
    while True:
        length = rng.randint(len(str(low)), len(str(high)))
        digits = [rng.choice("0123456789000") for _ in range(length - 1)]
        number = int("".join([rng.choice("123456789"), *digits]))
        if low <= number <= high:
            return number


class Grammar:
    """Word classes and rules of a grammar file. The first lines of grammar.txt explain the format."""

    def __init__(self, text: str):
        self.words: dict[str, list[Word]] = {}
        self.lines: dict[str, list[str]] = {}
        self.rules: dict[str, list[Rule]] = {}  # parsed on first use, when the argument of a pattern is known
        for line in text.splitlines():
            line = line.partition("#")[0].rstrip()
            if line.startswith("words "):
                kind, sides = line.removeprefix("words ").split(":")
                names = [side.split() for side in sides.split("|")]
                self.words[kind] = []
            elif line.startswith("rules "):
                kind = line.removeprefix("rules ")
                self.lines[kind] = []
            elif line and kind in self.lines:
                self.lines[kind].append(line)
            elif line:
                english, chinese = (dict(zip(columns, forms.split(), strict=True))
                                    for columns, forms in zip(names, line.split("|"), strict=True))
                self.words[kind].append(Word(kind, english, chinese))

    def rules_of(self, kind: str) -> list[Rule]:
        if kind not in self.rules:
            head, _, argument = kind.removesuffix("]").partition("[")
            patterns = [name for name in self.lines if argument and re.fullmatch(rf"{head}\[[A-Z]\]", name)]
            name = kind if kind in self.lines else next(iter(patterns), None)
            if name is None:
                raise ValueError(f"{GRAMMAR.name}: {kind} is not defined; add `words {kind}` or `rules {kind}`.")
            lines = self.lines[name]
            if name != kind:
                parameter = name.removesuffix("]").partition("[")[2]
                lines = [re.sub(rf"(?<![A-Za-z]){parameter}(?![A-Za-z])", argument, line) for line in lines]
            self.rules[kind] = [self.parse_rule(line) for line in lines]
        return self.rules[kind]

    def parse_rule(self, line: str) -> Rule:
        weight, _, rest = line.rpartition("×")
        english, chinese = ([self.parse_part(token) for token in side.split()] for side in rest.split(" = "))
        return Rule(english, chinese, int(weight or 1))

    def parse_part(self, token: str) -> Part:
        text = token.rstrip(INDICES)
        index = token[len(text):]
        match = CATEGORY.fullmatch(text)
        if match and text != "I":
            star, kind, forms = match.groups()
            return Part(text, kind + index, kind, (forms,) if forms else (), bool(star))
        return Part(text, index or PUNCTUATION.get(text, text if text in PUNCTUATION.values() else None))

    def draw(self, kind: str, rng: random.Random) -> Tree | Word:
        if kind.startswith("Amount["):
            low, high = (int(bound) for bound in kind[len("Amount["):-1].split(".."))
            number = draw_number(low, high, rng)
            return Word(kind, {"digits": f"{number:,}"}, {"zh": chinese_number(number)})
        if kind in self.words:
            return rng.choice(self.words[kind])
        rules = self.rules_of(kind)
        rule = rng.choices(rules, [rule.weight for rule in rules])[0]
        return Tree(rule, {part.link: self.draw(part.kind, rng) for part in rule.english if part.kind})


def words_of(node: Tree | Word) -> Iterator[Word]:
    if isinstance(node, Word):
        yield node
    else:
        for child in node.children.values():
            yield from words_of(child)


def agreement(node: Tree | Word, forms: tuple[str, ...] = ()) -> str | None:
    """Return the person that the verb of a subject agrees with, "I", "she" or "we"; None if the subject has no noun."""
    if isinstance(node, Word):
        if "possessive" in forms or not {"one", "agreement"} & node.english.keys():
            return None
        return "we" if "many" in forms else node.english.get("agreement", "she")
    parts = sorted((part for part in node.rule.english if part.kind), key=lambda part: not part.star)
    persons = (agreement(node.children[part.link], part.forms) for part in parts)
    return next((person for person in persons if person), None)


def agreeing(form: str, person: str | None) -> str:
    """Choose from alternatives such as do/does or am/is/are the one that agrees with the subject."""
    options = form.split("/")
    if len(options) == 1:
        return form
    return options[{"I": 0, "she": 1, "we": len(options) - 1 if len(options) == 3 else 0}[person or "she"]]


def read_english(node: Tree | Word, forms: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield the English tokens of a tree, each with the link that its Chinese counterpart also has. Literal words that
    a rule does not link share the link (rule, None)."""
    if isinstance(node, Word):
        text = node.english[forms[0]] if forms else next(iter(node.english.values()))
        yield from ((token, id(node)) for token in text.split("_"))
        return
    person = agreement(node)
    for part, part_forms in with_forms(node.rule.english, forms):
        if part.kind:
            yield from read_english(node.children[part.link], tuple(agreeing(form, person) for form in part_forms))
        else:
            yield agreeing(part.text, person), (id(node), part.link)


def read_chinese(node: Tree | Word, forms: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield the Chinese tokens of a tree with their links. A form that is not a column of the word is an aspect
    particle, which follows the verb or replaces its hyphen."""
    if isinstance(node, Word):
        columns = [form for form in forms if form in node.chinese]
        particles = [form for form in forms if form not in node.chinese]
        verb, _, rest = node.chinese[columns[0] if columns else next(iter(node.chinese))].partition("-")
        tokens = [verb, *particles, rest] if particles else [verb + rest]
        yield from ((token, id(node)) for token in tokens if token)
        return
    for part, part_forms in with_forms(node.rule.chinese, forms):
        if part.kind:
            yield from read_chinese(node.children[part.link], part_forms)
        else:
            yield part.text, (id(node), part.link)


def with_forms(parts: list[Part], forms: tuple[str, ...]) -> Iterator[tuple[Part, tuple[str, ...]]]:
    """Return each part with its forms; the head of the phrase also gets the forms requested for the whole phrase."""
    categories = [part for part in parts if part.kind]
    head = next((part for part in categories if part.star), categories[0] if categories else None)
    return ((part, part.forms + forms if part is head else part.forms) for part in parts)


def read_pair(tree: Tree | Word) -> Pair:
    english, chinese = list(read_english(tree)), list(read_chinese(tree))
    tokens = [token for token, _ in english]
    for i, following in enumerate(tokens[1:]):
        if tokens[i] == "a" and VOWEL.match(following):
            tokens[i] = "an"
    joined = [(i, j, a) for i, (_, a) in enumerate(english) for j, (_, b) in enumerate(chinese) if a == b]
    loose = [(i, j) for i, j, link in joined if isinstance(link, tuple) and link[1] is None]
    links = [(i, j) for i, j, _ in joined if (i, j) not in loose]
    words = sorted(word.name for word in words_of(tree) if not word.kind.startswith("Amount"))
    return Pair(tokens, [token for token, _ in chinese], links, loose, words)


def has_held_out_pair(words: list[str], seed: int) -> bool:
    """Return True if two of the words, which must be sorted, are a held-out pair."""
    return any(zlib.crc32(f"{seed} {a} {b}".encode()) < HELD_OUT * 2**32 for a, b in combinations(words, 2))


def sentences(grammar: Grammar, seed: int) -> Iterator[Pair]:
    """Yield pairs endlessly, without duplicate English sentences and without sentences that contain a word twice.

    Raises:
        ValueError: the grammar gives one English sentence two translations.
    """
    rng = random.Random(seed)
    seen: dict[str, str] = {}
    while True:
        pair = read_pair(grammar.draw("Sentence", rng))
        if len(set(pair.words)) < len(pair.words):
            continue
        if pair.english not in seen:
            seen[pair.english] = pair.chinese
            yield pair
        elif seen[pair.english] != pair.chinese:
            raise ValueError(f"two translations of {pair.english!r}: {seen[pair.english]} and {pair.chinese}")


def spoken(pair: Pair) -> list[str]:
    """Return the English words of a pair, without punctuation and numbers in digits."""
    return [token.lower() for token in pair.english_tokens if token[0].isalpha()]


def generate(pairs: int = 30000, seed: int = 1) -> dict[str, list[Pair]]:
    """Return the pairs of train, valid and test."""
    grammar = Grammar(GRAMMAR.read_text(encoding="utf-8"))
    train: list[Pair] = []
    others: list[Pair] = []
    for pair in sentences(grammar, seed):
        (others if has_held_out_pair(pair.words, seed) else train).append(pair)
        if len(train) == pairs:
            break
    counts = Counter(word for pair in train for word in spoken(pair))
    taken = {pair.chinese for pair in train}
    new: list[Pair] = []
    for pair in others:
        if pair.chinese not in taken and all(counts[word] >= COMMON for word in spoken(pair)):
            taken.add(pair.chinese)
            new.append(pair)
    valid, test = SPLITS["valid"], SPLITS["test"]
    if len(new) < valid + test:
        raise ValueError(f"{pairs} pairs leave only {len(new)} for valid and test; increase --pairs.")
    return {"train": train, "valid": new[:valid], "test": new[valid:valid + test]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the English-Chinese phrasebook.")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=30000, help="number of training pairs")
    parser.add_argument("--alignments", action="store_true",
                        help="also write *.align (links i-j of the grammar's tokens, from 0) and *.words (links "
                        "of English words and Chinese characters: i-j if sure, i?j if possible)")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for name, pairs in generate(arguments.pairs, arguments.seed).items():
        columns = {"en": [pair.english for pair in pairs], "zh": [pair.chinese for pair in pairs]}
        if arguments.alignments:
            columns["align"] = [" ".join(f"{i}-{j}" for i, j in pair.links) for pair in pairs]
            columns["words"] = [pair.alignment for pair in pairs]
        for suffix, lines in columns.items():
            path = arguments.output_dir / f"{name}.{suffix}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        print(f"{name}: {len(pairs):,} pairs", file=sys.stderr)


if __name__ == "__main__":
    main()
