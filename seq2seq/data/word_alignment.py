"""Word alignment of a training corpus: a hidden Markov model in both directions.

Training begins with IBM model 1 (Brown et al. 1993, Computational Linguistics 19), and continues with the hidden Markov
model (Vogel et al. 1996, HMM-Based Word Alignment in Statistical Translation). Both directions must agree on a link
(Liang et al. 2006, Alignment by Agreement).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.data.alignment_links import Link
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.parallel_text import blocks

MAX_CELLS = 30_000_000
"""Maximum number of cells (word, word of the other side) of the training pairs. This many cells, of 370,000 pairs of 8
words or 68,000 pairs of 20 words, take about 400 MB. From a larger corpus, only a part of the pairs is used."""
MAX_TRAINING_WORDS = 60
"""Maximum number of words on each side of a training pair."""
MODEL_1_ITERATIONS, ITERATIONS = 6, 4
"""Numbers of training iterations of IBM model 1, and then of the hidden Markov model."""
BLOCK_CELLS = 1 << 20
"""Approximate maximum number of cells that one NumPy call processes."""
MAX_JUMP = 10
"""Largest distance between consecutive links that has a weight of its own. Longer distances use this weight, too."""
BLOCK_PAIRS = 8192
"""Number of pairs whose words a process counts at a time."""
EMPTY = 0.2
"""Probability that a word is linked to the empty word (Och and Ney 2003)."""
TINY = 1e-300
"""Lower bound of divisors, to avoid division by 0."""
MIN_AGREEMENT = 0.1
"""Minimum product of the probabilities of a link in both directions (Liang et al. 2006, Alignment by Agreement). It is
low because the n links of a word share a probability of 1: each of the 3 links from airport to 飞机场 has about 1/3."""
NO_LINK = 1e-7
"""Minimum probability of a word given a condition (see `TranslationModel`), for words not seen together in training."""
UNKNOWN = -1
"""Id of words that were not seen in training."""

Words = Sequence[str]


class WordAligner:
    """Word aligner: a hidden Markov model in each direction. Both models must agree on a link."""

    def __init__(self, pairs: Sequence[tuple[Words, Words]], are_chosen: bool = False) -> None:
        """Train on pairs of word lists. If they have too many cells (see MAX_CELLS), only every n-th pair is used.

        are_chosen: True if `pairs` are those to use.
        """
        if not are_chosen:
            cells = list(map(_cells, pairs))
            pairs = [pair for pair, size in zip(pairs, cells, strict=True) if size][::1 + sum(cells) // MAX_CELLS]
        self._ids: tuple[dict[str, int], dict[str, int]] = ({}, {})
        sides = [[np.array([ids.setdefault(normalised(word), len(ids) + 1) for word in pair[side]], np.int64)
                  for pair in pairs] for side, ids in enumerate(self._ids)]
        self._forward = TranslationModel(sides[0], sides[1], len(self._ids[1]) + 1)
        self._backward = TranslationModel(sides[1], sides[0], len(self._ids[0]) + 1)

    @staticmethod
    def of_text(read: Callable[[], Iterable[tuple[str, str]]], words: Callable[[str, str], tuple[Words, Words]],
                processes: BlockProcesses) -> WordAligner:
        """Train on the pairs of a text, as `WordAligner` does on a list of them. In memory, there are only the pairs
        that are used, and two bytes for each other pair.

        read: function that begins to read the pairs; it is called twice. words: function that returns the words of a
            pair, which processes call.
        """
        cells = list(processes.map(partial(_cells_of_block, words), blocks(read(), BLOCK_PAIRS)))
        step = 1 + sum(int(sizes.sum()) for sizes in cells) // MAX_CELLS
        chosen, usable = [], 0
        for block, sizes in zip(blocks(read(), BLOCK_PAIRS), cells, strict=True):
            for pair, size in zip(block, sizes.tolist(), strict=True):
                if size:
                    if usable % step == 0:
                        chosen.append(words(*pair))
                    usable += 1
        return WordAligner(chosen, are_chosen=True)

    def shared(self, directory: Path) -> WordAligner:
        """Move the tables into files of a directory, so that the processes of a machine share one copy."""
        self._forward.move_tables(directory / "forward")
        self._backward.move_tables(directory / "backward")
        return self

    def links(self, source: Words, target: Words) -> list[Link]:
        """Return the links between the words of a pair, sorted."""
        forward, backward = self._posteriors(source, target)
        agreement = (forward * backward).T
        return [(int(word), int(other)) for word, other in zip(*(agreement >= MIN_AGREEMENT).nonzero(), strict=True)]

    def weights(self, source: Words, target: Words) -> np.ndarray:
        """Return the weight of each possible link, (target, source). The sum of the weights of a target word is the
        probability that the word is not linked to the empty word.

        The weights of a target word are proportional to forward ** 0.75 * backward ** 0.25. Forward and backward are
        probabilities in both directions. Forward counts more: several target words may translate one source word.
        """
        forward, backward = self._posteriors(source, target)
        means = np.sqrt(forward * np.sqrt(forward * backward))
        return np.asarray(means * (forward.sum(1) / np.maximum(means.sum(1), TINY))[:, None])

    def _posteriors(self, source: Words, target: Words) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of the links in both directions, (target, source)."""
        ids = [np.array([known.get(normalised(word), UNKNOWN) for word in words], np.int64)
               for known, words in zip(self._ids, (source, target), strict=True)]
        if not len(ids[0]) or not len(ids[1]) or not len(self._forward.keys):
            return np.zeros((len(target), len(source))), np.zeros((len(target), len(source)))
        return self._forward.posteriors(ids[0], ids[1]), self._backward.posteriors(ids[1], ids[0]).T


def normalised(word: str) -> str:
    """Return the word in lower case without punctuation at its ends. A word of only punctuation is not changed."""
    return word.strip(".,;:!?\"'()[]«»“”„‘’¿¡。，！？、").lower() or word


class TranslationModel:
    """Hidden Markov model of the words of one side given the words of the other side (the conditions).

    A word is linked to a condition or to the empty word. The probability of a link depends on the distance to the
    previous linked condition (Vogel et al. 1996, equation 6; Och and Ney 2003, section 3.2, for the empty word).
    Training begins with IBM model 1, which ignores the distance.
    """

    def __init__(self, conditions: list[np.ndarray], words: list[np.ndarray], size: int,
                 model_1_iterations: int = MODEL_1_ITERATIONS, iterations: int = ITERATIONS) -> None:
        """Train on the word ids of pairs.

        Args:
            conditions, words: arrays of ids from 1, one for each pair. Among conditions, id 0 is the empty word.
            size: number of word ids, including 0.
            model_1_iterations, iterations: see MODEL_1_ITERATIONS.
        """
        self.size = size
        self._path: Path | None = None                                          # beginning of the names of the tables
        groups = [_padded(*group) for group in _groups(conditions, words)]
        unique = [np.unique(self._keys(*group), return_inverse=True) for group in groups]
        # With counts, `unique` sorts, which is faster here than hashing.
        self.keys, _ = np.unique(np.concatenate([np.zeros(0, np.int64), *(keys for keys, _ in unique)]),
                                 return_counts=True)
        places = [np.searchsorted(self.keys, keys).astype(np.int32)[inverse].reshape(
            len(group[0]), -1, group[0].shape[1] + 1) for (keys, inverse), group in zip(unique, groups, strict=True)]
        del unique
        self.table = np.ones(len(self.keys))
        self.jumps = np.ones(2 * MAX_JUMP + 1)
        for iteration in range(model_1_iterations + iterations):
            counts, jumps = np.zeros(len(self.keys)), np.full(2 * MAX_JUMP + 1, 1e-3)
            for place, (_, padded) in zip(places, groups, strict=True):
                emissions = self.table[place]
                if iteration < model_1_iterations:
                    links = emissions / np.maximum(emissions.sum(2, keepdims=True), TINY)
                else:
                    links, moves = _posteriors(emissions, padded > 0, self._transitions(place.shape[2] - 1))
                    _add_jumps(jumps, moves)
                links *= (padded > 0)[:, :, None]
                counts += np.bincount(place.ravel(), links.ravel(), len(self.keys))
            totals = np.bincount(self.keys // size, counts)
            self.table = counts / np.maximum(totals[self.keys // size], TINY)
            if iteration >= model_1_iterations:
                self.jumps = jumps

    def move_tables(self, path: Path) -> None:
        """Move the tables to files whose names begin with `path`, and map them into memory."""
        for name in ("keys", "table"):
            np.save(f"{path}.{name}.npy", getattr(self, name))
        self._path = path
        self._open_tables()

    def _open_tables(self) -> None:
        self.keys, self.table = (np.load(f"{self._path}.{name}.npy", mmap_mode="r") for name in ("keys", "table"))

    def __getstate__(self) -> dict[str, Any]:
        kept = self.__dict__.copy()
        if self._path is not None:
            del kept["keys"], kept["table"]
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._path is not None:
            self._open_tables()

    def _keys(self, conditions: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return the key of each cell, (pairs, words, conditions + 1). The first condition is the empty word."""
        with_empty = np.pad(conditions, ((0, 0), (1, 0)))
        return with_empty[:, None] * self.size + words[:, :, None]

    def _transitions(self, conditions: int) -> np.ndarray:
        """Return the probability of each move between conditions, (conditions + 1, conditions). The last row is for the
        first link, which has no previous condition."""
        sources, targets = np.append(np.arange(conditions), -1)[:, None], np.arange(conditions)[None]
        weights = self.jumps[np.clip(targets - sources, -MAX_JUMP, MAX_JUMP) + MAX_JUMP]
        moves: np.ndarray = (1 - EMPTY) * weights / weights.sum(1, keepdims=True)
        return moves

    def probabilities(self, conditions: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return the probability of each word given each condition of its pair, the empty word first.

        Args:
            conditions: (pairs, conditions), ids. words: (pairs, words), ids.
        Returns:
            (pairs, words, conditions + 1); 0 for words that do not occur together in the training text.
        """
        keys = self._keys(conditions, words)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[places] == keys) & (words != UNKNOWN)[:, :, None], self.table[places], 0.0)

    def posteriors(self, conditions: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return the probability that each word is linked to each condition, (words, conditions).

        Words that are not in the training text, such as names, are linked by their position.
        """
        emissions = np.maximum(self.probabilities(conditions[None], words[None]), NO_LINK)
        links, _ = _posteriors(emissions, np.ones((1, len(words)), bool), self._transitions(len(conditions)))
        found: np.ndarray = links[0, :, 1:]
        return found


def _cells(pair: tuple[Words, Words]) -> int:
    """Return the number of cells of a pair; 0 if it is not used for the training."""
    usable = all(0 < len(words) <= MAX_TRAINING_WORDS for words in pair)
    return (len(pair[0]) + 1) * (len(pair[1]) + 1) if usable else 0


def _cells_of_block(words: Callable[[str, str], tuple[Words, Words]], block: list[tuple[str, str]]) -> np.ndarray:
    return np.array([_cells(words(*pair)) for pair in block], np.int16)


def _posteriors(emissions: np.ndarray, real: np.ndarray, transitions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of the links of each word, and the expected number of moves between conditions.

    Args:
        emissions: (pairs, words, conditions + 1), probability of each word given the empty word and each condition.
        real: (pairs, words), False for padding. transitions: see `TranslationModel._transitions`.
    Returns:
        (pairs, words, conditions + 1) and (conditions + 1, conditions).
    """
    pairs, words, states = emissions.shape
    # State i: the most recent link, of this word or an earlier word, is to condition i. The last state: no word has a
    # link yet. A link to the empty word, or padding, does not change the state.
    linked, empty = emissions[:, :, 1:], EMPTY * emissions[:, :, :1]
    ahead = np.zeros((words + 1, pairs, states))
    ahead[0, :, -1] = 1
    scales = np.ones((words, pairs, 1))
    for word in range(words):
        state = ahead[word] * empty[:, word]
        state[:, :-1] += ahead[word] @ transitions * linked[:, word]
        scales[word] = np.where(real[:, word, None], np.maximum(state.sum(1, keepdims=True), TINY), 1)
        ahead[word + 1] = np.where(real[:, word, None], state / scales[word], ahead[word])
    behind = np.ones((pairs, states))
    links = np.zeros_like(emissions)
    moves = np.zeros_like(transitions)
    for word in reversed(range(words)):
        arriving = linked[:, word] * behind[:, :-1] / scales[word]
        links[:, word, 1:] = ahead[word] @ transitions * arriving
        links[:, word, 0] = (ahead[word] * empty[:, word] * behind).sum(1) / scales[word][:, 0]
        moves += ahead[word][real[:, word]].T @ arriving[real[:, word]] * transitions
        before = arriving @ transitions.T + behind * empty[:, word] / scales[word]
        behind = np.where(real[:, word, None], before, behind)
    return links, moves


def _add_jumps(jumps: np.ndarray, moves: np.ndarray) -> None:
    """Add the expected number of moves to the weights `jumps` of their distances."""
    conditions = moves.shape[1]
    sources, targets = np.append(np.arange(conditions), -1)[:, None], np.arange(conditions)[None]
    np.add.at(jumps, np.clip(targets - sources, -MAX_JUMP, MAX_JUMP) + MAX_JUMP, moves)


def _groups(conditions: list[np.ndarray], words: list[np.ndarray]
            ) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Yield groups of pairs. All pairs of a group have the same number of conditions. The arrays of a group have at
    most about BLOCK_CELLS cells."""
    order = sorted(range(len(words)), key=lambda index: (len(conditions[index]), len(words[index])))
    begin = 0
    for end in range(1, len(order) + 1):
        first, last = order[begin], order[end - 1]
        following = order[end] if end < len(order) else None
        cells = (end - begin) * (len(conditions[last]) + 1) * len(words[last])
        if following is None or len(conditions[following]) != len(conditions[first]) or cells >= BLOCK_CELLS:
            yield [conditions[index] for index in order[begin:end]], [words[index] for index in order[begin:end]]
            begin = end


def _padded(conditions: list[np.ndarray], words: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the conditions of a group, (pairs, conditions), and the words, (pairs, words), padded with 0."""
    padded = np.zeros((len(words), max(map(len, words))), np.int64)
    for row, ids in zip(padded, words, strict=True):
        row[:len(ids)] = ids
    return np.stack(conditions), padded
