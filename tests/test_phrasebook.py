"""The phrasebook's grammar gives each English sentence one Chinese, and its splits keep what they promise."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations, islice
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "recipes" / "phrasebook" / "generate.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("phrasebook_generate", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


phrasebook = load_script()


@pytest.fixture(scope="module")
def grammar():
    return phrasebook.Grammar(phrasebook.GRAMMAR.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def splits():
    return phrasebook.generate()


@pytest.mark.parametrize(
    ("number", "chinese"),
    # Checked by hand against the rules for 零, 两 and 万 in spoken numbers.
    [(2, "二"), (10, "十"), (12, "十二"), (20, "二十"), (22, "二十二"), (101, "一百零一"), (110, "一百一十"),
     (115, "一百一十五"), (202, "两百零二"), (2222, "两千两百二十二"), (3050, "三千零五十"), (10005, "一万零五"),
     (12345, "一万两千三百四十五"), (20000, "两万"), (40400, "四万零四百"), (99999, "九万九千九百九十九")],
)
def test_a_number_is_said_in_chinese(number, chinese):
    assert phrasebook.chinese_number(number) == chinese


def test_no_two_numbers_sound_alike():
    assert len({phrasebook.chinese_number(number) for number in range(1, 100000)}) == 99999


def test_a_drawn_number_keeps_its_bounds():
    rng = random.Random(1)
    numbers = {phrasebook.draw_number(13, 999, rng) for _ in range(2000)}
    assert min(numbers) >= 13 and max(numbers) <= 999 and len(numbers) > 300


@pytest.mark.parametrize(
    ("kind", "english", "chinese"),
    [("Clock", "half past two", "两点半"), ("Clock", "a quarter to nine", "差一刻九点"),
     ("Clock", "five past six", "六点零五分"), ("Clock", "twenty to two", "差二十分两点"),
     ("Date", "May 3", "五月三号"), ("Some[Animal]", "a cat", "一只猫"), ("Some[Print]", "two books", "两本书"),
     ("Some[Food]", "an apple", "一个苹果"), ("That[Clothes]", "these skirts", "这些裙子"),
     ("Some[Beverage]", "two pots of tea", "两壶茶"), ("Known[Print]", "the book that I bought yesterday", "我昨天买的书"),
     ("Spot", "under the table", "桌子下面"), ("Enjoy", "watch this film", "看这部电影")],
)
def test_the_grammar_builds_a_phrase(grammar, kind, english, chinese):
    rng = random.Random(1)
    drawn = (phrasebook.read_pair(grammar.draw(kind, rng)) for _ in range(200_000))
    assert next(pair.chinese for pair in drawn if " ".join(pair.english_tokens) == english) == chinese


@pytest.mark.parametrize(
    ("english", "chinese"),
    [(r"I can swim.", "我会游泳。"), ("She can swim.", "她会游泳。"), ("Who can swim?", "谁会游泳？"),
     ("It is half past two now.", "现在两点半。"), ("Where do you live?", "你住在哪儿？"),
     ("Has she ever swum?", "她游过泳吗？"), ("He is very tall.", "他很高。"),
     ("You are taller than me.", "你比我高。"), ("Where is the bank?", "银行在哪儿？")],
)
def test_the_grammar_builds_a_sentence(english, chinese):
    pairs = islice(phrasebook.sentences(phrasebook.Grammar(phrasebook.GRAMMAR.read_text("utf-8")), 3), 90_000)
    known = getattr(test_the_grammar_builds_a_sentence, "known", None) or {p.english: p.chinese for p in pairs}
    test_the_grammar_builds_a_sentence.known = known
    assert known[english] == chinese


def test_the_same_seed_gives_the_same_files_whatever_the_hash_seed(tmp_path):
    for hash_seed in "1", "2":
        subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / hash_seed), "--pairs", "12000", "--alignments"],
                       check=True, env={"PYTHONHASHSEED": hash_seed}, capture_output=True)
    files = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(files) == 9
    for name in files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_another_seed_gives_other_sentences(grammar):
    first, second = ([pair.english for pair in islice(phrasebook.sentences(grammar, seed), 20)] for seed in (1, 2))
    assert first != second


def test_two_translations_of_one_sentence_are_refused():
    grammar = phrasebook.Grammar("words Fruit: one | zh\n  pear | 梨\nrules Sentence\n  a Fruit = 一 Fruit\n  a Fruit = Fruit\n")
    with pytest.raises(ValueError, match="two translations of 'A pear'"):
        list(islice(phrasebook.sentences(grammar, 1), 2))


def test_an_unknown_category_is_named():
    with pytest.raises(ValueError, match="nothing says what Fruit is"):
        phrasebook.Grammar("rules Sentence\n  a Fruit = 一 Fruit\n").draw("Sentence", random.Random(1))


def test_splits_have_their_sizes_and_no_sentence_stands_twice(splits):
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 30000, "valid": 500, "test": 500}
    english = [pair.english for pairs in splits.values() for pair in pairs]
    assert len(set(english)) == len(english)
    chinese = {name: {pair.chinese for pair in pairs} for name, pairs in splits.items()}
    assert all(chinese[a].isdisjoint(chinese[b]) for a, b in combinations(chinese, 2))


def test_valid_and_test_have_words_that_never_meet_in_train(splits):
    met = {couple for pair in splits["train"] for couple in combinations(pair.words, 2)}
    for pair in splits["valid"] + splits["test"]:
        assert any(couple not in met for couple in combinations(pair.words, 2)), pair.english


def test_every_word_of_test_is_common_in_train(splits):
    words = Counter(word for pair in splits["train"] for word in phrasebook.spoken(pair))
    assert len(words) >= 400
    assert min(words[word] for pair in splits["test"] for word in phrasebook.spoken(pair)) >= phrasebook.COMMON
    characters = Counter("".join(pair.chinese for pair in splits["train"]))
    assert min(characters[character] for pair in splits["test"] for character in pair.chinese) >= phrasebook.COMMON


def test_every_word_of_the_grammar_is_used(grammar, splits):
    used = {word for pair in splits["train"] for word in pair.words}
    assert used == {word.name for words in grammar.words.values() for word in words} 


def test_links_join_tokens_of_the_sentence(splits):
    for pair in splits["train"]:
        assert pair.links
        assert all(i < len(pair.english_tokens) and j < len(pair.chinese_tokens) for i, j in pair.links)


def test_a_relative_clause_is_linked_across_its_noun(grammar):
    rng = random.Random(1)
    pairs = (phrasebook.read_pair(grammar.draw("Known[Print]", rng)) for _ in range(200_000))
    pair = next(p for p in pairs if " ".join(p.english_tokens) == "the book that I bought yesterday")
    assert pair.chinese_tokens == ["我", "昨天", "买", "的", "书"]
    assert pair.links == [(1, 4), (3, 0), (4, 2), (5, 1)]


def test_sentences_are_well_written(splits):
    for pairs in splits.values():
        for pair in pairs:
            assert pair.english[0].isupper() and pair.english[-1] in ".?" and "_" not in pair.english
            assert pair.chinese[-1] in "。？" and not set(pair.chinese) & set(" .?,_-¹²³")
            assert 2 <= len(pair.english.split()) <= 22
