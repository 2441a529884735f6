"""Validation during training: loss, perplexity, and scores of translations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, EncodedSide, batches_in_order, gather
from seq2seq.data.corpus import read_pairs
from seq2seq.errors import CorpusError, RecipeError
from seq2seq.evaluation.scores import Score, require_metrics, score_pairs
from seq2seq.model.interface import Seq2Seq
from seq2seq.model.loss import negative_log_likelihood
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.training.distributed import ProcessGroup, translate_on_all_ranks
from seq2seq.translation.translator import Translator

# Metrics computed at each validation. TER is too slow; perplexity follows from the loss.
VALIDATED = ("bleu", "chrf", "exact")


@dataclass(frozen=True)
class Measured:
    """Results of a validation.

    loss: mean negative log-likelihood per target token in nats, without smoothing. scores: of the translations; empty
    for a language model.
    """

    loss: float
    scores: dict[str, Score]

    @property
    def precision(self) -> str | None:
        """Precision of the translations; None without scores. The loss is always computed in fp32."""
        return next((score.precision for score in self.scores.values()), None)

    def values(self) -> dict[str, float]:
        """Return all values by name: loss, perplexity, and the scores."""
        return {"loss": self.loss, "perplexity": math.exp(min(self.loss, 700)),
                **{metric: score.value for metric, score in self.scores.items()}}


class Validation:
    """The validation set, read and encoded once."""

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        """Raises CorpusError if the set cannot be read, RecipeError if the model can take none of it."""
        self.recipe, self.tokenizers = recipe, tokenizers
        self.pairs = [(source, target) for _, source, target in read_pairs(recipe, recipe.data.valid)]
        threads = torch.get_num_threads()
        sources = tokenizers.source.encode([source for source, _ in self.pairs], threads)
        targets = tokenizers.target.encode([target for _, target in self.pairs], threads)
        # Overlong lines are translated in parts, but cannot be scored in parts.
        longest = recipe.model.max_positions - 1
        kept = [number for number, sides in enumerate(zip(sources, targets, strict=True))
                if max(map(len, sides)) <= longest]
        if not kept:
            raise RecipeError("data.valid has no pair that the model can take: it is empty, or model.max_positions "
                              f"({recipe.model.max_positions}) is too small.")
        if len(kept) < len(self.pairs):
            console.warn(f"{len(self.pairs) - len(kept):,} validation pairs have more than {longest} pieces; "
                         "they do not count in the loss, only in scores of translations")
        self.corpus = EncodedCorpus(EncodedSide.from_lists([sources[number] for number in kept]),
                                    EncodedSide.from_lists([targets[number] for number in kept]))

    def measure(self, model: Seq2Seq, translator: Translator, group: ProcessGroup) -> Measured:
        """Return the loss of `model`, which must be in evaluation mode, and the scores of its translations by
        `translator`. The work is divided among the ranks of the group.

        Raises:
            FloatingPointError: the loss is not a number.
        """
        section = self.recipe.training
        sums = torch.zeros(2, dtype=torch.float64, device=translator.device)
        lengths = np.maximum(self.corpus.source.lengths, self.corpus.target.lengths)
        with torch.inference_mode():
            for indices in group.share(list(batches_in_order(lengths, section.batch_tokens))):
                batch = gather(self.corpus, indices).to(translator.device)
                losses = negative_log_likelihood(model(batch), batch.target_output)
                sums += torch.stack([losses.double().sum(), torch.tensor(batch.target_count, device=sums.device)])
        group.sum([sums])
        total, tokens = sums.tolist()
        if math.isnan(total):                                                   # infinity is valid, with sparse models
            raise FloatingPointError("the validation loss is not a number")
        metrics = [metric for metric in self.recipe.measures if metric in VALIDATED]
        return Measured(total / tokens, score_pairs(translator, self.pairs[:section.valid_sentences], metrics,
                                                    partial(translate_on_all_ranks, translator, group)))


def require_held_out(recipe: Recipe) -> None:
    """Check at the start everything that would otherwise fail at the first validation or in the final evaluation.

    Raises:
        CorpusError: a validation or test set cannot be read to its end, or has no text.
        UserError: a package for the metrics is not installed.
    """
    require_text(recipe, "valid", recipe.data.valid)
    for name, spec in recipe.data.test.items():
        require_text(recipe, f"test.{name}", spec)
    require_metrics(recipe.measures, recipe.languages.target)


def require_text(recipe: Recipe, key: str, spec: Corpus) -> None:
    """Raise CorpusError if a validation or test set cannot be read to its end, or has no text. key: below `data`."""
    if not sum(bool(target.strip()) for _, _, target in read_pairs(recipe, spec)):
        raise CorpusError(f"data.{key} ({spec.label}) has no line with text to measure by. Name another corpus, or "
                          "leave it out.")
