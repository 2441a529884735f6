"""Vocabulary size for `vocab_size: auto`, chosen from the amount of text."""

from __future__ import annotations

RESERVED_PIECES = 256 + 3
"""Number of pieces of a subword vocabulary that do not depend on the text: 256 bytes, <unk>, <s> and </s>."""
MAX_SUBWORDS = 32_000
"""Maximum number of subwords with `vocab_size: auto`, which is reached at 1 billion characters of text."""
MAX_WORDS = 30_000
"""Maximum size of a vocabulary of whole words with `vocab_size: auto`, as in Bahdanau et al. 2015 (arXiv:1409.0473)."""


def vocabulary_size(characters: int, alphabet: int) -> int:
    """Return the size of a subword vocabulary for text of `characters` characters.

    size = RESERVED_PIECES + alphabet + subwords, rounded up to two significant digits, where
    subwords = 32 * (cube root of `characters`), but at most MAX_SUBWORDS.

    The factor 32 and the cube root were chosen so that the number of subwords is between the numbers with the best
    published results and the numbers in common use. For pairs of 210 characters (20 words on each side):

    - 5,000 pairs: this rule gives 3,300 subwords. Published: 2,000 subwords have a higher BLEU than 14,000 (Sennrich
      and Zhang 2019, arXiv:1905.11901).
    - 160,000 pairs: this rule gives 10,000 subwords, as in fairseq's recipe for IWSLT'14. Published: the best number
      for a Transformer is 4,000 or less (Ding et al. 2019, arXiv:1905.10453).
    - 4.5 million pairs: this rule gives 31,000 subwords. In common use: 37,000 (Vaswani et al. 2017, arXiv:1706.03762).

    Validation BLEU on Multi30k German to English (4 + 4 layers, width 128, about 11 epochs, one seed):

    - 2,400 pieces, from a simpler rule (square root of `characters`): 37.2
    - 5,500 pieces, the size that this rule gives: 39.9
    - 8,000 pieces: 40.4

    Changing the rule would change the tokenizers of existing recipes with `vocab_size: auto`.

    Args:
        characters: number of characters in the whole training text.
        alphabet: number of different characters that have a piece.
    """
    return _round_up(RESERVED_PIECES + alphabet + min(max(_cube_root(32**3 * characters), 1), MAX_SUBWORDS))


def smaller_vocabulary_size(largest: int, alphabet: int) -> int:
    """Return `largest`, rounded down to two significant digits unless the result is too small for the alphabet."""
    step = _step(largest)
    rounded = largest // step * step
    return rounded if rounded > RESERVED_PIECES + alphabet else largest


def _cube_root(number: int) -> int:
    """Return the integer part of the cube root. Integer arithmetic corrects the floating-point estimate, which could
    differ between machines."""
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
    """Return the step between numbers with two significant digits near `number`: 100 for 1,234 (1,200, 1,300, …)."""
    return 10 ** max(len(str(number)) - 2, 0)
