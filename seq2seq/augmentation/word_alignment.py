"""Word alignment of a training corpus: IBM Model 1 in both directions, with a prior that favours the diagonal.

Brown et al. 1993 (Computational Linguistics 19) describe the model, Dyer et al. 2013 (fast_align) a diagonal prior.
Only additions, multiplications and divisions are used, so that the links are the same on every processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from seq2seq.augmentation.modifiers import Link

MAX_CELLS = 30_000_000
"""Maximum number of cells (word, word of the other side) of the training pairs, about 400 MB. These are 370,000 pairs
of 8 words or 68,000 pairs of 20 words; more pairs are not used for training."""
MAX_TRAINING_WORDS = 60
"""Maximum number of words on each side of a training pair."""
ITERATIONS = 4
BLOCK_CELLS = 1 << 21
"""Number of cells of one numpy call."""
NULL_WEIGHT = 0.04
"""Prior weight of the empty word, relative to a word on the diagonal."""
POWERS = (2, 4, 8, 16)
"""Values of the power to which 1 - distance from the diagonal is raised in the prior of a link. Each direction of a
language pair has the value that its training pairs make most likely: 2 for English-Chinese, 8 for English-German."""
MIN_AGREEMENT = 0.1
"""Minimum product of the probabilities of a link in both directions (Liang et al. 2006, Alignment by Agreement). It is
low because a word of n characters shares its probability among them: each character of 飞机场 has about 1/3."""
NO_LINK = 1e-7
"""Probability of word pairs that do not occur together in the training pairs."""

Words = Sequence[str]


class WordAligner:
    """Translation probabilities in both directions, which must agree on a link."""

    def __init__(self, pairs: Sequence[tuple[Words, Words]]) -> None:
        """Train on pairs of word lists. If there are too many (see MAX_CELLS), every second, third, … is used."""
        pairs = [pair for pair in pairs if all(0 < len(words) <= MAX_TRAINING_WORDS for words in pair)]
        cells = sum((len(source) + 1) * (len(target) + 1) for source, target in pairs)
        pairs = pairs[::1 + cells // MAX_CELLS]
        pairs = [pairs[index] for index in np.random.default_rng(0).permutation(len(pairs))]
        self._ids: tuple[dict[str, int], dict[str, int]] = ({}, {})
        sides = [[np.array([ids.setdefault(normalised(word), len(ids) + 1) for word in pair[side]], np.int64)
                  for pair in pairs] for side, ids in enumerate(self._ids)]
        self._forward = _Direction(sides[0], sides[1], len(self._ids[1]) + 1)
        self._backward = _Direction(sides[1], sides[0], len(self._ids[0]) + 1)

    def links(self, source: Words, target: Words) -> list[Link]:
        """Return the links between the words of a pair, sorted."""
        agreement = np.square(self.weights(source, target).T)
        return [(int(word), int(other)) for word, other in zip(*(agreement >= MIN_AGREEMENT).nonzero(), strict=True)]

    def weights(self, source: Words, target: Words) -> np.ndarray:
        """Return the geometric mean of the probabilities of each link in both directions, (target, source)."""
        ids = [np.array([known.get(normalised(word), -1) for word in words], np.int64)
               for known, words in zip(self._ids, (source, target), strict=True)]
        if not len(ids[0]) or not len(ids[1]) or not len(self._forward.keys):
            return np.zeros((len(target), len(source)))
        forward, backward = self._forward.posteriors(ids[0], ids[1]), self._backward.posteriors(ids[1], ids[0])
        return np.asarray(np.sqrt(forward * backward.T))


def normalised(word: str) -> str:
    """Return the word in lower case without punctuation at its ends; a word of punctuation stays."""
    return word.strip(".,;:!?\"'()[]«»“”„‘’¿¡。，！？、").lower() or word


class _Direction:
    """Probabilities of a word given a word of the other side (the condition), for word pairs of the training text."""

    def __init__(self, conditions: list[np.ndarray], words: list[np.ndarray], size: int) -> None:
        """size: number of word ids; ids begin at 1, and id 0 of a condition is the empty word."""
        self.size, self.power = size, POWERS[0]
        ranges = list(_blocks(conditions, words))
        blocks = [np.unique(self._keys(conditions[begin:end], words[begin:end]), return_inverse=True)
                  for begin, end in ranges]
        self.keys = np.unique(np.concatenate([np.zeros(0, np.int64), *(keys for keys, _ in blocks)]))
        places = [np.searchsorted(self.keys, keys).astype(np.int32)[inverse] for keys, inverse in blocks]
        sample = slice(*ranges[0]) if ranges else slice(0)
        logs = [np.log(_priors(conditions[sample], words[sample], power, normalise=True)) for power in POWERS]
        numbers = [_numbers(conditions[begin:end], words[begin:end]) for begin, end in ranges]
        self.table = np.ones(len(self.keys))
        for iteration in range(ITERATIONS):
            counts, power = np.zeros(len(self.keys)), self.power
            for place, number, (begin, end) in zip(places, numbers, ranges, strict=True):
                weights = self.table[place] * _priors(conditions[begin:end], words[begin:end], power)
                weights /= np.bincount(number, weights)[number]
                counts += np.bincount(place, weights, len(self.keys))
                if not begin and iteration:
                    self.power = POWERS[int(np.argmax([weights @ log for log in logs]))]
            totals = np.bincount(self.keys // size, counts)
            self.table = counts / totals[self.keys // size]

    def _keys(self, conditions: list[np.ndarray], words: list[np.ndarray]) -> np.ndarray:
        """Return the keys of all cells (word, condition) of some pairs; the first condition is the empty word."""
        return np.concatenate([(np.concatenate([[0], condition])[None] * self.size + word[:, None]).ravel()
                               for condition, word in zip(conditions, words, strict=True)])

    def posteriors(self, condition: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return the probability that each word is linked to each condition, (words, conditions). ids: -1 = unknown.

        Words that are not in the training text, such as names, are linked by their place.
        """
        with_empty = np.concatenate([[0], condition])
        keys = with_empty[None] * self.size + words[:, None]
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (self.keys[places] == keys) & (words >= 0)[:, None] & (with_empty >= 0)[None]
        scores = np.where(known, self.table[places], NO_LINK) * _prior(len(condition), len(words), self.power)
        posteriors: np.ndarray = scores / scores.sum(1, keepdims=True)
        return posteriors[:, 1:]


def _numbers(conditions: list[np.ndarray], words: list[np.ndarray]) -> np.ndarray:
    """Return for all cells of some pairs the number of the cell's word."""
    sizes = np.concatenate([np.full(len(word), len(condition) + 1)
                            for condition, word in zip(conditions, words, strict=True)])
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def _priors(conditions: list[np.ndarray], words: list[np.ndarray], power: int, normalise: bool = False) -> np.ndarray:
    """Return for all cells of some pairs the prior."""
    return np.concatenate([np.zeros(0, np.float32), *(_prior(len(condition), len(word), power, normalise).ravel()
                                                      for condition, word in zip(conditions, words, strict=True))])


@lru_cache(maxsize=2 * len(POWERS) * MAX_TRAINING_WORDS**2)
def _prior(conditions: int, words: int, power: int, normalise: bool = False) -> np.ndarray:
    """Return the prior of the empty word and of each condition for each word, (words, conditions + 1) in fp32."""
    distance = np.abs((np.arange(conditions) + 0.5)[None] / conditions - (np.arange(words) + 0.5)[:, None] / words)
    prior = np.concatenate([np.full((words, 1), NULL_WEIGHT), (1 - distance) ** power], axis=1)
    if normalise:
        prior[:, 1:] *= (1 - NULL_WEIGHT) / prior[:, 1:].sum(1, keepdims=True)
    return prior.astype(np.float32)


def _blocks(conditions: list[np.ndarray], words: list[np.ndarray]) -> Iterator[tuple[int, int]]:
    """Yield ranges of pairs with about BLOCK_CELLS cells."""
    begin, cells = 0, 0
    for index, (condition, word) in enumerate(zip(conditions, words, strict=True)):
        cells += (len(condition) + 1) * len(word)
        if cells >= BLOCK_CELLS or index + 1 == len(words):
            yield begin, index + 1
            begin, cells = index + 1, 0
