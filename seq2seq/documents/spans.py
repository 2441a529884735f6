"""Helpers of several formats: replace spans of a text, trim blocks, tell text from other strings, wrap, and decode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from seq2seq.data.line_splitting import Span
from seq2seq.documents.block import MAX_LINES, Block, DocumentError, decode, require_count

# Words for programs: addresses, colours, language codes such as en-US, dotted names, camelCase and paths. This
# expression is applied only to strings without white space, because it takes linear time only for such strings.
_NOT_A_MESSAGE = re.compile(
    r"[a-zA-Z][a-zA-Z0-9+.-]*+:(?://\S++|\S*[/@.]\S*+)|www\.\S++|[^\s@]++@\S++|#[0-9a-fA-F]{3,8}"
    r"|[a-z]{2,3}-[A-Z][A-Za-z]{1,3}(?:-[A-Z]{2})?|[\w$-]++(?:\.[\w$-]++)++"
    r"|(?:[a-z][a-z0-9]*+|[A-Z][a-z0-9]++)(?:[A-Z][a-z0-9]*+)++|(?=\S*\.\w+\Z)[\w.-]++(?:/[\w.-]++)++"
    r"|[.~]{0,2}/\S*+|\d{4}-\d\d-\d\dT[\d:.]++(?:Z|[+-]\d\d:?\d\d)?|true|false|null", re.ASCII)
_COLOR = re.compile(r"(?:rgb|hsl)a?\([^()]*+\)")
_MAX_ASCII_WORD = 60
"""Maximum length of an ASCII word that counts as text. Longer words are keys, hashes or encoded data."""
_NAME = re.compile(r"[\w$.:/-]++", re.ASCII)


def replace_spans(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with spans replaced. edits: (begin, end, new text) of spans without overlaps, in any order."""
    parts, last = [], 0
    for begin, end, new in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[last:begin], new]
        last = end
    return "".join([*parts, text[last:]])


def blanked(text: str, spans: Iterable[Span]) -> str:
    """Return a text with spaces in place of spans without overlaps. Positions stay the same."""
    return replace_spans(text, [(begin, end, " " * (end - begin)) for begin, end in spans])


def overlapping(spans: Sequence[Span], begin: int, end: int) -> list[int]:
    """Return the indices of the spans that overlap with the span from `begin` to `end`."""
    return [index for index, (low, high) in enumerate(spans) if low < end and begin < high]


def trim(block: Block) -> tuple[str, Block, str]:
    """Return the leading white space of a block's text, the trimmed block, and the trailing white space.

    If the block begins or ends with a tag, white space between this tag and the words stays in the block.
    """
    text, tags = block.text, block.tags
    begin = len(text) - len(text.lstrip())
    end = max(begin, len(text.rstrip()))
    if tags:
        begin, end = min(begin, tags[0].position), max(end, tags[-1].position)
    moved = tuple(replace(tag, position=tag.position - begin) for tag in tags)
    return text[:begin], replace(block, text=text[begin:end], tags=moved), text[end:]


def is_text(text: str) -> bool:
    """Return True if a string has a letter and no surrogate without its pair, which could not be encoded."""
    return any(map(str.isalpha, text)) and (text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text))


def is_message(text: str) -> bool:
    """Return True if a string is text for people, not an address, identifier, colour or other data for programs."""
    word = text.strip()
    if not is_text(word) or _COLOR.fullmatch(word):
        return False
    if any(map(str.isspace, word)):
        return True
    if len(word) > _MAX_ASCII_WORD and word.isascii():
        return False
    return not (_NOT_A_MESSAGE.fullmatch(word) or ("_" in word and _NAME.fullmatch(word)))


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


def encode_text(text: str, encoding: str) -> bytes:
    """Encode a document.

    Raises:
        DocumentError: a translation has characters that the encoding of the document does not have.
    """
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        line = text[:error.start].count("\n") + 1
        raise DocumentError(f"line {line}: the translation has {text[error.start]!r}, which the document's encoding "
                            f"{encoding} does not have. Convert the document to UTF-8.") from error


def join_surrogates(text: str) -> str:
    r"""Join the halves of surrogate pairs, which are separate after escapes such as `\ud83d\ude00` are decoded."""
    return re.sub("[\ud800-\udbff][\udc00-\udfff]",
                  lambda match: match[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
