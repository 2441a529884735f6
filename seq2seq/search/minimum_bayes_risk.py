"""The translation that agrees most with all the others, instead of the most probable one.

Minimum-Bayes-risk decoding (Kumar and Byrne 2004; with samples, Eikema and Aziz 2022, arXiv:2108.04718), with chrF
(Popovic 2015) as utility.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from seq2seq.errors import require_texts

ORDER, BETA = 6, 2


def expected_utilities(candidates: Sequence[str]) -> np.ndarray:
    """What each candidate would be worth if one of them, each as likely as another, were the reference: (candidates,).

    The utility of two texts is the mean of chrF with the one and with the other as reference, from 0 to 100. A text
    that stands there twice counts twice, itself included.

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
    """(texts, texts), the mean of both chrF scores of each pair, as sacreBLEU scores sentences."""
    matches, totals = zip(*(_matching_ngrams(texts, order) for order in range(1, ORDER + 1)), strict=True)
    match, total = np.stack(matches), np.stack(totals)                  # (orders, texts, texts), (orders, texts)
    # Precision is averaged over the orders of which both texts have n-grams, and recall is the precision of the other.
    both = (total[:, :, None] > 0) & (total[:, None, :] > 0)
    precision = np.divide(match, total[:, :, None], out=np.zeros_like(match), where=both).sum(0)
    precision = np.divide(precision, both.sum(0), out=np.zeros_like(precision), where=both.any(0))
    recall = precision.T
    denominator = BETA**2 * precision + recall
    scores = np.divide((1 + BETA**2) * precision * recall, denominator, out=np.zeros_like(precision),
                       where=denominator > 0)
    return 50 * (scores + scores.T)


def _matching_ngrams(texts: Sequence[str], order: int) -> tuple[np.ndarray, np.ndarray]:
    """How many n-grams of characters each two texts share, (texts, texts), and how many each has, (texts,)."""
    ngrams = [Counter(_ngrams("".join(text.split()), order)) for text in texts]
    holders = Counter(ngram for each in ngrams for ngram in each)
    columns = {ngram: column for column, ngram in enumerate(each for each, texts in holders.items() if texts > 1)}
    counts = np.zeros((len(texts), len(columns)), np.int32)
    for row, each in enumerate(ngrams):
        common = each.keys() & columns.keys()
        counts[row, [columns[ngram] for ngram in common]] = [each[ngram] for ngram in common]
    # The smaller of two counts is how many numbers from 1 on are no larger than both: a product for each number.
    shared = np.zeros((len(texts), len(texts)))
    least = 1
    while (several := (counts >= least).sum(0) > 1).any():
        counts = counts[:, several]
        has = (counts >= least).astype(np.float32)
        shared += has @ has.T
        least += 1
    totals = np.array([each.total() for each in ngrams], float)
    np.fill_diagonal(shared, totals)                                            # with itself a text shares all
    return shared, totals


def _ngrams(text: str, order: int) -> list[str]:
    return [text[begin : begin + order] for begin in range(len(text) - order + 1)]
