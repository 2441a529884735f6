"""Vocabulary size for `vocab_size: auto`, chosen from the amount of text."""

from __future__ import annotations

RESERVED_PIECES = 256 + 3
"""Number of pieces of a subword vocabulary that do not depend on the text: 256 bytes, <unk>, <s> and </s>."""
MAX_SUBWORDS = 32_000
"""Maximum number of subwords with `vocab_size: auto`, which is reached at 125 million characters of text."""
FACTOR = 64
MAX_WORDS = 30_000
"""Maximum size of a vocabulary of whole words with `vocab_size: auto`, as in Bahdanau et al. 2015 (arXiv:1409.0473)."""


def vocabulary_size(characters: int, alphabet: int) -> int:
    """Return the size of a subword vocabulary for text of `characters` characters.

    size = RESERVED_PIECES + alphabet + subwords, rounded up to two significant digits, where
    subwords = 64 * (cube root of `characters`), but at most MAX_SUBWORDS.

    Measured with Transformers of width 256 (one seed each, recipes/little_text and recipes/multi30k): with 10,000 short
    pairs, 3,200 pieces gave 20.9 BLEU, and 6,000 gave 21.5 (this rule: 6,100). With 29,000 captions, validation BLEU
    after equally many steps was 34.4 with 4,000 pieces, 36.9 with 8,000, and 38.2 with 12,000 (this rule: 11,000).

    For pairs of 210 characters (20 words on each side), this rule gives:

    - 5,000 pairs: 6,500 subwords. Published for recurrent models: 2,000 subwords have a higher BLEU than 14,000
      (Sennrich and Zhang 2019, arXiv:1905.11901).
    - 55,000 to 88,000 pairs: 14,500 to 17,000 subwords. Published for a Transformer: 16,000 are best for English and
      Irish (Lankford et al. 2024, arXiv:2403.01985).
    - 160,000 pairs: 21,000 subwords. Published: fairseq's recipe for IWSLT'14 has 10,000, and 4,000 or fewer are best
      for some Transformers (Ding et al. 2019, arXiv:1905.10453).
    - From 600,000 pairs: 32,000 subwords. In common use for 4.5 million pairs: 37,000 (Vaswani et al. 2017,
      arXiv:1706.03762).

    Args:
        characters: number of characters in the whole training text.
        alphabet: number of different characters that have a piece.
    """
    return _round_up(RESERVED_PIECES + alphabet + min(max(_cube_root(FACTOR**3 * characters), 1), MAX_SUBWORDS))


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
