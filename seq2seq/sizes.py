"""Vocabulary sizes for an amount of text, and the model sizes that come with the package."""

from __future__ import annotations

import math
from pathlib import Path

RESERVED_PIECES = 256 + 3
"""Number of pieces in every subword vocabulary that do not come from the text: bytes, <unk>, <s> and </s>."""
MOST_SUBWORDS = 32_000
"""Largest number of subwords with `vocab_size: auto`, for 1 billion characters and more."""
MOST_WORDS = 30_000
"""Size of a vocabulary of whole words with `vocab_size: auto` (Bahdanau et al. 2015, arXiv:1409.0473)."""

# In an installed package beside its modules; in a clone (and an editable install) beside the package.
DIRECTORIES = (Path(__file__).parent / "configs", Path(__file__).parents[1] / "configs")
# Prefix of the files of Transformers, which is left out in names of sizes.
PREFIX = "transformer_"
ORDER = ("tiny", "small", "base", "big")


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


def model_sizes() -> dict[str, Path]:
    """Return the file of each size by name: `small` is transformer_small.yaml; other architectures keep their prefix
    (`rnn_small`). Transformers come first, from the smallest to the largest."""
    directory = next((directory for directory in DIRECTORIES if directory.is_dir()), DIRECTORIES[0])
    sizes = {path.stem.removeprefix(PREFIX): path for path in directory.glob("*.yaml")}
    return {name: sizes[name]
            for name in sorted(sizes, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))}
