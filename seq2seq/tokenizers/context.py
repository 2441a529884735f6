"""Document context: preceding sentences added to each source (Tiedemann and Scherrer 2017, arXiv:1708.05943).

In text and in ids, each sentence of the context ends with a separator: `It rains.␞ It is wet.`. The first sentence of a
document has an empty context: `␞ It rains.`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from seq2seq.tokenizers.language_token import WithLanguageToken
from seq2seq.tokenizers.vocabulary import END_ID, Vocabulary

CONTEXT_SEPARATOR = "␞"
"""Character U+241E, after each sentence of the context. Its id is SEPARATOR_ID."""
SEPARATOR_ID = END_ID + 1

_END = f"{CONTEXT_SEPARATOR} "


class WithSeparator(WithLanguageToken):
    """Vocabulary that adds an empty context before each text without a context."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, CONTEXT_SEPARATOR)

    def _added(self, line: str) -> str:
        return "" if CONTEXT_SEPARATOR in line else _END


def with_context(context: Sequence[str], text: str) -> str:
    """Return a text with its context before it. context: sentences, oldest first; empty at the start of a document."""
    return "".join(sentence.replace(CONTEXT_SEPARATOR, " ") + _END for sentence in context or ("",)) + text


def split_context(source: str) -> tuple[str, str]:
    """Return (context with its separators, text after the context) of a source. The context is "" if there is none."""
    context, separator, text = source.rpartition(CONTEXT_SEPARATOR)
    return (f"{context}{_END}", text.removeprefix(" ")) if separator else ("", source)


def context_sentences(context: str) -> tuple[str, ...]:
    """Return the sentences of a context that `split_context` returned."""
    return tuple(filter(None, map(str.strip, context.split(CONTEXT_SEPARATOR))))


def with_last_sentences(source: str, count: int) -> str:
    """Return a source with at most the last `count` sentences of its context; without context if `count` is 0."""
    context, text = split_context(source)
    return with_context(context_sentences(context)[-count:], text) if context and count else text


class PreviousSentences:
    """The last `count` sentences of the document that is being read. A blank line ends the document."""

    def __init__(self, count: int) -> None:
        self._count, self._sentences = count, deque[str](maxlen=count)

    def add(self, text: str, begins_document: bool = False) -> tuple[str, ...]:
        """Return the context of a sentence, and add the sentence to the context of later sentences."""
        if begins_document or not text.strip():
            self._sentences.clear()
        context = tuple(self._sentences)
        if text.strip():
            self._sentences.append(text.strip())
        return context

    def source(self, text: str) -> str:
        """Return a sentence after its context, and add it to the context of later sentences. A blank line, a sentence
        that already has a context, and every sentence if `count` is 0 are returned unchanged."""
        given, sentence = split_context(text) if self._count else ("", text)
        context = self.add(sentence)
        return with_context(context, sentence) if self._count and sentence.strip() and not given else text


def in_context(sentences: Sequence[str], count: int) -> list[str]:
    """Return the sentences of a document, each after a context of up to `count` sentences, or alone if `count` is 0."""
    previous = PreviousSentences(count)
    return [previous.source(text) for text in sentences]


def shortened(sources: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]], max_pieces: int) -> list[str]:
    """Return the sources. The oldest context sentences are dropped until a source has at most `max_pieces` pieces.

    encode: function that returns the pieces of texts.
    """
    short = list(sources)
    for index in [index for index, pieces in enumerate(encode(sources)) if len(pieces) > max_pieces]:
        context, text = split_context(sources[index])
        sentences = context_sentences(context)
        while sentences and len(encode([short[index]])[0]) > max_pieces:
            sentences = sentences[1:]
            short[index] = with_context(sentences, text)
    return short
