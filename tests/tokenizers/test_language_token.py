"""Language tokens: what a line says about its target language, and the ids of its pieces."""

import pytest

from seq2seq.errors import OptionError
from seq2seq.recipe import Languages
from seq2seq.recipe.tokenizer_section import TokenizerSection
from seq2seq.tokenizers.language_token import Directions, split_language_token
from seq2seq.tokenizers.line_splitting import OUTSIDE
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers, train_tokenizers
from seq2seq.tokenizers.vocabulary import as_line

ALL = tuple(Languages(source=source, target=target) for source, target in (("en", "de"), ("en", "la"), ("de", "en")))
SEVERAL = Directions(ALL[0], ALL, ("de", "la", "en"))
ONE = Directions(ALL[0], ALL[:1], ())


@pytest.mark.parametrize(("line", "code", "text"), [
    (">>de<< one", "de", "one"), (" >>de<<  one ", "de", " one "), (" >>de<<\u3000", "de", ""),
    ("\ufeff>>de<< one", "de", "\ufeffone"), ("\u200b >>de<<\u200b\xa0one", "de", "\u200b one"),
    ("\u2068>>de<<\u2069", "de", ""), (">>zh_Hans<< one", "zh_Hans", "one"),
    ("one >>de<<", "", "one >>de<<"), ("", "", ""),
    (">><< one", "", ">><< one"), (">>d<< one", "", ">>d<< one"), (">>a b<< one", "", ">>a b<< one"),
    (">> de << one", "", ">> de << one"), ("> >>de<< one", "", "> >>de<< one")])
def test_a_token_at_the_beginning_is_not_part_of_the_text(line, code, text):
    assert split_language_token(line) == (code, text)


@pytest.mark.parametrize(("line", "expected"), [
    ("one", Source("one", language="de")),
    (">>la<< one", Source("one", language="la")),
    ("\ufeff\xa0>>la<< one", Source("\ufeff\xa0one", language="la")),
    (">>xh<< one", Source(">>xh<< one", language="de")),
    ("one >>la<<", Source("one >>la<<", language="de")),
    (Source(">>la<< one", language="en"), Source(">>la<< one", language="en")),
    (Source("one", language="deu"), Source("one", language="de"))])
def test_the_language_of_a_line_is_the_given_one_or_its_token_or_the_default(line, expected):
    assert SEVERAL.source(line) == expected
    assert SEVERAL.source(expected) == expected


def test_a_language_that_the_model_does_not_have_is_refused():
    with pytest.raises(OptionError):
        SEVERAL.source(Source("one", language="xh"))
    with pytest.raises(OptionError):
        SEVERAL.into("xh")


def test_without_tokens_a_line_has_no_language_and_its_token_is_text():
    assert ONE.source(">>de<< one") == ONE.source(Source(">>de<< one", language="de")) == Source(">>de<< one")
    assert ONE.into("de-AT") == ONE


def test_the_direction_into_a_language_is_the_first_of_the_model():
    assert SEVERAL.into("en").chosen == ALL[2] and SEVERAL.into("eng").chosen == ALL[2]


@pytest.mark.parametrize("section", [
    TokenizerSection(), TokenizerSection(type="bpe"), TokenizerSection(type="words")])
def test_no_text_yields_the_id_of_a_language_token(section):
    # The tokens also occur in the training text, as words and within words.
    pairs = [(">>de<< one x>>la<< cat", "eine >>la<< Katze")] * 20
    trained = train_tokenizers(pairs, section, 1, languages=["de", "la"])
    vocabulary = Tokenizers.from_files(trained.files()).source
    assert list(vocabulary.languages) == ["de", "la"]
    assert [vocabulary.language_token(code) for code in ("de", "deu", "la", "xh")] == [
        ">>de<<", ">>de<<", ">>la<<", ""]
    texts = [">>de<< one", "one >>la<< cat", "x>>la<<", ">>de<<", ">>xh<< one"]
    tokens = set(vocabulary.languages.values())
    for ids in (vocabulary.encode(texts), vocabulary.sample(texts, 0.1, 1)):
        assert not any(tokens & set(line) for line in ids)
    if section.type != "words":
        assert vocabulary.decode(vocabulary.encode(texts)) == texts
    with_language = [Source(text, language="la") for text in texts]
    assert vocabulary.encode(with_language) == [
        [vocabulary.languages["la"], *ids] for ids in vocabulary._encode([f" {text}" for text in texts], 1)]
    for text, spans in zip(texts, vocabulary.spans(with_language), strict=True):
        assert spans[0] == OUTSIDE
        assert "".join(text[begin:end] for begin, end in spans[1:]).replace(" ", "") == text.replace(" ", "")
    assert vocabulary.encode([Source("one", language="xh")]) == vocabulary.encode(["one"])
    assert tokens <= set(vocabulary.never_generated_ids)
    assert vocabulary.decode([[vocabulary.languages["la"], *vocabulary.encode(["one"])[0]]]) == ["one"]


def test_a_tag_follows_the_token():
    assert as_line(Source("one", language="de", tag="<x>")) == "<x> one"
