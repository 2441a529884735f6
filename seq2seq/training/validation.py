"""Validation during training: loss, perplexity, and scores of translations of the validation set."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from seq2seq import console
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.data.corpus import Counts, read_pairs, text_checksums
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.devices import num_threads
from seq2seq.errors import CorpusError, RecipeError
from seq2seq.evaluation.scores import (
    Score,
    require_metrics,
    score_pairs,
    warn_about_lines,
    warn_if_without_spaces,
)
from seq2seq.model.interface import Model
from seq2seq.recipe import Corpus, Recipe
from seq2seq.tokenizers.canonical_text import is_blank
from seq2seq.tokenizers.context import shortened
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.training.distributed import ProcessGroup, translate_lines
from seq2seq.translation.scoring import is_text
from seq2seq.translation.translator import Translator

VALIDATION_METRICS = ("bleu", "chrf", "exact")
"""Metrics of translations that a recipe can select for validation. TER is omitted because it is slow."""


@dataclass(frozen=True)
class ValidationResult:
    """Results of a validation.

    loss: mean negative log-likelihood per target token in nats, without label smoothing.
    scores: scores of the translations by metric, as means over the validation corpora; empty for a language model, or
    if the recipe selects no metric. by_set: scores of each corpus, by name and metric; empty for a single corpus.
    """

    loss: float
    scores: dict[str, Score]
    by_set: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def precision(self) -> str | None:
        """Precision in which the scored translations were computed; None without scores. The loss is always in fp32."""
        return next((score.precision for score in self.scores.values()), None)

    def values(self) -> dict[str, float]:
        """Return loss, perplexity and all scores, by name."""
        return {"loss": self.loss, "perplexity": math.exp(min(self.loss, 700)),
                **{metric: score.value for metric, score in self.scores.items()}}


class Validation:
    """Validation set, which is read and tokenised once, at the start of the training.

    fingerprint: sha256 of its text. Scores of different text cannot be compared to choose the best model.
    checksums: see `text_checksums`, of all its corpora.
    """

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        """Read and tokenise the set."""
        self.recipe, self.tokenizers = recipe, tokenizers
        self.sets: list[tuple[str, str, list[tuple[Source, str]]]] = []
        self.checksums: list[str] = []
        for name, spec in zip(_names(recipe), recipe.data.valid, strict=True):
            counts = Counts()
            pairs = [(source, target) for _, source, target in read_pairs(recipe, spec, counts)]
            self.sets.append((name, recipe.languages_of(spec).target, pairs))
            self.checksums += text_checksums(spec, recipe.data_directory, counts)
        self.pairs = [pair for _, _, pairs in self.sets for pair in pairs]
        self.fingerprint = hashlib.sha256("".join(
            f"{as_line(source)}\t{target}\n" for source, target in self.pairs).encode()).hexdigest()
        encode, encode_targets = (partial(side.encode, threads=num_threads())
                                  for side in (tokenizers.source, tokenizers.target))
        texts = [source for source, _ in self.pairs]
        sources = encode(shortened(texts, encode, recipe.data.cleaning.max_pieces) if recipe.data.context else texts)
        targets = encode_targets(tokenizers.target.target_lines([target for _, target in self.pairs], texts))
        # Lines that are too long for the model can be translated in parts, but the loss needs whole pairs.
        max_length = recipe.model.max_positions - 1
        text = [number for number, pair in enumerate(self.pairs) if is_text(pair, recipe.task.has_source)]
        kept = [number for number in text if max(len(sources[number]), len(targets[number])) <= max_length]
        if not kept:
            raise RecipeError("data.valid has no pair that fits the model: it is empty, or model.max_positions "
                              f"({recipe.model.max_positions}) is too small.")
        if len(kept) < len(text):
            console.warn(f"{len(text) - len(kept):,} validation pairs have more than {max_length} pieces on a "
                         "side; they are not included in the loss, only in the scores of translations")
        if blank := len(self.pairs) - len(text):
            console.print_message(f"{blank:,} validation pairs have a blank side; they are not included in the loss")
        if recipe.task.has_source:                                              # the others have no such scores
            expected = [target for _, target in self.pairs]
            warn_about_lines("data.valid", expected, [[source.text for source, _ in self.pairs], expected])
            for _, language, pairs in self.sets if "bleu" in recipe.measures else ():
                warn_if_without_spaces("data.valid", [target for _, target in pairs], language)
        self.corpus = EncodedCorpus(EncodedSide.from_lists([sources[number] for number in kept]),
                                    EncodedSide.from_lists([targets[number] for number in kept]))

    def measure(self, model: Model, translator: Translator, group: ProcessGroup) -> ValidationResult:
        """Compute the loss of a model, and scores of its translations. The work is divided among the ranks.

        Args:
            model: model in evaluation mode.
            translator: translator with the same model.
        Raises:
            FloatingPointError: the loss is NaN.
        """
        section = self.recipe.training
        sums = torch.zeros(2, dtype=torch.float64, device=translator.device)
        lengths = np.maximum(self.corpus.source.lengths, self.corpus.target.lengths)
        with torch.inference_mode():
            for indices in group.shard(list(batches_in_order(lengths, section.batch_tokens))):
                batch = gather(self.corpus, indices).to(sums.device)
                losses = model.loss(batch).of_tokens
                sums += torch.stack([losses.double().sum(), torch.tensor(batch.target_count, device=sums.device)])
        group.sum([sums])
        total, tokens = sums.tolist()
        if math.isnan(total):                                                   # inf is allowed: a probability can be 0
            raise FloatingPointError("the validation loss is not a number")
        metrics = [metric for metric in self.recipe.measures if metric in VALIDATION_METRICS]
        scores = self._scores(translator, group, metrics)
        by_set = {name: {metric: score.value for metric, score in each.items()} for name, each in scores.items()}
        return ValidationResult(total / tokens, _means(list(scores.values())), by_set if len(by_set) > 1 else {})

    def bleu(self, translator: Translator, group: ProcessGroup) -> Score:
        """Return the BLEU of a model's translations, as `measure` does."""
        return _means(list(self._scores(translator, group, ["bleu"]).values()))["bleu"]

    @property
    def sentences(self) -> int:
        """Number of sentences that are translated."""
        return sum(len(scored_pairs(pairs, self.recipe.training.valid_sentences)) for _, _, pairs in self.sets)

    def _scores(self, translator: Translator, group: ProcessGroup, metrics: Sequence[str]
                ) -> dict[str, dict[str, Score]]:
        """Translate the sets, and return their scores by name and metric."""
        translate = partial(translate_lines, translator, group)
        return {name: score_pairs(translator, scored_pairs(pairs, self.recipe.training.valid_sentences), metrics,
                                  translate, language) for name, language, pairs in self.sets}


def scored_pairs(pairs: Sequence[Any], limit: int | None) -> list[Any]:
    """Return the validation pairs that are translated: `limit` of them (None: all), spread evenly over the corpus. The
    first ones would not represent it if it is sorted, as by length."""
    count = len(pairs) if limit is None else min(limit, len(pairs))
    return [pairs[number * len(pairs) // count] for number in range(count)]


def _names(recipe: Recipe) -> list[str]:
    """Return names of the validation corpora: directions if all differ, else labels if all differ, else numbers."""
    directions = ["-".join(filter(None, recipe.languages_of(spec).codes)) for spec in recipe.data.valid]
    labels = [spec.label for spec in recipe.data.valid]
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    return next(names for names in (directions, labels, numbers) if len(set(names)) == len(names))


def _means(scores: list[dict[str, Score]]) -> dict[str, Score]:
    """Return the mean score of several sets, by metric, with the signature of the first set."""
    return {metric: score if len(scores) == 1 else replace(
        score, value=sum(each[metric].value for each in scores) / len(scores), details={})
        for metric, score in scores[0].items()}


def require_held_out(recipe: Recipe) -> int:
    """Check validation and test sets before the training, so that no evaluation fails after hours of training.

    Returns:
        zlib.crc32 of their text, to be compared with the checksums of other ranks.
    """
    crc32 = 0
    for key, spec in recipe.data.held_out().items():
        crc32 = require_text(recipe, key, spec, crc32)
    require_metrics(recipe)
    return crc32


def require_text(recipe: Recipe, key: str, spec: Corpus, crc32: int = 0) -> int:
    """Return the zlib.crc32 of a validation or test set. If the set cannot be read to its end, or has no target text,
    raise CorpusError.

    key: recipe key of the set in the section `data`, for the message. crc32: initial value, to chain several sets.
    """
    lines = 0
    for _, source, target in read_pairs(recipe, spec):
        lines += not is_blank(target)
        crc32 = zlib.crc32(f"{as_line(source)}\t{target}\n".encode(), crc32)
    if not lines:
        raise CorpusError(f"data.{key} ({spec.label}) has no line with text in the target language. Name another "
                          f"corpus{'' if key.startswith('valid') else ', or remove the key'}.")
    return crc32
