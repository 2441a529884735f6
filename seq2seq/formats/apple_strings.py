r"""Apple's .strings: values are translated. Keys and comments do not change.

Format: https://developer.apple.com/library/archive/documentation/Cocoa/Conceptual/LoadingResources/Strings/Strings.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seq2seq.formats.block import IN_STRINGS, Block, DocumentError
from seq2seq.formats.texts import decode_text, join_surrogates
from seq2seq.formats.units import Unit, UnitDocument, unit_of

_STRING = r"\"(?:[^\"\\]|\\[\s\S])*+\"|'(?:[^'\\]|\\[\s\S])*+'|[\w.$:/-]++"
_SPACE = r"(?:\s++|//[^\n\r]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
_ENTRY = re.compile(rf"(?P<key>{_STRING}){_SPACE}(?:={_SPACE}(?P<value>{_STRING}){_SPACE})?;")
_SPACES = re.compile(_SPACE)
_ESCAPE = re.compile(r"\\(?:[Uu]([0-9a-fA-F]{4})|([0-7]{1,3})|([\s\S]))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

_SYNTAX = ("dates", "printf", *IN_STRINGS)


class AppleStringsDocument(UnitDocument):
    r"""Strings of Apple. New non-ASCII characters become \Uxxxx if the document has only such escapes."""

    def decode(self, data: bytes) -> tuple[str, str]:
        if data.startswith(b"bplist"):
            raise DocumentError("the document is a compiled property list. Convert it: plutil -convert strings FILE.")
        text, encoding = decode_text(data)
        if re.match(r"\ufeff?\s*+<(?:\?xml|!DOCTYPE|plist)", text):
            raise DocumentError("line 1: the document is a property list in XML. Translate it as stringsdict.")
        self._ascii = "\\U" in text and text.isascii()
        return text, encoding

    def find_units(self) -> Iterator[Unit]:
        begin = _end_of_space(self.text, self.begin)
        comment = self.text[self.begin:begin]
        while begin < len(self.text):
            match = _ENTRY.match(self.text, begin)
            if match is None:
                raise DocumentError(f"line {self.line_at(begin)}: neither a comment nor an entry \"key\" = \"value\"; "
                                    f"but {self.text[begin:begin + 40]!r}. Correct it; plutil -lint FILE shows such "
                                    "lines.")
            name = "value" if match["value"] else "key"                         # the text of "Open"; is its key
            place = self.line_at(match.start("value") if match["value"] else begin)
            block = Block(_unescape(match[name]), place=f"line {place}", keeps_lines=True, syntax=_SYNTAX,
                          key=_unescape(match["key"]), comment=comment)
            yield unit_of(*match.span(name), block, info=name)
            begin = _end_of_space(self.text, match.end())
            comment = self.text[match.end():begin]

    def write(self, unit: Unit, block: Block) -> str:
        """Return a string in the quotes of the old one. A key that is also the text stays, and gets a value."""
        old = self.text[unit.begin:unit.end]
        quote = old[0] if old[0] in "\"'" else '"'
        text = unit.before + block.text + unit.after
        written = quote + "".join(self._escaped(one, quote) for one in text) + quote
        return f"{old} = {written}" if unit.info == "key" else written

    def _escaped(self, character: str, quote: str) -> str:
        if character == quote:
            return "\\" + quote
        if self._ascii and character > "\x7f":
            return re.sub("(....)", r"\\U\1", character.encode("utf-16-be").hex())
        return _ESCAPED.get(character, character)


def _end_of_space(text: str, begin: int) -> int:
    """Return the end of the white space and comments at a position."""
    match = _SPACES.match(text, begin)
    assert match is not None                                                    # it matches the empty text
    return match.end()


def _unescape(value: str) -> str:
    def character(match: re.Match[str]) -> str:
        code, octal, letter = match.groups()
        return chr(int(code, 16)) if code else chr(int(octal, 8)) if octal else _CONTROLS.get(letter, letter)
    if value[0] not in "\"'":
        return value
    return join_surrogates(_ESCAPE.sub(character, value[1:-1])) if "\\" in value else value[1:-1]
