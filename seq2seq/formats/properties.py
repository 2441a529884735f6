r"""Java's .properties: values are translated. Keys, separators and comments do not change.

Format: https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.texts import decode_text, join_surrogates, wrap
from seq2seq.formats.units import Unit, UnitDocument, unit_of

_SPACE = r"(?:[ \t\f]|\\(?:\r\n|\r|\n)[ \t\f]*+)*+"
_LINE = re.compile(r"[ \t\f]*+(?:[#!][^\r\n]*+|(?P<key>(?:[^\\ \t\f=:\r\n]|\\(?:\r\n|[\s\S]|\Z))*+)"
                   rf"{_SPACE}[=:]?+{_SPACE}(?P<value>(?:[^\\\r\n]|\\(?:\r\n|[\s\S]|\Z))*+))(?:\r\n|\r|\n|\Z)")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|((?:\r\n|\r|\n)[ \t\f]*+)|([\s\S])|\Z)")
_CONTINUATION = re.compile(r"(?:^|[^\\])(?:\\\\)*+\\(\r\n|\r|\n)([ \t\f]*+)")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ESCAPED = str.maketrans({character: f"\\{letter}" for letter, character in _CONTROLS.items()} | {"\\": "\\\\"})
_ARGUMENT = re.compile(r"\{\d")
_WIDTH = 77
"""Maximum number of characters of a line that continues in the next line."""


class PropertiesDocument(UnitDocument):
    r"""Properties. The translation of a value of several lines has several lines, too.

    Non-UTF-8 files are read as ISO-8859-1. In these and in ASCII files, characters not in the encoding become \uXXXX.
    """

    def decode(self, data: bytes) -> tuple[str, str]:
        try:
            text, encoding = decode_text(data)
        except DocumentError:
            text, encoding = decode_text(data, "iso-8859-1")
        self._last_plain = "\x7f" if data.isascii() else "\xff" if encoding == "iso-8859-1" else "\U0010ffff"
        return text, encoding

    def find_units(self) -> Iterator[Unit]:
        begin = self.begin
        comment = ""
        while begin < len(self.text):
            match = _LINE.match(self.text, begin)
            assert match is not None                                            # all parts are optional
            begin = match.end()
            if not match["value"]:
                comment = comment + match[0] if match[0].strip() else ""
                continue
            text = self._unescaped(match)
            # java.text.MessageFormat requires doubled apostrophes in messages with arguments, such as {0}.
            doubled = _ARGUMENT.search(text) is not None and "'" not in text.replace("''", "")
            if doubled:
                text = text.replace("''", "'")
            yield unit_of(*match.span("value"), Block(
                text, place=f"line {self.line_at(match.start('value'))}", keeps_lines=True, access_keys="&",
                key=match["key"], comment=comment), info=doubled)
            comment = ""

    def write(self, unit: Unit, block: Block) -> str:
        """Return a value with escapes; on several lines if the old one has several."""
        continuation = _CONTINUATION.search(self.text, unit.begin, unit.end)
        text = unit.before + block.text + unit.after
        text = text.replace("'", "''") if unit.info else text
        lines = [line.translate(_ESCAPED) for line in (wrap(text, _WIDTH) if continuation else [text])]
        lines = [f"\\{line}" if line.startswith(" ") else line for line in lines]
        value = f"\\{continuation[1]}{continuation[2]}".join(lines) if continuation else lines[0]
        return "".join(one if one <= self._last_plain else _unicode_escape(one) for one in value)

    def _unescaped(self, line: re.Match[str]) -> str:
        """Return the value of a line without escapes."""
        def character(match: re.Match[str]) -> str:
            code, continuation, letter = match.groups()
            if letter == "u":
                number = self.line_at(line.start("value") + match.start())
                raise DocumentError(f"line {number}: \\u is not followed by four hexadecimal digits. Write \\\\u, or "
                                    "add the digits.")
            return chr(int(code, 16)) if code else _CONTROLS.get(letter, letter) if letter else ""
        value = line["value"]
        return join_surrogates(_ESCAPE.sub(character, value)) if "\\" in value else value


def _unicode_escape(character: str) -> str:
    return re.sub("(....)", r"\\u\1", character.encode("utf-16-be").hex())
