"""Division of a document into sentences, and assembly of the translated document from their translations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from seq2seq.data.line_splitting import DividedLine, join_translations, split_margins
from seq2seq.documents.block import Block, Document, DocumentError, Tag
from seq2seq.documents.placement import place_tags, with_spaces
from seq2seq.documents.sentences import is_translatable, split_sentences

Align = Callable[[Sequence[tuple[str, str]]], Sequence[np.ndarray | None]]
"""Function that takes pairs of a sentence and its translation, and returns the attention weights of each pair (see
`placement.place_tags`), or None for a pair that cannot be aligned."""


MAX_SENTENCES = 400_000
"""Maximum number of sentences of a document. Each sentence takes up to 2 kB of memory."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Sentence of a block. begin: position in the block's text. tags: its inline tags, with positions in `text`."""

    text: str
    begin: int
    tags: tuple[Tag, ...] = ()


@dataclass(frozen=True, slots=True)
class _DividedBlock:
    """Block divided into sentences and gaps. gaps: white space and tags before the first sentence, between sentences
    and after the last sentence. The positions of these tags count from the beginning of their gap."""

    block: Block
    sentences: list[Sentence]
    gaps: list[tuple[str, tuple[Tag, ...]]]


def divide_block(block: Block) -> _DividedBlock:
    """Divide a block into sentences.

    A tag at the edge of a sentence belongs to the sentence if its counterpart is inside of the sentence. Otherwise the
    tag belongs to the gap beside the sentence.
    """
    text = block.text
    texts: list[str] = []
    begins: list[int] = []
    for low, high in pairwise(_line_ends(block)):
        before, core, _ = split_margins(text[low:high])
        line = split_sentences(core) if block.split else DividedLine("", [core] if core else [], [], "")
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
    gaps = []
    for index, (end, begin) in enumerate(zip(ends, [*begins, len(text)], strict=True)):
        gaps.append((text[end:begin], tuple(replace(tag, position=tag.position - end) for tag in gap_tags[index])))
    sentences = [Sentence(sentence, begin, tuple(replace(tag, position=tag.position - begin) for tag in tags))
                 for sentence, begin, tags in zip(texts, begins, sentence_tags, strict=True)]
    return _DividedBlock(block, sentences, gaps)


def _line_ends(block: Block) -> list[int]:
    """Return the positions at which the lines of a block end, as a list from 0 to the length of its text.

    If the block keeps its lines, a line feed ends a line, unless the next line begins with a lower-case letter.
    """
    text = block.text
    ends = {tag.position for tag in block.tags if tag.kind == "break"}
    if block.keeps_lines:
        ends |= {match.start() for match in re.finditer("\n", text) if not text[match.end():match.end() + 1].islower()}
    return [0, *sorted(ends - {0, len(text)}), len(text)]


def _plain(sentence: str) -> str:
    """Return a sentence with a space in place of each line end, tab and no-break space, which many models do not know.
    Positions stay the same."""
    return re.sub(r"[\t\n\r\u00a0]", " ", sentence)


def _rewrapped(sentence: str, translation: str) -> str:
    """Return a translation in which line breaks replace spaces at about the same places as in the sentence."""
    spaces = list(re.finditer(" +", translation))
    texts, end = [], 0
    for line_break in re.finditer(r"\r?\n", sentence):
        if not spaces:
            break
        wanted = len(translation) * line_break.start() / len(sentence)
        place = min(spaces, key=lambda space: abs(space.start() - wanted))
        spaces = spaces[spaces.index(place) + 1:]
        texts += [translation[end:place.start()], line_break.group()]
        end = place.end()
    return "".join([*texts, translation[end:]])


class DividedDocument:
    """Document divided into sentences.

    sentences: texts to translate, with spaces in place of other white space. Sentences without letters are left out.
    """

    def __init__(self, document: Document) -> None:
        """Raises DocumentError: the document has too many sentences."""
        self._document = document
        self._blocks: list[_DividedBlock] = []
        count = 0
        for block in document.blocks:
            self._blocks.append(divide_block(block))
            count += len(self._blocks[-1].sentences)
            if count > MAX_SENTENCES:
                raise DocumentError(f"{block.place or 'the document'}: the document has more than {MAX_SENTENCES:,} "
                                    "sentences. Divide it.")
        self._translatable = [sentence for block in self._blocks for sentence in block.sentences
                              if is_translatable(sentence.text)]
        self.sentences = [_plain(sentence.text) for sentence in self._translatable]

    @property
    def content(self) -> str:
        """Text of all blocks, for the identification of its language."""
        return "\n".join(block.text for block in self._document.blocks)

    @property
    def places(self) -> list[str]:
        """Place of each of `sentences` in the document."""
        return [block.block.place for block in self._blocks for sentence in block.sentences
                if is_translatable(sentence.text)]

    def join(self, translations: Sequence[str], target_language: str, align: Align | None = None) -> bytes:
        """Return the translated document.

        Args:
            translations: one for each of `sentences`.
            align: function that aligns tagged sentences with their translations; None: tags are placed by position.
        """
        tagged = [(source, translation)
                  for sentence, source, translation in zip(self._translatable, self.sentences, translations,
                                                           strict=True)
                  if sentence.tags and source != translation]
        weights = iter(align(tagged) if align and tagged else [None] * len(tagged))
        translated = iter(translations)
        blocks = []
        for block in self._blocks:
            texts, tags = [], []
            for sentence in block.sentences:
                translation = next(translated) if is_translatable(sentence.text) else sentence.text
                same = not is_translatable(sentence.text) or translation == _plain(sentence.text)
                placed = list(sentence.tags)
                if placed and not same:
                    translation, placed = with_spaces(sentence.text, placed, translation, place_tags(
                        sentence.text, placed, translation, next(weights)))
                if block.block.keeps_lines:
                    translation = _rewrapped(sentence.text, translation)
                texts.append(sentence.text if same else translation)
                tags.append(placed)
            blocks.append(_joined(block, texts, tags, target_language))
        return self._document.render(blocks, target_language)


def _joined(divided: _DividedBlock, texts: Sequence[str], tags: Sequence[Sequence[Tag]], target_language: str) -> Block:
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
