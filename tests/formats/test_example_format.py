"""The format on the page about formats is a format: it passes the tests that all formats pass."""

import re
from pathlib import Path

import pytest
from format_kit import TRANSLATORS, check_texts, check_translator

from seq2seq.formats.units import UnitDocument

PAGE = (Path(__file__).parents[2] / "docs/formats.md").read_text(encoding="utf-8")
SAMPLE = '''; Contact form="No text"
COM_CONTACT_SEND="Send the message"
COM_CONTACT_COLOR="#ff0000"
COM_CONTACT_HELLO = "Hello, say \\"hi\\" and \\\\"
COM_CONTACT_LINES=" First line.\\nSecond line. "
'''
BLOCKS = [("Send the message", 2), ('Hello, say "hi" and \\', 4), ("First line.\nSecond line.", 5)]
UPPER = '''; Contact form="No text"
COM_CONTACT_SEND="SEND THE MESSAGE"
COM_CONTACT_COLOR="#ff0000"
COM_CONTACT_HELLO = "HELLO, SAY \\"HI\\" AND \\\\"
COM_CONTACT_LINES=" FIRST LINE.\\nSECOND LINE. "
'''


def example():
    """Return the class of the format that the page defines."""
    names = {}
    exec(re.search("```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    return next(value for value in names.values() if isinstance(value, type) and issubclass(value, UnitDocument)
                and value is not UnitDocument)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_it_finds_and_writes_its_texts(line_end):
    check_texts(example(), SAMPLE, BLOCKS, UPPER, line_end)
    check_texts(example(), "\ufeff" + SAMPLE, BLOCKS, "\ufeff" + UPPER, line_end)


@pytest.mark.parametrize("translator", TRANSLATORS)
def test_it_reads_what_it_has_written(translator):
    check_translator(example(), SAMPLE, TRANSLATORS[translator])


def test_the_entries_of_the_page_are_read():
    entries = re.search("```ini\n(.*?)```", PAGE, re.DOTALL)[1]
    assert [block.text for block in example()(entries.encode()).blocks] == ["Send the message", 'Hello %s, say "hi"']


def test_it_takes_linear_time_for_any_input():
    for piece in ("A=", 'A="', '"', "\\", 'A="\\', "A" * 9):
        data = (piece * (500_000 // len(piece))).encode()
        document = example()(data)
        assert document.render(document.blocks, "de") == data
