"""A corpus as it lies, before any cleaning: what kinds of lines it has, and a sample of it."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from seq2seq.check.report import CorpusReport, Finding
from seq2seq.data.cleaning import SHORT_TEXT
from seq2seq.data.corpus import Pair, byte_lines
from seq2seq.data.line_splitting import main_language
from seq2seq.data.number_agreement import number_agreement
from seq2seq.data.pair_quality import has_entities, is_damaged, is_tokenized
from seq2seq.errors import CorpusError
from seq2seq.recipe import Corpus, Languages

STRETCH = 64
"""Lines that are drawn and judged together: neighbours show whether one side has slipped."""
MOST_STRETCHES = 320
MOST_DECODED = 100
"""Lines, of those that are no UTF-8, by which the encoding of a file is guessed."""
# CP932 is Shift-JIS with its usual extension.
ENCODINGS = {"ja": ("EUC-JP", "CP932"), "zh": ("GB18030", "BIG5"), "ko": ("CP949",), "el": ("CP1253",),
             "tr": ("CP1254",), "he": ("CP1255",), "th": ("CP874",),
             **dict.fromkeys(("ar", "fa", "ur"), ("CP1256",)), **dict.fromkeys(("et", "lt", "lv"), ("CP1257",)),
             **dict.fromkeys(("ru", "uk", "be", "bg", "mk", "sr"), ("CP1251",)),
             **dict.fromkeys(("cs", "hr", "hu", "pl", "ro", "sk", "sl"), ("CP1250",))}
"""Encodings that text in a language was mostly kept in before UTF-8, likely ones first."""
FREQUENT = frozenset("的是不了在有我他一人大这這个個们們中来來上国國和说說时時，。、のにはをたがで")
"""Characters of nearly all Chinese or Japanese text. Most of it can be decoded in several encodings (nearly all Big5 as
GB18030), but these appear in one."""
RATIOS = (1.5, 2.0, 3.0, 4.0)
CHARACTERS = (250, 500, 1000, 5000)
AGREEMENTS = (0.5, 0.7, 1.0)

Stretch = list[Pair]


class Sample:
    """Stretches of consecutive pairs, drawn evenly from all corpora that are shown (Vitter 1985, algorithm R)."""

    def __init__(self, seed: int) -> None:
        self.stretches: list[Stretch] = []
        self._seen, self._random = 0, random.Random(seed)

    def watch(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs as they are; stretches of them are drawn on the way."""
        stretch: Stretch = []
        for pair in pairs:
            stretch.append(pair)
            yield pair
            if len(stretch) == STRETCH:
                self._show(stretch)
                stretch = []
        if stretch:
            self._show(stretch)

    def _show(self, stretch: Stretch) -> None:
        self._seen += 1
        if len(self.stretches) < MOST_STRETCHES:
            self.stretches.append(stretch)
        elif (place := self._random.randrange(self._seen)) < MOST_STRETCHES:
            self.stretches[place] = stretch


def survey(pairs: Iterable[Pair], report: CorpusReport, sides: int) -> None:
    """Read all pairs and count kinds of lines, and what limits would drop, into the report."""
    seen: set[bytes] = set()
    limits = {key: dict.fromkeys(map(str, values), 0) for key, values in (
        ("max_characters", CHARACTERS), *((("max_length_ratio", RATIOS), ("min_number_agreement", AGREEMENTS))
                                          if sides == 2 else ()))}
    for number, source, target in pairs:
        report.lines += 1
        texts = (source, target)[-sides:]
        lengths = [len(text.strip()) for text in texts]
        for limit in CHARACTERS:
            limits["max_characters"][str(limit)] += max(lengths) > limit
        for kind in _kinds(texts, lengths, seen):
            report.findings.setdefault(kind, Finding()).add(number)
        if sides == 2:
            for ratio in RATIOS:
                limits["max_length_ratio"][str(ratio)] += (
                    min(lengths) > SHORT_TEXT and max(lengths) > ratio * min(lengths))
            if not min(lengths):                                                # which is why the pair is dropped
                continue
            agreement = number_agreement(*texts)
            for least in AGREEMENTS:
                limits["min_number_agreement"][str(least)] += agreement < least
            if agreement < 1:
                report.findings.setdefault("numbers_differ", Finding()).add(number)
    report.limits = limits


def _kinds(texts: tuple[str, ...], lengths: list[int], seen: set[bytes]) -> Iterator[str]:
    if not min(lengths):
        yield "empty"
        return
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()
    if digest in seen:
        yield "duplicate"
    seen.add(digest)
    if len(texts) == 2 and texts[0] == texts[1]:
        yield "identical"
    if any(map(is_damaged, texts)):
        yield "damaged"
    if any(map(has_entities, texts)):
        yield "html_entities"
    if is_tokenized(texts[-1]):                                                 # the side that is scored
        yield "tokenised_target"


def describe_files(spec: Corpus, directory: Path, languages: Languages) -> dict[str, dict[str, Any]]:
    """Of each file of a corpus that cannot be read: its lines, and which of them are no UTF-8."""
    described: dict[str, dict[str, Any]] = {}
    for path in spec.paths:
        lines, damaged, marks, first = 0, Finding(), False, b""
        try:
            for lines, line in enumerate(byte_lines(directory / path, spec.max_line_bytes), start=1):
                marks |= lines == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff"))
                try:
                    line.decode()
                except UnicodeDecodeError:
                    damaged.add(lines)
                    if damaged.count <= MOST_DECODED:
                        first += line
        except CorpusError as error:
            described[str(path)] = {"error": str(error)}
            continue
        seems = "UTF-16" if marks else "UTF-8"
        if damaged.count and not marks:
            # A table holds both sides, a text file one.
            of_a_side = spec.form == "files"
            sides = [language for language, file in ((languages.source, spec.source), (languages.target, spec.target))
                     if language and not (of_a_side and str(file) != str(path))]
            seems = likely_encoding(first, sides or [languages.target])
        described[str(path)] = {"lines": lines, "not_utf8": damaged.count, "such_as": damaged.lines, "seems": seems}
    return described


def likely_encoding(data: bytes, languages: Sequence[str]) -> str:
    """Name of the encoding that text in these languages, which is no UTF-8, is most likely in, as iconv knows it."""
    for encodings in filter(None, (ENCODINGS.get(main_language(language)) for language in languages)):
        decoded = {}
        for encoding in encodings:
            with contextlib.suppress(UnicodeDecodeError):
                decoded[encoding] = data.decode(encoding)
        if decoded:                                                             # of equally good ones the first
            return max(decoded, key=lambda encoding: sum(map(FREQUENT.__contains__, decoded[encoding])))
    return "Latin-1 or Windows-1252"
