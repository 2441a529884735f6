"""Lines added to a small training text, so that sentencepiece's unigram training keeps its words and characters.

sentencepiece (0.2.3) loses two kinds of pieces if the text is small or monotonous:

- Its first candidates for pieces are strings that different characters follow
  (https://github.com/google/sentencepiece/issues/615 and 1047). In small corpora, a space follows every occurrence of
  some of the most frequent words, such as German "Ich", so these words cannot become pieces. At the end of a line,
  another character follows the word: the end of the line.
- It removes each piece that the best segmentation of the text does not contain, single characters included. If all
  words of the text are pieces, most characters are removed. It then counts an unknown character as piece number 0, the
  most probable one (often "▁"), and so removes frequent words first, because it takes their characters to be probable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MIN_COUNT = 5
"""Minimum count of a frequent word or character. On Multi30k and on 10,000 pairs of Tatoeba, minimum counts of 3 to 20
make held-out text about equally short. Each frequent word is read once more than it occurs, which matters for rare
words."""
MIN_LINES = 1_000
"""Minimum number of lines of a text that gets additional lines. They would be a large part of a smaller text."""
MAX_LINES = 400_000
"""Maximum number of lines of a text that needs additional lines. In more text, a space always follows few frequent
words, and counting the words takes long."""


def additional_lines(lines: Iterable[str]) -> list[str]:
    """Return the words that occur MIN_COUNT times or more, and a line for each such character, such as "ex" for "x".

    The characters of such a line are not neighbours in the text, so its best segmentation contains the last character
    as a piece: candidates for longer pieces occur at least twice. Rare characters have no line, because it could add
    them to the characters that `character_coverage` keeps.
    """
    counts = Counter(word for line in lines for word in line.split())
    occurrences: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            occurrences[character] += count
    neighbours = {word[index : index + 2] for word in counts for index in range(len(word) - 1)}
    characters = [character for character, _ in occurrences.most_common() if occurrences[character] >= MIN_COUNT]
    added = [word for word, count in counts.items() if count >= MIN_COUNT]
    for character in characters:
        for before in characters:
            if before != character and before + character not in neighbours:
                added.append(before + character)
                break
    return added
