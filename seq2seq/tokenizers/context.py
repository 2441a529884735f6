"""Document context: preceding sentences of each source (Tiedemann and Scherrer 2017, arXiv:1708.05943).

In lines of text and in ids, each sentence of the context ends with a separator: `It rains.␞ It is wet.`. The first
sentence of a document has an empty context: `␞ It rains.`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from seq2seq.tokenizers.canonical_text import MARGIN, is_blank
from seq2seq.tokenizers.source import Source, as_source

CONTEXT_SEPARATOR = "␞"
"""Character U+241E, after each sentence of the context."""
SEPARATOR_ID = 3
"""Id of the separator, the first one after that of `</s>`."""

_END = f"{CONTEXT_SEPARATOR} "


def as_text(context: Sequence[str]) -> str:
    """Return the text before a sentence that has this context. context: sentences, oldest first; empty at the start of
    a document."""
    return "".join(sentence.replace(CONTEXT_SEPARATOR, " ").strip(MARGIN) + _END for sentence in context or ("",))


def parse_context(line: str | Source) -> Source:
    """Return a line with its context: the given one, or the sentences before the last separator in the text, or None.
    """
    source = as_source(line)
    context, separator, text = source.text.rpartition(CONTEXT_SEPARATOR)
    if source.context is not None or not separator:
        return source
    sentences = tuple(filter(None, map(str.strip, context.split(CONTEXT_SEPARATOR))))
    return replace(source, text=text.removeprefix(" "), context=sentences)


class PreviousSentences:
    """The last `count` sentences of the document that is being read. A blank line ends the document."""

    def __init__(self, count: int) -> None:
        self._count, self._sentences = count, deque[str](maxlen=count)

    def source(self, line: str | Source, begins_document: bool = False) -> Source:
        """Return a line with its context, and add its sentence to the context of later lines.

        A context that is given, as the field of the source or in the text before the last separator, is kept. A blank
        line has no context, nor has any line if `count` is 0.
        """
        source = as_source(line)
        if not self._count or source.context is not None:
            return source
        source = parse_context(source)
        if begins_document or is_blank(source.text):
            self._sentences.clear()
        if is_blank(source.text):
            return source
        context = tuple(self._sentences) if source.context is None else source.context
        self._sentences.append(source.text.strip())
        return replace(source, context=context)


def in_context(sentences: Sequence[str | Source], count: int) -> list[Source]:
    """Return the sentences of a document, each with a context of up to `count` sentences, or without if it is 0."""
    previous = PreviousSentences(count)
    return [previous.source(sentence) for sentence in sentences]


def shortened(sources: Sequence[Source], encode: Callable[[Sequence[Source]], list[list[int]]], max_pieces: int
              ) -> list[Source]:
    """Return the sources. The oldest context sentences are dropped until a source has at most `max_pieces` pieces.

    encode: function that returns the pieces of sources.
    """
    short = list(sources)
    for index in [index for index, pieces in enumerate(encode(sources)) if len(pieces) > max_pieces]:
        while short[index].context and len(encode([short[index]])[0]) > max_pieces:
            short[index] = replace(short[index], context=(short[index].context or ())[1:])
    return short
