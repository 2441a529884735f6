"""A tag of the training corpora at the beginning of a line becomes a field of its source, however it is spelled."""

import unicodedata

import pytest

from seq2seq.data.corpus import read_corpus
from seq2seq.errors import OptionError
from seq2seq.recipe import Corpus, Languages
from seq2seq.recipe.tokenizer_section import TokenizerSection
from seq2seq.tokenizers.context import CONTEXT_SEPARATOR
from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.line_reader import LineReader, split_tag
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import train_tokenizers

PAIR = Languages(source="de", target="en")
SPELLINGS = ["<law>", "<BT>", "[law]", "__law__", "law:", "#law", "{law}", "%s", "🎬", "⚖️", "「法律」",
             "§ Recht é", "in law:", "(?P<a>.*)+", "^$", "\\d", ">>law<<", "@law", "<a href='x'>", "http://law.de/",
             " <law> ", "-1"]


def reader(*tags, codes=(), **settings):
    return LineReader(Directions(PAIR, (PAIR, Languages(source="de", target="fr")), codes), tags, **settings)


@pytest.mark.parametrize("tag", SPELLINGS)
def test_any_spelling_of_a_tag_becomes_a_field_and_leaves_the_text(tag):
    for line in (f"{tag} ein Hund", f"  {tag}   ein Hund", unicodedata.normalize("NFD", f"{tag} ein Hund"),
                 f"\u200b{tag}\u00a0ein Hund"):
        source = reader("<other>", tag).source(line)
        assert (source.tag, source.text.strip(" \u200b")) == (tag, "ein Hund"), line
    assert reader(tag).source(tag) == Source("", tag=tag)
    assert reader(tag).source("ein Hund").tag == ""


@pytest.mark.parametrize(("tag", "line"), [
    ("#law", "#lawyers work"), ("#law", "#law-abiding"), ("__law__", "__law__s"),
    ("<law>", "<lawful> act"), ("<law>", "see <law> it")])
def test_text_that_only_looks_like_the_beginning_of_a_tag_stays(tag, line):
    assert split_tag(line, [tag]) == ("", line)


def test_the_longest_of_several_tags_is_taken():
    assert split_tag("law: EU: ein Hund", ["law:", "law: EU:"]) == ("law: EU:", "ein Hund")


def test_what_a_source_has_already_is_not_looked_for_in_its_text():
    read = reader("<law>", context=1)
    assert read.source(Source("<law> ein Hund", tag="")).text == "<law> ein Hund"
    assert read.source(Source("<law> ein Hund", tag="<law>")).text == "<law> ein Hund"
    once = read.source("<law> <law> ein Hund")
    assert read.source(once) == once and once.text == "<law> ein Hund"


def test_a_tag_of_all_lines_is_that_of_each_line_and_contradicts_no_line():
    law = reader("<law>", "<news>").tagged("<law>")
    lines = ["ein Hund", "<law> ein Hund", Source("ein Hund", tag="")]
    assert [law.source(line).tag for line in lines] == ["<law>"] * 3
    assert law.source("<law> ein Hund").text == "ein Hund"
    for line in ("<news> ein Hund", Source("ein Hund", tag="<news>")):
        with pytest.raises(OptionError, match="<news>"):
            law.source(line)


def test_an_unknown_tag_of_all_lines_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="<law>, <news>"):
        reader("<law>", "<news>").tagged("<sport>")
    with pytest.raises(OptionError, match="without tags"):
        reader().tagged("<law>")
    assert reader("§ é").tagged(unicodedata.normalize("NFD", " § é ")).tag == "§ é"


def test_tags_are_no_part_of_the_context_of_later_lines():
    found = list(reader("<law>", "<news>", context=2).number(["<law> eins", "zwei", "<news> drei", "x␞ <law> vier"]))
    assert [(one.text, one.tag, one.context, one.number) for one in found] == [
        ("eins", "<law>", (), 0), ("zwei", "", ("eins",), 1), ("drei", "<news>", ("eins", "zwei"), 2),
        ("vier", "<law>", ("x",), 3)]


def test_a_tag_follows_the_language_token_and_the_context():
    source = reader("<law>", codes=("en", "fr"), context=1).source(">>fr<< eins␞ <law> zwei")
    assert (source.language, source.context, source.tag, source.text) == ("fr", ("eins",), "<law>", "zwei")


@pytest.mark.parametrize("languages", [(), ("en", "fr")])
@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize(("kind", "options"), [("unigram", {}), ("bpe", {}), ("unigram", {"normalization": "nmt_nfkc"}),
                                               ("unigram", {"normalization": "identity"}), ("words", {})])
@pytest.mark.parametrize("tag", ["<law>", "[Recht é]", " 🎬 "])
def test_a_line_with_a_tag_has_the_ids_of_its_training_pair(tmp_path, tag, kind, options, context, languages):
    lines = ["ein Hund läuft", "die Katze schläft", "", "der Hund schläft nicht"]
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    section = TokenizerSection(type=kind, **options)
    vocabulary = train_tokenizers([(f"{tag} {line}", line) for line in lines], section, seed=1,
                                  symbols=[CONTEXT_SEPARATOR] if context else (), languages=languages).source
    corpus = Corpus(source="train.de", target="train.en", tag=tag)
    language = languages[-1] if languages else ""
    trained = [source for _, source, _ in read_corpus(corpus, tmp_path, context=context, language=language)]
    typed = [f">>{language}<< {tag} {line}" if language else f"{tag} {line}" for line in lines]
    typed[2] = ""                                                               # blank lines end documents
    read = list(reader(tag, codes=languages, context=context).number(typed))
    assert all(tag.strip() not in source.text for source in read)
    pairs = [(one, other) for one, other in zip(trained, read, strict=True) if one.text]
    assert vocabulary.encode([one for one, _ in pairs]) == vocabulary.encode([other for _, other in pairs])
    if kind != "words":
        sampled = [vocabulary.sample([pair[side] for pair in pairs], 0.1, 5) for side in (0, 1)]
        assert sampled[0] == sampled[1]
