"""Reader of translation memories, TMX 1.4 (LISA 2005), in constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from xml.parsers import expat

from seq2seq.compressed_files import MAX_LINE_BYTES
from seq2seq.errors import CorpusError
from seq2seq.recipe.language_codes import subtags

# Elements with inline markup of a word processor; <hi> (and <sub>, a footnote) contain text.
CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
LANGUAGE = ("xml:lang", "lang")
"""Attributes of a <tuv>; the second is that of TMX 1.1."""
MOST_NAMED = 20
"""Largest number of languages that an error lists."""


@dataclass
class _Unit:
    """A <tu> as read so far: the text of each of its variants, with its language."""

    variants: list[tuple[str, str]] = field(default_factory=list)
    language: str = ""
    text: list[str] | None = None
    depth_in_codes: int = 0


class _Reader:
    """Handlers of the XML parser. units: finished units that the caller has not taken yet."""

    def __init__(self, path: str, keep_markup: bool, longest: int) -> None:
        self.path, self.keep_markup, self.longest = path, keep_markup, longest
        self.length = 0
        self.units: list[_Unit] = []
        self.unit: _Unit | None = None
        self.root: str | None = None
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._refuse_entity
        self.parser.SkippedEntityHandler = self._unknown_entity

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
            unit.language = next((attributes[key] for key in LANGUAGE if key in attributes), "")
        elif name == "seg":
            unit.text, self.length = [], 0
        elif name in CODES:
            unit.depth_in_codes += 1

    def _end(self, name: str) -> None:
        unit = self.unit
        if unit is None:
            return
        if name == "seg" and unit.text is not None:
            unit.variants.append((unit.language, "".join(unit.text)))
            unit.text = None
        elif name in CODES:
            unit.depth_in_codes -= 1
        elif name == "tu":
            self.units.append(unit)
            self.unit = None

    def _characters(self, text: str) -> None:
        unit = self.unit
        if unit is not None and unit.text is not None and (self.keep_markup or not unit.depth_in_codes):
            unit.text.append(text)
            self.length += len(text.encode())
            if self.length > self.longest:
                raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: a segment has more than "
                                  f"{self.longest:,} bytes. Cut it, or raise the corpus's max_line_bytes.")

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: the file declares the entity '{name}'. Such "
                          "declarations can grow without bound and are not read; write the text itself.")

    def _unknown_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: the entity '&{name};' is declared nowhere "
                              "in the file, and its text would be lost; write the character itself.")


def read_units(blocks: Iterable[bytes], path: str, languages: Sequence[str], keep_markup: bool = False,
               limit: int | None = None, longest: int = MAX_LINE_BYTES) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each unit in these languages.

    Args:
        blocks: the file's bytes, in blocks of any size.
        path: name of the file in errors.
        languages: codes; `en` also takes `en-US` if no variant is `en` itself, and `eng` is the same as `en`. A unit
            without one of them gives "" for it; of several variants in one language the first is taken.
        keep_markup: keep inline markup (`<b>` …) in the text.
        limit: number of units to read, from the first.
        longest: limit of a segment's length in bytes.
    Raises:
        CorpusError: the file is no TMX, or damaged, or has a longer segment; with its line. Or no unit has one of the
            languages.
    """
    missing, there, count = list(dict.fromkeys(languages)), dict[str, None](), 0
    for count, unit in enumerate(islice(_units(blocks, path, keep_markup, longest), limit), 1):
        texts = {language: _text(unit, language) for language in languages}
        if missing:
            missing = [language for language in missing if texts[language] is None]
            there.update(dict.fromkeys(code for code, _ in unit.variants))
            if missing and count == limit:                                      # the caller may stop here
                raise _without(path, missing, f"the first {count:,}", list(there))
        yield tuple(texts[language] or "" for language in languages)
    if missing and count:
        raise _without(path, missing, f"its {count:,}", list(there))


def _units(blocks: Iterable[bytes], path: str, keep_markup: bool, longest: int) -> Iterator[_Unit]:
    reader = _Reader(path, keep_markup, longest)
    try:
        # The parser may hold units back until the end of the file (expat 2.6 does).
        for block, last in chain(((block, False) for block in blocks), [(b"", True)]):
            reader.parser.Parse(block, last)
            yield from reader.units
            reader.units.clear()
    except (LookupError, ValueError) as error:                                  # of the encoding that the file names
        raise CorpusError(f"{path}: its encoding cannot be read ({error}). Convert the file to UTF-8, and name that in "
                          "its first line.") from error
    except expat.ExpatError as error:
        raise CorpusError(f"{path}:{error.lineno}: no well-formed XML ({expat.ErrorString(error.code)}). Export the "
                          "translation memory again, or mend the line.") from error


def _without(path: str, missing: Sequence[str], units: str, there: Sequence[str]) -> CorpusError:
    """Return the error about a file without text in the languages `missing`. there: languages that it has."""
    named = ", ".join(code or "not named" for code in there[:MOST_NAMED])
    return CorpusError(
        f"{path}: none of {units} units has text in {' or '.join(repr(code) for code in missing)}. Their languages are "
        f"{named or 'none'}{', …' if len(there) > MOST_NAMED else ''}. Write two of these as `source` and `target` of "
        "the corpus (for a language model, one as `text`), or name another file.")


def _text(unit: _Unit, language: str) -> str | None:
    """Return the unit's text in a language.

    It is that of the variant with the shortest matching code, `en` before `en-US`; of two such variants, of the one
    whose code is spelled the same way, `en` before `eng`.
    """
    wanted = subtags(language)
    fitting = [(len(parts), _main(code) != _main(language), number) for number, (code, _) in enumerate(unit.variants)
               if (parts := subtags(code))[:len(wanted)] == wanted]
    return unit.variants[min(fitting)[2]][1] if fitting else None


def _main(code: str) -> str:
    return re.split("[-_]", code.lower())[0]
