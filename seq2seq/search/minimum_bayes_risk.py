"""Minimum-Bayes-risk decoding (Kumar and Byrne 2004; with samples, Eikema and Aziz 2022, arXiv:2108.04718).

Chooses the candidate that agrees most with all candidates instead of the most probable one. The utility is chrF
(Popovic 2015).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from seq2seq.errors import require_texts

ORDER, BETA = 6, 2


def expected_utilities(candidates: Sequence[str]) -> np.ndarray:
    """Return the expected utility of each candidate over all candidates as equally likely references: (candidates,).

    The utility of two texts is the mean of chrF with the one and with the other as reference, from 0 to 100. A repeated
    text counts repeatedly, and each candidate is also its own reference.

    Raises:
        TypeError: a candidate is no str.
    """
    require_texts(candidates, "candidates")
    texts = list(dict.fromkeys(candidates))
    times = Counter(candidates)
    counts = np.array([times[text] for text in texts])
    expected = pairwise_utilities(texts) @ counts / len(candidates)
    by_text = dict(zip(texts, expected.tolist(), strict=True))
    return np.array([by_text[text] for text in candidates])


def pairwise_utilities(texts: Sequence[str]) -> np.ndarray:
    """Return the mean of both sentence-level chrF scores of each pair, as in sacreBLEU, (texts, texts)."""
    matches, totals = zip(*(_matching_ngrams(texts, order) for order in range(1, ORDER + 1)), strict=True)
    match, total = np.stack(matches), np.stack(totals)                  # (orders, texts, texts), (orders, texts)
    # Precision is averaged over the orders for which both texts have n-grams; recall is the precision of the other
    # text.
    both = (total[:, :, None] > 0) & (total[:, None, :] > 0)
    precision = np.divide(match, total[:, :, None], out=np.zeros_like(match), where=both).sum(0)
    precision = np.divide(precision, both.sum(0), out=np.zeros_like(precision), where=both.any(0))
    recall = precision.T
    denominator = BETA**2 * precision + recall
    scores = np.divide((1 + BETA**2) * precision * recall, denominator, out=np.zeros_like(precision),
                       where=denominator > 0)
    return 50 * (scores + scores.T)


def _matching_ngrams(texts: Sequence[str], order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of character n-grams that each two texts share, (texts, texts), and of each text, (texts,)."""
    ngrams = [Counter(_ngrams("".join(text.split()), order)) for text in texts]
    holders = Counter(ngram for each in ngrams for ngram in each)
    columns = {ngram: column for column, ngram in enumerate(each for each, texts in holders.items() if texts > 1)}
    counts = np.zeros((len(texts), len(columns)), np.int32)
    for row, each in enumerate(ngrams):
        common = each.keys() & columns.keys()
        counts[row, [columns[ngram] for ngram in common]] = [each[ngram] for ngram in common]
    # min(a, b) is the number of n >= 1 with n <= a and n <= b: one matrix product for each n.
    shared = np.zeros((len(texts), len(texts)))
    least = 1
    while (several := (counts >= least).sum(0) > 1).any():
        counts = counts[:, several]
        has = (counts >= least).astype(np.float32)
        shared += has @ has.T
        least += 1
    totals = np.array([each.total() for each in ngrams], float)
    np.fill_diagonal(shared, totals)                                            # a text shares all with itself
    return shared, totals


def _ngrams(text: str, order: int) -> list[str]:
    return [text[begin : begin + order] for begin in range(len(text) - order + 1)]
