"""Subword sampling with reproducible random segmentations.

sentencepiece can sample, too, but its random generator (0.2.3) mixes the seed with a salt that differs between
processes, so that a resumed training would not be bit-identical. Here pieces and scores are sentencepiece's, and the
random numbers are Python's, whose sequence is guaranteed.
"""

from __future__ import annotations

import heapq
import random
import re
from bisect import bisect
from collections.abc import Callable, Sequence
from math import exp, inf, log

import sentencepiece

SPACE = "\u2581"
# Pieces do not cross word boundaries, so the words of a line are segmented independently.
WORDS = re.compile(f"{SPACE}[^{SPACE}]*|[^{SPACE}]+")
# sentencepiece's penalty for an unknown character, below the worst score of all pieces.
UNKNOWN_PENALTY = 10.0
# Size of the cache: some 100 MB. The first words of a text are mostly frequent ones, and cover nine words in ten of a
# large corpus.
CACHED_WORDS = 1 << 15
LONGEST_CACHED_WORD = 32

Dice = Callable[[], float]
"""Function that draws a number from [0, 1)."""
Arcs = tuple[list[float], list[int], list[tuple[int, ...]]]
"""Pieces that end at a position: cumulative probabilities, start of each piece, its ids (last first)."""


class SubwordSampler:
    """Draws segmentations with the pieces of a sentencepiece model, unigram or BPE."""

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
        self._longest = max(map(len, self._ids), default=1)
        self._across_words = any(SPACE in piece[1:] for piece in self._ids)
        self._unknown_score = min(self._scores.values(), default=0.0) - UNKNOWN_PENALTY
        # Scores of a BPE model are the ranks of its merges (0, -1, -2, …), those of a unigram model log-probabilities.
        self._merges = all(score.is_integer() for score in self._scores.values())
        self._lattices: dict[float, dict[str, list[Arcs]]] = {}
        self._merged: dict[str, tuple[list[int], int]] = {}

    def sample(self, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of each line. The same arguments always give the same ids.

        Args:
            alpha: for a unigram model, the exponent of P(segmentation | text), from which segmentations are sampled
                (Kudo 2018, arXiv:1804.10959, with l = infinity): 0 is uniform, a large value gives the best one. For a
                BPE model, the probability of dropping a merge (Provilkov et al. 2020, arXiv:1910.13267).
        """
        dice = random.Random(seed).random
        draw = self._drop_merges if self._merges else self._walk
        return [self._sample(line, alpha, dice, draw) for line in lines]

    def _sample(self, line: str, alpha: float, dice: Dice,
                draw: Callable[[str, float, Dice], list[int]]) -> list[int]:
        text = self._processor.normalize(line)
        ids: list[int] = []
        for word in [text] if self._across_words else WORDS.findall(text):
            ids += draw(word, alpha, dice)
        return ids

    def _spell(self, text: str) -> list[int]:
        """Return the id of a piece, or else of its bytes."""
        if text in self._ids:
            return [self._ids[text]]
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in text.encode()]

    # Unigram

    def _walk(self, word: str, alpha: float, dice: Dice) -> list[int]:
        """Forward filtering, backward sampling: from the end of a word to its beginning, arc by arc."""
        lattices = self._lattices.setdefault(alpha, {})
        lattice = lattices.get(word)
        if lattice is None:
            lattice = self._lattice(word, alpha)
            if len(lattices) < CACHED_WORDS and len(word) <= LONGEST_CACHED_WORD:
                lattices[word] = lattice
        backwards: list[int] = []
        place = len(word)
        while place:
            chances, begins, ids = lattice[place]
            arc = bisect(chances, dice())
            backwards += ids[arc]
            place = begins[arc]
        return backwards[::-1]

    def _lattice(self, word: str, alpha: float) -> list[Arcs]:
        """Return the arcs that end at each position of a word; the last position is its end."""
        ending: list[list[tuple[float, int, tuple[int, ...]]]] = [[] for _ in range(len(word) + 1)]
        reached = [0.0]                                                         # forward log-weights
        lattice: list[Arcs] = [([], [], [])]
        for begin in range(len(word)):
            for end in range(begin + 1, min(begin + self._longest, len(word)) + 1):
                piece = word[begin:end]
                if piece in self._ids:
                    weight = reached[begin] + alpha * self._scores[piece]
                    ending[end].append((weight, begin, (self._ids[piece],)))
                elif end == begin + 1:
                    weight = reached[begin] + alpha * self._unknown_score
                    ending[end].append((weight, begin, tuple(reversed(self._spell(piece)))))
            arcs = ending[begin + 1]
            best = max(weight for weight, _, _ in arcs)
            reached.append(best + log(sum(exp(weight - best) for weight, _, _ in arcs)))
            chances, total = [], 0.0
            for weight, _, _ in arcs:
                total += exp(weight - reached[-1])
                chances.append(total)
            chances[-1] = inf                                                   # rounding may keep the sum below 1
            lattice.append((chances, [start for _, start, _ in arcs], [ids for _, _, ids in arcs]))
        return lattice

    # BPE

    def _drop_merges(self, word: str, alpha: float, dice: Dice) -> list[int]:
        """Merge as BPE does, but drop each merge with probability alpha."""
        known = self._merged.get(word)
        if known is None:
            known = self._merge(word, lambda _: False)
            if len(self._merged) < CACHED_WORDS and len(word) <= LONGEST_CACHED_WORD:
                self._merged[word] = known
        ids, merges = known
        # Without a dropped merge, which is the usual case, the result is the deterministic one.
        first = 0
        while first < merges and dice() >= alpha:
            first += 1
        if first == merges:
            return ids
        return self._merge(word, lambda step: step == first or (step > first and dice() < alpha))[0]

    def _merge(self, word: str, left_out: Callable[[int], bool]) -> tuple[list[int], int]:
        """Merge the pair with the best score, the leftmost of equals, until none is left.

        left_out: returns True if the merge of this step is dropped.
        Returns:
            Ids, and the number of merges that were considered.
        """
        pieces = list(word)                                                     # "" if merged into the left neighbour
        after = list(range(1, len(word) + 1))
        before = list(range(-1, len(word) - 1))
        agenda: list[tuple[float, int, str]] = []

        def offer(place: int) -> None:
            if place >= 0 and after[place] < len(pieces):
                pair = pieces[place] + pieces[after[place]]
                if pair in self._scores:
                    heapq.heappush(agenda, (-self._scores[pair], place, pair))

        for place in range(len(pieces)):
            offer(place)
        step = 0
        while agenda:
            _, place, pair = heapq.heappop(agenda)
            other = after[place]
            if not pieces[place] or other >= len(pieces) or pieces[place] + pieces[other] != pair:
                continue                                                        # one of the two has been merged since
            step += 1
            if left_out(step - 1):
                continue
            pieces[place], pieces[other] = pair, ""
            after[place] = after[other]
            if after[place] < len(pieces):
                before[after[place]] = place
            offer(before[place])
            offer(place)
        return [index for piece in pieces if piece for index in self._spell(piece)], step
