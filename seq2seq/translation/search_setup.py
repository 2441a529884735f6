"""Turns a recipe's `decoding` section, and requests of single lines, into options and hooks of search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import capwords
from typing import Any

import numpy as np

from seq2seq.data.line_splitting import SPACELESS, main_language
from seq2seq.errors import RequestError, require_text, require_texts
from seq2seq.model.interface import Stepwise
from seq2seq.recipe import DecodingSection
from seq2seq.search.beam import Hypothesis, LengthNormaliser, ScoreFunction, power_normaliser, wu_normaliser
from seq2seq.search.candidate_selection import Diverse, RequiredPhrase, RequiredPhrases, Sampling
from seq2seq.search.coverage import Covering
from seq2seq.search.ensemble import Ensemble, Fusion
from seq2seq.search.logits_processors import Phrase, at_least, beginning_with, no_repeat_ngram, text_of, without
from seq2seq.search.minimum_bayes_risk import expected_utilities
from seq2seq.tokenizers.tokenizer import UNKNOWN_ID, Vocabulary
from seq2seq.translation.word_confidence import Word

# Private-use character: text encoded after it does not begin a word.
NO_WORD = "\ue000"


@dataclass(frozen=True)
class Request:
    """Line to translate, with constraints for this line alone.

    prefix: text that the translation must begin with. required: phrases that it must contain, in addition to
    `decoding.require`. number: line number in its input, from 0, part of the seed of its samples; None: its index in
    the call.

    Raises:
        TypeError: a field has a wrong type.
    """

    text: str
    prefix: str = ""
    required: tuple[str, ...] = ()
    number: int | None = None

    def __post_init__(self) -> None:
        require_text(self.text, "text")
        require_text(self.prefix, "prefix")
        require_texts(self.required, "required")
        if not isinstance(self.number, int | None):
            raise TypeError(f"number is of type {type(self.number).__name__}; expected int or None")


@dataclass(frozen=True)
class Part:
    """Input of search: a line, or a part of a line that is too long.

    line: number of the line. place: number of the part in the line. prefix: ids of the target prefix.
    """

    text: str
    line: int
    place: int = 0
    prefix: tuple[int, ...] = ()
    required: tuple[RequiredPhrase, ...] = ()

    @property
    def least_length(self) -> int:
        """Number of pieces that prefix and required phrases take, if they do not overlap."""
        return len(self.prefix) + sum(each.size for each in self.required)


@dataclass(frozen=True)
class Found:
    """Translation of a part.

    words: its words with confidence, if requested. faults: names of its faults (see faults.py), if they were checked.
    retried: found by a retry, because the first translation had faults.
    """

    hypothesis: Hypothesis
    text: str
    words: tuple[Word, ...] = ()
    faults: tuple[str, ...] = ()
    retried: bool = False


class Decoding:
    """Decoding options of one call, with the vocabulary and language of the target."""

    def __init__(self, options: DecodingSection, tokenizer: Vocabulary, language: str) -> None:
        self.options, self.tokenizer = options, tokenizer
        self.spaceless = main_language(language) in SPACELESS
        self.forms = {"power": power_normaliser, "wu": wu_normaliser}
        self.required = tuple(map(self.required_phrase, options.require))
        self.constraints = list(self._constraints())

    @property
    def candidates(self) -> int:
        """Number of hypotheses per sentence that search returns, the candidates of `rerank`."""
        options = self.options
        return options.beam_size if options.diverse_groups > 1 else options.mbr or options.n_best

    @property
    def beam_size(self) -> int:
        """Number of hypotheses per sentence in a decoding step."""
        return self.candidates if self.options.sampling else self.options.beam_size

    @property
    def normaliser(self) -> LengthNormaliser:
        """Length penalty of the recipe: the divisor of log-probabilities."""
        return self.forms[self.options.length_penalty_form](self.options.length_penalty)

    def parts(self, request: Request, texts: Sequence[str]) -> list[Part]:
        """Return the parts of a line.

        Args:
            request: with a number. texts: parts of the line's text; none if the line is white space.
        Raises:
            RequestError: a constraint of the request cannot be met.
        """
        assert request.number is not None
        prefix = self._encode(request.prefix.strip(), request.number, "prefix") if request.prefix.strip() else ()
        required = tuple(dict.fromkeys([*self.required, *(self.required_phrase(phrase, request.number)
                                                          for phrase in request.required if phrase.strip())]))
        if required and self.options.sampling:
            raise RequestError(f"line {request.number + 1}: required phrases need a search. Leave out sampling, or "
                               "them.")
        if required and self.options.diverse_groups > 1:
            raise RequestError(f"line {request.number + 1}: required phrases share out the whole beam. Leave out "
                               "diverse_groups, or them.")
        if required and len(texts) > 1:
            raise RequestError(f"line {request.number + 1} is too long for the model and is translated in {len(texts)} "
                               "parts, so that it is not clear which of them is to hold the required phrases. Put each "
                               "sentence on a line of its own.")
        return [Part(text, request.number, place, () if place else prefix, required)
                for place, text in enumerate(texts)]

    def search_options(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the keyword arguments of `search` for these parts, except those that depend on the model."""
        options = self.options
        constraints, selection, groups = list(self.constraints), None, 1
        if any(part.required for part in parts):
            selection = RequiredPhrases([part.required for part in parts], self.tokenizer.piece_bytes)
            constraints.append(selection.unfinished)
        if any(part.prefix for part in parts):
            constraints.append(beginning_with([part.prefix for part in parts]))
        hooks: dict[str, Any] = {"selection": selection, "groups": groups}
        if options.sampling:
            lines = np.array([[part.line, part.place] for part in parts])
            drawn = Sampling(options.seed, lines, options.temperature, options.top_k, options.top_p, options.min_p)
            hooks = {"selection": drawn, "groups": self.beam_size}
        elif options.diverse_groups > 1:
            hooks = {"selection": Diverse(options.diverse_strength), "groups": options.diverse_groups}
        return {"beam_size": self.beam_size, "n_best": self.candidates, "normaliser": self.normaliser,
                "patience": options.patience, "banned": self.tokenizer.never_generated_ids,
                "constraints": constraints, **hooks}

    def limits(self, parts: Sequence[Part], source_lengths: np.ndarray, max_positions: int) -> list[int]:
        """Return the length limit of each part's translation, `</s>` included.

        Raises:
            RequestError: prefix, required phrases or min_length of a line exceed the limit.
        """
        options = self.options
        longest = min(max_positions, math.inf if options.max_length is None else options.max_length + 1)
        limits = (source_lengths * options.max_length_ratio + options.max_length_offset).clip(1, longest).astype(int)
        for place, part in enumerate(parts):
            least = max(options.min_length, part.least_length) + 1
            if least > longest:
                raise RequestError(f"line {part.line + 1}: its translation is to have {least - 1} pieces, but no "
                                   f"translation has more than {longest - 1:g}. Ask for less"
                                   f"{', or raise max_length' if options.max_length else ''}.")
            limits[place] = max(limits[place], least)
        return [int(limit) for limit in limits]

    def ensemble(self, models: Sequence[Stepwise]) -> Stepwise:
        """Return one model, or an ensemble of several."""
        return models[0] if len(models) == 1 else Ensemble(models, self.options.ensemble_mean)

    def with_fusion_and_coverage(self, model: Stepwise, language_model: Stepwise | None
                                 ) -> tuple[Stepwise, dict[str, Any]]:
        """Return the model to search, with fusion and coverage penalty if requested, and their options of search."""
        hooks: dict[str, Any] = {}
        if language_model is not None:
            model = Fusion(model, language_model, self.options.fusion_weight)
            hooks["normalised"] = True
        if self.options.coverage_penalty:
            model = covering = Covering(model)
            hooks["bonus"] = covering.penalty(self.options.coverage_penalty)
        return model, hooks

    def rerank(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Choose the translations to return from the hypotheses of a sentence, best first; reranks them with MBR."""
        options = self.options
        if options.diverse_groups > 1:
            hypotheses = self._distinct(hypotheses)
        if options.mbr:
            hypotheses = hypotheses[: options.mbr]
            utilities = expected_utilities(self.texts(hypotheses))
            hypotheses = self._distinct([replace(hypotheses[place], score=float(utilities[place]))
                                         for place in np.argsort(-utilities, kind="stable")])
        return hypotheses[: options.n_best]

    def _distinct(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the first hypothesis of each different text."""
        first: dict[str, Hypothesis] = {}
        for text, hypothesis in zip(self.texts(hypotheses), hypotheses, strict=True):
            first.setdefault(text, hypothesis)
        return list(first.values())

    def score(self, hypotheses: Sequence[Hypothesis]) -> float:
        """Return the score of a translation from the hypotheses of its parts; 0 if there are none."""
        if self.options.mbr and hypotheses:
            return sum(hypothesis.score for hypothesis in hypotheses) / len(hypotheses)
        tokens = sum(len(hypothesis.tokens) + 1 for hypothesis in hypotheses)
        total = sum(hypothesis.log_probability for hypothesis in hypotheses)
        bonus = sum(hypothesis.bonus for hypothesis in hypotheses)
        return total / self.normaliser(tokens) + bonus if tokens else 0.0

    def texts(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        """Return the texts of hypotheses on one line each, without white space at the ends, which is the source's."""
        return [text.replace("\n", " ").strip()
                for text in self.tokenizer.decode([hypothesis.tokens for hypothesis in hypotheses])]

    def required_phrase(self, phrase: str, line: int | None = None, whole_words: bool = True) -> RequiredPhrase:
        """Return the constraint for a required phrase: whole words, or any substring in languages without spaces.

        With `decoding.ignore_case`, any casing satisfies it. Search itself proposes these casings, if the vocabulary
        can spell them: as given, lower case, first letter in upper case, first letter of each word in upper case, and
        upper case.

        Args:
            line: number of the line, from 0, for the error. whole_words: False: any substring satisfies it.
        Raises:
            RequestError: the phrase has control characters or no pieces; the message names the line, if it is given.
        """
        given, ignore_case = phrase.strip(), self.options.ignore_case
        casings = [given, given.lower(), given.capitalize(), capwords(given, " "), given.upper()]
        spellings, refused = [], None
        for casing in dict.fromkeys(casings if ignore_case else [given]):
            try:
                spellings += self._spellings(casing, line)
            except RequestError as error:
                refused = refused or error
        if refused and not spellings:
            raise refused
        # Normalised as the tokenizer does. Spellings that do not match are dropped: the upper case of "ß" is "SS".
        text = text_of(spellings[0], self.tokenizer.piece_bytes).strip()
        required = Phrase(text, whole_words and not self.spaceless, ignore_case)
        return RequiredPhrase(required, tuple(dict.fromkeys(
            spelling for spelling in spellings if required.is_in(text_of(spelling, self.tokenizer.piece_bytes)))))

    def _spellings(self, phrase: str, line: int | None) -> list[tuple[int, ...]]:
        """Return the pieces of a phrase within a text (after a space, except in languages without spaces); if the
        phrase is segmented differently at the beginning of a text, also those pieces."""
        alone = self._encode(phrase, line, "required phrase")
        if not alone:
            raise RequestError(f"{_line(line)}the required phrase {phrase!r} has only characters that the tokenizer "
                               "drops. Leave it out.")
        if self.spaceless:
            return [self._behind_text(phrase, line) or alone]
        if self.tokenizer.piece_bytes[alone[0]].startswith(b" "):
            return [alone]
        behind = self._behind_text(f" {phrase}", line)
        return [alone] if behind is None else [alone, behind]

    def _behind_text(self, text: str, line: int | None) -> tuple[int, ...] | None:
        """Return the pieces of a text that does not begin its line.

        None if the tokenizer joins the text with the character before it, or drops that character.
        """
        before = self._encode(NO_WORD, line, "required phrase")
        pieces = self._encode(NO_WORD + text, line, "required phrase")
        return pieces[len(before) :] if pieces[: len(before)] == before and len(pieces) > len(before) else None

    def _constraints(self) -> Sequence[ScoreFunction]:
        options = self.options
        found = []
        if options.min_length:
            found.append(at_least(options.min_length))
        if options.no_repeat_ngram:
            found.append(no_repeat_ngram(options.no_repeat_ngram))
        if options.forbid:
            phrases = dict.fromkeys(form for phrase in options.forbid for form in self._forms(phrase.strip()))
            found.append(without(list(phrases), self.tokenizer.piece_bytes, not self.spaceless, options.ignore_case))
        return found

    def _forms(self, phrase: str) -> list[str]:
        """Return a phrase as written, and as normalised by the tokenizer, the form that translations contain."""
        pieces = self.tokenizer.encode([phrase])[0]
        normalised = "" if UNKNOWN_ID in pieces else text_of(pieces, self.tokenizer.piece_bytes).strip()
        return [phrase, normalised] if normalised else [phrase]

    def _encode(self, text: str, line: int | None, name: str) -> tuple[int, ...]:
        pieces = tuple(self.tokenizer.encode([text])[0])
        if banned := set(pieces).intersection(self.tokenizer.never_generated_ids):
            raise RequestError(f"{_line(line)}the {name} {text!r} holds {self.tokenizer.pieces(sorted(banned))[0]}, a "
                               "control character, which no translation has. Take it out.")
        return pieces


def _line(number: int | None) -> str:
    """Return the beginning of a message about a line."""
    return "" if number is None else f"line {number + 1}: "
