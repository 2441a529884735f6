"""Vocabulary size for `vocab_size: auto`, chosen from the amount of text."""

from __future__ import annotations

RESERVED_PIECES = 256 + 3
"""Number of pieces of a subword vocabulary that do not depend on the text: 256 bytes, <unk>, <s> and </s>."""
MAX_SUBWORDS = 32_000
"""Maximum number of subwords with `vocab_size: auto`, reached at about 1 billion characters of text."""
MAX_WORDS = 30_000
"""Maximum size of a vocabulary of whole words with `vocab_size: auto`, as in Bahdanau et al. 2015 (arXiv:1409.0473)."""


def vocabulary_size(characters: int, alphabet: int) -> int:
    """Return the size of a subword vocabulary for an amount of text.

    The size is the sum of the reserved pieces, one piece for each character of the alphabet, and 32 times the cube root
    of `characters` subwords, rounded up to two significant digits. For pairs of 210 characters (20 words on each side)
    it is between the best sizes in publications and the sizes in common use:

    - 5,000 pairs: 3,300 subwords. 2,000 subwords gave a higher BLEU than 14,000 (Sennrich and Zhang 2019,
      arXiv:1905.11901).
    - 160,000 pairs: 10,000 subwords, as in fairseq's recipe for IWSLT'14. A Transformer needs at most 4,000 (Ding et
      al. 2019, arXiv:1905.10453).
    - 4.5 million pairs: 31,000 subwords. 37,000 are in common use (Vaswani et al. 2017, arXiv:1706.03762).

    Measured on Multi30k German to English (4 + 4 layers, width 128, about 11 epochs, validation BLEU, one seed): 2,400
    pieces, which is near the square root of the number of characters, gave 37.2, 5,500 (this rule) 39.9, 8,000 40.4.

    Changing these numbers would change the tokenizers of existing recipes with `vocab_size: auto`.

    Args:
        characters: number of characters in the whole training text.
        alphabet: number of different characters, each of which has a piece.
    """
    return _round_up(RESERVED_PIECES + alphabet + min(max(_cube_root(32**3 * characters), 1), MAX_SUBWORDS))


def smaller_vocabulary_size(largest: int, alphabet: int) -> int:
    """Round the largest possible size down to two significant digits, unless it is then too small for the alphabet."""
    step = _step(largest)
    rounded = largest // step * step
    return rounded if rounded > RESERVED_PIECES + alphabet else largest


def _cube_root(number: int) -> int:
    """Return the integer part of the cube root. Floating-point numbers could differ between machines."""
    root = round(number ** (1 / 3))
    while root**3 > number:
        root -= 1
    while (root + 1) ** 3 <= number:
        root += 1
    return root


def _round_up(number: int) -> int:
    step = _step(number)
    return -(-number // step) * step


def _step(number: int) -> int:
    """Return the power of ten whose multiples have the two significant digits of `number`: 100 for 1,234."""
    return 10 ** max(len(str(number)) - 2, 0)
