"""Statistical word alignment, on a small artificial language."""

import random

import numpy as np

from seq2seq.data import word_alignment
from seq2seq.data.word_alignment import WordAligner, normalised

VOCABULARY = {"one": "eins", "two": "zwei", "red": "rot", "cat": "Katze", "dog": "Hund", "sees": "sieht", "and": "und",
              "airport": "飞 机 场"}


def corpus(count=300):
    generator = random.Random(1)
    pairs = []
    for _ in range(count):
        words = generator.choices(list(VOCABULARY), k=generator.randint(2, 6))
        order = generator.sample(words, len(words))
        pairs.append((words, [part for word in order for part in VOCABULARY[word].split()]))
    return pairs


def test_words_are_linked_in_any_order():
    aligner = WordAligner(corpus())
    assert aligner.links(["red", "dog", "sees"], ["sieht", "Hund", "rot"]) == [(0, 2), (1, 1), (2, 0)]
    assert aligner.links(["The", "Dog."], ["Hund!"]) == [(1, 0)]


def test_a_word_can_have_several_links():
    links = WordAligner(corpus()).links(["airport", "red"], ["飞", "机", "场", "rot"])
    assert links == [(0, 0), (0, 1), (0, 2), (1, 3)]


def test_an_unknown_word_is_linked_by_its_place():
    assert (1, 1) in WordAligner(corpus()).links(["dog", "Zaphod", "cat"], ["Hund", "Zaphod", "Katze"])


def test_empty_text_has_no_links():
    assert WordAligner([]).links(["a"], ["b"]) == []
    assert WordAligner([([], ["x"])]).links(["a"], ["b"]) == []
    assert WordAligner(corpus(3)).links([], ["Hund"]) == []


def test_blocks_do_not_change_the_result(monkeypatch):
    whole = WordAligner(corpus())
    monkeypatch.setattr(word_alignment, "BLOCK_CELLS", 50)
    parted = WordAligner(corpus())
    np.testing.assert_allclose(whole._forward.table, parted._forward.table, rtol=1e-9)


def test_the_memory_for_training_is_limited(monkeypatch):
    monkeypatch.setattr(word_alignment, "MAX_CELLS", 1000)
    assert WordAligner(corpus()).links(["red", "dog"], ["Hund", "rot"]) == [(0, 1), (1, 0)]


def test_punctuation_and_case_do_not_separate_words():
    assert [normalised(word) for word in ("Dog,", "«Hund»", "...", "e.g.")] == ["dog", "hund", "...", "e.g"]
