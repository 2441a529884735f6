"""Inline tags are placed by alignment: every tag once, well-formed, around the words aligned with its contents."""

import numpy as np
import pytest
from hypothesis import strategies as st
from property_checks import few_and_many

from seq2seq.formats.block import Block
from seq2seq.formats.inline_tags import Tag, pair_tags
from seq2seq.translation.placement import alignment_units, place_tags, with_spaces


def tagged(text):
    """Parse a text with tags such as <b>, </b> and <br/>."""
    plain, found = "", []
    while text:
        if text[0] == "<":
            raw, text = text[:text.index(">") + 1], text[text.index(">") + 1:]
            kind = "close" if raw[1] == "/" else "alone" if raw[-2] == "/" else "open"
            found.append((len(plain), raw, kind, raw.strip("</>")))
        else:
            plain, text = plain + text[0], text[1:]
    return plain, pair_tags(found)


def placed(source, translation, links=None):
    """Return the translation with the tags of the source. links: pairs of units, (source, translation)."""
    text, tags = tagged(source)
    weights = None
    if links is not None:
        weights = np.full((len(alignment_units(translation)), len(alignment_units(text))), 0.01)
        for old, new in links:
            weights[new, old] = 1
    return Block(translation, tuple(place_tags(text, tags, translation, weights))).serialize(str)


@pytest.mark.parametrize(("source", "translation", "links", "expected"), [
    ("the <b>red</b> dog", "le chien rouge", [(0, 0), (1, 2), (2, 1)], "le chien <b>rouge</b>"),
    ("<b>the red</b> dog", "rouge chien la", [(0, 2), (1, 0), (2, 1)], "<b>rouge chien la</b>"),
    ("a <b>b</b> <i>c</i>", "x y z", [(0, 0), (1, 2), (2, 1)], "x <i>y</i> <b>z</b>"),
    ("a <b>b <i>c</i> d</b> e", "x y z v w", [(0, 4), (1, 1), (2, 0), (3, 2), (4, 3)], "<b><i>x</i> y z</b> v w"),
    ("press <b>OK</b>, then go", "dann OK, drücken", [(0, 3), (3, 0)], "dann <b>OK</b>, drücken"),
    ("one<br/> two", "zwei eins", [(0, 1), (1, 0)], "zwei eins<br/>"),
    ("one <br/>two", "zwei eins", [(0, 1), (1, 0)], "<br/>zwei eins"),
    ("<b></b>one two", "zwei eins", [(0, 1), (1, 0)], "zwei <b></b>eins"),
    ("one <b>two", "zwei eins", [(0, 1), (1, 0)], "<b>zwei eins"),
    ("one</b> two", "zwei eins", [(0, 1), (1, 0)], "zwei eins</b>"),
    ("see <a>狗</a>.", "看狗。", [(0, 0), (1, 1), (2, 2)], "看<a>狗</a>。"),
    ("<b><i>all of it</i></b>", "alles", [(0, 0)], "<b><i>alles</i></b>"),
    ("no <b>letters</b>", "", None, "<b></b>"),
    ("so <b>many</b> words", "tant de mots", [(0, 0), (2, 2)], "tant <b>de</b> mots"),
])
def test_tags_are_around_the_aligned_words(source, translation, links, expected):
    assert placed(source, translation, links) == expected


@pytest.mark.parametrize(("source", "translation", "shares", "expected"), [
    ("I would really like to drink a glass of <b>juice</b>", "我很想喝果汁", "I would like drink 90 35",
     "我很想喝<b>果汁</b>"),
    ("I would really like to drink a glass of <b>juice</b>", "我很想喝果汁", "I would like drink 35 90",
     "我很想喝<b>果汁</b>"),
    ("I would like to drink the <b>juice", "我很想喝果汁", "I would like drink 9 90", "我很想喝<b>果汁"),
    ("<b>juice</b> I like a lot and drink", "果汁我爱喝", "90 35 I like drink", "<b>果汁</b>我爱喝"),
    ("I like <b>juice</b> very much", "ジュースが好き", "90 60 40 20 very like like", "<b>ジュース</b>が好き"),
    ("Two dogs drink <br/>juice", "两只狗喝果汁", "Two Two dogs drink 35 90", "两只狗喝<br/>果汁")])
def test_no_tag_is_inside_of_a_word_of_a_language_without_spaces(source, translation, shares, expected):
    text, tags = tagged(source)
    words = text.split()
    weights = np.full((len(alignment_units(translation)), len(words)), 0.01)
    for row, share in zip(weights, shares.split(), strict=True):            # a number is the share of juice in percent
        row[words.index("juice" if share.isdigit() else share)] = int(share) / 100 if share.isdigit() else 0.9
    assert Block(translation, tuple(place_tags(text, tags, translation, weights))).serialize(str) == expected


def test_a_name_that_occurs_unchanged_is_found_without_an_alignment():
    assert placed("ein <b>Kuhn</b> kommt spät", "late comes Kuhn") == "late comes <b>Kuhn</b>"


fragments = st.recursive(st.sampled_from(["a ", "b. ", "Kuhn ", "12 ", "狗", "<br/>", ", "]), lambda inner: st.tuples(
    st.sampled_from("biu"), st.lists(inner, max_size=3)).map(lambda one: f"<{one[0]}>{''.join(one[1])}</{one[0]}>"),
    max_leaves=12)


@few_and_many(10, 4000, st.lists(fragments, max_size=5).map("".join),
              st.lists(st.sampled_from(["x", "Kuhn", "zwei,", "狗跑", "12"]), max_size=8), st.integers(0, 2**32))
def test_any_fragment_stays_well_formed_with_every_tag_once(source, words, seed):
    text, tags = tagged(source)
    translation = " ".join(words)
    shape = len(alignment_units(translation)), len(alignment_units(text))
    result = place_tags(text, tags, translation, np.random.default_rng(seed).random(shape))
    assert sorted(tag.raw for tag in result) == sorted(tag.raw for tag in tags)
    positions = [tag.position for tag in result]
    assert positions == sorted(positions) and all(0 <= position <= len(translation) for position in positions)
    stack = []
    for tag in result:
        if tag.kind == "open":
            stack.append(tag.raw[1:])
        elif tag.kind == "close":
            assert stack.pop() == tag.raw[2:]
    assert not stack


def test_elements_that_overlap_keep_every_tag():
    tags = [Tag(0, "<1>", "open", 1), Tag(2, "<2>", "open", 2), Tag(3, "</1>", "close", 1), Tag(5, "</2>", "close", 2)]
    result = place_tags("a b c", tags, "x y z", np.eye(3))
    assert sorted(tag.raw for tag in result) == ["</1>", "</2>", "<1>", "<2>"]


@pytest.mark.parametrize(("source", "translation", "links", "expected"), [
    ("the <b>report snapshot</b> is new", "der Bericht-Snapshot ist neu", [(0, 0), (2, 1), (3, 4), (4, 5)],
     "der <b>Bericht-Snapshot</b> ist neu"),
    ("select <b>Languages</b> now", "Jetzt aus Sprachen wählen", [(2, 0), (1, 1), (1, 2), (0, 3)],
     "Jetzt aus <b>Sprachen</b> wählen")])
def test_edges_are_not_inside_words_with_hyphens_or_before_small_letters(source, translation, links, expected):
    assert placed(source, translation, links) == expected


@pytest.mark.parametrize(("source", "translation", "expected"), [
    ("an area of 5 km<sup>2</sup> is <b>large</b>", "eine Fläche von 5 km2 ist groß",
     "eine Fläche von 5 km<sup>2</sup> ist <b>groß</b>"),
    ("water is H<sub>2</sub>O now", "nun ist Wasser H2O", "nun ist Wasser H<sub>2</sub>O"),
    ("the text<sup>1</sup> is here", "hier ist der Text1", "hier ist der Text<sup>1</sup>")])
def test_elements_inside_a_word_are_found_again_without_any_alignment(source, translation, expected):
    assert placed(source, translation) == expected


@pytest.mark.parametrize(("source", "translation", "expected"), [
    ("Run <x/> and use <y/>.", "Nun aus und nutze.", "Nun <x/> aus und nutze <y/>."),
    ("Run <x/> and use <y/>.", "Nun  aus und nutze .", "Nun <x/> aus und nutze <y/>."),
    ("now (<x/> or two)", "nun (oder zwei)", "nun (<x/> oder zwei)"),
    ("press <x/> now", "现在按", "现在<x/>按"), ("one <x/><y/> two", "eins zwei", "eins <x/><y/> zwei"),
    ("one <x/> <y/> two", "eins zwei", "eins <x/> <y/> zwei"), ("use <x/> or <y/>.", "nutze.", "nutze <x/> <y/>."),
    ("as (like <x/>) one", "wie eins", "wie <x/> eins"), ("see <a><x/></a>.", "siehe.", "siehe <a><x/></a>."),
    ("in<b> the</b> end", "am Ende", "<b>am</b> Ende")])
def test_a_tag_alone_has_the_spaces_of_the_source_around_it(source, translation, expected):
    text, tags = tagged(source)
    spaced, result = with_spaces(text, tags, translation, place_tags(text, tags, translation))
    assert Block(spaced, tuple(result)).serialize(str) == expected


@pytest.mark.parametrize("count", [3, 8, 20, 50, 120])
def test_a_tag_before_the_last_word_stays_there_without_any_alignment(count):
    words = " ".join(f"w{number}" for number in range(count))
    assert placed(f"{words} <x/>now.", f"{words.upper()} NOW.") == f"{words.upper()} <x/>NOW."


def test_an_empty_element_does_not_enclose_a_placeholder():
    assert placed("a <b></b>dog {x}", "{x} dog", [(1, 1), (2, 0)]) == "{x}<b></b> dog"


def test_no_element_becomes_empty_because_a_neighbour_takes_all_words():
    links = [(0, 1), (1, 0), (1, 1), (1, 2), (2, 2), (3, 2)]
    assert placed("<a>Ein</a> <b>Mann da oben</b>", "x y z", links) == "<a>x</a> <b>y z</b>"
