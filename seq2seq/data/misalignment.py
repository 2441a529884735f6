"""Detection of misaligned sentence pairs, from word co-occurrence in the corpus itself.

IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003, section 4.1) learns a small lexicon. A pair's
score is how much more likely its target words are given this source than in general. Each pair is scored with a
lexicon that was learned from other pairs, because a lexicon fits the pairs that it was learned from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from seq2seq.data.pair_quality import LengthModel

Texts = tuple[str, str]

# A word, a number, or one character of a script that puts no spaces between words (kana, CJK, Thai).
WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|\d+|"
                  r"[^\W\d_\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+")
# The beginning of a word: endings change with the case, and compounds are long.
STEM = 6
LONGEST_SENTENCE = 60
LEAST_COUNT = 2
ITERATIONS = 4
MOST_LINKS = 3_000_000
"""Pairs of words in the text that a dictionary is learned from: some seconds, some 200 MB."""
FREE = 0.1
"""Share of the words of a translation that have no counterpart. Bounds what one word can say against a pair."""
SHARED_RARE_WORD = 3.0
"""Nats for a rare word, a name or a number, that stands on both sides."""
MOST_OF_LENGTH = 4.0
"""Nats that the two lengths may say at most, for or against."""


class TranslationTable:
    """p(target word | source word), and how likely each target word is anywhere."""

    def __init__(self, pairs: Sequence[Texts]) -> None:
        """Learn from pairs, of which most must translate each other."""
        words = [tuple(map(_words, pair)) for pair in pairs]
        counts = [Counter(word for both in words for word in both[side]) for side in (0, 1)]
        # The empty word, number 0, is at home on the source side: every target word may come from it.
        self._source = {word: number for number, word in enumerate(
            (word for word, count in counts[0].items() if count >= LEAST_COUNT), start=1)}
        self._target = {word: number for number, word in enumerate(
            word for word, count in counts[1].items() if count >= LEAST_COUNT)}
        self._lengths = LengthModel.learn((len(source), len(target)) for source, target in pairs)
        lengths = np.array([len(target) for _, target in pairs] or [1], float)
        self._any_length = (float(lengths.mean()), float(max(lengths.var(), 1.0)))
        numbers = [self._numbers(both) for both in words]
        self._usual = np.bincount(np.concatenate([np.zeros(0, np.int64), *(target for _, target in numbers)]),
                                  minlength=len(self._target)).astype(float)
        self._usual /= max(self._usual.sum(), 1.0)
        self._learn(numbers)

    def _numbers(self, words: tuple[list[str], ...]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the words that are known: (source_words + 1,) with the empty word, and (target_words,)."""
        source = [0, *(self._source[word] for word in words[0] if word in self._source)]
        target = [self._target[word] for word in words[1] if word in self._target]
        return np.array(source, np.int64), np.array(target, np.int64)

    def _learn(self, sentences: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        links = np.cumsum([len(source) * len(target) for source, target in sentences], dtype=np.int64)
        sentences = sentences[: int(np.searchsorted(links, MOST_LINKS)) + 1]
        keys, group, _ = _links(sentences, max(len(self._target), 1))
        self._keys, place = np.unique(keys, return_inverse=True)
        sources = self._keys // max(len(self._target), 1)
        probability = np.ones(len(self._keys))
        for _ in range(ITERATIONS):
            likely = probability[place]
            expected = likely / np.bincount(group, likely)[group]               # equation 17, for each target word
            together = np.bincount(place, expected, minlength=len(self._keys))
            probability = together / np.bincount(sources, together)[sources]
        self._probability = probability

    def evidence(self, pairs: Sequence[Texts]) -> np.ndarray:
        """(pairs,), log of how much likelier the target is as a translation of this source than as any text, in nats.

        Above 0 speaks for a translation. Words that the dictionary does not know say nothing, unless both sides have
        them.
        """
        if not pairs:
            return np.zeros(0)
        words = [tuple(map(_words, pair)) for pair in pairs]
        sentences = [self._numbers(both) for both in words]
        keys, group, owner = _links(sentences, max(len(self._target), 1))
        total = np.array([self._of_rest(pair, both) for pair, both in zip(pairs, words, strict=True)])
        if len(keys) and len(self._keys):
            place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            likely = np.where(self._keys[place] == keys, self._probability[place], 0.0)
            many = np.bincount(group)                                           # source words beside each target word
            mean = np.bincount(group, likely) / many
            usual = self._usual[np.concatenate([target for _, target in sentences])]
            gain = np.log((1 - FREE) * mean / usual + FREE)
            total += np.bincount(owner, gain, minlength=len(pairs))
        return total

    def _of_rest(self, pair: Texts, words: tuple[list[str], ...]) -> float:
        """Evidence of lengths and of rare words."""
        source, target = map(len, pair)
        if not source or not target:
            return -MOST_OF_LENGTH
        variance = self._lengths.variance * source
        mean, any_variance = self._any_length
        of_length = (0.5 * math.log(any_variance / variance) - self._lengths.deviation(source, target) ** 2 / 2
                     + (target - mean) ** 2 / any_variance / 2)
        shared = {word for word in words[1] if word not in self._target}.intersection(words[0])
        return max(-MOST_OF_LENGTH, min(MOST_OF_LENGTH, of_length)) + SHARED_RARE_WORD * len(shared)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word[:STEM] for word in WORD.findall(text.lower())))[:LONGEST_SENTENCE]


def _links(sentences: Sequence[tuple[np.ndarray, np.ndarray]], targets: int
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each source word beside each target word of its sentence.

    Returns:
        keys: (links,), source word × targets + target word. group: (links,), which target word of the text it is.
        owner: (target_words,), the sentence of each target word.
    """
    sources = np.array([len(source) for source, _ in sentences], np.int64)
    of_target = np.array([len(target) for _, target in sentences], np.int64)
    owner = np.repeat(np.arange(len(sentences)), of_target)
    empty = np.zeros(0, np.int64)
    flat_source = np.concatenate([empty, *(source for source, _ in sentences)])
    flat_target = np.concatenate([empty, *(target for _, target in sentences)])
    beside = sources[owner]                                                     # (target_words,)
    group = np.repeat(np.arange(len(owner)), beside)
    within = np.arange(len(group)) - np.repeat(np.cumsum(beside) - beside, beside)
    first = np.cumsum(sources) - sources
    return flat_source[first[owner][group] + within] * targets + flat_target[group], group, owner
