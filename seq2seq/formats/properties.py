r"""Java's .properties: values are translated. Keys, separators and comments do not change.

Format: https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from seq2seq.formats.block import Block, DocumentError
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import decode_text, is_message, join_surrogates, trim, with_margins, wrap

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


class PropertiesDocument:
    r"""Properties, with the interface `Document`. The translation of a value of several lines has several lines, too.

    Non-UTF-8 files are read as ISO-8859-1. In these and in ASCII files, characters not in the encoding become \uXXXX.
    """

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: an escape is malformed."""
        try:
            self._text, self._encoding = decode_text(data)
        except DocumentError:
            self._text, self._encoding = decode_text(data, "iso-8859-1")
        self._last_plain = "\x7f" if data.isascii() else "\xff" if self._encoding == "iso-8859-1" else "\U0010ffff"
        self.blocks: list[Block] = []
        self._values: list[tuple[int, int]] = []                                # span of each block
        line, begin = 1, int(self._text.startswith("\ufeff"))
        while begin < len(self._text):
            match = _LINE.match(self._text, begin)
            assert match is not None                                            # all parts are optional
            if match["value"]:
                line_of_value = line + len(re.findall(r"\r\n|\r|\n", self._text[begin:match.start("value")]))
                text, _ = _read(_unescape(match["value"], line_of_value))
                if is_message(text, match["key"]):
                    self.blocks.append(trim(Block(text, place=f"line {line_of_value}", keeps_lines=True,
                                                  access_keys="&"))[1])
                    self._values.append(match.span("value"))
            line += len(re.findall(r"\r\n|\r|\n", match[0]))
            begin = match.end()

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        edits = []
        for (begin, end), new, block in zip(self._values, translations, self.blocks, strict=True):
            if new != block:
                old = self._text[begin:end]
                text, doubled = _read(_unescape(old, 0))
                text = with_margins(text, new.text)
                edits.append((begin, end, self._value(text.replace("'", "''") if doubled else text,
                                                      _CONTINUATION.search(old))))
        return replace_spans(self._text, edits).encode(self._encoding)

    def _value(self, text: str, continuation: re.Match[str] | None) -> str:
        """Return a value with escapes. continuation: end of the first line if the original has several lines."""
        lines = [line.translate(_ESCAPED) for line in (wrap(text, _WIDTH) if continuation else [text])]
        lines = [f"\\{line}" if line.startswith(" ") else line for line in lines]
        value = f"\\{continuation[1]}{continuation[2]}".join(lines) if continuation else lines[0]
        return "".join(one if one <= self._last_plain else _unicode_escape(one) for one in value)


def _read(value: str) -> tuple[str, bool]:
    """Return the text of a value, and True if the value has doubled apostrophes.

    java.text.MessageFormat requires them in messages with arguments, such as {0}. Other values are returned unchanged.
    """
    doubled = _ARGUMENT.search(value) is not None and "'" not in value.replace("''", "")
    return (value.replace("''", "'") if doubled else value), doubled


def _unicode_escape(character: str) -> str:
    return re.sub("(....)", r"\\u\1", character.encode("utf-16-be").hex())


def _unescape(value: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        code, continuation, letter = match.groups()
        if letter == "u":
            number = line + value.count("\n", 0, match.start())
            raise DocumentError(f"line {number}: \\u is not followed by four hexadecimal digits. Write \\\\u, or add "
                                "the digits.")
        return chr(int(code, 16)) if code else _CONTROLS.get(letter, letter) if letter else ""
    return join_surrogates(_ESCAPE.sub(character, value)) if "\\" in value else value
