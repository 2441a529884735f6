"""Division of a document into sentences, and assembly of the translated document from their translations."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from seq2seq.documents.preparation import Prepared, prepare
from seq2seq.formats.block import Block, Document, DocumentError
from seq2seq.formats.data_values import is_data
from seq2seq.formats.inline_tags import Tag
from seq2seq.formats.placeholders import Placeholders
from seq2seq.formats.spans import overlapping, replace_spans
from seq2seq.formats.syntaxes import find_markup
from seq2seq.tokenizers.canonical_text import is_translatable
from seq2seq.tokenizers.line_reader import split_tag
from seq2seq.tokenizers.line_splitting import (
    LOOK_BACK,
    SENTENCE_END,
    DividedLine,
    Span,
    divide,
    ends_in_abbreviation,
    join_translations,
    split_margins,
)
from seq2seq.translation.output_faults import LOST_PLACEHOLDER, NOT_TRANSLATED
from seq2seq.translation.placement import Align, align_words, place_tags, single_spaced, with_spaces

MAX_SENTENCES = 400_000
"""Maximum number of sentences of a document. Each sentence takes up to 2 kB of memory."""
_USAGE = re.compile(r"(?:\]|\b[A-Z]{2,})\.\.\.\s?\Z|\.\.\.\]\Z")
"""End of a repeated argument of a command, as in "cp [OPTION]... SOURCE... TARGET", with the next character."""
_NOT_A_SPACE = re.compile(r"[ \t\u00a0]*+[\r\n]\s*+|[\t\u00a0]")
_STANDARD = Placeholders()


@dataclass(frozen=True, slots=True)
class Sentence:
    """Sentence of a block. begin: position in the block's text. tags: its inline tags, with positions in `text`."""

    text: str
    begin: int
    tags: tuple[Tag, ...] = ()


@dataclass(frozen=True, slots=True)
class DividedBlock:
    """Block divided into sentences and gaps. gaps: white space and tags before the first sentence, between sentences
    and after the last sentence. The positions of these tags count from the beginning of their gap."""

    block: Block
    sentences: list[Sentence]
    gaps: list[tuple[str, tuple[Tag, ...]]]


def ends_sentence(text: str, end: int, begin_of_next: int) -> bool:
    """Return True if a sentence ends before `end` and another one begins at `begin_of_next`.

    No sentence ends after an abbreviation, after an argument of a command, or before a lower-case letter.
    """
    return begin_of_next < len(text) and not text[begin_of_next].islower() and not (
        ends_in_abbreviation(text, end) or _USAGE.search(text[max(0, end - LOOK_BACK):end + 1]))


def split_sentences(line: str) -> DividedLine:
    """Split a line into sentences at the matches of `SENTENCE_END` that `ends_sentence` accepts."""

    def is_one_sentence(text: str) -> bool:
        # A match includes the white space after a sentence. If the text ends with a match, no second sentence follows.
        return not any(match.end() > 0 and ends_sentence(text, match.start(), match.end())
                       for match in SENTENCE_END.finditer(text))

    return divide(line, is_one_sentence)


def divide_block(block: Block, placeholders: Placeholders = _STANDARD) -> DividedBlock:
    """Divide a block into sentences. No sentence ends inside of a placeholder.

    A tag at the edge of a sentence belongs to the sentence if its counterpart is inside of the sentence. Otherwise the
    tag belongs to the gap beside the sentence.
    """
    text = block.text
    texts: list[str] = []
    begins: list[int] = []
    for low, high in pairwise(_line_ends(block)):
        before, core, _ = split_margins(text[low:high])
        if block.may_be_data and is_data(core, block.key):                      # Ctrl+O in "Open\tCtrl+O"
            continue
        line = split_sentences(core) if block.split else DividedLine("", [core] if core else [], [], "")
        line = _without_cuts(line, placeholders.spans(core)) if len(line.texts) > 1 else line
        position = low + len(before)
        for sentence, gap in zip(line.texts, [*line.gaps, ""], strict=bool(line.texts)):
            texts.append(sentence)
            begins.append(position)
            position += len(sentence) + len(gap)
    sentence_tags: list[list[Tag]] = [[] for _ in texts]
    gap_tags: list[list[Tag]] = [[] for _ in range(len(texts) + 1)]
    positions: dict[int, list[int]] = {}
    for tag in block.tags:
        if tag.pair is not None:
            positions.setdefault(tag.pair, []).append(tag.position)
    number = 0
    for tag in block.tags:
        while number < len(texts) and tag.position > begins[number] + len(texts[number]):
            number += 1
        if number == len(texts) or tag.position < begins[number]:
            gap_tags[number].append(tag)
            continue
        begin, end = begins[number], begins[number] + len(texts[number])
        low, high = min(positions[tag.pair]) if tag.pair is not None else 0, (
            max(positions[tag.pair]) if tag.pair is not None else 0)
        whole = tag.pair is None or low <= begin and high >= end
        if tag.position == begin and (whole or tag.kind == "close"):
            # To keep the order of tags, no tag goes to the gap before a sentence that already has a tag.
            (sentence_tags[number] if sentence_tags[number] else gap_tags[number]).append(tag)
        elif tag.position == end and (whole or tag.kind == "open") or gap_tags[number + 1]:
            gap_tags[number + 1].append(tag)
        else:
            sentence_tags[number].append(tag)
    ends = [0, *(begin + len(sentence) for begin, sentence in zip(begins, texts, strict=True))]
    gaps = [(text[end:begin], _moved(tags, end)) for end, begin, tags in zip(
        ends, [*begins, len(text)], gap_tags, strict=True)]
    sentences = [Sentence(sentence, begin, _moved(tags, begin))
                 for sentence, begin, tags in zip(texts, begins, sentence_tags, strict=True)]
    return DividedBlock(block, sentences, gaps)


def _moved(tags: Sequence[Tag], begin: int) -> tuple[Tag, ...]:
    """Return tags with positions that count from `begin`."""
    return tuple([replace(tag, position=tag.position - begin) for tag in tags]) if tags else ()


def _without_cuts(line: DividedLine, spans: Sequence[Span]) -> DividedLine:
    """Return a divided line in which sentences that end inside of one of the spans are joined with the next one."""
    texts, gaps, position = line.texts[:1], [], len(line.texts[0])
    for gap, text in zip(line.gaps, line.texts[1:], strict=True):
        if overlapping(spans, position, position + len(gap)):
            texts[-1] += gap + text
        else:
            gaps.append(gap)
            texts.append(text)
        position += len(gap) + len(text)
    return replace(line, texts=texts, gaps=gaps)


def _line_ends(block: Block) -> list[int]:
    """Return the positions at which the lines of a block end, as a list from 0 to the length of its text.

    If the block keeps its lines, a tab ends a line, and so does a line feed, unless the next line begins with a
    lower-case letter.
    """
    text = block.text
    ends = {tag.position for tag in block.tags if tag.kind == "break"}
    if block.keeps_lines:
        ends |= {match.start() for match in re.finditer("\t", text)}
        ends |= {match.start() for match in re.finditer("\n", text) if not text[match.end():match.end() + 1].islower()}
    return [0, *sorted(ends - {0, len(text)}), len(text)]


def _plain(sentence: Sentence, placeholders: Placeholders) -> str:
    """Return the text of a sentence with a space in place of white space that contains a line end, and of each tab and
    no-break space, which many models do not know; and without second spaces beside tags (`single_spaced`). In
    placeholders, only line ends become spaces."""
    text = single_spaced(sentence.text, sentence.tags)
    if not _NOT_A_SPACE.search(text):
        return text
    parts, last = [], 0
    for begin, end in [*placeholders.spans(text), (len(text), len(text))]:
        parts += [_NOT_A_SPACE.sub(" ", text[last:begin]), text[begin:end].replace("\n", " ")]
        last = end
    return "".join(parts)


def _rewrapped(sentence: str, translation: str, tags: Sequence[Tag], placeholders: Placeholders,
               ) -> tuple[str, list[Tag]]:
    """Return a translation in which line breaks replace spaces at about the same places as in the sentence, but not
    inside of placeholders; and its tags."""
    kept = placeholders.spans(translation)
    spaces = [space for space in re.finditer(" +", translation)
              if not any(begin <= space.start() < end for begin, end in kept)]
    edits: list[tuple[int, int, str]] = []
    for line_break in re.finditer(r"\r?\n", sentence):
        if not spaces:
            break
        wanted = len(translation) * line_break.start() / len(sentence)
        place = min(spaces, key=lambda space: abs(space.start() - wanted))
        spaces = spaces[spaces.index(place) + 1:]
        edits.append((*place.span(), line_break.group()))
    changes = [0, *accumulate(len(new) - (end - begin) for begin, end, new in edits)]
    ends = [end for _, end, _ in edits]
    moved = [replace(tag, position=tag.position + changes[bisect_right(ends, tag.position)]) for tag in tags]
    return replace_spans(translation, edits), moved


@dataclass(frozen=True, slots=True)
class _DividedPieces:
    """Block whose pieces are divided into sentences."""

    prepared: Prepared
    pieces: list[DividedBlock]


class DividedDocument:
    """Document divided into sentences. It reads and writes no file and knows no model: command line, Python and server
    translate `sentences` and call `join`.

    sentences: texts to translate, as `_plain` returns them. Sentences without letters are left out.
    tags: tag of each of `sentences`, which is that of the corpora of a model with which its block begins; "": none.
    places: place in the document of the first occurrence of each of `sentences`, such as `line 12`.
    """

    def __init__(self, document: Document, once: bool = False, placeholders: Placeholders = _STANDARD,
                 tags: Sequence[str] = ()) -> None:
        """once: True if equal sentences stand only once in `sentences`, and so have the same translation.
        placeholders: placeholders that the document must keep. tags: tags with which a block without inline tags may
        begin; such a tag is no part of its text.
        """
        self._document, self._placeholders = document, placeholders
        self._blocks: list[_DividedPieces] = []
        self.sentences: list[str] = []
        self.tags: list[str] = []
        self.places: list[str] = []
        self._indices: list[int] = []                                   # index in `sentences` of each sentence to join
        self._unread: list[tuple[str, str]] = []                        # place and problem of a message that stays
        first: dict[tuple[str, str], int] = {}
        count = 0
        for block in document.blocks:
            tag, text = ("", block.text) if block.tags else split_tag(block.text, tags)
            block = replace(block, text=text) if tag else block
            try:
                prepared = prepare(block)
            except DocumentError as error:
                prepared = Prepared(block, [])
                self._unread.append((block.place or "the document", str(error)))
            self._blocks.append(_DividedPieces(prepared, [divide_block(piece.block, placeholders)
                                                          for piece in prepared.pieces]))
            sentences = [sentence for piece in self._blocks[-1].pieces for sentence in piece.sentences]
            count += len(sentences)
            if count > MAX_SENTENCES:
                raise DocumentError(f"{block.place or 'the document'}: the document has more than {MAX_SENTENCES:,} "
                                    "sentences. Divide it.")
            for text in [_plain(one, placeholders) for one in sentences if is_translatable(one.text)]:
                if not once or (tag, text) not in first:
                    first[tag, text] = len(self.sentences)
                    self.sentences.append(text)
                    self.tags.append(tag)
                    self.places.append(block.place)
                self._indices.append(first[tag, text])

    @property
    def content(self) -> str:
        """Text of all blocks, for the identification of its language."""
        return "\n".join(block.prepared.block.text for block in self._blocks if block.pieces)

    @property
    def source_languages(self) -> Set[str]:
        """Codes of the languages that the document names for its texts."""
        return self._document.source_languages

    def join(self, translations: Sequence[str], target_language: str, align: Align | None = None,
             report: Callable[[str, str], None] = lambda place, fault: None) -> bytes:
        """Return the translated document.

        Args:
            translations: one for each of `sentences`.
            align: function that aligns tagged sentences with their translations; None: tags are placed by position.
            report: function that is called with the place of a block and a fault: NOT_TRANSLATED with the problem of a
                message whose branches cannot be read, and so stays as it is, or with the reason why it is not known
                that a text is one; LOST_PLACEHOLDER if the block lost a
                placeholder or a tag which its translated sentences still have, or if directives of printf changed their
                order.
        """
        pairs = iter([(self.sentences[index], translations[index]) for index in self._indices])
        translated = [[[next(pairs) if is_translatable(sentence.text) else None for sentence in piece.sentences]
                       for piece in block.pieces] for block in self._blocks]
        tagged = [pair for block, found in zip(self._blocks, translated, strict=True)
                  for piece, pairs_of_piece in zip(block.pieces, found, strict=True)
                  for sentence, pair in zip(piece.sentences, pairs_of_piece, strict=True)
                  if sentence.tags and pair and pair[0] != pair[1]]
        weights = iter(align_words(align, tagged, self._placeholders))
        blocks, damaged = [], list[str]()
        for block, found in zip(self._blocks, translated, strict=True):
            pieces = [self._joined(piece, of_piece, weights, target_language)
                      for piece, of_piece in zip(block.pieces, found, strict=True)]
            blocks.append(block.prepared.restore(pieces, target_language))
            place = block.prepared.block.place or "the document"
            if any(self._damaged(piece.block, new, [pair for pair in of_piece if pair])
                   for piece, new, of_piece in zip(block.pieces, pieces, found, strict=True)) or (
                       block.prepared.message is None and _reordered(block.prepared.block.text, blocks[-1].text)):
                damaged.append(place)
        rendered = self._document.render(blocks, target_language)
        for place, problem in [*self._unread, *self._document.left]:
            report(place, f"{NOT_TRANSLATED}: {problem}")
        for place in dict.fromkeys([*damaged, *self._document.left_out]):
            report(place, LOST_PLACEHOLDER)
        return rendered

    def _joined(self, piece: DividedBlock, pairs: Sequence[tuple[str, str] | None],
                weights: Iterator[np.ndarray | None], target_language: str) -> Block:
        """Return the translation of a piece. pairs: its sentences with their translations. weights: see `place_tags`;
        one for each sentence with tags whose translation is another text."""
        texts, tags = [], []
        for sentence, pair in zip(piece.sentences, pairs, strict=True):
            translation, placed = sentence.text, list(sentence.tags)
            if pair and pair[0] != pair[1]:
                translation = pair[1]
                if placed:
                    translation, placed = with_spaces(sentence.text, placed, translation, place_tags(
                        sentence.text, placed, translation, next(weights)))
                if piece.block.keeps_lines and "\n" in sentence.text:
                    translation, placed = _rewrapped(sentence.text, translation, placed, self._placeholders)
            texts.append(translation)
            tags.append(placed)
        return _joined(piece, texts, tags, target_language)

    def _damaged(self, block: Block, joined: Block, pairs: Sequence[tuple[str, str]]) -> bool:
        """Return True if a translated block has other placeholders than its translated sentences, or other tags than
        the block. pairs: sentences of the block with their translations."""
        counts = self._placeholders.counts
        before = counts(block.text, *(translation for _, translation in pairs))
        after = counts(joined.text, *(sentence for sentence, _ in pairs))
        if before != after or not block.tags and not joined.tags:                  # most blocks have no tags
            return before != after
        return Counter(tag.raw for tag in block.tags) != Counter(tag.raw for tag in joined.tags) or (
            _is_well_nested(block.tags) and not _is_well_nested(joined.tags))


def _reordered(source: str, translation: str) -> bool:
    """Return True if a translation has directives of printf without numbers, which take their arguments in the order in
    which they stand, in another order than its source."""
    if source.count("%") < 2:
        return False
    old, new = ([text[one.begin:one.end] for one in find_markup(text, ("printf",))] for text in (source, translation))
    old, new = ([directive for directive in directives if "$" not in directive] for directives in (old, new))
    return old != new and sorted(old) == sorted(new)


def _is_well_nested(tags: Sequence[Tag]) -> bool:
    """Return True if every pair of tags encloses whole pairs only."""
    open_pairs: list[int] = []
    for tag in tags:
        if tag.pair is not None and tag.kind == "open":
            open_pairs.append(tag.pair)
        elif tag.pair is not None and (not open_pairs or open_pairs.pop() != tag.pair):
            return False
    return not open_pairs


def _joined(divided: DividedBlock, texts: Sequence[str], tags: Sequence[Sequence[Tag]], target_language: str) -> Block:
    """Return the translated block. texts, tags: translation and placed tags of each sentence."""
    text, placed = "", []
    is_changed = texts != [sentence.text for sentence in divided.sentences]
    for index, (gap, gap_tags) in enumerate(divided.gaps):
        if 0 < index < len(texts) and is_changed and not any(tag.kind == "break" for tag in gap_tags):
            # The target language decides whether there is a space between sentences.
            joined = join_translations([("", gap), ("", "")], target_language)
        else:
            joined = gap
        placed += [replace(tag, position=len(text) + min(tag.position, len(joined))) for tag in gap_tags]
        text += joined
        if index < len(texts):
            placed += [replace(tag, position=len(text) + tag.position) for tag in tags[index]]
            text += texts[index]
    return replace(divided.block, text=text, tags=tuple(placed))
