"""Split of a text into training, validation and test pairs that share no sentence (`seq2seq init` and `seq2seq adapt`).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from seq2seq.data.corpus import LinePair
from seq2seq.data.leakage import comparable

MAX_HELD_OUT = 2_000
"""Maximum number of pairs in the validation set and in the test set. The test sets of WMT have about as many."""
PAIRS_PER_HELD_OUT = 20
"""Each set gets at most one pair for this many suitable pairs, so the two sets together get at most 10 % of them."""


@dataclass(frozen=True)
class HeldOut:
    """Line numbers of the pairs that are not used for training.

    copies: repetitions of a validation or test pair. They are left out of training, validation and test text.
    """

    valid: frozenset[int]
    test: frozenset[int]
    copies: frozenset[int]


class Sentences:
    """Sentences of some pairs, each as a `comparable` text on its side."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._sides: tuple[set[str], set[str]] = set(), set()
        for pair in pairs:
            for side, text in zip(self._sides, pair, strict=True):
                side.add(comparable(text))

    def share_one_with(self, source: str, target: str) -> bool:
        """Return True if the source or the target of a pair is one of these sentences."""
        return any(side and comparable(text) in side for side, text in zip(self._sides, (source, target), strict=True))


def choose_held_out(pairs: Iterable[LinePair], seed: int, is_suitable: Callable[[str, str], bool],
                    names: Collection[str] = ("valid", "test"), maximum: int = MAX_HELD_OUT,
                    pairs_per_held_out: int = PAIRS_PER_HELD_OUT) -> HeldOut:
    """Choose validation and test pairs at random among the suitable pairs that share no sentence with a different pair.

    So a pair is not chosen if its source also occurs with another target, or its target with another source. Sentences
    are compared as `comparable` texts. Memory holds only line numbers and hashes, 32 bytes per pair.

    Args:
        pairs: all pairs of the corpus.
        seed: the same pairs and the same seed always give the same choice.
        is_suitable: function of source and target that returns True if the pair may be in a validation or test set.
        names: sets to choose; the other one is empty.
        maximum, pairs_per_held_out: see MAX_HELD_OUT and PAIRS_PER_HELD_OUT.
    """
    numbers, hashes, suitable = array("Q"), [array("Q"), array("Q"), array("Q")], array("b")
    for number, source, target in pairs:
        texts = list(map(comparable, (source, target)))
        numbers.append(number)
        suitable.append(is_suitable(source, target))
        for column, text in zip(hashes, ["\n".join(texts), *texts], strict=True):
            column.append(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))
    lines = np.array(numbers, np.int64)
    pair_hashes, sources, targets = (np.array(column, np.uint64) for column in hashes)
    _, first, group = np.unique(pair_hashes, return_index=True, return_inverse=True)     # one group for equal pairs
    is_candidate = np.array(suitable, bool)[first]
    limit = int(is_candidate.sum()) // pairs_per_held_out
    for side in (sources[first], targets[first]):
        _, inverse, counts = np.unique(side, return_inverse=True, return_counts=True)
        is_candidate &= counts[inverse] == 1
    candidates = sorted(np.flatnonzero(is_candidate).tolist(), key=lambda index: int(first[index]))
    size = min(maximum, limit, len(candidates) // 2)
    chosen = random.Random(seed).sample(candidates, len(names) * size)
    parts = {name: chosen[index * size:(index + 1) * size] for index, name in enumerate(names)}
    valid, test = (frozenset(lines[first[parts.get(name, [])]].tolist()) for name in ("valid", "test"))
    return HeldOut(valid, test, frozenset(lines[np.isin(group, chosen)].tolist()) - valid - test)
