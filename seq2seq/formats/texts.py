"""Helpers of several formats: replace spans of a text, trim blocks, tell text from other strings, wrap, and decode."""

from __future__ import annotations

import re
from dataclasses import replace

from seq2seq.formats.block import MAX_LINES, Block, decode, require_count
from seq2seq.tokenizers.canonical_text import is_translatable


def trim(block: Block) -> tuple[str, Block, str]:
    """Return the leading white space of a block's text, the trimmed block, and the trailing white space.

    If the block begins or ends with a tag, white space between this tag and the words stays in the block.
    """
    text, tags = block.text, block.tags
    begin = len(text) - len(text.lstrip())
    end = max(begin, len(text.rstrip()))
    if tags:
        begin, end = min(begin, tags[0].position), max(end, tags[-1].position)
    if end - begin == len(text):
        return "", block, ""
    moved = tuple(replace(tag, position=tag.position - begin) for tag in tags)
    return text[:begin], replace(block, text=text[begin:end], tags=moved), text[end:]


def is_text(text: str) -> bool:
    """Return True if a string has a letter and no surrogate without its pair, which could not be encoded."""
    return is_translatable(text) and (text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text))


def wrap(text: str, width: int) -> list[str]:
    """Divide a text into lines of up to `width` characters. Joining the lines gives the text.

    Lines end after spaces, and every line feed ends a line. A word longer than `width` is a line of its own.
    """
    lines = [""]
    for word in re.findall(r"[^ \n]*+(?:\n| ++\n?+)|[^ \n]++", text):
        if lines[-1].endswith("\n") or (lines[-1] and len(lines[-1]) + len(word.rstrip()) > width):
            lines.append("")
        lines[-1] += word
    return lines


def decode_text(data: bytes, encoding: str = "utf-8") -> tuple[str, str]:
    """Decode a document of lines; see `decode`. Raises DocumentError also if it has too many lines."""
    text, encoding = decode(data, encoding)
    require_count(text.count("\n") + text.count("\r") - text.count("\r\n"), MAX_LINES, "lines")
    return text, encoding


def line_end_of(text: str) -> str:
    """Return the line end of a document; a line feed if it has several kinds, or one line."""
    if "\n" not in text:
        return "\r" if "\r" in text else "\n"
    return "\r\n" if "\r\n" in text else "\n"


def join_surrogates(text: str) -> str:
    r"""Join the halves of surrogate pairs, which are separate after escapes such as `\ud83d\ude00` are decoded."""
    return re.sub("[\ud800-\udbff][\udc00-\udfff]",
                  lambda match: match[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
