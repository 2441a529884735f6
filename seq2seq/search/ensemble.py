"""Ensembles and shallow fusion with a language model. Both combine several models into one with the step interface."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seq2seq.model.interface import Stepwise
from seq2seq.search.topk import at_least_fp32
from seq2seq.tokenizers.tokenizer import END_ID


@dataclass(frozen=True)
class EnsembleState:
    """States of all models.

    attention: (rows, longest_source), mean of the models' attention weights; None if any state has none.
    """

    states: tuple[Any, ...]

    @property
    def attention(self) -> Tensor | None:
        attentions = [state.attention for state in self.states]
        return None if any(attention is None for attention in attentions) else torch.stack(attentions).mean(0)

    def select(self, rows: Tensor) -> EnsembleState:
        """See `interface.State.select`."""
        return EnsembleState(tuple(state.select(rows) for state in self.states))


class Ensemble:
    """Ensemble of models with the same vocabulary.

    mean: how the distributions p_m of the models m are averaged. "probability": p = mean of p_m. "log_probability": p
    is proportional to exp(mean of log p_m), so that p of a token is 0 if any p_m of the token is 0.
    """

    def __init__(self, models: Sequence[Stepwise], mean: str = "probability") -> None:
        self.models, self.mean = tuple(models), mean
        self.max_positions = min(model.max_positions for model in models)

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> EnsembleState:
        """See `interface.Stepwise.start`."""
        return EnsembleState(tuple(model.start(source, source_offsets, longest_source, keep_attention)
                                   for model in self.models))

    def step(self, last_tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """See `interface.Stepwise.step`."""
        steps = [model.step(last_tokens, of_model) for model, of_model in zip(self.models, state.states, strict=True)]
        log_probabilities = torch.stack([_log_probabilities(logits) for logits, _ in steps])
        mean = (log_probabilities.mean(0) if self.mean == "log_probability"
                else log_probabilities.logsumexp(0) - math.log(len(steps)))
        return mean, EnsembleState(tuple(after for _, after in steps))


class Fusion:
    """Shallow fusion (Gulcehre et al. 2015, arXiv:1503.03535, section 4.1) of a translation model and a language model:
    log p(y|x) + weight * log p_lm(y).

    The sum is not a normalised distribution, and search must not normalise it (see `SearchOptions.skip_log_softmax`).

    language_model: model with the step interface. Its source is always empty, that is, only `</s>`.
    """

    def __init__(self, model: Stepwise, language_model: Stepwise, weight: float) -> None:
        self.model, self.language_model, self.weight = model, language_model, weight
        self.max_positions = min(model.max_positions, language_model.max_positions)

    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> FusionState:
        """See `interface.Stepwise.start`."""
        sentences = len(source_offsets) - 1
        empty = torch.arange(sentences + 1, dtype=source_offsets.dtype, device=source.device)
        return FusionState(self.model.start(source, source_offsets, longest_source, keep_attention),
                           self.language_model.start(source.new_full((sentences,), END_ID), empty, 1))

    def step(self, last_tokens: Tensor, state: FusionState) -> tuple[Tensor, FusionState]:
        """See `interface.Stepwise.step`. Returns scores, (rows, vocab_size), that must not be normalised."""
        logits, translation = self.model.step(last_tokens, state.translation)
        language_logits, language = self.language_model.step(last_tokens, state.language)
        scores = _log_probabilities(logits) + self.weight * _log_probabilities(language_logits)
        return scores, FusionState(translation, language)


@dataclass(frozen=True)
class FusionState:
    """States of both models. attention: attention weights of the translation model."""

    translation: Any
    language: Any

    @property
    def attention(self) -> Tensor | None:
        attention: Tensor | None = self.translation.attention
        return attention

    def select(self, rows: Tensor) -> FusionState:
        """See `interface.State.select`."""
        return FusionState(self.translation.select(rows), self.language.select(rows))


def _log_probabilities(logits: Tensor) -> Tensor:
    return at_least_fp32(logits).log_softmax(1)
