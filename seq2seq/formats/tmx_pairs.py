"""Reader of translation memories, TMX 1.4 (LISA 2005), in constant memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from xml.parsers import expat

from seq2seq.errors import CorpusError
from seq2seq.files import MAX_LINE_BYTES
from seq2seq.formats.xml_tokens import DECLARATION_BYTES, FORBIDDEN, xml_encoding
from seq2seq.languages import subtags

# Elements that contain inline markup of a word processor. <hi> and <sub> (a footnote) are not included, because they
# contain text.
MARKUP_ELEMENTS = frozenset({"bpt", "ept", "it", "ph", "ut"})
BREAK_TYPES = frozenset({"lb", "pb", "cb", "br", "tab", "linebreak", "softbreak", "pagebreak", "columnbreak",
                         "newline"})
"""Values of the attribute `type` of a native code that is a line, page or column break, or a tab; also with `x-`, and
with `-` or `_` between their words."""
# Native codes that separate words in the document: tags of HTML, Office, OpenDocument and OmegaT (`<br0/>`), also with
# other brackets; control words of RTF; escapes of messages; white space itself.
_ELEMENTS = ("br|hr|p|div|li|ul|ol|dl|dt|dd|t[rdh]|table|h[1-6]|pre|blockquote|tab|lb|lf|cr|nl|newline|line-?break|page"
             "-?break|w:(?:br|cr|tab|p)|a:(?:br|p)|text:(?:line-break|tab|s|p|h)")
_BREAK = re.compile(rf"</?(?:{_ELEMENTS})\d*(?:\s[^<>]*)?/?>|"
                    r"[{\[](?:br|tab|nl|lf|newline|line-?break)[}\]]|\\(?:line|par|tab|page|column|sect|cell|row)\b|"
                    r"\\[nrt](?![a-z])|&#(?:x0*[9AD]|0*(?:9|10|13));|[\n\r\t]", re.IGNORECASE)
_SPACE = re.compile(r"\s+|(?:&(?:nbsp|ensp|emsp|thinsp|#160|#xa0|#32|#x20);)+|\\~|<nbsp\d*/>", re.IGNORECASE)
_REFERENCE = re.compile(r"&#(?:x([0-9A-Fa-f]{1,8})|([0-9]{1,10}));")
_REFERENCE_CHARACTERS = 14
"""Maximum length of a character reference, which two blocks of a file may share."""
_CODE_SPACE = "\0"
"""Mark in the text of a segment for a native code that separates words."""


def separates_words(code: str, type: str = "") -> bool:
    """Return True for native code, such as `<br/>`, that is a line break, a tab or another break between words.

    type: attribute `type` of its element.
    """
    kind = type.lower().removeprefix("x-").replace("-", "").replace("_", "")
    return kind in BREAK_TYPES or _BREAK.search(code) is not None


def variant_language(attributes: Mapping[str, str]) -> str:
    """Return the language of a <tuv> by its attributes; `lang` is the attribute of TMX 1.1."""
    return attributes.get("xml:lang", attributes.get("lang", ""))


@dataclass
class Unit:
    """Translation unit that is being read. variants: language and text of each finished segment. text: pieces of the
    text of the current segment; None outside a segment. code: pieces of the native code of the current element of
    markup. markup_depth: number of open elements of markup. is_finished: False if its translation is not finished."""

    variants: list[tuple[str, str]] = field(default_factory=list)
    language: str = ""
    text: list[str] | None = None
    code: list[str] = field(default_factory=list)
    code_type: str = ""
    markup_depth: int = 0
    is_finished: bool = True


class UnitReader:
    """XML parser with its handlers, for TMX; subclasses read other formats with units.

    units: units that were read completely, but not yet yielded. unit: unit that is being read.
    """

    root = "tmx"
    markup = MARKUP_ELEMENTS

    def __init__(self, path: str, keep_markup: bool, max_segment_bytes: int) -> None:
        self.path, self.keep_markup, self.max_segment_bytes = path, keep_markup, max_segment_bytes
        self.segment_bytes = 0
        self.units: list[Unit] = []
        self.unit: Unit | None = None
        self.open: list[str] = []                                               # names of the open elements
        self.preserved = [False]                                                # xml:space of the open elements
        self.translated = [True]                                                # `translate` of the open elements
        self.parser = expat.ParserCreate("utf-8")                               # for a declaration of another encoding
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._reject_entity
        self.parser.SkippedEntityHandler = self._reject_unknown_entity

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Begin a unit, or set its language, or begin the text of a segment (`begin_text`), at the start of an element.

        name: name of the element without its prefix; it is the last one in `open`.
        """
        if name == "tu":
            self.unit = Unit()
        elif self.unit and name == "tuv":
            self.unit.language = variant_language(attributes)
        elif self.unit and name == "seg":
            self.begin_text()

    def ends_text(self, name: str) -> bool:
        """Return True if the end of an element is the end of a segment."""
        return name == "seg"

    def ends_unit(self, name: str) -> bool:
        """Return True if the end of an element is the end of a unit."""
        return name == "tu"

    def native_code(self, attributes: dict[str, str]) -> tuple[str, str]:
        """Return the native code of an element of markup, as far as its attributes name it, and its type."""
        return "", attributes.get("type", "")

    def begin_text(self) -> None:
        """Begin the text of a segment of the current unit."""
        assert self.unit is not None
        self.unit.text, self.segment_bytes = [], 0

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        if not self.open and name != self.root:
            raise CorpusError(f"{self.path}:{self.parser.CurrentLineNumber}: the file begins with <{name}>, not with "
                              f"<{self.root}>. Check the format that its name says.")
        self.open.append(name)
        space = attributes.get("xml:space")
        self.preserved.append(self.preserved[-1] if space is None else space == "preserve")
        self.translated.append({"no": False, "yes": True}.get(attributes.get("translate", ""), self.translated[-1]))
        unit = self.unit
        if unit is not None and name in self.markup:
            unit.markup_depth += 1
            if unit.markup_depth == 1:
                code, unit.code_type = self.native_code(attributes)
                unit.code = [code]
        else:
            self.start(name, attributes)

    def _end(self, name: str) -> None:
        unit, preserved = self.unit, self.preserved.pop()
        self.translated.pop()
        name = self.open[-1]
        if unit is not None and unit.text is not None and self.ends_text(name):
            unit.variants.append((unit.language, _without_layout("".join(unit.text), preserved)))
            unit.text = None
        elif unit is not None and name in self.markup:
            unit.markup_depth -= 1
            code = "".join(unit.code)
            if (unit.text is not None and not unit.markup_depth and not self.keep_markup
                    and (separates_words(code, unit.code_type) or _SPACE.fullmatch(code))):
                unit.text.append(_CODE_SPACE)
        elif unit is not None and self.ends_unit(name):
            self.units.append(unit)
            self.unit = None
        self.open.pop()

    def _characters(self, text: str) -> None:
        unit = self.unit
        if unit is not None and unit.text is not None:
            (unit.code if unit.markup_depth and not self.keep_markup else unit.text).append(text)
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
               limit: int | None = None, max_segment_bytes: int = MAX_LINE_BYTES,
               on_forbidden: Callable[[int], None] = lambda line: None,
               on_unfinished: Callable[[], None] = lambda: None,
               new_reader: Callable[[str, bool, int], UnitReader] = UnitReader) -> Iterator[tuple[str, ...]]:
    """Yield a tuple for each unit: its text in each of the given languages.

    The line breaks and indentation of a pretty-printed segment become one line feed, or nothing at its ends. With
    `xml:space="preserve"` they are kept. Inline markup that separates words, such as a line break, becomes a space.

    Args:
        blocks: contents of the file, in blocks of any size.
        path: name of the file in error messages.
        languages: language codes. If a unit has no text (`<tuv>`) in `en`, its text in `en-US` is used for `en`. `eng`
            means the same as `en`. If several texts match, the best one is used (see `_text`). Without a match, the
            text is "".
        keep_markup: True to keep inline markup (`<b>` and so on) in the text.
        limit: maximum number of units to read.
        max_segment_bytes: maximum length of a segment in bytes.
        on_forbidden: function that gets the line number of each character that XML does not allow, such as a control
            character. The character is replaced by U+FFFD.
        on_unfinished: function that is called for each unit whose translation is not finished; it is left out.
        new_reader: class of the reader of the format, by default TMX.
    """
    missing, existing, count = list(dict.fromkeys(languages)), dict[str, None](), 0
    units = _finished(_units(_as_utf8(blocks, path, on_forbidden), new_reader(path, keep_markup, max_segment_bytes)),
                      on_unfinished)
    for count, unit in enumerate(islice(units, limit), 1):
        texts = {language: _text(unit, language) for language in languages}
        if missing:
            missing = [language for language in missing if texts[language] is None]
            existing.update(dict.fromkeys(code for code, _ in unit.variants))
            if missing and count == limit:                                      # callers may stop iterating here
                raise _missing_language(path, missing, f"the first {count:,}", list(existing))
        yield tuple(texts[language] or "" for language in languages)
    if missing and count:
        raise _missing_language(path, missing, f"its {count:,}", list(existing))


def first_languages(blocks: Iterable[bytes], path: str, new_reader: Callable[[str, bool, int], UnitReader]
                    ) -> list[str]:
    """Return the codes of the languages of the first unit; see `read_units`."""
    units = _units(_as_utf8(blocks, path, lambda line: None), new_reader(path, False, MAX_LINE_BYTES))
    return [code for unit in islice(units, 1) for code, _ in unit.variants]


def _finished(units: Iterable[Unit], on_unfinished: Callable[[], None]) -> Iterator[Unit]:
    for unit in units:
        if unit.is_finished:
            yield unit
        else:
            on_unfinished()


def _units(blocks: Iterable[bytes], reader: UnitReader) -> Iterator[Unit]:
    try:
        # The parser may hold back units until the call with last=True, as expat 2.6 does.
        for block, last in chain(((block, False) for block in blocks), [(b"", True)]):
            reader.parser.Parse(block, last)
            yield from reader.units
            reader.units.clear()
    except expat.ExpatError as error:
        raise CorpusError(f"{reader.path}:{error.lineno}: not well-formed XML ({expat.ErrorString(error.code)}). "
                          "Export the file again, or correct the line.") from error


def _as_utf8(blocks: Iterable[bytes], path: str, on_forbidden: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the contents of a file in UTF-8, with U+FFFD in place of the characters that XML does not allow."""
    blocks, start = iter(blocks), b""
    for block in blocks:
        start += block
        if len(start) >= DECLARATION_BYTES:
            break
    encoding = xml_encoding(start)
    lines, rest, is_first = 1, "", True

    def replaced(text: str, position: int) -> str:
        on_forbidden(lines + text.count("\n", 0, position))
        return "\ufffd"

    try:
        str(b"x", encoding, "ignore")                                           # refuses codecs that are not of text
        decoder = codecs.getincrementaldecoder(encoding)()
        for block, last in chain(((block, False) for block in chain([start], blocks)), [(b"", True)]):
            text = rest + decoder.decode(block, last)
            if is_first:                                                        # with the byte order mark
                text, is_first = text.removeprefix("\ufeff"), False
            cut = len(text) if last else text.find("&", max(0, len(text) - _REFERENCE_CHARACTERS))
            text, rest = (text, "") if cut < 0 else (text[:cut], text[cut:])
            if FORBIDDEN.search(text):
                text = FORBIDDEN.sub(lambda match: replaced(match.string, match.start()), text)
            if "&#" in text:
                text = _REFERENCE.sub(lambda match: match[0] if _is_allowed(match) else replaced(
                    match.string, match.start()), text)
            yield text.encode()
            lines += text.count("\n")
    except UnicodeDecodeError as error:
        lines += str(error.object[:error.start], encoding, "replace").count("\n") + rest.count("\n")
        raise CorpusError(f"{path}:{lines}: byte 0x{error.object[error.start]:02x} is not "
                          f"{encoding.upper()}, the encoding of the file. Correct the encoding in "
                          "its first line, or convert the file to UTF-8.") from error
    except (LookupError, ValueError) as error:
        raise CorpusError(f"{path}: its encoding, {encoding}, is not known. Convert the file to UTF-8, and change the "
                          "encoding in its first line to UTF-8.") from error


def _is_allowed(reference: re.Match[str]) -> bool:
    """Return True if XML allows the character of a character reference."""
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    return code <= 0x10FFFF and FORBIDDEN.match(chr(code)) is None


def _without_layout(text: str, preserved: bool) -> str:
    """Return the text of a segment without the layout of the file: each run of white space with a line break becomes a
    line feed, or nothing at an end of the text; a run with a mark of native code becomes a space.

    preserved: True to keep the line breaks, because of `xml:space="preserve"`.
    """
    breaks = _CODE_SPACE if preserved else f"{_CODE_SPACE}\n"
    if not any(mark in text for mark in breaks):
        return text

    def replacement(run: re.Match[str]) -> str:
        if not any(mark in run[0] for mark in breaks):
            return run[0]
        inner = run.start() > 0 and run.end() < len(text)
        return "" if not inner else "\n" if "\n" in run[0] else " "

    return re.sub(r"[ \t\r\n\0]+", replacement, text)


def _missing_language(path: str, missing: Sequence[str], units: str, existing: Sequence[str]) -> CorpusError:
    """Return the error for a file without text in the languages `missing`. existing: languages of the file."""
    listed = ", ".join(code or "(no language code)" for code in existing)
    return CorpusError(
        f"{path}: none of {units} units has text in {' or '.join(repr(code) for code in missing)}. The file has the "
        f"languages {listed or 'none'}. Write two of these as `source` and `target` of the corpus in the recipe (for a "
        "language model, one as `text`), or, without a recipe, choose a file with text of both languages.")


def _text(unit: Unit, language: str) -> str | None:
    """Return the text of the variant of a unit that matches a language best; None if no variant matches.

    The matching code with the fewest subtags is best: `en` before `en-US`. Among codes with equally many subtags, one
    spelled like `language` is best: for `en`, `en` before `eng`. Among equally good variants, the first is best.
    """
    wanted = subtags(language)
    matches = [(len(parts), re.split("[-_]", code.lower())[0] != re.split("[-_]", language.lower())[0], index)
               for index, (code, _) in enumerate(unit.variants) if (parts := subtags(code))[:len(wanted)] == wanted]
    return unit.variants[min(matches)[2]][1] if matches else None
