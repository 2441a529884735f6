"""Frequent words that sentencepiece leaves out of a unigram vocabulary that is trained on little text.

The first candidates for pieces in sentencepiece are strings that different characters follow in the text
(https://github.com/google/sentencepiece/issues/615 and 1047). In small corpora, a space follows every occurrence of
some of the most frequent words, such as German "Ich", so these words cannot become pieces. At the end of a line,
another character follows the word: the end of the line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MIN_COUNT = 5
"""Minimum count of a frequent word. On Multi30k and on 10,000 pairs of Tatoeba, minimum counts of 3 to 20 make held-out
text about equally short. Each frequent word is read once more than it occurs, which matters for rare words."""
MAX_LINES = 400_000
"""Maximum number of lines for a training with frequent words. In more text, a space always follows few frequent words,
and the training takes minutes."""


def frequent_words(lines: Iterable[str]) -> list[str]:
    """Return each word that occurs MIN_COUNT times or more, as further lines for training a unigram vocabulary.

    The vocabulary is not better with these lines for every text: in the phrasebook of English and Chinese, more of the
    frequent words are divided.
    """
    counts = Counter(word for line in lines for word in line.split())
    return [word for word, count in counts.items() if count >= MIN_COUNT]
