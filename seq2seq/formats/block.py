"""Blocks: the texts of a document that are translated, with their inline tags.

A format turns a file into blocks and puts the translated blocks back (`Document`). The steps in between (division into
sentences, placeholders, terms, translation, placement of the tags) are the same for all formats.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from seq2seq.errors import UserError
from seq2seq.formats.data_values import is_data
from seq2seq.formats.inline_tags import Tag, with_tags

MAX_BYTES = 100_000_000
"""Maximum size of a document in bytes, both packed and unpacked. Memory holds several copies of a document."""
MAX_BLOCK_CHARACTERS = 1_000_000
"""Maximum length of a block."""
MAX_BLOCK_TAGS = 20_000
"""Maximum number of inline tags in a block."""
MAX_TAGS = 600_000
"""Maximum number of tags in an XML or HTML document. Each tag takes up to 1 kB of memory."""
MAX_LINES = 500_000
"""Maximum number of lines of a document, or of strings of a JSON document. Each takes up to 1.5 kB of memory."""
MAX_DEPTH = 1_000
"""Maximum depth of nested elements."""


IN_STRINGS = ("template", "bbcode", "strftime", "filter", "markdown-in-strings", "wiki", "names")
"""Syntaxes that the strings of any program may have; see `syntaxes`."""

class DocumentError(UserError):
    """Error for a malformed or oversized document. If the place of the error is known, the message begins with it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Text that is translated as a whole, such as a paragraph, a heading or a message.

    text: text with escapes resolved: `&amp;` is `&`. tags: inline tags in the order of the document; their positions
    never decrease. place: place in the document for messages, such as `line 12`. split: True if the text is a
    paragraph that is divided into sentences; False if it is one sentence, such as a title. keeps_lines: True if the
    program that shows the text breaks the line at a line feed; False if it shows a line feed as a space. syntax: names
    of the syntaxes that a program reads in the text, which `syntaxes.find_markup` knows, such as `c` for the flag
    `c-format` of PO; none if the text is for readers alone, who see all of it.
    access_keys: characters that can mark the letter of a keyboard shortcut in this format, such as `&` in "&File".
    may_be_data: False if the text is translated whatever its form, as a word that somebody gives to a server. key: name
    of the text in its document, which may tell that the text is data; see `data_values`. comment: what the developer
    says about the text, who may ask to keep it or words of it.
    markup_in_text: False if a tag in the text is shown to the reader, as `&lt;b&gt;` in HTML.
    """

    text: str
    tags: tuple[Tag, ...] = ()
    place: str = ""
    split: bool = True
    keeps_lines: bool = False
    syntax: tuple[str, ...] = IN_STRINGS
    access_keys: str = ""
    may_be_data: bool = True
    key: str = ""
    comment: str = ""
    markup_in_text: bool = True

    def __post_init__(self) -> None:
        is_kept = self.may_be_data and len(self.text) > MAX_BLOCK_CHARACTERS and is_data(self.text, self.key)
        if not is_kept:                                                         # such as a picture in a string
            require_block_size(len(self.text), self.place)
        if len(self.tags) > MAX_BLOCK_TAGS:
            raise DocumentError(f"{self.place or 'the document'}: a text with {len(self.tags):,} tags; a block may "
                                f"have {MAX_BLOCK_TAGS:,}. Divide it into paragraphs.")

    def serialize(self, escape: Callable[[str], str]) -> str:
        """Return the text with its tags. escape: function that escapes a text for the format."""
        return with_tags(self.text, self.tags, escape)


@dataclass(frozen=True, slots=True)
class KeyNames:
    """Keys that a user names. texts: keys whose strings are text, in addition to those that are known to hold prose;
    strings under other keys stay. skipped: keys whose values stay."""

    texts: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()


NO_KEYS = KeyNames()


class Document(Protocol):
    """Parsed document.

    blocks: texts to translate, in the order of the document. Text that must not be translated is not in them.
    """

    blocks: list[Block]

    @property
    def source_languages(self) -> Set[str]:
        """Codes of the languages that the document names for its texts."""

    @property
    def target_languages(self) -> Set[str]:
        """Codes of the languages of the translations that the document already has and keeps."""

    @property
    def left(self) -> Sequence[tuple[str, str]]:
        """Places of texts that stay because it is not known if they are text, and the reason."""

    @property
    def left_out(self) -> Sequence[str]:
        """Places of blocks that `render` left as they were, because the translation cannot be written."""

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """Return the document with its blocks replaced.

        If a translation equals the original block, the bytes of the block do not change. If it differs, the text of the
        block changes, and so do the format's marks of translated text, such as the flag `fuzzy` of PO.

        translations: one block for each of `blocks`, with each tag of the original block exactly once, well nested.
        """


@contextmanager
def naming(name: str, error_class: type[UserError] = DocumentError) -> Iterator[None]:
    """Put the name of a file before the place in the messages of DocumentErrors that the block raises.

    error_class: class of the errors to raise, such as CorpusError for a file that is read as a corpus.
    """
    try:
        yield
    except DocumentError as error:
        separator = ":" if str(error).startswith("line ") else ": "
        raise error_class(f"{name}{separator}{str(error).removeprefix('line ')}") from error


def require_block_size(characters: int, place: str) -> None:
    """Raise DocumentError if a block has too many characters."""
    if characters > MAX_BLOCK_CHARACTERS:
        raise DocumentError(f"{place or 'the document'}: a text of {characters:,} characters; a block may have "
                            f"{MAX_BLOCK_CHARACTERS:,}. Divide it into paragraphs.")


def require_count(count: int, maximum: int, things: str) -> None:
    """Raise DocumentError if `count` is above `maximum`. things: name of the counted things, such as "lines"."""
    if count > maximum:
        raise DocumentError(f"the document has {count:,} {things}; {maximum:,} are the maximum. Divide it.")


def require_size(data: bytes) -> None:
    """Raise DocumentError if a document is too large."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the document has {len(data):,} bytes; {MAX_BYTES:,} are the maximum. Divide it.")


def encoding_of(start: bytes, encoding: str = "utf-8") -> str:
    """Return the encoding of a file by its byte order mark, else the given one. start: beginning of the file."""
    # The mark of UTF-32 begins with that of UTF-16.
    marks = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",
             codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    return next((name for mark, name in marks.items() if start.startswith(mark)), encoding)


def wide_encoding(start: bytes) -> str:
    """Return the name of the encoding, UTF-16 or UTF-32, if a file begins with its byte order mark; else "".

    start: beginning of the file.
    """
    encoding = encoding_of(start)
    return "" if encoding == "utf-8" else encoding[:len("utf-16")].upper()


def decode(data: bytes, encoding: str = "utf-8") -> tuple[str, str]:
    """Return the text of a document, and its encoding. A byte order mark stays in the text.

    encoding: encoding of a document without a byte order mark.
    """
    require_size(data)
    encoding = encoding_of(data, encoding)
    try:
        return str(data, encoding), encoding
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        correct = "" if encoding == "utf-8" else ", or correct the encoding that it declares"
        raise DocumentError(f"line {line}: byte {error.start + 1} is not {encoding}. Convert the document to UTF-8"
                            f"{correct}.") from error
    except (LookupError, UnicodeError):
        raise DocumentError(f"the encoding '{encoding}' is not known. Convert the document to UTF-8.") from None
