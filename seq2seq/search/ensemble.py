"""Ensembles and shallow fusion with a language model. Both combine several models into one with the step interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seq2seq.search.interface import Scores, Stepwise
from seq2seq.tokenizers.tokenizer import END_ID


@dataclass(frozen=True)
class EnsembleState:
    """States of all models.

    attention: (rows, longest source), mean of the models' attention weights; None if any state has none.
    """

    states: tuple[Any, ...]

    @property
    def attention(self) -> np.ndarray | None:
        attentions = [state.attention for state in self.states]
        return None if any(attention is None for attention in attentions) else np.mean(attentions, 0)

    def select(self, rows: np.ndarray) -> EnsembleState:
        return EnsembleState(tuple(state.select(rows) for state in self.states))


class Ensemble:
    """Ensemble of models with the same vocabulary.

    mean: how the distributions p_m of the models m are averaged. "probability": p = mean of p_m. "log_probability": p
    is proportional to exp(mean of log p_m), so that p of a token is 0 if any p_m of the token is 0.
    """

    def __init__(self, models: Sequence[Stepwise], mean: str = "probability") -> None:
        self.models, self.mean = tuple(models), mean
        self.max_positions = min(model.max_positions for model in models)

    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = False) -> EnsembleState:
        return EnsembleState(tuple(model.start(source, source_offsets, keep_attention) for model in self.models))

    def step(self, last_tokens: np.ndarray, state: EnsembleState) -> tuple[Scores, EnsembleState]:
        steps = [model.step(last_tokens, of_model) for model, of_model in zip(self.models, state.states, strict=True)]
        first, *others = (scores.log_softmax() for scores, _ in steps)
        mean = (first.mean(others) if self.mean == "log_probability" else first.mean_probability(others))
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

    def start(self, source: np.ndarray, source_offsets: np.ndarray, keep_attention: bool = False) -> FusionState:
        sentences = len(source_offsets) - 1
        empty = np.full(sentences, END_ID, np.int64), np.arange(sentences + 1, dtype=np.int32)
        return FusionState(self.model.start(source, source_offsets, keep_attention), self.language_model.start(*empty))

    def step(self, last_tokens: np.ndarray, state: FusionState) -> tuple[Scores, FusionState]:
        """See `interface.Stepwise.step`. The scores must not be normalised."""
        scores, translation = self.model.step(last_tokens, state.translation)
        language_scores, language = self.language_model.step(last_tokens, state.language)
        fused = scores.log_softmax().plus(language_scores.log_softmax(), self.weight)
        return fused, FusionState(translation, language)


@dataclass(frozen=True)
class FusionState:
    """States of both models. attention: attention weights of the translation model."""

    translation: Any
    language: Any

    @property
    def attention(self) -> np.ndarray | None:
        attention: np.ndarray | None = self.translation.attention
        return attention

    def select(self, rows: np.ndarray) -> FusionState:
        return FusionState(self.translation.select(rows), self.language.select(rows))

