"""Modifiers of training pairs, on sentences written for the test."""

import unicodedata
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seq2seq.data.aligned_phrases import _without_punctuation, aligned_phrase, drawn_phrases, tags, terms
from seq2seq.data.modifiers import (
    SentencePair,
    in_title_case,
    in_upper_case,
    no_final_stop,
    noise,
    robustness_slices,
    typos,
    upper_case,
    with_typos,
    without_final_stop,
)
from seq2seq.data.pair_augmenter import FORMS, MODIFIERS, NAMES, PairAugmenter, drawn_placeholder, placeholders
from seq2seq.languages import belongs_to_letter
from seq2seq.recipe.data_section import Augmentation
from seq2seq.tokenizers.line_splitting import word_spans
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.term_markers import annotate

LINKS = [(0, 0), (1, 1), (2, 2), (3, 4), (4, 3)]
GERMAN, ENGLISH = "Anna kauft heute Brot frisches.", "Anna buys today fresh bread."


def pair_of(source=GERMAN, target=ENGLISH, links=LINKS, languages=("de", "en")):
    return SentencePair(source, target, languages, lambda: list(links))


# Letters


def test_upper_case_knows_the_letters_of_turkish():
    assert upper_case(pair_of("ein süßer Kuss.", "a sweet kiss."), Random(1)) == ("EIN SÜSSER KUSS.", "A SWEET KISS.")
    assert in_upper_case("iyi", "tr") == "İYİ"


@pytest.mark.parametrize(("language", "text", "expected"), [
    ("yo", "ọ̀rọ̀ kan", "Ọ̀rọ̀ Kan"), ("fr", "cafe\u0301s noirs", "Cafe\u0301s Noirs"), ("ka", "ოთახი", "ოთახი"),
    ("hi", "मेरे दोस्तों", "मेरे दोस्तों"), ("tr", "iki ışık", "İki Işık"), ("hr", "ǆep", "ǅep")])
def test_title_case_changes_first_letters_only_in_every_script(language, text, expected):
    assert in_title_case(text, language) == expected


def test_title_case_leaves_other_letters_alone():
    assert in_title_case("don't tell \"the NASA\", l’été 3rd é", "en") == "Don't Tell \"The NASA\", L’été 3rd É"


@pytest.mark.parametrize("text, expected", [("Ja.", "Ja"), ("好。", "好"), ("Ja . ", "Ja"), ("Ja...", "Ja..."),
                                            ("Ja?", "Ja?"), (".", "."), ("", "")])
def test_only_a_single_final_stop_is_removed(text, expected):
    assert without_final_stop(text) == expected


def test_a_stop_is_removed_only_if_both_sides_have_one():
    assert no_final_stop(pair_of("Ja.", "Yes!"), Random(1)) == ("Ja.", "Yes!")
    assert no_final_stop(pair_of("Ja.", "好。"), Random(1)) == ("Ja", "好")


def test_typos_spare_numbers_urls_and_placeholders():
    text = "Schreiben Sie bis 2024 an info@example.org oder https://example.org/weiter, {name} %(count)d <b>fett</b>!"
    spared = [word for word in text.split() if not word.isalpha()]
    for seed in range(50):
        assert [word for word in with_typos(text, Random(seed)).split() if not word.isalpha()] == spared


def test_typos_are_one_or_two_per_ten_words_and_only_in_the_source():
    text = "der kleine Hund lief gestern schnell durch den großen Wald " * 10
    for seed in range(20):
        source, target = typos(pair_of(text.strip(), ENGLISH), Random(seed))
        changed = sum(before != after for before, after in zip(text.split(), source.split(), strict=True))
        assert target == ENGLISH and 5 <= changed <= 20
    assert with_typos("a 12 b", Random(1)) == "a 12 b"


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 999))
def test_modifiers_accept_every_text(source, target, seed):
    for modifier in MODIFIERS.values():
        changed = modifier(pair_of(source, target, [], ("zh", "en")), Random(seed))
        assert all(isinstance(text, str) for text in changed) and len(changed) == 2


@given(st.integers(0, 10**9))
def test_noise_is_the_same_on_both_sides(seed):
    source, target = noise(pair_of("das", "this"), Random(seed))
    assert source.replace("das", "") == target.replace("this", "") and source


# Placeholders


def test_a_shared_name_or_number_is_replaced_on_both_sides():
    for seed in range(30):
        source, target = placeholders(pair_of("Um 8:30 kam jemand an.", "Someone came at 8:30."), Random(seed))
        placeholder = source.removeprefix("Um ").removesuffix(" kam jemand an.")
        assert target == f"Someone came at {placeholder}." and "8:30" not in source


def test_a_name_in_chinese_text_is_found():
    pair = pair_of("我用Python写程序。", "I write in Python.", languages=("zh", "en"))
    source, target = placeholders(pair, Random(2))
    assert "Python" not in source + target and source.startswith("我用") and source.endswith("写程序。")


def test_without_a_shared_name_a_placeholder_is_added_at_the_same_end():
    for seed in range(30):
        source, target = placeholders(pair_of("das hier", "Tom and Tom"), Random(seed))
        assert source.replace("das hier", "") == target.replace("Tom and Tom", "") != ""


def test_every_form_of_placeholder_can_be_drawn():
    drawn = {drawn_placeholder(Random(seed)) for seed in range(2000)}
    assert {"{name}", "%s", "%(count)d", "${x}", "{{ x }}", "<x>", ":count", "@name", "%1$s"} <= drawn
    assert all("{name}" not in text for text in (form.format(name="n", number=1, position=2) for form in FORMS))
    assert len(set(NAMES)) == len(NAMES)


# Tags and terms


@pytest.mark.parametrize("begin, end, expected", [(0, 1, (0, 1)), (3, 5, (3, 5)), (2, 4, None), (3, 4, (4, 5)),
                                                  (5, 6, None)])
def test_no_link_leaves_an_aligned_phrase(begin, end, expected):
    assert aligned_phrase(LINKS, begin, end) == expected


def test_tags_enclose_aligned_phrases_without_punctuation():
    seen = Counter()
    for seed in range(200):
        source, target = tags(pair_of(), Random(seed))
        assert source.endswith((".", ".</b>")) and (source != GERMAN) == (target != ENGLISH)
        seen[source.replace(GERMAN, "")] += 1
        for number in range(1, 10):
            assert (f"<{number}>" in source) == (f"<{number}>" in target)
            if source.count(f"<{number}>Brot frisches</{number}>."):
                assert f"<{number}>fresh bread</{number}>." in target
    assert len(seen) > 50


@pytest.mark.parametrize("text", ["मेरे दोस्तों", "เขามีเงิน", "قَرَأَ الكِتَابَ", "ọ̀rọ̀ kan"])
def test_phrases_end_after_the_marks_of_their_last_letter(text):
    """A vowel sign is not alphanumeric for Python."""
    language = "th" if "เ" in text else "hi"
    words = word_spans(text, language)
    for first in range(len(words)):
        for last in range(first, len(words)):
            begin, end = _without_punctuation(text, words[first:last + 1])
            assert end == len(text) or not belongs_to_letter(text[end])
            assert begin == end or not belongs_to_letter(text[begin])
    assert _without_punctuation("(मेरे),", [(0, 7)]) == (1, 5)


def test_phrases_do_not_overlap():
    for seed in range(50):
        for side in (0, 1):
            spans = sorted(phrase[side] for phrase in drawn_phrases(pair_of(), Random(seed), 3, (1, 2)))
            assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:], strict=False))


def test_terms_are_annotated_in_the_source_only():
    found = set()
    for seed in range(100):
        source, target = terms(pair_of(), Random(seed))
        assert target == ENGLISH
        found.add(source)
    assert "Anna ⦅ buys⦆ heute Brot frisches." in found
    assert "Anna kauft heute ⦅ fresh bread⦆." in found


def test_pairs_without_links_have_neither_tags_nor_terms():
    for modifier in (tags, terms):
        assert modifier(pair_of(links=[]), Random(1)) == (GERMAN, ENGLISH)


def test_terms_are_annotated_in_order_and_do_not_overlap():
    spans = [(6, 10, "看"), (2, 5, " die  Katze\n"), (4, 8, "no"), (8, 99, "no"), (0, 1, " ")]
    assert annotate("a cat sees", spans) == "a ⦅ die Katze⦆ ⦅看⦆"
    assert annotate("x⦅y⦆", [(0, 1, "⦆")]) == "⦅ )⦆(y)"


# Choice of the modifier


def section(**shares):
    return Augmentation(**shares)


def test_the_shares_of_the_recipe_are_the_shares_of_the_pairs():
    augmenter = PairAugmenter(section(upper_case=0.2, noise=0.1), ("de", "en"), seed=3)
    counts = Counter(augmenter.augment(0, index, Source(GERMAN), ENGLISH)[2] for index in range(3000))
    assert counts["upper_case"] == pytest.approx(600, abs=100) and counts["noise"] == pytest.approx(300, abs=80)
    assert counts.keys() == {"", "upper_case", "noise"}


def test_a_pair_changes_from_epoch_to_epoch_but_not_with_other_pairs():
    first, second = (PairAugmenter(section(typos=0.5), ("de", "en"), seed=3) for _ in range(2))
    changed = [first.augment(epoch, 7, Source(GERMAN), ENGLISH) for epoch in range(20)]
    assert len(set(changed)) > 5
    assert [second.augment(epoch, 7, Source(GERMAN), ENGLISH) for epoch in reversed(range(20))] == changed[::-1]


def test_the_tag_of_a_corpus_does_not_change():
    augmenter = PairAugmenter(section(upper_case=1), ("de", "en"), seed=3)
    assert augmenter.augment(0, 0, Source("ja", tag="<bt>"), "yes") == (Source("JA", tag="<bt>"), "YES", "upper_case")


def test_given_links_are_used_instead_of_an_aligner():
    augmenter = PairAugmenter(section(terms=1), ("de", "en"), 3, links=lambda index: [(index, 0)])
    assert augmenter.augment(0, 1, Source("der Hund"), "dog") == (Source("der ⦅ dog⦆"), "dog", "terms")


# Slices


def test_each_slice_has_every_line():
    slices = robustness_slices(["der kleine Hund.", "好。"], ["the dog.", "Good!"], ("de", "en"))
    assert list(slices) == ["clean", "upper_case", "title_case", "no_final_stop", "typos"]
    assert slices["clean"] == (["der kleine Hund.", "好。"], ["the dog.", "Good!"])
    assert slices["upper_case"] == (["DER KLEINE HUND.", "好。"], ["THE DOG.", "GOOD!"])
    assert slices["no_final_stop"] == (["der kleine Hund", "好。"], ["the dog", "Good!"])
    assert slices["typos"][1] == ["the dog.", "Good!"] and slices["typos"][0][0] != "der kleine Hund."
    assert slices == robustness_slices(["der kleine Hund.", "好。"], ["the dog.", "Good!"], ("de", "en"))


def test_a_placeholder_replaces_a_name_together_with_its_accents():
    for name in ("Rene\u0301", "Ade\u0301ba\u0301yo\u0323\u0300"):
        source, target = placeholders(pair_of(f"{name} kommt", f"{name} comes"), Random(1))
        assert not any(map(unicodedata.combining, source + target))
