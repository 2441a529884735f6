"""Detection of misaligned sentence pairs, from word co-occurrence in the corpus itself.

IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003, section 4.1) learns a small translation table. The
score of a pair is the log of a ratio: the probability of the target given the source, divided by the probability of the
target without a source. Each pair must be scored with a table that was learned from other pairs, because a table
overrates the pairs that it was learned from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from seq2seq.data.pair_quality import LengthModel
from seq2seq.tokenizers.scripts import SPACELESS, combining_marks

Texts = tuple[str, str]

# A word, a number, or a single character of a script without spaces between words. `\w` lacks combining marks, such as
# the vowel signs of Hindi.
WORD = re.compile(rf"[{SPACELESS}]|\d+|[^\W\d_{SPACELESS}](?:[^\W\d_{SPACELESS}]|[{combining_marks()}])*")
STEM_LENGTH = 6
"""Words are cut to this number of characters, so that most inflected forms of a word count as the same word."""
MAX_WORDS = 60
"""Maximum number of different words per side of a pair. Further words are ignored."""
MIN_COUNT = 2
"""A word that occurs in fewer pairs than this is a rare word: it is not in the translation table."""
ITERATIONS = 4
"""Number of iterations of expectation maximisation."""
MAX_LINKS = 3_000_000
"""Approximate maximum number of links to learn from. A link is a source word and a target word of the same pair.
Learning from this number of links takes some seconds and 200 MB of memory."""
UNTRANSLATED_SHARE = 0.1
"""Assumed share of target words that translate no source word. It limits how much a single word can lower a score."""
SHARED_RARE_WORD_SCORE = 3.0
"""Score, in nats, of a rare word that occurs on both sides, such as a name or a number."""
MAX_LENGTH_SCORE = 4.0
"""Maximum absolute value, in nats, of the part of a score that comes from the lengths of source and target."""


class TranslationTable:
    """Translation table of IBM model 1: p(target word | source word), and p(target word) without a source."""

    def __init__(self, pairs: Sequence[Texts]) -> None:
        """Learn from sentence pairs. In most pairs, the target must be a translation of the source."""
        words = [tuple(map(_words, pair)) for pair in pairs]
        counts = [Counter(word for both in words for word in both[side]) for side in (0, 1)]
        # Id 0 on the source side is the empty word (NULL in the paper), to which every target word is linked.
        self._source = {word: index for index, word in enumerate(
            (word for word, count in counts[0].items() if count >= MIN_COUNT), start=1)}
        self._target = {word: index for index, word in enumerate(
            word for word, count in counts[1].items() if count >= MIN_COUNT)}
        self._lengths = LengthModel.learn((len(source), len(target)) for source, target in pairs)
        lengths = np.array([len(target) for _, target in pairs] or [1], float)
        self._target_length = (float(lengths.mean()), float(max(lengths.var(), 1.0)))
        ids = [self._ids(both) for both in words]
        self._target_probability = np.bincount(np.concatenate([np.zeros(0, np.int64), *(target for _, target in ids)]),
                                               minlength=len(self._target)).astype(float)
        self._target_probability /= max(self._target_probability.sum(), 1.0)
        self._learn(ids)

    def _ids(self, words: tuple[list[str], ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of source and target words, without rare words: (source_words + 1,) with the empty word first,
        and (target_words,)."""
        source = [0, *(self._source[word] for word in words[0] if word in self._source)]
        target = [self._target[word] for word in words[1] if word in self._target]
        return np.array(source, np.int64), np.array(target, np.int64)

    def _learn(self, sentences: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        links = np.cumsum([len(source) * len(target) for source, target in sentences], dtype=np.int64)
        sentences = sentences[: int(np.searchsorted(links, MAX_LINKS)) + 1]
        keys, group, _ = _links(sentences, max(len(self._target), 1))
        self._keys, entry = np.unique(keys, return_inverse=True)                # entry of the table for each link
        sources = self._keys // max(len(self._target), 1)
        probability = np.ones(len(self._keys))
        for _ in range(ITERATIONS):
            of_link = probability[entry]
            expected = of_link / np.bincount(group, of_link)[group]             # Brown et al., equation 17
            counts = np.bincount(entry, expected, minlength=len(self._keys))
            probability = counts / np.bincount(sources, counts)[sources]
        self._probability = probability

    def evidence(self, pairs: Sequence[Texts]) -> np.ndarray:
        """Return the score of each pair, (pairs,): log(p(target | source) / p(target)), in nats.

        The target of a pair with a positive score is probably a translation of the source. Words that are not in the
        table do not change the score, unless they occur on both sides.
        """
        if not pairs:
            return np.zeros(0)
        words = [tuple(map(_words, pair)) for pair in pairs]
        sentences = [self._ids(both) for both in words]
        keys, group, owner = _links(sentences, max(len(self._target), 1))
        total = np.array([self._score_lengths_and_rare_words(*pair) for pair in zip(pairs, words, strict=True)])
        if len(keys) and len(self._keys):
            entry = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            of_link = np.where(self._keys[entry] == keys, self._probability[entry], 0.0)
            # p(target word | source): mean of p(target word | source word) over the source words and the empty word.
            with_source = np.bincount(group, of_link) / np.bincount(group)
            without_source = self._target_probability[np.concatenate([target for _, target in sentences])]
            scores = np.log((1 - UNTRANSLATED_SHARE) * with_source / without_source + UNTRANSLATED_SHARE)
            total += np.bincount(owner, scores, minlength=len(pairs))
        return total

    def _score_lengths_and_rare_words(self, pair: Texts, words: tuple[list[str], ...]) -> float:
        source, target = map(len, pair)
        if not source or not target:
            return -MAX_LENGTH_SCORE
        variance = self._lengths.variance * source
        mean, target_variance = self._target_length
        # log p(target length | source length) - log p(target length), both with normal densities.
        of_length = (0.5 * math.log(target_variance / variance) - self._lengths.deviation(source, target) ** 2 / 2
                     + (target - mean) ** 2 / target_variance / 2)
        shared = {word for word in words[1] if word not in self._target}.intersection(words[0])
        return max(-MAX_LENGTH_SCORE, min(MAX_LENGTH_SCORE, of_length)) + SHARED_RARE_WORD_SCORE * len(shared)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word[:STEM_LENGTH] for word in WORD.findall(text.lower())))[:MAX_WORDS]


def _links(sentences: Sequence[tuple[np.ndarray, np.ndarray]], targets: int
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the links of each target word to every source word of the same pair.

    targets: size of the target vocabulary.
    Returns:
        keys: (links,), source id × targets + target id. group: (links,), index of the link's target word in `owner`.
        owner: (target_words,), the index of the pair of each target word; the words of all pairs are concatenated.
    """
    sources = np.array([len(source) for source, _ in sentences], np.int64)
    lengths = np.array([len(target) for _, target in sentences], np.int64)
    owner = np.repeat(np.arange(len(sentences)), lengths)
    empty = np.zeros(0, np.int64)
    flat_source = np.concatenate([empty, *(source for source, _ in sentences)])
    flat_target = np.concatenate([empty, *(target for _, target in sentences)])
    link_counts = sources[owner]                                                # (target_words,)
    group = np.repeat(np.arange(len(owner)), link_counts)
    within = np.arange(len(group)) - np.repeat(np.cumsum(link_counts) - link_counts, link_counts)
    first = np.cumsum(sources) - sources
    return flat_source[first[owner][group] + within] * targets + flat_target[group], group, owner
