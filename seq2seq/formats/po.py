"""Gettext catalogues, PO and POT.

Messages without a translation are translated and marked as `fuzzy`. Everything else stays: comments, obsolete messages,
messages with a translation, and messages that are no text, such as the names of the translators. Format:
https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from seq2seq.formats.block import Block
from seq2seq.formats.catalogue import CONTROLS, Catalogue, Field, Message, declared_encoding
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.plurals import MAX_FORMS, gettext_language, gettext_rule, singular_forms
from seq2seq.formats.spans import Edit, replace_spans
from seq2seq.formats.syntaxes import BOUNDARIES, GETTEXT_FORMATS, find_markup, keeps_arguments, with_boundaries
from seq2seq.formats.texts import decode_text, trim, wrap
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.languages import is_same_language

_ESCAPED = str.maketrans({character: f"\\{letter}" for letter, character in CONTROLS.items()})
_FIELD = r"(?mi)(?:^|\"|\\n)%s:((?:[^\"\\\n]|\\[^n]|\"[ \t]*+\r?\n[ \t]*+\")*+)(?=\\n|\"[ \t]*+\r?$)"
"""Value of a field in the header, as it stands in the document."""
_RULE = re.compile(r"nplurals\s*+=\s*+[1-9]\d*+\s*+;\s*+plural\s*+=(?!\s*+EXPRESSION)")
_FILES = {"rst": r"\.rst:|:docstring of ", "markdown": r"\.md:", "asciidoc": r"\.(?:adoc|asciidoc|asc|txt):"}
"""References to documents by their syntax."""
_PO4A = re.compile(r"\btype: (?!Content of:|Attribute '|Hash Value|Array Element)|\.(?:[1-9]|pod|adoc|asciidoc|asc):")
"""Comment of po4a on a text that is not from XML or YAML, or a reference to a document. It is a manual page unless its
name tells another syntax."""
_WIDTH = 77
"""Maximum number of characters between the quotes of a wrapped line, as in files that gettext writes."""


class PoDocument(UnitDocument):
    """Gettext catalogue. A translation with other directives or other markup than its source is left out."""

    def decode(self, data: bytes) -> tuple[str, str]:
        return decode_text(data, declared_encoding(data))

    def find_units(self) -> Iterator[Unit]:
        catalogue = Catalogue(self.text)
        self._messages, self._header, self._value_of = catalogue.messages, catalogue.header, catalogue.value_of
        self.source_languages = {self._value_of("X-Source-Language")}
        self.target_languages = {self._value_of("Language") for message in self._messages
                                 if message.is_translated and message.sources[0].value}
        plurals = re.search(r"nplurals\s*+=\s*+([0-9]{1,3})", self._value_of("Plural-Forms"))
        self._forms = min(int(plurals[1]), MAX_FORMS) if plurals else 0
        for message in self._messages:
            if message.is_translated or not message.sources[0].value or message.is_reserved:
                continue
            syntax = _syntax(message)
            blocks = {}
            for index, source in enumerate(message.sources):
                block = _block(message, source, syntax)[1]
                if index > 0 or len(message.sources) == 1 or self._forms != 1:
                    blocks[index] = block
            if blocks:
                found = message.find("msgstr")
                yield Unit(found[0].begin, found[-1].end, [*blocks.values()], info=(message, [*blocks], syntax))

    def finish(self, edits: list[Edit], language: str) -> bytes:
        """Return the catalogue with its edits.

        In the header, an empty `Language:` is filled in, and so are plural forms that are missing or have the
        placeholder that xgettext writes. In a catalogue without any translation, both are replaced if they are those of
        another language. If the encoding lacks a character of a translation, the catalogue becomes UTF-8.
        """
        if not edits:
            return self.encode(self.text)
        wanted = dict[str, str]()
        if self._is_in_another(language) or not self._value_of("Language"):
            wanted["Language"] = gettext_language(language)
        rule = self._rule(language)
        if rule != self._value_of("Plural-Forms") and (self._field("Plural-Forms") or any(
                message.find("msgid_plural") for message in self._messages)):
            wanted["Plural-Forms"] = rule
        encoding, content = self.encoding, self._value_of("Content-Type")
        text = replace_spans(self.text, edits)
        if "charset=CHARSET" in content or not _is_encodable(text, encoding):
            encoding = encoding if encoding.startswith("utf") else "utf-8"
            wanted["Content-Type"] = re.sub(r"charset=\S*+", "charset=UTF-8", content)
        if not content and not text.isascii():
            wanted["Content-Type"] = "text/plain; charset=UTF-8"
        return replace_spans(self.text, [*edits, *self._header_edits(wanted)]).encode(encoding)

    def _is_in_another(self, language: str) -> bool:
        """Return True if the header of a catalogue without any translation names another language."""
        named = self._value_of("Language")
        return bool(named) and not self.target_languages and not is_same_language(named, language)

    def _rule(self, language: str) -> str:
        """Return the plural forms of the translated catalogue."""
        rule = self._value_of("Plural-Forms")
        return gettext_rule(language) if self._is_in_another(language) or not _RULE.search(rule) else rule

    def _field(self, name: str) -> tuple[int, int] | None:
        """Return the span of the value of a field of the header in the document; None if it is missing."""
        if self._header is None:
            return None
        found = re.search(_FIELD % name, self.text[self._header.begin:self._header.end])
        return (self._header.begin + found.start(1), self._header.begin + found.end(1)) if found else None

    def _header_edits(self, wanted: dict[str, str]) -> list[tuple[int, int, str]]:
        """Return the edits that set fields of the header. A missing `Language` is not added."""
        edits, added = [], []
        for name, value in wanted.items():
            if span := self._field(name):
                edits.append((*span, f" {value}"))
            elif name != "Language":
                added.append(f'"{name}: {value}\\n"')
        if added and self._header:
            lines = added if self._header.value.endswith("\n") or not self._header.value else ['"\\n"', *added]
            edits.append((self._header.end, self._header.end, "".join(self.line_end + line for line in lines)))
        elif added:
            begin = len(self.text) - len(self.text.removeprefix("\ufeff"))
            lines = ['msgid ""', 'msgstr ""', *added, "", ""]
            edits.append((begin, begin, self.line_end.join(lines)))
        return edits

    def edits(self, unit: Unit, blocks: Sequence[Block], language: str) -> list[Edit]:
        """Return the edits that translate a message; none if a translation has other directives than its source, or
        has them in an order that the format does not allow, or if it has other markup of the documentation."""
        message, indices, syntax = unit.info                                    # index in `sources` of each block
        translations = dict(zip(indices, blocks, strict=True))
        documentation = _documentation(message)
        texts = []
        for index, source in enumerate(message.sources):
            before, block, after = _block(message, source, syntax)
            text = translations.get(index, block).text
            text = with_boundaries(text, syntax[0]) if syntax[0] in BOUNDARIES else text
            text = _escape_apostrophes(text) if "java" in syntax else text
            if documentation and _markup(text, documentation) != _markup(block.text, documentation) or not all(
                    keeps_arguments(source.value, before + text + after, name) for name in _formats(message)):
                self.left_out.append(block.place)
                return []
            texts.append(before + text + after)
        wrapped = "no-wrap" not in message.flags and max(len(one.strings) for one in message.fields) > 1
        if len(texts) == 1:
            strings = [self._string("msgstr", texts[0], wrapped)]
        else:
            rule = self._rule(language)
            same = _directives(message.sources[0].value, syntax) == _directives(message.sources[1].value, syntax)
            forms = self._forms if rule == self._value_of("Plural-Forms") else int(rule[len("nplurals=")])
            singular = singular_forms(rule, same) if 0 in indices or self._forms != 1 else (False,) * forms
            strings = [self._string(f"msgstr[{form}]", texts[0 if is_singular else 1], wrapped)
                       for form, is_singular in enumerate(singular)]
        edits = [(unit.begin, unit.end, self.line_end.join(strings))]
        if message.flags_begin >= 0 and "fuzzy" not in message.flags:
            edits.append((message.flags_begin, message.flags_begin, " fuzzy,"))
        elif message.flags_begin < 0:
            edits.append((message.begin, message.begin, f"#, fuzzy{self.line_end}"))
        return edits

    def _string(self, keyword: str, text: str, wrapped: bool) -> str:
        lines = wrap(text, _WIDTH if wrapped else len(text))
        if len(lines) > 1:
            lines.insert(0, "")
        return f"{keyword} " + self.line_end.join(f'"{line.translate(_ESCAPED)}"' for line in lines)


def _documentation(message: Message) -> tuple[str, ...]:
    """Return the syntax of the document that a message is from, if it is one."""
    found = next((name for name, pattern in _FILES.items() if re.search(pattern, message.references)), "")
    if _PO4A.search(f"{message.comment} {message.references}"):
        return (found or "man",)
    return (found,) if found in ("rst", "markdown") else ()


def _formats(message: Message) -> list[str]:
    """Return the syntaxes that the format flags name. xgettext writes possible-c-format if it is not sure."""
    names = [flag.removesuffix("-format").removeprefix("possible-") for flag in message.flags if "-format" in flag]
    return [name for name in names if name in GETTEXT_FORMATS]


def _syntax(message: Message) -> tuple[str, ...]:
    """Return the syntaxes of the texts of a message; see `Block.syntax`."""
    formats, documentation = _formats(message), _documentation(message)
    return (*documentation, *formats, "template", "bbcode", "filter", *(() if formats else ("strftime",)),
            *(() if {"rst", "markdown"} & {*documentation} else ("names",) if documentation else ("wiki", "names")))


def _block(message: Message, source: Field, syntax: tuple[str, ...]) -> tuple[str, Block, str]:
    """Return the white space before a text, its block, and the white space after it."""
    text = _unescape_apostrophes(source.value) if "java" in syntax else source.value
    keys = "" if _documentation(message) else "_&~"
    return trim(Block(text, place=f"line {source.line}", keeps_lines=True, syntax=syntax, access_keys=keys,
                      comment=message.comment))


def _markup(text: str, documentation: tuple[str, ...]) -> Counter[str]:
    return Counter(text[one.begin:one.end] for one in find_markup(text, documentation)
                   if text[one.begin:one.end] != "\\ ")


def _directives(text: str, syntax: tuple[str, ...]) -> Counter[str]:
    """Return the placeholders of one of the sources of a message."""
    found = [text[one.begin:one.end] for one in find_markup(text, syntax) if one.kind == "value"]
    return Placeholders().counts(text) | Counter(found)


def _is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _unescape_apostrophes(text: str) -> str:
    """Return a message of java.text.MessageFormat with single apostrophes outside of its quotations."""
    return _outside_markup(text, lambda part: part.replace("''", "'"))


def _escape_apostrophes(text: str) -> str:
    return _outside_markup(text, lambda part: part.replace("'", "''"))


def _outside_markup(text: str, change: Callable[[str], str]) -> str:
    parts, last = [], 0
    for one in find_markup(text, ("java",)):
        parts += [change(text[last:one.begin]), text[one.begin:one.end]]
        last = one.end
    return "".join([*parts, change(text[last:])])
