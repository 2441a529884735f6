"""Terms are found in text that looks the same."""

import pytest

from seq2seq.data.glossary import Glossary, Term, find_words


@pytest.mark.parametrize(("term", "before", "text"), [
    ("Mädchen", "zwei ", "Ma\u0308d\xadchen"), ("Mäd\u200bchen", "zwei\xa0", "Mädchen"),
    ("die Brücke", "\ufeff", "die\xa0Br\xadücke")])
def test_invisible_characters_do_not_hide_a_term(term, before, text):
    glossary = Glossary([Term(term, ("x",))], "de", "en")
    expected = [(len(before), len(before) + len(text))]
    assert [(one.begin, one.end) for one in glossary.find(f"{before}{text}.")] == expected
    assert find_words(term, f"{before}{text}.", "de", exact=True) == expected
