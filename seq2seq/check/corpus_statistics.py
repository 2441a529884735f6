"""Statistics of a corpus before cleaning: counts of defective lines, and a random sample of its pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from unicodedata import is_normalized

from seq2seq.check.results import CorpusReport, Finding
from seq2seq.data.cleaning import SHORT_TEXT, pair_digest
from seq2seq.data.corpus import LinePair, Pair
from seq2seq.data.damaged_text import is_damaged, is_split_into_subwords
from seq2seq.data.numbers import number_agreement
from seq2seq.data.pair_quality import has_csv_quotes, has_entities, is_tokenized
from seq2seq.recipe import Languages
from seq2seq.tokenizers.canonical_text import INVISIBLE_CHARACTER, SPECIAL_SPACE, canonical
from seq2seq.tokenizers.source import Source

BLOCK_LINES = 64
"""Number of consecutive lines in a block. Blocks are sampled instead of single lines, because a shift of one side by a
line can be detected only in consecutive lines."""
MAX_BLOCKS = 320
"""Maximum number of blocks in the sample."""
# Values of keys in data.cleaning. For each value, the report counts the pairs that this value alone would drop.
LENGTH_RATIOS = (1.5, 2.0, 3.0, 4.0)
MAX_CHARACTERS = (250, 500, 1000, 5000)
NUMBER_AGREEMENTS = (0.5, 0.7, 1.0)

# Text that looks the same as other text, by kind of line: functions that return True for such a text.
LOOKALIKES: dict[str, Callable[[str], bool]] = {
    "not_in_nfc": lambda text: not is_normalized("NFC", text),
    "invisible_characters": lambda text: INVISIBLE_CHARACTER.search(text) is not None,
    "special_spaces": lambda text: SPECIAL_SPACE.search(text) is not None,
}

Block = list[LinePair]
"""Consecutive pairs of a corpus, at most BLOCK_LINES."""


class Sample:
    """Uniform random sample of the blocks of several corpora (reservoir sampling: Vitter 1985, algorithm R)."""

    def __init__(self, seed: int) -> None:
        self.blocks: list[Block] = []
        self._seen, self._random = 0, random.Random(seed)

    def draw_from(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs unchanged, and sample blocks of them."""
        block: Block = []
        for number, source, target in pairs:
            block.append((number, source.text, target))
            yield number, source, target
            if len(block) == BLOCK_LINES:
                self._add(block)
                block = []
        if block:
            self._add(block)

    def _add(self, block: Block) -> None:
        self._seen += 1
        if len(self.blocks) < MAX_BLOCKS:
            self.blocks.append(block)
        elif (index := self._random.randrange(self._seen)) < MAX_BLOCKS:
            self.blocks[index] = block


def scanned(pairs: Iterable[Pair], report: CorpusReport, sides: int, languages: Languages, seen: dict[bytes, bool]
            ) -> Iterator[Pair]:
    """Yield the pairs unchanged. Add to the report the number of lines of each kind, such as duplicates, and, after the
    last pair, the number of pairs that each value of LENGTH_RATIOS, MAX_CHARACTERS and NUMBER_AGREEMENTS would drop.
    sides: 2 for pairs; 1 for the text of a language model. seen: hashes of earlier pairs, to which those of these pairs
    are added with the value False. `cleaning.clean` and `add_remaining` make it True for a pair that is kept.
    """
    limits = {"max_characters": dict.fromkeys(map(str, MAX_CHARACTERS), 0)}
    if sides == 2:
        limits["max_length_ratio"] = dict.fromkeys(map(str, LENGTH_RATIOS), 0)
        limits["min_number_agreement"] = dict.fromkeys(map(str, NUMBER_AGREEMENTS), 0)
    for number, source, target in pairs:
        report.lines += 1
        texts = (source.text, target)[-sides:]
        canonical_texts = tuple(map(canonical, texts))
        lengths = list(map(len, canonical_texts))
        agreement = number_agreement(*canonical_texts) if sides == 2 and min(lengths) else 1.0
        canonical_source = Source("".join(canonical_texts[:-1]), language=source.language, tag=source.tag,
                                  source_language=source.source_language)
        digest = pair_digest(languages, canonical_source, canonical_texts[-1])
        for kind in kinds_of(texts, canonical_texts, digest in seen, agreement):
            report.findings.setdefault(kind, Finding()).add(number)
        seen.setdefault(digest, False)
        for limit in MAX_CHARACTERS:
            limits["max_characters"][str(limit)] += max(lengths) > limit
        for ratio in LENGTH_RATIOS if sides == 2 else ():
            limits["max_length_ratio"][str(ratio)] += (
                min(lengths) > SHORT_TEXT and max(lengths) > ratio * min(lengths))
        for minimum in NUMBER_AGREEMENTS if sides == 2 else ():
            limits["min_number_agreement"][str(minimum)] += agreement < minimum
        yield number, source, target
    report.limits = {**limits, **report.limits}


def add_remaining(pairs: Iterable[Pair], report: CorpusReport, sides: int, languages: Languages,
                  seen: dict[bytes, bool] | None) -> None:
    """Add the lines of each kind to `report.remaining`. pairs: pairs that cleaning keeps, as the model sees them.
    seen: as in `scanned`; None if cleaning removes duplicates."""
    for number, source, target in pairs:
        texts = (source.text, target)[-sides:]
        repeated = False
        if seen is not None:
            digest = pair_digest(languages, source, target)
            repeated = seen.get(digest, False)
            seen[digest] = True
        agreement = number_agreement(*texts) if "numbers_differ" in report.findings else 1.0
        for kind in kinds_of(texts, tuple(map(canonical, texts)), repeated, agreement):
            report.remaining.setdefault(kind, Finding()).add(number)


def kinds_of(texts: tuple[str, ...], canonical_texts: tuple[str, ...], repeated: bool, agreement: float
             ) -> Iterator[str]:
    """Yield the kinds of a line, such as `empty` or `duplicate`. repeated: True if an earlier pair is equal. agreement:
    see `number_agreement`."""
    for kind, occurs in LOOKALIKES.items():
        if any(map(occurs, texts)):
            yield kind
    if not all(canonical_texts):
        yield "empty"
        return
    if repeated:
        yield "duplicate"
    if len(texts) == 2 and canonical_texts[0] == canonical_texts[1]:
        yield "identical"
    if any(map(is_damaged, texts)):
        yield "damaged"
    if any(map(is_split_into_subwords, texts)):
        yield "split_into_subwords"
    if any(map(has_entities, texts)):
        yield "html_entities"
    if any(map(has_csv_quotes, texts)):
        yield "csv_quotes"
    if len(texts) == 2 and is_tokenized(texts[0]):
        yield "tokenised_source"
    if is_tokenized(texts[-1]):                                                 # BLEU is computed on the target
        yield "tokenised_target"
    if agreement < 1:
        yield "numbers_differ"
