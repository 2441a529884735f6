"""Translators that tests use instead of a model."""

from dataclasses import replace

from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.line_reader import LineReader
from seq2seq.translation.protected_translation import ProtectedSearch


class Protected:
    """Translator that keeps tags, placeholders and terms. model: its search, an object with the method `translate`, and
    with `languages` and `decoding`. settings: see `ProtectedSearch`."""

    def __init__(self, model, **settings):
        self.glossary = settings.get("glossary")
        self.reader = LineReader(Directions(model.languages, (model.languages,), ()), context=model.context)
        self.source = self.reader.source
        self._search = ProtectedSearch(model.translate, model.languages, model.decoding, **settings)

    def translate(self, lines, **options):
        return self._search.translate(list(self.reader.number(lines)), **options)


def translated(document, translate=str.upper, language="en"):
    """Return a document with the text of each block changed; tags keep their positions."""
    blocks = []
    for block in document.blocks:
        text = translate(block.text)
        blocks.append(replace(block, text=text, tags=tuple(replace(tag, position=min(tag.position, len(text)))
                                                           for tag in block.tags)))
    return document.render(blocks, language)


def shortened(text):
    """Return a text with the first half of its words. White space around them stays, because no model gets it."""
    core = text.strip()
    margin = text.index(core)
    return text[:margin] + core[:len(core) // 2] + text[margin + len(core):]
