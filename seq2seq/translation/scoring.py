"""Log-probabilities of given translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from seq2seq.data.batching import EncodedCorpus, EncodedSide
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.errors import CorpusError
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.tokenizers.whole_words import position_fault
from seq2seq.translation.line_search import LineSearch
from seq2seq.translation.translation import ReportProgress

Pair = TypeVar("Pair", bound=tuple[str | Source, str])


@dataclass(frozen=True)
class PairScore:
    """log p(target | source) in nats, and the number of target tokens, both with `</s>` and without the token of the
    target's language, which is given."""

    log_probability: float
    tokens: int


def is_text(pair: tuple[str | Source, str], has_source: bool) -> bool:
    """Return True if a pair is text for the model: it has no blank side. Blank lines, such as those between documents,
    do not occur in training, and are not translated. has_source: False for a language model, whose sources are
    empty."""
    source, target = pair
    return not is_blank(target) and (not has_source or not is_blank(as_source(source).text))


def pair_scores(translator: LineSearch, pairs: Sequence[Pair], progress: ReportProgress | None = None
                ) -> list[PairScore]:
    """Return log p(target | source) of given translations, by teacher forcing. In an ensemble, only the first model
    computes the scores. A pair without text on any side has no tokens, and log p is 0, as in translation.

    >>> translator = seq2seq.Translator.load("runs/multi30k_de_en", precision="fp32")
    >>> seq2seq.pair_scores(translator, [("Ein Hund läuft.", "A dog is running.")])

    Args:
        pairs: source and translation of each pair; for a language model, the source is "".
        progress: function that is called with the number of pairs scored since its last call.
    Raises:
        ValueError: a source or target is too long for the model.
    """
    import torch

    from seq2seq.data.batching import gather

    for source, target in () if translator.task.target_is_text else pairs:
        if fault := position_fault(as_source(source).text, target):
            raise CorpusError(f"the target that begins with '{target[:30]}' cannot be scored: {fault}.")
    sources, targets = map(EncodedSide.from_lists, translator.encode_pairs(pairs))
    corpus = EncodedCorpus(sources, targets)
    given = [translator.tokenizers.target.first_id(translator.source(source).language) is not None
             for source, _ in pairs]
    scores: list[PairScore] = [PairScore(0.0, 0)] * len(pairs)
    text = np.array([index for index, (source, target) in enumerate(pairs)
                     if not is_blank(as_source(source).text) or not is_blank(target)], np.int64)
    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    if progress:
        progress(len(pairs) - len(text))
    for chosen in batches_in_order(longest[text], translator.decoding.batch_tokens_or_default):
        indices = text[chosen]
        batch = gather(corpus, indices).to(torch.device(translator.device))
        with torch.inference_mode():
            losses = translator.model.loss(batch).of_tokens.cpu()
        # The model does not predict the token of the target's language, if there is one.
        sums = [loss[given[index]:].sum().item() for index, loss in zip(
            indices, losses.split(batch.target_offsets.diff().tolist()), strict=True)]
        for index, loss, tokens in zip(indices, sums, corpus.target.lengths_of(indices).tolist(), strict=True):
            scores[index] = PairScore(-loss, tokens - given[index])
        if progress:
            progress(len(indices))
    return scores


def scorable_pairs(translator: LineSearch, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that `pair_scores` accepts: both sides, `</s>` included, have at most `max_positions` tokens."""
    sides = translator.encode_pairs(pairs)
    return [pair for pair, *ids in zip(pairs, *sides, strict=True) if max(map(len, ids)) < translator.max_positions]
