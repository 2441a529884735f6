"""Blocks: the texts of a document that are translated, with their inline tags.

A format turns a file into blocks and puts the translated blocks back (`Document`). What happens in between (sentences,
placeholders, terms, translation, placement of the tags) knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from seq2seq.errors import UserError

MAX_BYTES = 100_000_000
"""Maximum size of a document, unpacked. It is held in memory several times."""
MAX_BLOCK_CHARACTERS = 1_000_000
"""Maximum length of a block."""
MAX_BLOCK_TAGS = 20_000
"""Maximum number of inline tags in a block."""
MAX_TAGS = 750_000
"""Maximum number of tags in a document of XML or HTML. Each takes up to 1 kB of memory."""
MAX_LINES = 500_000
"""Maximum number of lines, or of strings of JSON, in a document. Each takes up to 1.5 kB of memory."""
MAX_DEPTH = 1_000
"""Maximum depth of nested elements."""


TagKind = Literal["open", "close", "alone", "break"]


class DocumentError(UserError):
    """Error of a malformed or oversized document. The message begins with the place, such as `line 12`."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Inline tag.

    position: character of the block's text before which the tag stands. raw: the tag as it stands in the document.
    kind: "alone" is an element without contents, such as an image; "break" is a line break, at which a sentence ends.
    pair: number that a tag and its counterpart share; None: the counterpart is outside of the block, or the tag has
    none.
    """

    position: int
    raw: str
    kind: TagKind = "alone"
    pair: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Text that is translated as a whole, such as a paragraph, a heading or a message.

    text: without escapes, so that `&amp;` is `&`. tags: in the order in which they stand in the document; their
    positions never decrease. place: for messages, such as `line 12`. split: True if the text is a paragraph that is
    divided into sentences; False if it is one sentence, such as a title. keeps_lines: True if the program that shows
    the text breaks the line at a line feed; False if a line feed is a space.
    """

    text: str
    tags: tuple[Tag, ...] = ()
    place: str = ""
    split: bool = True
    keeps_lines: bool = False

    def __post_init__(self) -> None:
        require_block_size(len(self.text), self.place)
        if len(self.tags) > MAX_BLOCK_TAGS:
            raise DocumentError(f"{self.place or 'the document'}: a text with {len(self.tags):,} tags; a block may "
                                f"have {MAX_BLOCK_TAGS:,}. Divide it into paragraphs.")

    def serialize(self, escape: Callable[[str], str]) -> str:
        """Return the text with its tags. escape: function that escapes a text for the format."""
        parts, last = [], 0
        for tag in self.tags:
            parts += [escape(self.text[last:tag.position]), tag.raw]
            last = tag.position
        return "".join([*parts, escape(self.text[last:])])


class Document(Protocol):
    """Parsed document.

    blocks: texts to translate, in the order of the document. A block has no text that must not be translated.
    """

    blocks: list[Block]

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """Return the document with its blocks replaced.

        A block that equals the original one leaves its bytes as they were. Otherwise only the text of the block
        changes, and what the format says about translated text, such as the flag `fuzzy`.

        translations: one for each of `blocks`, with the same tags, each exactly once, and well-formed.
        """


def pair_tags(tags: Sequence[tuple[int, str, TagKind, str]]) -> tuple[Tag, ...]:
    """Return tags with the numbers of their pairs.

    Args:
        tags: position, raw text, kind and name of each tag, in order. A closing tag belongs to the last open tag of its
            name; tags that are opened after that one and are still open have no counterpart.
    """
    pairs: dict[int, int] = {}
    stack: list[int] = []
    open_names: dict[str, int] = {}
    for index, (_, _, kind, name) in enumerate(tags):
        if kind == "open":
            stack.append(index)
            open_names[name] = open_names.get(name, 0) + 1
        elif kind == "close" and open_names.get(name):
            while True:
                begin = stack.pop()
                open_names[tags[begin][3]] -= 1
                if tags[begin][3] == name:
                    pairs[begin] = pairs[index] = begin
                    break
    return tuple(Tag(position, raw, kind, pairs.get(index)) for index, (position, raw, kind, _) in enumerate(tags))


def require_block_size(characters: int, place: str) -> None:
    """Raise DocumentError if a block has too many characters."""
    if characters > MAX_BLOCK_CHARACTERS:
        raise DocumentError(f"{place or 'the document'}: a text of {characters:,} characters; a block may have "
                            f"{MAX_BLOCK_CHARACTERS:,}. Divide it into paragraphs.")


def require_count(count: int, maximum: int, things: str) -> None:
    """Raise DocumentError if a document has too many of certain things, such as lines."""
    if count > maximum:
        raise DocumentError(f"the document has {count:,} {things}; {maximum:,} are the maximum. Divide it.")


def count_lines(text: str) -> int:
    """Return the number of line ends: LF, CR, or both."""
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def require_size(data: bytes) -> None:
    """Raise DocumentError if a document is too large."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the document has {len(data):,} bytes; {MAX_BYTES:,} are the maximum. Divide it.")


def decode(data: bytes, encoding: str) -> str:
    """Decode a document.

    Raises:
        DocumentError: the encoding is not known, or the bytes are not in it.
    """
    try:
        return str(data, encoding)
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise DocumentError(f"line {line}: byte {error.start + 1} is not {encoding}. Convert the document, or correct "
                            "the encoding that it declares.") from error
    except LookupError:
        raise DocumentError(f"line 1: the encoding '{encoding}' is not known. Convert the document to UTF-8.") from None
