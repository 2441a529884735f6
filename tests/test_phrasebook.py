"""The grammar of the phrasebook translates each English sentence in one way, and its splits have the documented
properties."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations
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


def built(kind, english):
    """Draw from the grammar, restricted to the words of this sentence, until the pair with this English sentence
    occurs."""
    grammar = phrasebook.Grammar(phrasebook.GRAMMAR.read_text(encoding="utf-8"))
    text = english.lower()
    for name, words in grammar.words.items():
        grammar.words[name] = [
            word for word in words if any(form.replace("_", " ").lower() in text for form in word.english.values())
        ]
    grammar.rules["Sentence"] = [
        rule
        for rule in grammar.rules_of("Sentence")
        if all(part.kind or "/" in part.text or part.text.lower() in text for part in rule.english)
    ]
    rng = random.Random(1)
    for _ in range(50_000):
        try:
            pair = phrasebook.read_pair(grammar.draw(kind, rng))
        except IndexError:  # a class without words
            continue
        if pair.english.lower() == english.lower():
            return pair
    raise AssertionError(f"the grammar does not build {english!r}")


@pytest.mark.parametrize(
    ("number", "chinese"),
    # Checked by hand against the rules for 零, 两 and 万 in spoken numbers.
    [(2, "二"), (10, "十"), (12, "十二"), (20, "二十"), (22, "二十二"), (101, "一百零一"), (110, "一百一十"),
     (115, "一百一十五"), (202, "两百零二"), (2222, "两千两百二十二"), (3050, "三千零五十"), (10005, "一万零五"),
     (12345, "一万两千三百四十五"), (20000, "两万"), (40400, "四万零四百"), (99999, "九万九千九百九十九")],
)
def test_a_number_is_said_in_chinese(number, chinese):
    assert phrasebook.chinese_number(number) == chinese


def test_different_numbers_have_different_chinese_names():
    assert len({phrasebook.chinese_number(number) for number in range(1, 100000)}) == 99999


@pytest.mark.parametrize(
    ("kind", "english", "chinese"),
    [("Clock", "half past two", "两点半"), ("Clock", "a quarter to nine", "差一刻九点"),
     ("Clock", "five past six", "六点零五分"), ("Clock", "twenty to two", "差二十分两点"),
     ("Date", "May 3", "五月三号"), ("Some[Animal]", "a cat", "一只猫"), ("Some[Print]", "two books", "两本书"),
     ("Some[Food]", "an apple", "一个苹果"), ("That[Clothes]", "these skirts", "这些裙子"),
     ("Some[Beverage]", "two pots of tea", "两壶茶"), ("Spot", "under the table", "桌子下面"),
     ("Known[Print]", "the book that I bought yesterday", "我昨天买的书"),
     ("Known[Machine]", "the cars that Anna wants to sell", "安娜想卖的那些汽车"),
     ("Sentence", "I can swim.", "我会游泳。"), ("Sentence", "She cannot come tomorrow.", "她明天不能来。"),
     ("Sentence", "Has she ever swum?", "她游过泳吗？"), ("Sentence", "He never plays the piano.", "他从来不弹钢琴。"),
     ("Sentence", "I bought two shirts in the shop yesterday.", "我昨天在商店买了两件衬衫。"),
     ("Sentence", "He did not buy any books last week.", "他上个星期没买书。"),
     ("Sentence", "What did they write yesterday?", "他们昨天写了什么？"),
     ("Sentence", "How many keys does he have?", "他有几把钥匙？"),
     ("Sentence", "Why did Peter not come last Monday?", "彼得上个星期一为什么没来？"),
     ("Sentence", "Where did you buy this dress?", "这条连衣裙你是在哪儿买的？"),
     ("Sentence", "How much is that coat?", "那件大衣多少钱？"),
     ("Sentence", "You are much taller than me.", "你比我高得多。"),
     ("Sentence", "There is a kitten on the table.", "桌子上有一只小猫。"),
     ("Sentence", "Please put this key on the table.", "请把这把钥匙放在桌子上。"),
     ("Sentence", "Today is Tuesday, May 3.", "今天是五月三号星期二。"),
     ("Sentence", "If it rains tomorrow, we will stay at home.", "如果明天下雨，我们就待在家里。"),
     ("Sentence", "I stayed at home because it was very cold.", "因为天气很冷，所以我待在家里。"),
     ("Sentence", "Although it was very late, she still went to the park.", "虽然时间很晚，但是她还是去了公园。")],
)
def test_the_grammar_builds(kind, english, chinese):
    assert built(kind, english).chinese == chinese


@pytest.mark.slow
def test_the_files_do_not_depend_on_the_hash_seed(tmp_path, splits):
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), "--alignments"], check=True, capture_output=True,
                   env={"PYTHONHASHSEED": "7"})
    assert len(list(tmp_path.iterdir())) == 12
    for name, pairs in splits.items():
        for suffix, lines in {
            "en": [pair.english for pair in pairs],
            "zh": [pair.chinese for pair in pairs],
            "align": [" ".join(f"{i}-{j}" for i, j in pair.links) for pair in pairs],
            "words": [pair.alignment for pair in pairs],
        }.items():
            assert (tmp_path / f"{name}.{suffix}").read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.slow
def test_splits_have_their_sizes_and_no_sentence_stands_twice(splits):
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 30000, "valid": 500, "test": 500}
    english = [pair.english for pairs in splits.values() for pair in pairs]
    assert len(set(english)) == len(english)
    chinese = {name: {pair.chinese for pair in pairs} for name, pairs in splits.items()}
    assert all(chinese[a].isdisjoint(chinese[b]) for a, b in combinations(chinese, 2))


@pytest.mark.slow
def test_valid_and_test_have_words_that_never_meet_in_train(splits):
    met = {couple for pair in splits["train"] for couple in combinations(pair.words, 2)}
    for pair in splits["valid"] + splits["test"]:
        assert any(couple not in met for couple in combinations(pair.words, 2)), pair.english


@pytest.mark.slow
def test_every_word_of_test_is_common_in_train(splits):
    words = Counter(word for pair in splits["train"] for word in phrasebook.spoken(pair))
    assert len(words) >= 400
    assert min(words[word] for pair in splits["test"] for word in phrasebook.spoken(pair)) >= phrasebook.COMMON
    characters = Counter("".join(pair.chinese for pair in splits["train"]))
    assert min(characters[character] for pair in splits["test"] for character in pair.chinese) >= phrasebook.COMMON


@pytest.mark.slow
def test_every_word_of_the_grammar_is_used(grammar, splits):
    used = {word for pair in splits["train"] for word in pair.words}
    assert used == {word.name for words in grammar.words.values() for word in words}


@pytest.mark.slow
def test_links_join_tokens_of_the_sentence(splits):
    for pair in splits["train"]:
        assert pair.links
        assert all(i < len(pair.english_tokens) and j < len(pair.chinese_tokens) for i, j in pair.links)


@pytest.mark.parametrize(
    ("kind", "english", "chinese", "alignment"),
    # Written by hand. "the ... that" and 的, 那些 say the same without being translations word by word; every character
    # of a word is linked; a mark stands at the word before it.
    [("Known[Print]", "the book that I bought yesterday", "我昨天买的书", "0?4 1-5 2?4 3-0 4-3 5-1 5-2"),
     ("Clock", "a quarter to nine", "差一刻九点", "1-1 1-2 2-0 3-3 3-4"),
     ("Place", "post office", "邮局", "0?0 0?1 1?0 1?1"),
     ("Sentence", "I can swim.", "我会游泳。", "0-0 1-1 2-2 2-3 2-4")],
)
def test_words_are_aligned_with_characters(kind, english, chinese, alignment):
    pair = built(kind, english)
    assert pair.chinese == chinese
    assert pair.alignment == alignment


@pytest.mark.slow
def test_generated_sentences_match_the_expected_ones(splits):
    for pairs in splits.values():
        for pair in pairs:
            assert pair.english[0].isupper() and pair.english[-1] in ".?" and "_" not in pair.english
            assert pair.chinese[-1] in "。？" and not set(pair.chinese) & set(" .?,_-¹²³")
            assert 2 <= len(pair.english.split()) <= 22
