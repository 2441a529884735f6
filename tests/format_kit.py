"""What every format of documents must do, for a sample of it: its bytes, the texts that it finds, and those it writes.

`read` is a function that opens a document from its bytes.
"""

from dataclasses import replace

from unchanged_documents import is_data, texts, unchanged, upper

SIGNS = ' "it\'s" & 1 < 2 \\ 50 % # {0} : 中 é 😀'


def longer(number, block):
    """Return a translation with further words at both ends of the text. Its tags stay at their words."""
    tags = tuple(replace(tag, position=tag.position + 4) for tag in block.tags)
    return replace(block, text=f"«Ö» {block.text} и ещё", tags=tags)


def with_signs(number, block):
    """Return a translation with signs that formats escape."""
    return replace(block, text=block.text + SIGNS)


def some(number, block):
    """Return a translation of every third text; the others do not change."""
    return longer(number, block) if number % 3 == 0 else block


TRANSLATORS = {"longer": longer, "with signs": with_signs, "some": some}


def check_texts(read, source, blocks, translated, line_end="\n"):
    """Check that the texts of a sample are found, and that only they change.

    source, translated: the sample, and its translation into upper case. blocks: text and line of each block.
    """
    data = source.replace("\n", line_end).encode()
    document = read(data)
    assert [(block.text.replace("\r\n", "\n").replace("\r", "\n"), block.place) for block in document.blocks
            if not is_data(block)] == [
        (text, f"line {line}") for text, line in blocks]
    assert unchanged(document) == data
    assert upper(document).decode() == translated.replace("\n", line_end)


def check_translator(read, source, translate, read_again=None, finds_its_texts=True):
    """Check that a format reads what it has written.

    read_again: function that opens the translated document, if it names its language; by default, `read`.
    finds_its_texts: True if a translated document has the translations as its texts, as that of a program has. False:
    a text that has a translation is not translated again, or the texts are divided in another way.
    """
    document = read(source.encode())
    new = [block if is_data(block) else translate(number, block) for number, block in enumerate(document.blocks)]
    result = document.render(new, "de")
    again = (read_again or read)(result)
    assert unchanged(again) == result
    if finds_its_texts:
        assert texts(again) == [block.text for block in new if not is_data(block)]
    assert document.render(document.blocks, "de") == source.encode()
