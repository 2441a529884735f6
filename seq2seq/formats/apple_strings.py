r"""Apple's .strings: values are translated. Keys and comments do not change.

Format: https://developer.apple.com/library/archive/documentation/Cocoa/Conceptual/LoadingResources/Strings/Strings.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from seq2seq.formats.block import IN_STRINGS, Block, DocumentError
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import decode_text, is_message, join_surrogates, trim, with_margins

_STRING = r"\"(?:[^\"\\]|\\[\s\S])*+\"|'(?:[^'\\]|\\[\s\S])*+'|[\w.$:/-]++"
_SPACE = r"(?:\s++|//[^\n\r]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
_ENTRY = re.compile(rf"(?P<key>{_STRING}){_SPACE}(?:={_SPACE}(?P<value>{_STRING}){_SPACE})?;")
_SPACES = re.compile(_SPACE)
_ESCAPE = re.compile(r"\\(?:[Uu]([0-9a-fA-F]{4})|([0-7]{1,3})|([\s\S]))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class AppleStringsDocument:
    r"""Strings of Apple, with the interface `Document`. New non-ASCII characters become \Uxxxx if the document has only
    such escapes."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: an entry is malformed, or the document is compiled, or a property list in XML."""
        if data.startswith(b"bplist"):
            raise DocumentError("the document is a compiled property list. Convert it: plutil -convert strings FILE.")
        self._text, self._encoding = decode_text(data)
        if re.match(r"\ufeff?\s*+<(?:\?xml|!DOCTYPE|plist)", self._text):
            raise DocumentError("line 1: the document is a property list in XML. Translate it as stringsdict.")
        self._ascii = "\\U" in self._text and self._text.isascii()
        self.blocks: list[Block] = []
        self._values: list[tuple[int, int, bool]] = []                          # span of each block; True for a key
        line, counted = 1, 0
        begin = _end_of_space(self._text, int(self._text.startswith("\ufeff")))
        while begin < len(self._text):
            match = _ENTRY.match(self._text, begin)
            place = match.start("value") if match and match["value"] else begin
            line, counted = line + self._text.count("\n", counted, place), place
            if match is None:
                raise DocumentError(f"line {line}: neither a comment nor an entry \"key\" = \"value\"; but "
                                    f"{self._text[begin:begin + 40]!r}. Correct it; plutil -lint FILE shows such "
                                    "lines.")
            name = "value" if match["value"] else "key"                         # the text of "Open"; is its key
            if is_message(text := _unescape(match[name])):
                self.blocks.append(trim(Block(text, place=f"line {line}", keeps_lines=True,
                                              syntax=("dates", "printf", *IN_STRINGS)))[1])
                self._values.append((*match.span(name), name == "key"))
            begin = _end_of_space(self._text, match.end())

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        edits = []
        for (begin, end, is_key), new, block in zip(self._values, translations, self.blocks, strict=True):
            if new != block:
                old = self._text[begin:end]
                quote = old[0] if old[0] in "\"'" else '"'
                text = "".join(self._escaped(one, quote) for one in with_margins(_unescape(old), new.text))
                edits.append((begin, end, f"{old} = " * is_key + f"{quote}{text}{quote}"))
        return replace_spans(self._text, edits).encode(self._encoding)

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
