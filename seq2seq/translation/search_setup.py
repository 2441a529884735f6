"""Conversion of a `decoding` section and of the constraints of each line into the inputs and options of a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from seq2seq.errors import OptionError, RequestError
from seq2seq.recipe import DecodingSection
from seq2seq.search.beams import Hypothesis
from seq2seq.search.candidate_selection import DiverseBeams, RequiredPhrase, RequiredPhrases, Sampling
from seq2seq.search.coverage import WithCoverage, coverage_bonus
from seq2seq.search.ensemble import Ensemble, Fusion
from seq2seq.search.interface import Stepwise
from seq2seq.search.logits_processors import force_prefix, min_length, no_repeat_ngram
from seq2seq.search.minimum_bayes_risk import expected_utilities
from seq2seq.search.options import LENGTH_PENALTIES, CandidateSelection, LogitsProcessor, SearchOptions
from seq2seq.search.phrase_spelling import PhraseSpeller
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Vocabulary
from seq2seq.translation.word_confidence import Word

Translated = TypeVar("Translated", bound=Any)


@dataclass(frozen=True)
class Part:
    """Input of search: a line, or a part of a line that is too long for the model.

    source: the line, with only the text of the part. line: line number, from 0. index: index of the part in its line,
    or of the sample in text generation. prefix: ids with which the target must begin. required: phrases that the target
    must contain.
    """

    source: Source
    line: int
    index: int = 0
    prefix: tuple[int, ...] = ()
    required: tuple[RequiredPhrase, ...] = ()


@dataclass(frozen=True)
class PartTranslation:
    """Translation of a part.

    words: words of the translation with the model's confidence, if requested. faults: names of the translation's faults
    (see `output_faults.FAULTS`); empty if it was not checked. retried: True if the translation comes from a retry.
    """

    hypothesis: Hypothesis
    text: str
    words: tuple[Word, ...] = ()
    faults: tuple[str, ...] = ()
    retried: bool = False


def distinct(n_best: Iterable[Translated]) -> list[Translated]:
    """Return the first translation of each different text. n_best: objects with a `text`, best first."""
    first: dict[str, Translated] = {}
    for one in n_best:
        first.setdefault(one.text, one)
    return list(first.values())


class SearchSetup:
    """Builds the inputs and options of search from a `decoding` section."""

    def __init__(self, decoding: DecodingSection, tokenizer: Vocabulary, language: str, context: int = 0) -> None:
        """tokenizer: tokenizer of the target. language: code of the target language. context: `data.context`."""
        if context and decoding.coverage_penalty:
            raise OptionError("coverage_penalty does not work with a model with data.context: the context need not be "
                              "covered. Leave it out.")
        self.decoding, self.tokenizer, self.first_id = decoding, tokenizer, tokenizer.first_id(language)
        self.given = int(self.first_id is not None)
        self.phrases = PhraseSpeller(tokenizer, language, decoding.ignore_case)
        self.required = tuple(map(self.phrases.required_phrase, decoding.require))
        self.length_penalty = LENGTH_PENALTIES[decoding.length_penalty_form](decoding.length_penalty)
        self.logits_processors = self._logits_processors()

    @property
    def beam_size(self) -> int:
        """Number of hypotheses per sentence in a decoding step."""
        decoding = self.decoding
        return decoding.mbr or decoding.n_best if decoding.sampling else decoding.beam_size

    def parts(self, source: Source, texts: Sequence[str]) -> list[Part]:
        """Return the parts of a line.

        Args:
            source: line with its number (see `LineReader.number`) and its constraints.
            texts: parts into which the text of the line is split; empty if the line is white space.
        """
        assert source.number is not None
        prefix = source.prefix.strip()
        prefix_ids = self.phrases.encode(prefix, source.number, "prefix") if prefix else ()
        if prefix_ids and self.first_id is not None:
            prefix_ids = self.first_id, *prefix_ids
        required = tuple(dict.fromkeys([*self.required, *(self.phrases.required_phrase(phrase, source.number)
                                                          for phrase in source.required if phrase.strip())]))
        if required and self.decoding.sampling:
            raise RequestError(f"line {source.number + 1}: required phrases work only with beam search. Remove "
                               "sampling, or the phrases.")
        if required and self.decoding.diverse_groups > 1:
            raise RequestError(f"line {source.number + 1}: required phrases work only with a single group of "
                               "hypotheses. Remove diverse_groups, or the phrases.")
        if required and len(texts) > 1:
            raise RequestError(f"line {source.number + 1} is too long for the model and is translated in {len(texts)} "
                               "parts. It is not clear which part must contain the required phrases. Put each sentence "
                               "on a separate line.")
        return [Part(replace(source, text=text), source.number, index, () if index else prefix_ids, required)
                for index, text in enumerate(texts)]

    def search_options(self, parts: Sequence[Part], fusion: bool) -> SearchOptions:
        """Return the options for a search of `parts`. fusion: True if a language model is fused with the model."""
        decoding = self.decoding
        logits_processors, groups = list(self.logits_processors), 1
        candidate_selection: CandidateSelection | None = None
        if any(part.required for part in parts):
            candidate_selection = phrases = RequiredPhrases([part.required for part in parts],
                                                            self.tokenizer.piece_bytes)
            logits_processors.append(phrases.ban_end_if_missing)
        prefixes = [part.prefix for part in parts] if any(part.prefix for part in parts) else []
        if prefixes:
            logits_processors.append(force_prefix(prefixes))
        if decoding.no_repeat_ngram:
            logits_processors.append(no_repeat_ngram(decoding.no_repeat_ngram, prefixes))
        if decoding.sampling:
            keys = np.array([[part.line, part.index] for part in parts])
            candidate_selection = Sampling(decoding.seed, keys, decoding.temperature, decoding.top_k, decoding.top_p,
                                           decoding.min_p)
            groups = self.beam_size
        elif decoding.diverse_groups > 1:
            candidate_selection, groups = DiverseBeams(decoding.diverse_strength), decoding.diverse_groups
        several = decoding.mbr or decoding.n_best > 1                           # `select` chooses from them
        return SearchOptions(
            self.beam_size, self.length_penalty, n_best=None if several else 1, patience=decoding.patience,
            banned_ids=self.tokenizer.never_generated_ids, logits_processors=logits_processors,
            candidate_selection=candidate_selection, groups=groups,
            bonus=coverage_bonus(decoding.coverage_penalty) if decoding.coverage_penalty else None,
            shortlist=decoding.shortlist, first_id=self.first_id, skip_log_softmax=fusion)

    def max_lengths(self, parts: Sequence[Part], source_lengths: np.ndarray, max_positions: int) -> list[int]:
        """Return the maximum number of tokens of each part's translation, `</s>` included. source_lengths: (parts,)."""
        decoding = self.decoding
        longest = min(max_positions, math.inf if decoding.max_length is None else self.given + decoding.max_length + 1)
        limits = (source_lengths * decoding.max_length_ratio + decoding.max_length_offset).clip(1, longest).astype(int)
        for index, part in enumerate(parts):
            # A prefix begins with the given id. Phrases may overlap, but need not.
            needed = len(part.prefix or [None] * self.given) + sum(phrase.size for phrase in part.required)
            min_tokens = max(self.given + decoding.min_length, needed) + 1
            if min_tokens > longest:
                raise RequestError(f"line {part.line + 1}: min_length, prefix or required phrases need a translation "
                                   f"of {min_tokens - self.given - 1} pieces, but the maximum is "
                                   f"{longest - self.given - 1:g}. Shorten them"
                                   f"{', or raise max_length' if decoding.max_length else ''}.")
            limits[index] = max(limits[index], min_tokens)
        return [int(limit) for limit in limits]

    def ensemble(self, models: Sequence[Stepwise]) -> Stepwise:
        """Return the model if it is the only one, else an ensemble of the models."""
        return models[0] if len(models) == 1 else Ensemble(models, self.decoding.ensemble_mean)

    def with_fusion_and_coverage(self, model: Stepwise, language_model: Stepwise | None) -> Stepwise:
        """Return the model for the search: `model`, fused with the language model if there is one, and wrapped in
        `WithCoverage` if there is a coverage penalty."""
        if language_model is not None:
            model = Fusion(model, language_model, self.decoding.fusion_weight)
        return WithCoverage(model) if self.decoding.coverage_penalty else model

    def select(self, found: list[PartTranslation]) -> list[PartTranslation]:
        """Return the n best translations of a sentence, best first. With `mbr`, rank them by expected utility.

        Their texts differ, because several hypotheses can have the same text. Samples are all kept, as they were drawn.
        found: all that the search has found, best first.
        """
        decoding = self.decoding
        if not decoding.sampling:
            found = distinct(found)
        if decoding.mbr:
            candidates = found[: decoding.mbr]
            utilities = expected_utilities([one.text for one in candidates])
            found = distinct([
                replace(candidates[index], hypothesis=replace(candidates[index].hypothesis,
                                                              score=float(utilities[index])))
                for index in np.argsort(-utilities, kind="stable")])
        return found[: decoding.n_best]

    def score(self, hypotheses: Sequence[Hypothesis]) -> float:
        """Return the score of a line's translation, computed from the hypotheses of its parts; 0 if it has no parts."""
        if self.decoding.mbr and hypotheses:
            return sum(hypothesis.score for hypothesis in hypotheses) / len(hypotheses)
        tokens = sum(len(hypothesis.tokens) + 1 for hypothesis in hypotheses)
        total = sum(hypothesis.log_probability for hypothesis in hypotheses)
        bonus = sum(hypothesis.bonus for hypothesis in hypotheses)
        return total / self.length_penalty(tokens) + bonus if tokens else 0.0

    def texts(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        """Return the texts of hypotheses, each on one line and without white space around it."""
        return [text.replace("\n", " ").strip()
                for text in self.tokenizer.decode([hypothesis.tokens for hypothesis in hypotheses])]

    def _logits_processors(self) -> list[LogitsProcessor]:
        decoding = self.decoding
        processors = []
        if decoding.min_length:
            processors.append(min_length(self.given + decoding.min_length))
        if decoding.forbid:
            processors.append(self.phrases.forbid(decoding.forbid))
        return processors
