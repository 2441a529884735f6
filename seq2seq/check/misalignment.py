"""Detection of misaligned sentence pairs, from word co-occurrence in the corpus itself.

The score of a pair is the log of a ratio: the probability of the target given the source, according to IBM model 1
(Brown et al. 1993, https://aclanthology.org/J93-2003, section 4.1), divided by the probability of the target without a
source. Each pair must be scored with a table that was learned from other pairs, because a table overrates the pairs
that it was learned from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from seq2seq.data.pair_quality import LengthModel
from seq2seq.data.word_alignment import UNKNOWN, TranslationModel
from seq2seq.languages import SPACELESS, combining_marks

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
UNTRANSLATED_SHARE, UNSEEN_PAIRS = 0.1, 3.0
"""Assumed share of target words that translate no source word, and number of further pairs in which a word is assumed
to translate no word of the table (additive smoothing). They limit how much a single word can lower a score: a word of
few pairs has translations that were not seen yet. Without UNSEEN_PAIRS, 3.5 % of 2,700 right pairs of Tatoeba in
English and Chinese were below -5 nats, with it 0.2 %; the estimated share of wrong pairs was 4.4 % and is 0.4 %, and
4.7 % if 5 % are shuffled. In Multi30k, it is 0.01 %, and 0.97 %, 1.98 % and 4.99 % if 1, 2 and 5 % are."""
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
        self._source, self._target = ({word: index for index, word in enumerate(
            (word for word, count in of_side.items() if count >= MIN_COUNT), start=1)} for of_side in counts)
        self._lengths = LengthModel.learn((len(source), len(target)) for source, target in pairs)
        lengths = np.array([len(target) for _, target in pairs] or [1], float)
        self._target_length = (float(lengths.mean()), float(max(lengths.var(), 1.0)))
        target_counts = np.array([1, *(counts[1][word] for word in self._target)], float)     # id 0 is not a word
        self._untranslated = (UNTRANSLATED_SHARE * target_counts + UNSEEN_PAIRS) / (target_counts + UNSEEN_PAIRS)
        self._target_probability = target_counts / max(target_counts[1:].sum(), 1.0)
        sources, targets = zip(*map(self._ids, words), strict=True) if words else ((), ())
        links = np.cumsum([len(source) * len(target) for source, target in zip(sources, targets, strict=True)])
        used = slice(int(np.searchsorted(links, MAX_LINKS)) + 1)
        self._model = TranslationModel(list(sources[used]), list(targets[used]), len(target_counts), ITERATIONS, 0)

    def _ids(self, words: tuple[list[str], ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the source and target words of a pair, without rare words."""
        source, target = ([ids[word] for word in of_side if word in ids]
                          for ids, of_side in zip((self._source, self._target), words, strict=True))
        return np.array(source, np.int64), np.array(target, np.int64)

    def evidence(self, pairs: Sequence[Texts]) -> np.ndarray:
        """Return the score of each pair, (pairs,): log(p(target | source) / p(target)), in nats.

        The target of a pair with a positive score is probably a translation of the source. Words that are not in the
        table do not change the score, unless they occur on both sides.
        """
        words = [tuple(map(_words, pair)) for pair in pairs]
        total = np.array([self._score_lengths_and_rare_words(*pair) for pair in zip(pairs, words, strict=True)])
        if pairs and len(self._model.keys):
            sources, targets = map(_padded, zip(*map(self._ids, words), strict=True))
            probability = self._model.probabilities(sources, targets)
            # p(target word | source): mean of p(target word | source word) over the source words and the empty word.
            with_source = probability.sum(2) / (1 + (sources != UNKNOWN).sum(1, keepdims=True))
            ratio = with_source / self._target_probability[targets]
            untranslated = self._untranslated[targets]
            scores = np.log((1 - untranslated) * ratio + untranslated)
            total += np.where(targets != UNKNOWN, scores, 0).sum(1)
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


def _padded(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Return (sentences, words), padded with UNKNOWN."""
    padded = np.full((len(sentences), max(map(len, sentences))), UNKNOWN)
    for row, ids in zip(padded, sentences, strict=True):
        row[:len(ids)] = ids
    return padded
