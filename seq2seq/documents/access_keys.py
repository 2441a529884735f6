"""Access keys: letters of labels that work as keyboard shortcuts. A mark before the letter names it (`&File`, `E_xit`).

The mark is removed before translation, and put before a letter of the translation: before the same letter, at the
beginning of a word if possible, or else before the first letter. A text in Chinese characters or kana without this
letter gets the ending (&F), as Qt and GTK do it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from seq2seq.formats.block import Block
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.spans import blanked
from seq2seq.formats.texts import is_text
from seq2seq.languages import SPACELESS_CHARACTER

# `&` (Qt, Windows, KDE, Eclipse; `&&` in Visual Studio Code), `_` (GTK) and `~` (LibreOffice). `Q&A`, `&amp;`,
# `a && b`, `__init__` and `~5` have none.
_MARKS = {
    "&": re.compile(r"(?<![&\w])&&(?=[^\W_])|(?<!&)&(?=[^\W_])(?![\w.-]{1,60};)(?!(?<=\w&)[A-Z])"),
    "_": re.compile(r"(?<![_\d])_(?=[^\W_])"),
    "~": re.compile(r"(?<![~/\s])~(?=[^\W\d_])|(?<!\S)~(?=[^\W\d_]++(?![/\\.]))"),
}
_PLACEHOLDERS = Placeholders()
MAX_LABEL = 60
"""Maximum length of a text in which `_` or `~` inside of a word is a mark. In longer texts, it is part of a name."""


def without_key(block: Block) -> tuple[Block, str, str]:
    """Return a block without the mark of its access key, the mark, and the letter of the key; "" and "" if the block
    has no key or several. The marks of the format are in `Block.access_keys`."""
    words = blanked(block.text, _PLACEHOLDERS.spans(block.text))
    for mark in block.access_keys:
        places = [match.span() for match in _MARKS[mark].finditer(words)]
        if len(places) == 1 and (mark == "&" or words.count(mark) == 1 and _is_label(words, *places[0])):
            begin, end = places[0]
            tags = tuple(replace(tag, position=tag.position - (end - begin) * (tag.position > begin))
                         for tag in block.tags)
            return (replace(block, text=block.text[:begin] + block.text[end:], tags=tags), block.text[begin:end],
                    block.text[end])
    return block, "", ""


def _is_label(text: str, begin: int, end: int) -> bool:
    """Return True if a mark from `begin` to `end` is that of a key: at the beginning of a word, or inside of a word of
    a label that begins with its only upper-case letter, as `E_xit`. `user_id`, `en_US` and `LC_ALL` are names."""
    before, after = re.search(r"\w*\Z", text[:begin]), re.match(r"\w*", text[end:])
    assert before is not None and after is not None
    word = before[0] + after[0]
    has_no_case = not word[0].isupper() and not word[0].islower()
    return not before[0] or len(text) <= MAX_LABEL and (word.istitle() or has_no_case)


def with_key(block: Block, mark: str, key: str) -> Block:
    """Return a translated block with the mark of its key; see `without_key`."""
    text, words, letter = block.text, blanked(block.text, _PLACEHOLDERS.spans(block.text)), re.escape(key)
    if not key or not is_text(words):
        return block
    found = re.search(rf"(?i)\b{letter}", words) or re.search(f"(?i){letter}", words)
    if found is None and SPACELESS_CHARACTER.search(words) is None:
        found = re.search(r"[^\W_]", words)
    place = found.start() if found else len(text.rstrip(".…:：\n "))
    mark = mark if found else f"({mark}{key.upper()})"
    tags = tuple(replace(tag, position=tag.position + len(mark) * (tag.position > place)) for tag in block.tags)
    return replace(block, text=text[:place] + mark + text[place:], tags=tags)
