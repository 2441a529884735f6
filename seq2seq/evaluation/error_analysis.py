"""Error analysis of translations: scores with confidence intervals, scores of groups of sentences, n-grams that are too
frequent or too rare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from seq2seq.evaluation.scores import sacrebleu_metric
from seq2seq.tokenizers.line_splitting import word_spans

RESAMPLED = 1_000
"""Number of resampled test sets for each confidence interval."""
LENGTHS = (1, 6, 11, 16, 21, 31, 51)
"""Minimum length, in source words, of the sentences in each bucket."""
FREQUENCIES = (0, 1, 3, 10, 100, 1_000)
"""Minimum frequency of each bucket. The frequency of a sentence is the lowest training-text frequency of its words."""
UNSEEN = (0, 1, 2)
"""Minimum number, for each bucket, of source words in a sentence that do not occur in the training text."""
MAX_NGRAM = 4
SHOWN_NGRAMS = 12


@dataclass(frozen=True)
class Interval:
    """Score with its 95 % confidence interval, `mean` ± `half`, by bootstrap resampling."""

    value: float
    mean: float
    half: float
    signature: str


@dataclass(frozen=True)
class Bucket:
    """Group of sentences. sentences: indices of the sentences in the test set."""

    name: str
    sentences: list[int]


def scores_with_intervals(translations: Sequence[str], references: Sequence[str], language: str,
                          metrics: Iterable[str]) -> dict[str, Interval]:
    """Return the corpus score of each metric, with its confidence interval."""
    found = {}
    for name in metrics:
        metric: Any = sacrebleu_metric(name, language)
        score = metric.corpus_score(list(translations), [list(references)], n_bootstrap=RESAMPLED)
        found[name] = Interval(float(score.score), float(score._mean), float(score._ci), str(metric.get_signature()))
    return found


def sentence_scores(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF of each sentence."""
    metric = sacrebleu_metric("chrf", "")                                      # of any language
    return [float(metric.sentence_score(text, [reference]).score)
            for text, reference in zip(translations, references, strict=True)]


def buckets(sources: Sequence[str], language: str, frequencies: Mapping[str, int] | None) -> dict[str, list[Bucket]]:
    """Return groups of sentences by length and, if the frequencies of training words are known, by the frequency of the
    rarest word and by the number of unseen words."""
    words = [[source[slice(*span)] for span in word_spans(source, language)] for source in sources]
    found = {"words in the source": _buckets([len(line) for line in words], LENGTHS)}
    if frequencies is not None:
        counts = [[frequencies.get(normal(word), 0) for word in line] for line in words]
        found["occurrences of the rarest source word in the training text"] = _buckets(
            [min(line, default=0) for line in counts], FREQUENCIES)
        found["source words that are not in the training text"] = _buckets([line.count(0) for line in counts], UNSEEN)
    return found


def _buckets(values: Sequence[int], edges: Sequence[int]) -> list[Bucket]:
    found = []
    for first, after in pairwise([*edges, None]):
        members = [index for index, value in enumerate(values)
                   if value >= (first or 0) and (after is None or value < after)]
        name = f"{first:,} or more" if after is None else f"{first:,}" if after == (first or 0) + 1 else (
            f"{first:,} to {after - 1:,}")
        if members:
            found.append(Bucket(name, members))
    return found


def word_frequencies(lines: Iterable[str], language: str) -> Counter[str]:
    """Return the number of occurrences of each word, ignoring case and punctuation."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(normal(line[slice(*span)]) for span in word_spans(line, language))
    return counts


def normal(word: str) -> str:
    """Return a word in lower case without punctuation around it."""
    return word.strip(".,;:!?\"'()[]«»„“”‚‘’…-–—").lower() or word


def ngram_differences(translations: Sequence[str], references: Sequence[str], language: str
                      ) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """Return the most overused and the most underused n-grams of the translations, each with its counts in translations
    and references. If an n-gram is part of a longer one with the same difference of counts, the shorter is left out."""
    tokenize: Callable[[str], str] = sacrebleu_metric("bleu", language).tokenizer
    ours, theirs = (_ngrams(map(tokenize, lines)) for lines in (translations, references))
    differences = {ngram: ours[ngram] - theirs[ngram] for ngram in ours | theirs}
    for ngram, difference in list(differences.items()):
        for part in {ngram[1:], ngram[:-1]} if len(ngram) > 1 else ():
            if differences.get(part) == difference:
                differences[part] = 0
    ranked = sorted(differences, key=lambda ngram: (-differences[ngram], ngram))
    over = [ngram for ngram in ranked[:SHOWN_NGRAMS] if differences[ngram] > 0]
    under = [ngram for ngram in ranked[::-1][:SHOWN_NGRAMS] if differences[ngram] < 0]
    shown = [[(" ".join(ngram), ours[ngram], theirs[ngram]) for ngram in side] for side in (over, under)]
    return shown[0], shown[1]


def _ngrams(lines: Iterable[str]) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        words = line.split()
        for size in range(1, MAX_NGRAM + 1):
            counts.update(tuple(words[begin:begin + size]) for begin in range(len(words) - size + 1))
    return counts
