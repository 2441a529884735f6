"""Lines of text become sources: what stands before the text (language token, context, tag) becomes a field.

A line may begin with a tag that a training corpus has (`data.train[].tag`), such as `<law>`: the model reads it as in
training. It is no part of the text, so nothing keeps it as a placeholder, and it never comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from seq2seq.errors import OptionError
from seq2seq.tokenizers.canonical_text import MARGIN, canonical, canonical_origins
from seq2seq.tokenizers.context import PreviousSentences, parse_context
from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line


def split_tag(line: str, tags: Sequence[str]) -> tuple[str, str]:
    """Return the longest of the tags that a line begins with, or "", and the line without it.

    The forms of a tag that look the same count as one (see `canonical_text`). White space follows a tag that ends in a
    letter, digit or `_`, because `law` is not the beginning of "lawyers". White space and invisible characters before
    the tag are kept, unless nothing else remains.
    """
    text = line.lstrip(MARGIN)
    for tag in sorted(tags, key=len, reverse=True):
        if (end := _end_of_tag(text, tag.strip())) is None:
            continue
        rest, last = text[end:], tag.strip()[-1]
        if not rest or rest[0] in MARGIN or not (last.isalnum() or last == "_"):
            rest = rest.lstrip(MARGIN)
            return tag, rest and line[:len(line) - len(text)] + rest
    return "", line


def _end_of_tag(text: str, tag: str) -> int | None:
    """Return the index after a tag at the beginning of a text; None if the text does not begin with the tag."""
    if text.startswith(tag):
        return len(tag)
    form = canonical(tag)
    if not form or not canonical(text).startswith(form):
        return None
    return canonical_origins(text)[len(form) - 1][1]


@dataclass(frozen=True)
class LineReader:
    """Turns the lines for a model into sources.

    directions: directions of the model. tags: tags of its training corpora. context: number of previous sentences that
    the model reads with each line (`data.context`). tag: tag of all lines; None: each line may begin with its own.
    """

    directions: Directions
    tags: tuple[str, ...] = ()
    context: int = 0
    tag: str | None = None

    def tagged(self, tag: str | None) -> LineReader:
        """Return a reader that gives all lines a tag; None: this reader."""
        if tag is None:
            return self
        for known in self.tags:
            if canonical(known) == canonical(tag):
                return replace(self, tag=known)
        raise OptionError(f"the tag '{tag}' is not known: " + (
            f"the model was trained with {', '.join(self.tags)}." if self.tags else
            "the model was trained without tags. Leave it out."))

    def source(self, line: str | Source) -> Source:
        """Return a line with its language, its tag, and the context that it names itself.

        A language token, a context or a tag at the beginning of the text becomes a field of the source, unless the
        source has this field already: the beginning of the text is then text.
        """
        source = self.directions.source(line)
        if self.context:
            source = parse_context(source)
        if not self.tags:
            return source
        if source.tag is None:
            tag, text = split_tag(source.text, self.tags)
            source = replace(source, tag=tag, text=text)
        if self.tag is None or source.tag == self.tag:
            return source
        if source.tag:
            raise OptionError(f"the line that begins with '{as_line(source)[:30]}' has the tag {source.tag}, and all "
                              f"lines are to have the tag {self.tag}. Remove one of them.")
        return replace(source, tag=self.tag)

    def number(self, lines: Iterable[str | Source]) -> Iterator[Source]:
        """Yield each line as a numbered source. A source without a number gets the index of the line; one without
        context, if the model uses context, gets the previous lines of the document.

        Raises:
            TypeError: `lines` is a single line, whose letters would be translated one by one.
        """
        if isinstance(lines, str):
            raise TypeError("lines is a single text; pass a list of lines, such as [text]")
        previous = PreviousSentences(self.context)

        def numbered(index: int, source: Source) -> Source:
            return replace(source, number=index) if source.number is None else source

        return (numbered(index, previous.source(self.source(line))) for index, line in enumerate(lines))
