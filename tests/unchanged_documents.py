"""Translators that tests of documents use in place of a model."""

from dataclasses import replace


def unchanged(document):
    """Return the document whose texts are all as they were."""
    return document.render(document.blocks, "de")


def upper(document, language="de"):
    """Return the document with its texts in upper case."""
    return document.render([uppercase(block) for block in document.blocks], language)


def uppercase(block):
    """Return the block in upper case; a letter without a counterpart of one character stays."""
    text = "".join(one.upper() if len(one.upper()) == 1 else one for one in block.text)
    return replace(block, text=text)


def texts(document):
    """Return the texts of all blocks."""
    return [block.text for block in document.blocks]
