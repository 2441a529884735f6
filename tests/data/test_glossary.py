"""Terms are found in text that looks the same."""

import pytest

from seq2seq.data.glossary import Glossary, Term, find_words
from seq2seq.errors import UserError


@pytest.mark.parametrize(("term", "before", "text"), [
    ("Mädchen", "zwei ", "Ma\u0308d\xadchen"), ("Mäd\u200bchen", "zwei\xa0", "Mädchen"),
    ("die Brücke", "\ufeff", "die\xa0Br\xadücke")])
def test_invisible_characters_do_not_hide_a_term(term, before, text):
    glossary = Glossary([Term(term, ("x",))], "de", "en")
    expected = [(len(before), len(before) + len(text))]
    assert [(one.begin, one.end) for one in glossary.find(f"{before}{text}.")] == expected
    assert find_words(term, f"{before}{text}.", "de", exact=True) == expected


@pytest.mark.parametrize("name, text", [
    ("a.csv", 'Haus,"a\nhouse, ""red"""\r\nRohr 8",pipe\n'), ("a.tsv", 'Haus\ta\u2028house, "red"\nRohr 8"\tpipe')])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_glossary_is_a_table_in_utf_8_or_with_a_byte_order_mark(tmp_path, name, text, encoding):
    (tmp_path / name).write_bytes(text.encode(encoding))
    found = Glossary.read(tmp_path / name, "de", "en").find("Haus Rohr 8")
    assert [" ".join(one.term.translations[0].split()) for one in found] == ['a house, "red"', "pipe"]


def test_a_quote_that_is_not_closed_is_refused_with_its_line():
    with pytest.raises(UserError, match="^terms.csv:2: column 1"):
        Glossary.parse('Haus,house\n"Hund,dog\n', "terms.csv", "de", "en")
