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

from seq2seq.documents.block import Block, DocumentError
from seq2seq.documents.placeholders import Placeholders
from seq2seq.documents.plurals import MAX_FORMS, gettext_language, gettext_rule, singular_forms
from seq2seq.documents.spans import decode_text, is_text, replace_spans, trim, wrap
from seq2seq.documents.syntaxes import GETTEXT_FORMATS, find_markup, keeps_arguments, with_boundaries
from seq2seq.languages import is_same_language

_STRINGS = r'((?:"(?:[^"\\]|\\.)*+"[ \t]*+)++)'
_LINE = re.compile(rf"[ \t]*+(?:(msgctxt|msgid_plural|msgid|msgstr)(?:\[([0-9]{{1,3}})\])?[ \t]*+)?{_STRINGS}\r?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"'}
_ESCAPED = str.maketrans({character: f"\\{letter}" for letter, character in _CONTROLS.items()})
_CHARSET = re.compile(rb'"[^"\n]{0,99}?Content-Type:[^"\n]{0,99}?charset=([\w.:-]+)', re.IGNORECASE)
_FIELD = r"(?mi)(?:^|\"|\\n)%s:((?:[^\"\\\n]|\\[^n]|\"[ \t]*+\r?\n[ \t]*+\")*+)(?=\\n|\"[ \t]*+\r?$)"
"""Value of a field in the header, as it stands in the document."""
_RULE = re.compile(r"nplurals\s*+=\s*+[1-9]\d*+\s*+;\s*+plural\s*+=(?!\s*+EXPRESSION)")
# Messages that programs compare or replace: names of translators, layout, and files of documentation.
_RESERVED = re.compile(
    r"translator[-_ ]credits?|your (?:names|emails)|(?:credit|roles)_for_translators|default:(?:LTR|RTL)"
    r"|calendar:[\w:%|]++|QT_LAYOUT_DIRECTION|(?:LTR|RTL)|@@image:[^\n]++|_: (?:NAME|EMAIL) OF TRANSLATORS\n[^\n]*+",
    re.IGNORECASE)
_RESERVED_CONTEXTS = frozenset(["_", "NAME OF TRANSLATORS", "EMAIL OF TRANSLATORS"])
"""Contexts of reserved messages; itstool writes "_" for the files of a manual."""
_NO_TRANSLATION = re.compile(
    r"(?i)\bdo(?:n't| not) translate(?: or \w++)?(?: (?:this|it))?(?: (?:text|string|message|entry))?\s*+(?:[.!(]|$)")
_SPHINX = re.compile(r"\.rst:|:docstring of ")
_WIDTH = 77
"""Maximum number of characters between the quotes of a wrapped line, as in files that gettext writes."""


@dataclass(slots=True)
class _Field:
    """Keyword with its string. begin, end: span in the document, without the line end. value: the joined strings."""

    keyword: str
    line: int
    begin: int
    end: int = 0
    strings: list[str] = field(default_factory=list)                # string on each line
    value: str = ""


@dataclass(slots=True)
class _Message:
    """Message. flags: its flags. flags_begin: offset after its `#,` in the document; -1 if it has no flags. begin:
    offset at which a line of flags is inserted if the message has none. comment: what the programmer says about it.
    references: places in the source code. syntax: see `Block.syntax`. blocks: index in Document.blocks of each of
    `sources` that is translated."""

    fields: list[_Field] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    flags_begin: int = -1
    begin: int = -1
    comment: str = ""
    references: str = ""
    syntax: tuple[str, ...] = ()
    blocks: dict[int, int] = field(default_factory=dict)

    def find(self, keyword: str) -> list[_Field]:
        return [one for one in self.fields if one.keyword == keyword]

    @property
    def sources(self) -> list[_Field]:
        """Return msgid and, if the message has plural forms, msgid_plural."""
        return self.find("msgid") + self.find("msgid_plural")

    @property
    def documentation(self) -> tuple[str, ...]:
        """Return the syntax of the document that the message is from, if it is one."""
        return ("rst",) if _SPHINX.search(self.references) else ("markdown",) if ".md:" in self.references else ()

    @property
    def formats(self) -> list[str]:
        """Return the syntaxes that the format flags name. xgettext writes possible-c-format if it is not sure."""
        names = [flag.removesuffix("-format").removeprefix("possible-") for flag in self.flags if "-format" in flag]
        return [name for name in names if name in GETTEXT_FORMATS]

    @property
    def is_translated(self) -> bool:
        return any(one.value for one in self.find("msgstr"))

    @property
    def is_reserved(self) -> bool:
        """True if the message is no text for people, or the programmer asks to keep it."""
        context = self.find("msgctxt")
        return _RESERVED.fullmatch(self.sources[0].value) is not None \
            or bool(context and context[0].value in _RESERVED_CONTEXTS) \
            or _NO_TRANSLATION.search(self.comment) is not None


class PoDocument:
    """Gettext catalogue, with the interfaces `Document` and `NamesLanguages`. White space at the edges of messages is
    not in the blocks.

    left_out: places of messages that `render` left without their translation.
    """

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: a line is malformed, a message is incomplete, or the encoding is not known."""
        declared = _CHARSET.search(data[:100_000])
        encoding = declared[1].decode() if declared and declared[1] != b"CHARSET" else "utf-8"
        self._text, self._encoding = decode_text(data, encoding)
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        self._messages = _parse(self._text)
        self._header = next((message.find("msgstr")[0] for message in self._messages
                             if not message.find("msgctxt") and not message.find("msgid")[0].value), None)
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

    def _block(self, message: _Message, source: _Field) -> tuple[str, Block, str]:
        """Return the white space before a text, its block, and the white space after it."""
        text = _unescape_apostrophes(source.value) if "java" in message.syntax else source.value
        keys = "" if message.documentation else "_&~"
        return trim(Block(text, place=f"line {source.line}", keeps_lines=True, syntax=message.syntax, access_keys=keys))

    def _value_of(self, name: str) -> str:
        """Return the value of a field of the header; "" if it is empty or missing."""
        found = re.search(rf"(?mi)^{name}:(.*)$", self._header.value) if self._header else None
        return found[1].strip() if found else ""

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


def _parse(text: str) -> list[_Message]:
    """Return the messages of a catalogue, except obsolete messages.

    Raises:
        DocumentError: a line is malformed, or a message is incomplete.
    """
    messages: list[_Message] = []
    message = _Message()
    position = 0
    for number, line in enumerate(text.split("\n"), start=1):
        begin, position = position, position + len(line) + 1
        if line.startswith("\ufeff"):
            begin, line = begin + 1, line[1:]
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            if message.find("msgstr"):
                messages.append(_complete(message))
                message = _Message()
            if stripped.startswith("#,"):
                message.flags_begin = begin + line.index("#,") + 2 if message.flags_begin < 0 else message.flags_begin
                message.flags += re.split(r"[\s,]+", stripped[2:].strip())
            elif stripped.startswith("#."):
                message.comment += stripped[2:]
            elif stripped.startswith("#:"):
                message.references += stripped[2:]
            elif stripped.startswith("#|") and message.begin < 0:
                message.begin = begin
            elif stripped.startswith("#~"):
                message = _Message()
            continue
        match = _LINE.fullmatch(line)
        if match is None and re.fullmatch(rf"\s*+domain\s++{_STRINGS}\s*+", line):
            continue
        if match is None:
            raise DocumentError(f"line {number}: neither a comment nor a keyword with a string in double quotes: "
                                f"{stripped[:60]!r}. Correct it; msgfmt --check shows all such lines.")
        keyword, index = match[1], match[2]
        if keyword in ("msgid", "msgctxt") and message.find("msgstr"):
            messages.append(_complete(message))
            message = _Message()
        if keyword:
            expected = len(message.find("msgstr"))
            if (index is not None and (keyword != "msgstr" or int(index) != expected)) \
                    or (message.find(keyword) and index is None) \
                    or (keyword in ("msgstr", "msgid_plural") and not message.find("msgid")) \
                    or (keyword == "msgstr" and (index is None) == bool(message.find("msgid_plural"))):
                raise DocumentError(f"line {number}: {keyword} is not expected here. Each message has one msgid, and "
                                    "one msgstr or, after msgid_plural, msgstr[0], msgstr[1] and so on.")
            message.fields.append(_Field(keyword, number, begin + line.index(keyword)))
            message.begin = begin if message.begin < 0 else message.begin
        elif not message.fields:
            raise DocumentError(f"line {number}: a string without a keyword. Write msgid or msgstr before it.")
        last = message.fields[-1]
        last.end = begin + len(line.rstrip())
        last.strings.append("".join(_unescape(string, number) for string in _STRING.findall(match[3])))
    if message.fields:
        messages.append(_complete(message))
    return messages


def _complete(message: _Message) -> _Message:
    if not message.find("msgstr"):
        raise DocumentError(f"line {message.fields[0].line}: the message has no msgstr. Add an empty one.")
    for one in message.fields:
        one.value = "".join(one.strings)
    return message


def _unescape(string: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        octal, hexadecimal, letter = match.groups()
        if octal or hexadecimal:
            return chr(int(octal, 8) if octal else int(hexadecimal, 16))
        if letter not in _CONTROLS:
            raise DocumentError(f"line {line}: \\{letter} is not an escape of PO. Write \\\\{letter}, or {letter}.")
        return _CONTROLS[letter]
    return _ESCAPE.sub(character, string) if "\\" in string else string
