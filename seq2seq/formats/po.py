"""Gettext catalogues, PO and POT.

Messages without a translation are translated and marked as `fuzzy`. Everything else stays: comments, obsolete messages,
messages with a translation, and messages that are no text, such as the names of the translators. Format:
https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.catalogue import CONTROLS, Catalogue, Field, MalformedCatalogue, Message, declared_encoding
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.plurals import MAX_FORMS, gettext_language, gettext_rule, singular_forms
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.syntaxes import GETTEXT_FORMATS, find_markup, keeps_arguments, with_boundaries
from seq2seq.formats.texts import decode_text, is_text, trim, wrap
from seq2seq.languages import is_same_language

_ESCAPED = str.maketrans({character: f"\\{letter}" for letter, character in CONTROLS.items()})
_FIELD = r"(?mi)(?:^|\"|\\n)%s:((?:[^\"\\\n]|\\[^n]|\"[ \t]*+\r?\n[ \t]*+\")*+)(?=\\n|\"[ \t]*+\r?$)"
"""Value of a field in the header, as it stands in the document."""
_RULE = re.compile(r"nplurals\s*+=\s*+[1-9]\d*+\s*+;\s*+plural\s*+=(?!\s*+EXPRESSION)")
_SPHINX = re.compile(r"\.rst:|:docstring of ")
_WIDTH = 77
"""Maximum number of characters between the quotes of a wrapped line, as in files that gettext writes."""


@dataclass(slots=True)
class _Message(Message):
    """Message. syntax: see `Block.syntax`. blocks: index in Document.blocks of each of `sources` that is translated."""

    syntax: tuple[str, ...] = ()
    blocks: dict[int, int] = field(default_factory=dict)

    @property
    def documentation(self) -> tuple[str, ...]:
        """Return the syntax of the document that the message is from, if it is one."""
        return ("rst",) if _SPHINX.search(self.references) else ("markdown",) if ".md:" in self.references else ()

    @property
    def formats(self) -> list[str]:
        """Return the syntaxes that the format flags name. xgettext writes possible-c-format if it is not sure."""
        names = [flag.removesuffix("-format").removeprefix("possible-") for flag in self.flags if "-format" in flag]
        return [name for name in names if name in GETTEXT_FORMATS]


class PoDocument:
    """Gettext catalogue, with the interfaces `Document` and `NamesLanguages`. White space at the edges of messages is
    not in the blocks.

    left_out: places of messages that `render` left without their translation.
    """

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: a line is malformed, a message is incomplete, or the encoding is not known."""
        self._text, self._encoding = decode_text(data, declared_encoding(data))
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        try:
            catalogue = Catalogue(self._text, _Message)
        except MalformedCatalogue as error:
            raise DocumentError(str(error)) from None
        self._messages, self._header, self._value_of = catalogue.messages, catalogue.header, catalogue.value_of
        self.source_languages = {self._value_of("X-Source-Language")}
        self.target_languages = {self._value_of("Language") for message in self._messages
                                 if message.is_translated and message.sources[0].value}
        self._rule = self._value_of("Plural-Forms")
        plurals = re.search(r"nplurals\s*+=\s*+([0-9]{1,3})", self._rule)
        self._forms = min(int(plurals[1]), MAX_FORMS) if plurals else 0
        self.left_out: list[str] = []
        self.blocks: list[Block] = []
        for message in self._messages:
            if message.is_translated or not message.sources[0].value or message.is_reserved:
                continue
            message.syntax = (*message.documentation, *message.formats, "template", "bbcode", "filter",
                              *(() if message.formats else ("strftime",)))
            for index, source in enumerate(message.sources):
                _, block, _ = self._block(message, source)
                if is_text(block.text) and (index > 0 or len(message.sources) == 1 or self._forms != 1):
                    message.blocks[index] = len(self.blocks)
                    self.blocks.append(block)

    def _block(self, message: _Message, source: Field) -> tuple[str, Block, str]:
        """Return the white space before a text, its block, and the white space after it."""
        text = _unescape_apostrophes(source.value) if "java" in message.syntax else source.value
        keys = "" if message.documentation else "_&~"
        return trim(Block(text, place=f"line {source.line}", keeps_lines=True, syntax=message.syntax, access_keys=keys))

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`.

        In the header, an empty `Language:` is filled in, and so are plural forms that are missing or have the
        placeholder that xgettext writes. In a catalogue without any translation, both are replaced if they are those of
        another language. If the encoding lacks a character of a translation, the catalogue becomes UTF-8.
        """
        language, wanted = self._value_of("Language"), dict[str, str]()
        is_other = bool(language) and not self.target_languages and not is_same_language(language, target_language)
        if is_other or not language:
            wanted["Language"] = gettext_language(target_language)
        rule, forms = self._rule, self._forms
        if is_other or not _RULE.search(rule):
            rule = wanted["Plural-Forms"] = gettext_rule(target_language)
            forms = int(rule[len("nplurals=")])
        edits: list[tuple[int, int, str]] = []
        self.left_out = []
        for message in self._messages:
            if any(translations[index] != self.blocks[index] for index in message.blocks.values()):
                edits += self._filled(message, translations, rule, forms)
        if not edits:
            return self._text.encode(self._encoding)
        if not any(message.find("msgid_plural") for message in self._messages) and not self._field("Plural-Forms"):
            wanted.pop("Plural-Forms", None)
        encoding, content = self._encoding, self._value_of("Content-Type")
        text = replace_spans(self._text, edits)
        if "charset=CHARSET" in content or not _is_encodable(text, encoding):
            encoding = encoding if encoding.startswith("utf") else "utf-8"
            wanted["Content-Type"] = re.sub(r"charset=\S*+", "charset=UTF-8", content)
        if not content and not text.isascii():
            wanted["Content-Type"] = "text/plain; charset=UTF-8"
        return replace_spans(self._text, [*edits, *self._header_edits(wanted)]).encode(encoding)

    def _field(self, name: str) -> tuple[int, int] | None:
        """Return the span of the value of a field of the header in the document; None if it is missing."""
        if self._header is None:
            return None
        found = re.search(_FIELD % name, self._text[self._header.begin:self._header.end])
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
            edits.append((self._header.end, self._header.end, "".join(self._line_end + line for line in lines)))
        elif added:
            begin = len(self._text) - len(self._text.removeprefix("\ufeff"))
            lines = ['msgid ""', 'msgstr ""', *added, "", ""]
            edits.append((begin, begin, self._line_end.join(lines)))
        return edits

    def _filled(self, message: _Message, translations: Sequence[Block], rule: str, forms: int,
                ) -> list[tuple[int, int, str]]:
        """Return the edits that translate a message; none if a translation has other directives than its source, or
        has them in an order that the format does not allow, or if it has other markup of the documentation.

        rule, forms: plural forms of the catalogue, and their number.
        """
        texts = []
        for index, source in enumerate(message.sources):
            before, block, after = self._block(message, source)
            new = translations[message.blocks[index]].text if index in message.blocks else block.text
            new = with_boundaries(new) if "rst" in message.syntax else new
            new = _escape_apostrophes(new) if "java" in message.syntax else new
            if message.documentation and _markup(new, message) != _markup(block.text, message):
                self.left_out.append(block.place)
                return []
            if not all(keeps_arguments(source.value, before + new + after, name) for name in message.formats):
                self.left_out.append(block.place)
                return []
            texts.append(before + new + after)
        old = message.find("msgstr")
        wrapped = "no-wrap" not in message.flags and max(len(one.strings) for one in message.fields) > 1
        if len(texts) == 1:
            strings = [self._string("msgstr", texts[0], wrapped)]
        else:
            same = _directives(message, 0) == _directives(message, 1)
            singular = singular_forms(rule, same) if 0 in message.blocks or self._forms != 1 else (False,) * forms
            strings = [self._string(f"msgstr[{form}]", texts[0 if is_singular else 1], wrapped)
                       for form, is_singular in enumerate(singular)]
        edits = [(old[0].begin, old[-1].end, self._line_end.join(strings))]
        if message.flags_begin >= 0 and "fuzzy" not in message.flags:
            edits.append((message.flags_begin, message.flags_begin, " fuzzy,"))
        elif message.flags_begin < 0:
            edits.append((message.begin, message.begin, f"#, fuzzy{self._line_end}"))
        return edits

    def _string(self, keyword: str, text: str, wrapped: bool) -> str:
        lines = wrap(text, _WIDTH if wrapped else len(text))
        if len(lines) > 1:
            lines.insert(0, "")
        return f"{keyword} " + self._line_end.join(f'"{line.translate(_ESCAPED)}"' for line in lines)


def _markup(text: str, message: _Message) -> Counter[str]:
    return Counter(text[one.begin:one.end] for one in find_markup(text, message.documentation)
                   if text[one.begin:one.end] != "\\ ")


def _directives(message: _Message, index: int) -> Counter[str]:
    """Return the placeholders of one of the sources of a message."""
    text = message.sources[index].value
    found = [text[one.begin:one.end] for one in find_markup(text, message.syntax) if one.kind == "value"]
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
