"""Reader of translation memories, TMX 1.4 (LISA 2005), in constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from xml.parsers import expat

from seq2seq.errors import CorpusError
from seq2seq.files import MAX_LINE_BYTES
from seq2seq.languages import subtags

# Elements that contain inline markup of a word processor. <hi> and <sub> (a footnote) are not included, because they
# contain text.
MARKUP_ELEMENTS = frozenset({"bpt", "ept", "it", "ph", "ut"})
LANGUAGE_ATTRIBUTES = ("xml:lang", "lang")
"""Attributes of a <tuv> that contain its language; `lang` is the attribute of TMX 1.1."""


@dataclass
class _Unit:
    """Translation unit (<tu>) that is being read. variants: language and text of each finished <seg>. text: pieces of
    the text of the current <seg>; None outside a <seg>. markup_depth: number of open MARKUP_ELEMENTS."""

    variants: list[tuple[str, str]] = field(default_factory=list)
    language: str = ""
    text: list[str] | None = None
    markup_depth: int = 0


class _Reader:
    """XML parser with its handlers. units: units that were read completely, but not yet yielded."""

    def __init__(self, path: str, keep_markup: bool, max_segment_bytes: int) -> None:
        self.path, self.keep_markup, self.max_segment_bytes = path, keep_markup, max_segment_bytes
        self.segment_bytes = 0
        self.units: list[_Unit] = []
        self.unit: _Unit | None = None
        self.root: str | None = None
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._reject_entity
        self.parser.SkippedEntityHandler = self._reject_unknown_entity

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self.root is None:
            self.root = name
            if name != "tmx":
                raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: the file begins with <{name}>; a "
                                  "translation memory begins with <tmx>.")
        if name == "tu":
            self.unit = _Unit()
        unit = self.unit
        if unit is None:
            return
        if name == "tuv":
            unit.language = next((attributes[key] for key in LANGUAGE_ATTRIBUTES if key in attributes), "")
        elif name == "seg":
            unit.text, self.segment_bytes = [], 0
        elif name in MARKUP_ELEMENTS:
            unit.markup_depth += 1

    def _end(self, name: str) -> None:
        unit = self.unit
        if unit is None:
            return
        if name == "seg" and unit.text is not None:
            unit.variants.append((unit.language, "".join(unit.text)))
            unit.text = None
        elif name in MARKUP_ELEMENTS:
            unit.markup_depth -= 1
        elif name == "tu":
            self.units.append(unit)
            self.unit = None

    def _characters(self, text: str) -> None:
        unit = self.unit
        if unit is not None and unit.text is not None and (self.keep_markup or not unit.markup_depth):
            unit.text.append(text)
            self.segment_bytes += len(text.encode())
            if self.segment_bytes > self.max_segment_bytes:
                raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: a segment has more than "
                                  f"{self.max_segment_bytes:,} bytes. Cut it, or raise the corpus's max_line_bytes.")

    def _reject_entity(self, name: str, *_: object) -> None:
        raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: the file declares the entity '{name}'. "
                          "Entities are not read, because they can expand without limit. Write their text instead.")

    def _reject_unknown_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: the entity '&{name};' is not declared "
                              "in the file. Write its character instead.")


def read_units(blocks: Iterable[bytes], path: str, languages: Sequence[str], keep_markup: bool = False,
               limit: int | None = None, max_segment_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[str, ...]]:
    """Yield a tuple for each unit: its text in each of the given languages.

    Args:
        blocks: contents of the file, in blocks of any size.
        path: name of the file in error messages.
        languages: language codes. If a unit has no text (`<tuv>`) in `en`, its text in `en-US` is used for `en`. `eng`
            means the same as `en`. If several texts match, the best one is used (see `_text`). Without a match, the
            text is "".
        keep_markup: True to keep inline markup (`<b>` and so on) in the text.
        limit: maximum number of units to read.
        max_segment_bytes: maximum length of a segment in bytes.
    Raises:
        CorpusError: the file is not TMX, is damaged, or has a segment that is too long (the message names the line).
            Or, for at least one of the languages, no unit has text.
    """
    missing, existing, count = list(dict.fromkeys(languages)), dict[str, None](), 0
    for count, unit in enumerate(islice(_units(blocks, path, keep_markup, max_segment_bytes), limit), 1):
        texts = {language: _text(unit, language) for language in languages}
        if missing:
            missing = [language for language in missing if texts[language] is None]
            existing.update(dict.fromkeys(code for code, _ in unit.variants))
            if missing and count == limit:                                      # callers may stop iterating here
                raise _missing_language(path, missing, f"the first {count:,}", list(existing))
        yield tuple(texts[language] or "" for language in languages)
    if missing and count:
        raise _missing_language(path, missing, f"its {count:,}", list(existing))


def _units(blocks: Iterable[bytes], path: str, keep_markup: bool, max_segment_bytes: int) -> Iterator[_Unit]:
    reader = _Reader(path, keep_markup, max_segment_bytes)
    try:
        # The parser may hold back units until the call with last=True, as expat 2.6 does.
        for block, last in chain(((block, False) for block in blocks), [(b"", True)]):
            reader.parser.Parse(block, last)
            yield from reader.units
            reader.units.clear()
    except (LookupError, ValueError) as error:                                  # unknown or wrong declared encoding
        raise CorpusError(f"{path}: its encoding cannot be read ({error}). Convert the file to UTF-8, and change the "
                          "encoding in its first line to UTF-8.") from error
    except expat.ExpatError as error:
        raise CorpusError(f"{path}:{error.lineno}: not well-formed XML ({expat.ErrorString(error.code)}). Export the "
                          "translation memory again, or correct the line.") from error


def _missing_language(path: str, missing: Sequence[str], units: str, existing: Sequence[str]) -> CorpusError:
    """Return the error for a file without text in the languages `missing`. existing: languages of the file."""
    listed = ", ".join(code or "(no language code)" for code in existing)
    return CorpusError(
        f"{path}: none of {units} units has text in {' or '.join(repr(code) for code in missing)}. The file has the "
        f"languages {listed or 'none'}. Write two of these as `source` and `target` of the corpus in the recipe (for a "
        "language model, one as `text`), or, without a recipe, choose a file with text of both languages.")


def _text(unit: _Unit, language: str) -> str | None:
    """Return the text of the variant of a unit that matches a language best; None if no variant matches.

    The matching code with the fewest subtags is best: `en` before `en-US`. Among codes with equally many subtags, one
    spelled like `language` is best: for `en`, `en` before `eng`. Among equally good variants, the first is best.
    """
    wanted = subtags(language)
    matches = [(len(parts), re.split("[-_]", code.lower())[0] != re.split("[-_]", language.lower())[0], index)
               for index, (code, _) in enumerate(unit.variants) if (parts := subtags(code))[:len(wanted)] == wanted]
    return unit.variants[min(matches)[2]][1] if matches else None
