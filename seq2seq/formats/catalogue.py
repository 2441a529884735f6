"""Gettext catalogues (PO): parser, and reader of the translated messages as parallel text.

Format: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

from __future__ import annotations

import gettext
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from seq2seq.errors import CorpusError
from seq2seq.formats.block import DocumentError, decode, naming
from seq2seq.formats.data_values import is_locked
from seq2seq.languages import is_same_language

_STRINGS = r'((?:"(?:[^"\\]|\\.)*+"[ \t]*+)++)'
_LINE = re.compile(rf"[ \t]*+(?:(msgctxt|msgid_plural|msgid|msgstr)(?:\[([0-9]{{1,3}})\])?[ \t]*+)?{_STRINGS}\r?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"'}
_CHARSET = re.compile(rb'"[^"\n]{0,99}?Content-Type:[^"\n]{0,99}?charset=([\w.:-]+)', re.IGNORECASE)
# Messages that programs compare or replace: names of translators, layout, and files of documentation.
_RESERVED = re.compile(
    r"translator[-_ ]credits?|your (?:names|emails)|(?:credit|roles)_for_translators|default:(?:LTR|RTL)"
    r"|calendar:[\w:%|]++|QT_LAYOUT_DIRECTION|(?:LTR|RTL)|@@image:[^\n]++|_: (?:NAME|EMAIL) OF TRANSLATORS\n[^\n]*+",
    re.IGNORECASE)
_RESERVED_CONTEXTS = frozenset(["_", "NAME OF TRANSLATORS", "EMAIL OF TRANSLATORS"])
"""Contexts of reserved messages; itstool writes "_" for the files of a manual."""
_LISTING = re.compile(r"\btype: (?:delimited block [-.]|verbatim|synopsis)\s*+\Z")
"""Comment of po4a on code."""
PLURAL_NUMBER = 5
"""Number whose plural form is taken for the translation of msgid_plural. In Slavic and Arabic rules, 2 has another."""


@dataclass(slots=True)
class Field:
    """Keyword with its string. begin, end: span in the document, without the line end. value: the joined strings."""

    keyword: str
    line: int
    begin: int
    end: int = 0
    strings: list[str] = field(default_factory=list)                # string on each line
    value: str = ""


@dataclass(slots=True)
class Message:
    """Message of a catalogue. flags: its flags. flags_begin: offset after its `#,` in the file; -1 if it has no flags.
    begin: offset at which a line of flags is inserted if the message has none. comment: what the programmer says about
    it. references: places in the source code."""

    fields: list[Field] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    flags_begin: int = -1
    begin: int = -1
    comment: str = ""
    references: str = ""

    def find(self, keyword: str) -> list[Field]:
        """Return the fields with a keyword, in order."""
        return [one for one in self.fields if one.keyword == keyword]

    @property
    def sources(self) -> list[Field]:
        """Return msgid and, if the message has plural forms, msgid_plural."""
        return self.find("msgid") + self.find("msgid_plural")

    @property
    def is_translated(self) -> bool:
        """True if the message has a translation, even an unfinished (fuzzy) one."""
        return any(one.value for one in self.find("msgstr"))

    @property
    def is_reserved(self) -> bool:
        """True if the message is no text for people, or the programmer asks to keep it."""
        context = self.find("msgctxt")
        return _RESERVED.fullmatch(self.sources[0].value) is not None \
            or bool(context and context[0].value in _RESERVED_CONTEXTS) \
            or is_locked(self.comment) or _LISTING.search(self.comment) is not None


class Catalogue:
    """Messages of a catalogue, without obsolete ones.

    header: field with the translation of the empty msgid, which has a line for each property; None if there is none.
    """

    def __init__(self, text: str) -> None:
        self.messages = _parse(text)
        self.header = next((message.find("msgstr")[0] for message in self.messages
                            if not message.find("msgctxt") and not message.find("msgid")[0].value), None)

    def value_of(self, name: str) -> str:
        """Return the value of a field of the header; "" if it is empty or missing."""
        found = re.search(rf"(?mi)^{name}:(.*)$", self.header.value) if self.header else None
        return found[1].strip() if found else ""


def declared_encoding(data: bytes) -> str:
    """Return the encoding that a catalogue declares, else UTF-8."""
    declared = _CHARSET.search(data[:100_000])
    return declared[1].decode() if declared and declared[1] != b"CHARSET" else "utf-8"


def catalogue_of(data: bytes, path: str) -> Catalogue:
    """Parse a catalogue of a corpus. path: name of the file in error messages."""
    with naming(path, CorpusError):
        return Catalogue(decode(data, declared_encoding(data))[0])


def languages_of(catalogue: Catalogue) -> tuple[str, str]:
    """Return the languages of msgid and msgstr that the header names; "" if it names none."""
    source, target = (re.sub("@latin$", "-Latn", catalogue.value_of(name)).partition("@")[0].replace("_", "-")
                      for name in ("X-Source-Language", "Language"))
    return source, target


def read_catalogue(data: bytes, path: str, languages: Sequence[str], on_unfinished: Callable[[], None]
                   ) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line number of each translated message, and its text in each of the given languages.

    Messages without translation, fuzzy ones, and those that are no text, such as the names of the translators, are left
    out. Of a message with plural forms, msgid is paired with the form for 1, and msgid_plural with that for 5. White
    space at the ends, such as a final line feed, is removed.

    Args:
        path: name of the file in error messages.
        languages: one or two language codes. The header's `Language` is that of msgstr. The language of msgid is
            `X-Source-Language` or, without this field, the other one of the two, or English. In a catalogue without
            `Language`, msgid has the first of two languages.
        on_unfinished: function that is called for each message whose translation is missing or fuzzy.
    """
    catalogue = catalogue_of(data, path)
    sides = [_side(catalogue, path, languages, index) for index in range(len(languages))]
    for message in catalogue.messages:
        if not message.sources[0].value or message.is_reserved:
            continue
        if "fuzzy" in message.flags or not message.is_translated:
            on_unfinished()
            continue
        for source, target in zip(message.sources, _translations(message, catalogue.value_of("Plural-Forms")),
                                  strict=False):
            if target.strip():
                texts = source.value.strip(), target.strip()
                yield source.line, tuple(texts[side] for side in sides)


def _side(catalogue: Catalogue, path: str, languages: Sequence[str], index: int) -> int:
    """Return 0 if a language, given by its index, is that of msgid, and 1 if it is that of msgstr."""
    source, target = languages_of(catalogue)
    wanted = languages[index]
    if not target and len(languages) == 2:
        return index
    if target and is_same_language(wanted, target):
        return 1
    is_other = len(languages) == 2 and is_same_language(languages[1 - index], target)
    if is_same_language(wanted, source or "en") if source or len(languages) == 1 else is_other:
        return 0
    raise CorpusError(f"{path}: its messages are not in {wanted!r}: according to its header, Language is "
                      f"'{target}'{f' and X-Source-Language {source!r}' if source else ''}. Correct the header, or "
                      "choose a file with both languages.")


def _translations(message: Message, rule: str) -> list[str]:
    """Return the translations of msgid and msgid_plural. rule: value of Plural-Forms."""
    forms = [one.value for one in message.find("msgstr")]
    if len(message.sources) == 1:
        return forms
    try:
        form = gettext.c2py(rule.partition("plural=")[2].partition(";")[0])
        one, other = form(1), form(PLURAL_NUMBER)
    except (ValueError, ArithmeticError):
        one, other = 0, 1
    if len(forms) == 1:                                             # a language without plural: both have one form
        return ["", forms[0]]
    return [forms[index] if index < len(forms) else "" for index in (one, other)]


def _parse(text: str) -> list[Message]:
    """Return the messages of a catalogue, except obsolete messages."""
    messages: list[Message] = []
    message = Message()
    position = 0
    for number, line in enumerate(text.split("\n"), start=1):
        begin, position = position, position + len(line) + 1
        if line.startswith("\ufeff"):
            begin, line = begin + 1, line[1:]
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            if message.find("msgstr"):
                messages.append(_complete(message))
                message = Message()
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
                message = Message()
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
            message = Message()
        if keyword:
            expected = len(message.find("msgstr"))
            if (index is not None and (keyword != "msgstr" or int(index) != expected)) \
                    or (message.find(keyword) and index is None) \
                    or (keyword in ("msgstr", "msgid_plural") and not message.find("msgid")) \
                    or (keyword == "msgstr" and (index is None) == bool(message.find("msgid_plural"))):
                raise DocumentError(f"line {number}: {keyword} is not expected here. Each message has one msgid, "
                                         "and one msgstr or, after msgid_plural, msgstr[0], msgstr[1] and so on.")
            message.fields.append(Field(keyword, number, begin + line.index(keyword)))
            message.begin = begin if message.begin < 0 else message.begin
        elif not message.fields:
            raise DocumentError(f"line {number}: a string without a keyword. Write msgid or msgstr before it.")
        last = message.fields[-1]
        last.end = begin + len(line.rstrip())
        last.strings.append("".join(_unescape(string, number) for string in _STRING.findall(match[3])))
    if message.fields:
        messages.append(_complete(message))
    return messages


def _complete(message: Message) -> Message:
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
        if letter not in CONTROLS:
            raise DocumentError(f"line {line}: \\{letter} is not an escape of PO. Write \\\\{letter}, or "
                                     f"{letter}.")
        return CONTROLS[letter]
    return _ESCAPE.sub(character, string) if "\\" in string else string
