"""Vocabulary size for an amount of text."""

from __future__ import annotations

import math

RESERVED_PIECES = 256 + 3
"""Number of pieces in every subword vocabulary that do not come from the text: bytes, <unk>, <s> and </s>."""
MOST_SUBWORDS = 32_000
"""Largest number of subwords with `vocab_size: auto`, for 1 billion characters and more."""
MOST_WORDS = 30_000
"""Size of a vocabulary of whole words with `vocab_size: auto` (Bahdanau et al. 2015, arXiv:1409.0473)."""


def vocabulary_size(characters: int, alphabet: int) -> int:
    """Return the size of a subword vocabulary for an amount of text.

    The reserved pieces, one for each character of the alphabet, and sqrt(characters) subwords, rounded up to two
    significant digits. For pairs of 210 characters (20 words on each side) the square root lies between published
    findings and what is usual:

    - 5,000 pairs: 1,000 subwords. 2,000 beat 14,000 (Sennrich and Zhang 2019, arXiv:1905.11901).
    - 160,000 pairs: 5,800. A Transformer needs at most 4,000 (Ding et al. 2019, arXiv:1905.10453); 10,000 are usual
      (fairseq's recipe of IWSLT'14).
    - 4.5 million pairs: 31,000. 37,000 are usual (Vaswani et al. 2017, arXiv:1706.03762).

    It stays near the rule of Gowda and May (2020, arXiv:2004.02334) that 95 % of the pieces should occur 100 times or
    more: Tatoeba's 160,000 pairs of German and English allow 2,500 subwords by that rule, the square root gives 3,300.

    Changing these numbers changes the tokenizers of stored recipes with `vocab_size: auto`.

    Args:
        characters: number of characters in the whole training text.
        alphabet: number of different characters that have a piece of their own.
    """
    return _round_up(RESERVED_PIECES + alphabet + min(max(math.isqrt(characters), 1), MOST_SUBWORDS))


def smaller_vocabulary_size(largest: int, alphabet: int) -> int:
    """Return the largest possible size, rounded down to two significant digits if the alphabet still fits."""
    step = _step(largest)
    rounded = largest // step * step
    return rounded if rounded > RESERVED_PIECES + alphabet else largest


def _round_up(number: int) -> int:
    step = _step(number)
    return -(-number // step) * step


def _step(number: int) -> int:
    """Return the power of ten to round `number` to two significant digits with."""
    return 10 ** max(len(str(number)) - 2, 0)
