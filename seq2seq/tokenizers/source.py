"""Line to translate or to train on, as a value. Only the vocabularies turn it into text and ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Line to translate or to train on.

    context: sentences before this line in the same document, oldest first, for a model with `data.context`; None: not
        given. In a call of `Translator.translate`, the lines before this line, back to a blank line, are then used.
    language: code of the target language, for a model with several; "": not given. If it is given, a language token
        such as `>>de<<` in the text is text.
    source_language: code of the language of the text; "": not given. Only some vocabularies read it, see
        `fairseq_vocabulary`.
    tag: tag of the line's corpus (`tag` in the recipe); "": none; None: not given, so that the text may begin with a
        tag, which becomes this field (see `line_reader`).
    prefix: text with which the translation must begin. required: phrases that the translation must contain, in addition
        to those of `decoding.require`.
    number: number of the line in the whole input, from 0; None: index of the line in the call. With sampling, the
        translation depends on this number.
    """

    text: str
    context: tuple[str, ...] | None = None
    language: str = ""
    tag: str | None = None
    prefix: str = ""
    required: tuple[str, ...] = ()
    number: int | None = None
    source_language: str = ""


def as_source(line: str | Source) -> Source:
    """Return a line as a source. A text becomes the text of the source."""
    return Source(line) if isinstance(line, str) else line
