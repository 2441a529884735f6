"""Language tokens at the beginning of lines."""

import pytest

from seq2seq.tokenizers.language_token import split_language_token, with_language
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line


@pytest.mark.parametrize(("line", "token", "text"), [
    (">>de<< one", ">>de<<", "one"), (" >>de<<  one ", ">>de<<", " one "), (" >>de<<\u3000", ">>de<<", ""),
    ("one >>de<<", "", "one >>de<<"), ("", "", "")])
def test_the_token_of_a_line_is_split_off(line, token, text):
    assert split_language_token(line) == (token, text)


def test_only_a_token_of_the_vocabulary_is_a_language():
    assert with_language(Source(">>de<< one"), [">>de<<"].__contains__, ">>la<<") == Source("one", language=">>de<<")
    assert with_language(Source(">>xh<< one"), [">>de<<"].__contains__, ">>la<<") == Source(
        ">>xh<< one", language=">>la<<")
    assert as_line(Source("one", language=">>de<<", tag="<x>")) == ">>de<< <x> one"
