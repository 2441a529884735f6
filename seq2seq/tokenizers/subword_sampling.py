"""Subword sampling with reproducible random segmentations.

sentencepiece (0.2.3) can sample, too, but mixes the seed of its random generator with a salt that differs between
processes. A resumed training run would therefore not be bit-identical. This module uses the pieces and scores of a
sentencepiece model, and Python's random numbers, whose sequence for a seed is guaranteed.
"""

from __future__ import annotations

import heapq
import random
import re
from bisect import bisect
from collections.abc import Callable, Sequence
from math import exp, inf, log

import sentencepiece

from seq2seq.tokenizers.vocabulary import reject_surrogates

WORD_BOUNDARY = "\u2581"
"""Character that sentencepiece writes for a space."""
# Pieces do not cross word boundaries, so the words of a line are segmented independently.
WORD_PATTERN = re.compile(f"{WORD_BOUNDARY}[^{WORD_BOUNDARY}]*|[^{WORD_BOUNDARY}]+")
# The score of an unknown character is the lowest score of a piece minus this penalty, as in sentencepiece.
UNKNOWN_PENALTY = 10.0
# Maximum number of words in a cache; a full cache takes about 100 MB. The words that occur first are cached. Most of
# these words are frequent; together they make up 90 % of the running words of a large corpus.
MAX_CACHED_WORDS = 1 << 15
# Maximum length of a cached word, in characters, so that a few very long words cannot fill the memory.
MAX_CACHED_WORD_LENGTH = 32

UniformRandom = Callable[[], float]
"""Function that returns a random number, uniform in [0, 1)."""
Arcs = tuple[list[float], list[int], list[tuple[int, ...]]]
"""Pieces that end at one position of a word. Each of the three lists has one entry per piece: sum of the probabilities
of the pieces up to this one; position at which the piece begins; its id, or the ids of its bytes in reverse order."""


class SubwordSampler:
    """Samples segmentations of text into the pieces of a sentencepiece model, unigram or BPE."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        self._ids: dict[str, int] = {}
        self._scores: dict[str, float] = {}
        for index in range(processor.vocab_size()):
            if not any(kind(index) for kind in (processor.is_control, processor.is_unknown, processor.is_byte,
                                                processor.is_unused)):
                piece = processor.id_to_piece(index)
                self._ids[piece] = index
                self._scores[piece] = processor.get_score(index)
        self._max_piece_length = max(map(len, self._ids), default=1)
        self._pieces_cross_words = any(WORD_BOUNDARY in piece[1:] for piece in self._ids)
        self._unknown_score = min(self._scores.values(), default=0.0) - UNKNOWN_PENALTY
        # A BPE model's scores are negative ranks of merges (0, -1, …). A unigram model's scores are log-probabilities.
        self._is_bpe = all(score.is_integer() for score in self._scores.values())
        self._lattice_cache: dict[float, dict[str, list[Arcs]]] = {}            # alpha -> word -> lattice
        self._bpe_cache: dict[str, tuple[list[int], int]] = {}                  # word -> ids, number of merges

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of each line. The same arguments always return the same ids.

        Args:
            alpha: exponent for a unigram model. Each segmentation has a probability in proportion to
                P(segmentation | text) ** alpha (Kudo 2018, arXiv:1804.10959; l = infinity, so all segmentations can be
                sampled). 0 makes all segmentations equally probable; a large value favours the best one. For a BPE
                model, alpha is the probability of dropping a merge (Provilkov et al. 2020, arXiv:1910.13267).
        """
        uniform = random.Random(seed).random
        sample_word = self._sample_bpe if self._is_bpe else self._sample_unigram
        try:
            texts = [self._processor.normalize(line) for line in lines]
        except (TypeError, RuntimeError):
            reject_surrogates(lines)
            raise
        return [[index for word in ([text] if self._pieces_cross_words else WORD_PATTERN.findall(text))
                 for index in sample_word(word, alpha, uniform)] for text in texts]

    def merged_pieces(self, piece: str) -> set[str]:
        """Return a piece and the smaller pieces that BPE merges to make it. For a unigram model, only the piece."""
        return {piece, *self._merge(piece, lambda _: False)[1]} if self._is_bpe else {piece}

    def _ids_of_piece(self, piece: str) -> list[int]:
        """Return the id of a piece, or the ids of its bytes if it is not in the vocabulary."""
        if piece in self._ids:
            return [self._ids[piece]]
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]

    # Unigram

    def _sample_unigram(self, word: str, alpha: float, uniform: UniformRandom) -> list[int]:
        """Sample a segmentation of a word by forward filtering and backward sampling: the last piece is drawn first."""
        lattices = self._lattice_cache.setdefault(alpha, {})
        lattice = lattices.get(word)
        if lattice is None:
            lattice = self._lattice(word, alpha)
            if len(lattices) < MAX_CACHED_WORDS and len(word) <= MAX_CACHED_WORD_LENGTH:
                lattices[word] = lattice
        backwards: list[int] = []
        position = len(word)
        while position:
            cumulative_probabilities, begins, ids = lattice[position]
            arc = bisect(cumulative_probabilities, uniform())
            backwards += ids[arc]
            position = begins[arc]
        return backwards[::-1]

    def _lattice(self, word: str, alpha: float) -> list[Arcs]:
        """Return the arcs that end at each position of a word. Positions are from 0 to the length of the word."""
        arcs_to: list[list[tuple[float, int, tuple[int, ...]]]] = [[] for _ in range(len(word) + 1)]
        log_forward = [0.0]                                 # log of the summed weights of all paths to each position
        lattice: list[Arcs] = [([], [], [])]
        for begin in range(len(word)):
            for end in range(begin + 1, min(begin + self._max_piece_length, len(word)) + 1):
                piece = word[begin:end]
                if piece in self._ids:
                    weight = log_forward[begin] + alpha * self._scores[piece]
                    arcs_to[end].append((weight, begin, (self._ids[piece],)))
                elif end == begin + 1:
                    weight = log_forward[begin] + alpha * self._unknown_score
                    arcs_to[end].append((weight, begin, tuple(reversed(self._ids_of_piece(piece)))))
            arcs = arcs_to[begin + 1]
            best = max(weight for weight, _, _ in arcs)
            log_forward.append(best + log(sum(exp(weight - best) for weight, _, _ in arcs)))
            cumulative_probabilities, total = [], 0.0
            for weight, _, _ in arcs:
                total += exp(weight - log_forward[-1])
                cumulative_probabilities.append(total)
            cumulative_probabilities[-1] = inf                                  # the rounded sum may be below 1
            lattice.append((cumulative_probabilities, [start for _, start, _ in arcs], [ids for _, _, ids in arcs]))
        return lattice

    # BPE

    def _sample_bpe(self, word: str, alpha: float, uniform: UniformRandom) -> list[int]:
        """Segment a word with the merges of BPE; each merge is dropped with probability alpha."""
        cached = self._bpe_cache.get(word)
        if cached is None:
            ids, merged = self._merge(word, lambda _: False)
            cached = ids, len(merged)
            if len(self._bpe_cache) < MAX_CACHED_WORDS and len(word) <= MAX_CACHED_WORD_LENGTH:
                self._bpe_cache[word] = cached
        ids, merges = cached
        # In most words no merge is dropped; the result is then the cached deterministic segmentation.
        first_dropped = 0
        while first_dropped < merges and uniform() >= alpha:
            first_dropped += 1
        if first_dropped == merges:
            return ids
        return self._merge(word, lambda step: step == first_dropped or (step > first_dropped and uniform() < alpha))[0]

    def _merge(self, word: str, is_dropped: Callable[[int], bool]) -> tuple[list[int], list[str]]:
        """Merge the adjacent pair with the best score, the leftmost one in case of a tie, until no pair can be merged.

        is_dropped: function that gets the number of a merge, counted from 0, and returns True to drop the merge.
        Returns:
            The ids, and the piece that each merge makes, including dropped merges.
        """
        pieces = list(word)                                                     # "" = merged into an earlier piece
        after = list(range(1, len(word) + 1))
        before = list(range(-1, len(word) - 1))
        agenda: list[tuple[float, int, str]] = []

        def push(position: int) -> None:
            if position >= 0 and after[position] < len(pieces):
                pair = pieces[position] + pieces[after[position]]
                if pair in self._scores:
                    heapq.heappush(agenda, (-self._scores[pair], position, pair))

        for position in range(len(pieces)):
            push(position)
        merged: list[str] = []
        while agenda:
            _, left, pair = heapq.heappop(agenda)
            right = after[left]
            if not pieces[left] or right >= len(pieces) or pieces[left] + pieces[right] != pair:
                continue                                                        # an earlier merge changed a piece
            merged.append(pair)
            if is_dropped(len(merged) - 1):
                continue
            pieces[left], pieces[right] = pair, ""
            after[left] = after[right]
            if after[left] < len(pieces):
                before[after[left]] = left
            push(before[left])
            push(left)
        return [index for piece in pieces if piece for index in self._ids_of_piece(piece)], merged
