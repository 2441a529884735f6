"""Statistics of a corpus before cleaning: counts of defective lines, and a random sample of its pairs."""

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
from seq2seq.data.number_agreement import number_agreement
from seq2seq.data.pair_quality import has_entities, is_tokenized
from seq2seq.errors import CorpusError
from seq2seq.files.compressed_files import UTF16_MARKS
from seq2seq.files.damaged_text import is_damaged, is_split_into_subwords
from seq2seq.recipe import Corpus, Languages
from seq2seq.recipe.language_codes import main_language

BLOCK_LINES = 64
"""Number of consecutive lines in a block. Blocks are sampled instead of single lines, because a shift of one side by a
line can be detected only in consecutive lines."""
MAX_BLOCKS = 320
"""Maximum number of blocks in the sample."""
MAX_DECODED_LINES = 100
"""Maximum number of lines from which the encoding of a file is guessed. Only lines that are not UTF-8 are used."""
# CP932 is Microsoft's extension of Shift-JIS.
ENCODINGS = {"ja": ("EUC-JP", "CP932"), "zh": ("GB18030", "BIG5"), "ko": ("CP949",), "el": ("CP1253", "ISO-8859-7"),
             "tr": ("CP1254",), "he": ("CP1255",), "th": ("CP874",), "ar": ("CP1256", "ISO-8859-6"),
             **dict.fromkeys(("fa", "ur"), ("CP1256",)), **dict.fromkeys(("et", "lt", "lv"), ("CP1257",)),
             **dict.fromkeys(("ru", "bg", "mk", "sr"), ("CP1251", "KOI8-R", "ISO-8859-5", "CP866")),
             **dict.fromkeys(("uk", "be"), ("CP1251", "KOI8-U", "ISO-8859-5", "CP866")),
             **dict.fromkeys(("cs", "hr", "hu", "pl", "ro", "sk", "sl"), ("CP1250", "ISO-8859-2", "CP852"))}
"""Most common encodings of each language besides UTF-8, the most likely one first."""
FREQUENT = {
    **dict.fromkeys(("ja", "zh"), frozenset("的是不了在有我他一人大这這个個们們中来來上国國和说說时時"
                                            "，。、のにはをたがで")),
    **dict.fromkeys(("ru", "uk", "be", "bg", "mk", "sr"), frozenset("оеаинтсрвлкмдпуіјў")),
    "ar": frozenset("اليمونرتبعدسه"), "el": frozenset("αοιετσνηυρπκάέήίόύώςΆ"),
    "cs": frozenset("áčďéěíňóřšťúůýžČŘŠŽ"), "hr": frozenset("čćđšžČĆĐŠŽ"), "hu": frozenset("áéíóöőúüűÁÉÖŐ"),
    "pl": frozenset("ąćęłńóśźżĆŁŚŹŻ"), "ro": frozenset("ăâîşţÎŞŢ"), "sk": frozenset("áäčďéíĺľňóôŕšťúýžČĽŠŽ"),
    "sl": frozenset("čšžČŠŽ")}
"""Frequent characters of a language, or its letters with accents. Most text can be decoded without errors in several
encodings: nearly all Big5 text is also valid GB18030, and all KOI8-R text is valid CP866. The encoding that yields the
most of these characters is taken as the correct one."""
MIN_UTF8_SHARE = 0.05
"""Minimum number of lines of other characters than ASCII that are UTF-8, divided by the number of lines that are not
UTF-8, from which a file is a mixture of encodings. A short line in another encoding can be UTF-8 by chance."""
# Values of keys in data.cleaning. For each value, the report counts the pairs that this value alone would drop.
LENGTH_RATIOS = (1.5, 2.0, 3.0, 4.0)
MAX_CHARACTERS = (250, 500, 1000, 5000)
NUMBER_AGREEMENTS = (0.5, 0.7, 1.0)

Block = list[Pair]
"""Consecutive pairs of a corpus, at most BLOCK_LINES."""


class Sample:
    """Uniform random sample of the blocks of several corpora (reservoir sampling: Vitter 1985, algorithm R)."""

    def __init__(self, seed: int) -> None:
        self.blocks: list[Block] = []
        self._seen, self._random = 0, random.Random(seed)

    def draw_from(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs unchanged, and sample blocks of them."""
        block: Block = []
        for pair in pairs:
            block.append(pair)
            yield pair
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


def scan_corpus(pairs: Iterable[Pair], report: CorpusReport, sides: int) -> None:
    """Read all pairs. Add to the report the number of lines of each kind, such as duplicates, and the number of pairs
    that each value of LENGTH_RATIOS, MAX_CHARACTERS and NUMBER_AGREEMENTS would drop.
    sides: 2 for pairs; 1 for the text of a language model.
    """
    seen: set[bytes] = set()
    limits = {key: dict.fromkeys(map(str, values), 0) for key, values in (
        ("max_characters", MAX_CHARACTERS), *((("max_length_ratio", LENGTH_RATIOS),
                                               ("min_number_agreement", NUMBER_AGREEMENTS)) if sides == 2 else ()))}
    for number, source, target in pairs:
        report.lines += 1
        texts = (source, target)[-sides:]
        lengths = [len(text.strip()) for text in texts]
        for limit in MAX_CHARACTERS:
            limits["max_characters"][str(limit)] += max(lengths) > limit
        for kind in _kinds(texts, lengths, seen):
            report.findings.setdefault(kind, Finding()).add(number)
        if sides == 2:
            for ratio in LENGTH_RATIOS:
                limits["max_length_ratio"][str(ratio)] += (
                    min(lengths) > SHORT_TEXT and max(lengths) > ratio * min(lengths))
            if not min(lengths):                                                # already counted as empty
                continue
            agreement = number_agreement(*texts)
            for minimum in NUMBER_AGREEMENTS:
                limits["min_number_agreement"][str(minimum)] += agreement < minimum
            if agreement < 1:
                report.findings.setdefault("numbers_differ", Finding()).add(number)
    report.limits = limits


def _kinds(texts: tuple[str, ...], lengths: list[int], seen: set[bytes]) -> Iterator[str]:
    """Yield the kinds of a line, such as `empty` or `duplicate`.

    seen: hashes of earlier lines; the hash of this line is added.
    """
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
    if any(map(is_split_into_subwords, texts)):
        yield "split_into_subwords"
    if any(map(has_entities, texts)):
        yield "html_entities"
    if is_tokenized(texts[-1]):                                                 # BLEU is computed on the target
        yield "tokenised_target"


def describe_files(spec: Corpus, directory: Path, languages: Languages) -> dict[str, dict[str, Any]]:
    """Describe each file of an unreadable corpus: number of lines, number and examples of lines that are not UTF-8, and
    likely encoding. If a file cannot be read even as bytes, its description is only the error. Formats that name their
    encoding themselves (Parquet, TMX) are not described."""
    described: dict[str, dict[str, Any]] = {}
    for path in spec.paths if spec.table_format not in (".parquet", ".tmx") else ():
        lines, damaged, is_utf16, undecoded, in_utf8 = 0, Finding(), False, b"", 0
        try:
            for lines, line in enumerate(byte_lines(directory / path, spec.max_line_bytes), start=1):
                is_utf16 |= lines == 1 and line.startswith(UTF16_MARKS)
                try:
                    in_utf8 += not line.decode().isascii()
                except UnicodeDecodeError:
                    damaged.add(lines)
                    if damaged.count <= MAX_DECODED_LINES:
                        undecoded += line
        except CorpusError as error:
            described[str(path)] = {"error": str(error)}
            continue
        seems = "UTF-16" if is_utf16 else "UTF-8"
        if damaged.count and not is_utf16:
            # A table contains both languages; a text file contains only one language.
            one_side = spec.form == "files"
            codes = [language for language, file in ((languages.source, spec.source), (languages.target, spec.target))
                     if language and not (one_side and str(file) != str(path))]
            seems = likely_encoding(undecoded, codes or [languages.target])
            if in_utf8 > MIN_UTF8_SHARE * damaged.count:
                seems = f"UTF-8 with lines in {seems}, so that iconv cannot convert it as a whole"
        described[str(path)] = {"lines": lines, "not_utf8": damaged.count, "such_as": damaged.lines, "seems": seems}
    return described


def likely_encoding(data: bytes, languages: Sequence[str]) -> str:
    """Return the iconv name of the most likely encoding of bytes that are not UTF-8.

    If no encoding in ENCODINGS fits, return "Latin-1 or Windows-1252".
    languages: possible languages of the text. Encodings of the first language are tried first.
    """
    for language in map(main_language, languages):
        frequent, decoded = FREQUENT.get(language, frozenset()), {}
        for encoding in ENCODINGS.get(language, ()):
            with contextlib.suppress(UnicodeDecodeError):
                decoded[encoding] = data.decode(encoding)
        if decoded:                                         # in case of a tie, `max` returns the first encoding
            return max(decoded, key=lambda encoding: sum(map(frequent.__contains__, decoded[encoding])))
    return "Latin-1 or Windows-1252"
