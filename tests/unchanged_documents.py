"""Translators that tests of documents use in place of a model."""

from dataclasses import replace

from seq2seq.documents.preparation import prepare


def unchanged(document):
    """Return the document whose texts are all as they were."""
    return document.render(document.blocks, "de")


def upper(document, language="de"):
    """Return the document with its texts in upper case."""
    return document.render([uppercase(block) for block in document.blocks], language)


def is_data(block):
    """Return True if the text of a block is data for programs, which no translator changes."""
    return not prepare(block).pieces


def uppercase(block):
    """Return the block in upper case, unless it is data; a letter without a counterpart of one character stays."""
    if is_data(block):
        return block
    text = "".join(one.upper() if len(one.upper()) == 1 else one for one in block.text)
    return replace(block, text=text)


def texts(document):
    """Return the texts of all blocks that are not data."""
    return [block.text for block in document.blocks if not is_data(block)]
