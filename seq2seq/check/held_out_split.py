"""Choice of the validation and test pairs of a corpus, so that none of their sentences occurs in the training text."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from seq2seq.data.corpus import Pair

MAX_HELD_OUT = 2_000
"""Maximum number of pairs in each of the two sets, about as many as in the test sets of WMT."""
PAIRS_PER_HELD_OUT = 20
"""Each of the two sets has at most one pair for this many suitable pairs, which is 10 % for both sets together."""


@dataclass(frozen=True)
class HeldOut:
    """Line numbers of the pairs that are not used for training.

    copies: further copies of validation and test pairs, which are in none of the three texts.
    """

    valid: frozenset[int]
    test: frozenset[int]
    copies: frozenset[int]


def choose_held_out(pairs: Iterable[Pair], seed: int, is_suitable: Callable[[str, str], bool]) -> HeldOut:
    """Choose validation and test pairs at random among the suitable pairs that share no sentence with another pair.

    A pair is not chosen if its source or its target also occurs in a pair with another translation. Sentences are
    compared without regard to case and white space. Only hashes of the sentences are kept, 32 bytes for each pair.

    Args:
        pairs: all pairs of the corpus.
        seed: the same pairs and the same seed always give the same choice.
        is_suitable: returns False for a source and a target that should not be in a validation or test set.
    """
    numbers, hashes, suitable = array("Q"), [array("Q"), array("Q"), array("Q")], array("b")
    for number, source, target in pairs:
        texts = [" ".join(text.split()).casefold() for text in (source, target)]
        numbers.append(number)
        suitable.append(is_suitable(source, target))
        for column, text in zip(hashes, ["\n".join(texts), *texts], strict=True):
            column.append(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))
    lines = np.array(numbers, np.int64)
    pair_hashes, sources, targets = (np.array(column, np.uint64) for column in hashes)
    _, first, group = np.unique(pair_hashes, return_index=True, return_inverse=True)     # one group for equal pairs
    is_candidate = np.array(suitable, bool)[first]
    limit = int(is_candidate.sum()) // PAIRS_PER_HELD_OUT
    for side in (sources[first], targets[first]):
        _, inverse, counts = np.unique(side, return_inverse=True, return_counts=True)
        is_candidate &= counts[inverse] == 1
    candidates = sorted(np.flatnonzero(is_candidate).tolist(), key=lambda index: int(first[index]))
    size = min(MAX_HELD_OUT, limit, len(candidates) // 2)
    chosen = random.Random(seed).sample(candidates, 2 * size)
    valid, test = (frozenset(lines[first[part]].tolist()) for part in (chosen[:size], chosen[size:]))
    return HeldOut(valid, test, frozenset(lines[np.isin(group, chosen)].tolist()) - valid - test)
