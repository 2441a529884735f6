"""Preparation of a block for translation: what is not text is taken out of its text, and put back afterwards.

Every format has strings with markup, such as `<b>` in JSON, with syntaxes of its own, such as strftime's `%B`, with
access keys and with branches such as ICU plurals. `prepare` turns a block into pieces, which are text with tags and are
translated like paragraphs of HTML: one piece, or one for each branch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seq2seq.documents.access_keys import with_key, without_key
from seq2seq.documents.messages import BranchedMessage, parse_message
from seq2seq.formats.block import Block
from seq2seq.formats.data_values import is_data, is_locked, locked_words
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags
from seq2seq.formats.spans import overlapping
from seq2seq.formats.syntaxes import NUMBERED, SIGNS, find_markup, literal_signs, numbered
from seq2seq.formats.tags_in_text import Markup, tags_in_text

_FIRST_MARK = 0xF0000
"""First of the private characters that stand for the tags of a block while its branches are found."""
_MARKS = re.compile("([\U000f0000-\U000ffffd])")
_STAND_IN = re.compile(r"\{\d+\}")
_SIGN_OR_STAND_IN = re.compile(r"\{\d+\}|([%{}])")
_SIGNS = re.compile(rf"{SIGNS.pattern}|[&;]|\A\s*+\.")
"""One of these is in all branches, markup and access keys. Most texts have none of them."""


def without_markup(block: Block, markup: Sequence[Markup]) -> tuple[Block, dict[str, str]]:
    """Return a block without markup, and the values by their stand-ins. Tags become tags of the block that are part of
    its text (`Tag.in_text`); a stand-in such as `{0}` takes the place of a value."""
    if not markup:
        return block, {}
    values: dict[str, str] = {}
    parts: list[str] = []
    tags: list[Tag | None] = []                                                 # None: the next one of `taken`
    taken: list[tuple[int, str, TagKind, str]] = []
    length = last = number = 0
    events: list[tuple[int, int, Tag | Markup]] = [
        *((tag.position, 0, tag) for tag in block.tags), *((one.begin, 1, one) for one in markup)]
    for begin, _, one in sorted(events, key=lambda event: event[:2]):
        parts.append(block.text[last:begin])
        length += len(parts[-1])
        last = max(last, begin)
        if isinstance(one, Tag):
            tags.append(replace(one, position=length))
            continue
        last = one.end
        raw = block.text[one.begin:one.end]
        if one.kind == "value":
            while (stand_in := f"{{{number}}}") in block.text or stand_in in values:
                number += 1
            values[stand_in] = raw
            parts.append(stand_in)
            length += len(stand_in)
        else:
            taken.append((length, raw, one.kind, one.name))
            tags.append(None)
    parts.append(block.text[last:])
    first_pair = 1 + max((tag.pair for tag in block.tags if tag.pair is not None), default=-1)
    paired = (replace(tag, in_text=True, kind=tag.kind if tag.kind == "break" or tag.pair is not None else "alone",
                      pair=None if tag.pair is None else tag.pair + first_pair) for tag in pair_tags(taken))
    return replace(block, text="".join(parts), tags=tuple(tag or next(paired) for tag in tags)), values


def with_markup(block: Block, values: dict[str, str]) -> Block:
    """Return a block with the values in place of their stand-ins, and with the tags that are part of its text in it."""
    stand_ins = re.finditer("|".join(map(re.escape, values)), block.text) if values else ()
    events: list[tuple[int, int, Tag | str]] = [
        *((match.start(), match.end(), values[match[0]]) for match in stand_ins),
        *((tag.position, tag.position, tag) for tag in block.tags)]
    parts: list[str] = []
    tags: list[Tag] = []
    length = last = 0
    for begin, end, one in sorted(events, key=lambda event: event[:2]):           # tags go before a stand-in
        parts.append(block.text[last:begin])
        last = max(last, end)
        length += len(parts[-1])
        if isinstance(one, Tag) and not one.in_text:
            tags.append(replace(one, position=length))
        else:
            parts.append(one.raw if isinstance(one, Tag) else one)
            length += len(parts[-1])
    parts.append(block.text[last:])
    return replace(block, text="".join(parts), tags=tuple(tags))


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a block that is translated as a whole.

    original: the piece as it stands in the block. block: the piece without markup, which is translated. values: values
    by stand-in. mark, key: mark of an access key and its letter, see `access_keys`.
    """

    original: Block
    block: Block
    values: dict[str, str]
    mark: str
    key: str

    def restore(self, translated: Block) -> Block:
        """Return the translated piece with its markup."""
        if self.block is self.original:
            return translated
        if (translated.text, translated.tags) == (self.block.text, self.block.tags):
            return self.original
        translated = with_key(translated, self.mark, self.key)
        return with_markup(self._with_literals(translated), self._in_order(translated.text))

    def _with_literals(self, translated: Block) -> Block:
        """Return a translation with a second sign, as a tag, before each sign that would begin a directive: in a
        message with directives of printf, "50 %" becomes "50 %%"."""
        signs = {sign for name in self.original.syntax for sign in literal_signs(name)} if self.values else set()
        if not signs or any(match[1] in signs for match in _SIGN_OR_STAND_IN.finditer(self.block.text)):
            return translated
        doubled = (Tag(match.start(), match[1], in_text=True) for match in _SIGN_OR_STAND_IN.finditer(translated.text)
                   if match[1] in signs)
        return replace(translated, tags=(*translated.tags, *doubled))

    def _in_order(self, translation: str) -> dict[str, str]:
        """Return the values by stand-in, with the numbers of their arguments if a translation has them in another
        order; see `syntaxes.numbered`."""
        values = self.values
        for name in NUMBERED.keys() & {*self.original.syntax}:
            directives = {key: value for key, value in values.items()
                          if [(one.begin, one.end) for one in find_markup(value, (name,))] == [(0, len(value))]}
            values = {**values, **numbered(directives, _STAND_IN.findall(translation), name)}
        return values


@dataclass(frozen=True, slots=True)
class Prepared:
    """Block as pieces to translate. message: message whose branches are the pieces; None: the block is one piece."""

    block: Block
    pieces: list[Piece]
    message: BranchedMessage | None = None

    def restore(self, translated: Sequence[Block], target_language: str) -> Block:
        """Return the translated block. translated: one for each of `pieces`."""
        restored = [piece.restore(one) for piece, one in zip(self.pieces, translated, strict=True)]
        if all(new == piece.original for piece, new in zip(self.pieces, restored, strict=True)):
            return self.block
        if self.message is None:
            return restored[0]
        text = self.message.assemble([_marked(one, self.block.tags) for one in restored], target_language)
        return _unmarked(replace(self.block, text=text), self.block.tags)


def prepare(block: Block) -> Prepared:
    """Return a block as pieces to translate; without pieces if its text is data for programs, in every format, or if
    the developer asks to keep it."""
    if block.comment and is_locked(block.comment):
        return Prepared(block, [])
    # The text of a block with tags may have several lines; `divide_block` asks for each of them.
    if block.may_be_data and not block.tags and is_data(block.text, block.key):
        return Prepared(block, [])
    if not _SIGNS.search(block.text) and not block.comment:
        return Prepared(block, [Piece(block, block, {}, "", "")])
    # In documents without syntaxes, branches are text for readers. Private characters would make the marks ambiguous.
    hidden = not block.syntax or block.tags and _MARKS.search(block.text)
    message = None if hidden else parse_message(_marked(block, block.tags), block.syntax)
    if message is None:
        return Prepared(block, [_piece(block)])
    branches = [_unmarked(replace(block, text=branch), block.tags) for branch in message.branches]
    return Prepared(block, [_piece(branch) for branch in branches], message)


def _piece(original: Block) -> Piece:
    markup = find_markup(original.text, original.syntax) if original.syntax else []
    for word in sorted(locked_words(original.comment), key=len, reverse=True) if original.comment else ():
        spans = [(one.begin, one.end) for one in markup]
        places = [match.span() for match in re.finditer(re.escape(word), original.text)]
        markup = sorted([*markup, *(Markup(*place) for place in places if not overlapping(spans, *place))],
                        key=lambda one: one.begin)
    if original.markup_in_text and (tags := tags_in_text(original.text, markup)):
        spans = [(one.begin, one.end) for one in tags]
        markup = sorted([*tags, *(one for one in markup if not overlapping(spans, one.begin, one.end))],
                        key=lambda one: one.begin)
    without, values = without_markup(original, markup)
    without, mark, key = without_key(without) if original.access_keys else (without, "", "")
    return Piece(original, without, values, mark, key)


def _marked(block: Block, tags: Sequence[Tag]) -> str:
    """Return the text of a block with a private character in place of each of its tags, which are among `tags`."""
    if not block.tags:
        return block.text
    numbers = {(tag.raw, tag.kind, tag.pair): number for number, tag in enumerate(tags)}
    marked = [replace(tag, raw=chr(_FIRST_MARK + numbers[tag.raw, tag.kind, tag.pair])) for tag in block.tags]
    return replace(block, tags=tuple(marked)).serialize(str)


def _unmarked(block: Block, tags: Sequence[Tag]) -> Block:
    """Return a block with tags in place of the private characters of its text."""
    parts: list[str] = []
    found: list[Tag] = []
    length = 0
    for index, part in enumerate(_MARKS.split(block.text) if tags else [block.text]):
        if index % 2:
            number = ord(part) - _FIRST_MARK
            found.append(replace(tags[number], position=length))
        else:
            parts.append(part)
            length += len(part)
    return replace(block, text="".join(parts), tags=tuple(found))
