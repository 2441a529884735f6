"""Minimum-Bayes-risk decoding (Kumar and Byrne 2004; with samples, Eikema and Aziz 2022, arXiv:2108.04718).

MBR decoding chooses the candidate with the highest expected utility, not the most probable candidate. The expected
utility is the mean similarity to all candidates. The similarity is chrF (Popovic 2015), averaged over both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

MAX_ORDER, BETA = 6, 2
"""Parameters of chrF: maximum length of character n-grams, and weight of recall. They are sacreBLEU's defaults."""


def expected_utilities(candidates: Sequence[str]) -> np.ndarray:
    """Return the expected utility of each candidate, from 0 to 100, (candidates,).

    The expected utility of a candidate is the mean of its utilities with all candidates, itself included. Repeated
    candidates count several times. For the utility of two texts, see `pairwise_utilities`.
    """
    texts = list(dict.fromkeys(candidates))
    occurrences = Counter(candidates)
    counts = np.array([occurrences[text] for text in texts])
    expected = pairwise_utilities(texts) @ counts / len(candidates)
    by_text = dict(zip(texts, expected.tolist(), strict=True))
    return np.array([by_text[text] for text in candidates])


def pairwise_utilities(texts: Sequence[str]) -> np.ndarray:
    """Return the utility of each pair of texts, (texts, texts): the mean of two chrF scores.

    Each of the two texts is the reference of one score. The scores are equal to sacreBLEU's sentence-level chrF.
    """
    matches, totals = zip(*(_matching_ngrams(texts, order) for order in range(1, MAX_ORDER + 1)), strict=True)
    match, total = np.stack(matches), np.stack(totals)                  # (orders, texts, texts), (orders, texts)
    # Precision is averaged over the orders for which both texts have n-grams. recall[a, b] is precision[b, a].
    both = (total[:, :, None] > 0) & (total[:, None, :] > 0)
    precision = np.divide(match, total[:, :, None], out=np.zeros_like(match), where=both).sum(0)
    precision = np.divide(precision, both.sum(0), out=np.zeros_like(precision), where=both.any(0))
    recall = precision.T
    denominator = BETA**2 * precision + recall
    scores = np.divide((1 + BETA**2) * precision * recall, denominator, out=np.zeros_like(precision),
                       where=denominator > 0)
    return 50 * (scores + scores.T)


def _matching_ngrams(texts: Sequence[str], order: int) -> tuple[np.ndarray, np.ndarray]:
    """Count character n-grams of length `order`.

    Returns:
        Two arrays: numbers of n-grams that two texts share, (texts, texts), and of n-grams in a text, (texts,).
    """
    ngrams = [Counter(_ngrams("".join(text.split()), order)) for text in texts]
    texts_with = Counter(ngram for of_text in ngrams for ngram in of_text)
    in_several = [ngram for ngram, count in texts_with.items() if count > 1]
    columns = {ngram: column for column, ngram in enumerate(in_several)}
    counts = np.zeros((len(texts), len(columns)), np.int32)
    for row, of_text in enumerate(ngrams):
        common = of_text.keys() & columns.keys()
        counts[row, [columns[ngram] for ngram in common]] = [of_text[ngram] for ngram in common]
    # If an n-gram occurs a times in one text and b times in another, the texts share min(a, b) copies: copy
    # number i is shared if a >= i and b >= i. For each i, a matrix product counts the shared copies of all text pairs.
    shared = np.zeros((len(texts), len(texts)))
    i = 1
    while (several := (counts >= i).sum(0) > 1).any():
        counts = counts[:, several]
        has_i = (counts >= i).astype(np.float32)
        shared += has_i @ has_i.T
        i += 1
    totals = np.array([of_text.total() for of_text in ngrams], float)
    np.fill_diagonal(shared, totals)                                            # a text shares all n-grams with itself
    return shared, totals


def _ngrams(text: str, order: int) -> list[str]:
    return [text[begin : begin + order] for begin in range(len(text) - order + 1)]
