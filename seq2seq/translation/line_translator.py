"""Translation of lines of text with any search method: long lines are split, and faulty translations are retried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Unpack

import numpy as np
import torch

from seq2seq.data.line_splitting import DividedLine, divide
from seq2seq.errors import CorpusError, OptionError, UserError
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages, Task, decoding_with
from seq2seq.tokenizers.context import shortened
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.translation.output_faults import FAULTS
from seq2seq.translation.requests import Request, growing_blocks, line_progress, number_requests
from seq2seq.translation.retry_faulty_lines import retry_faulty
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup
from seq2seq.translation.word_confidence import Word

ReportProgress = Callable[[int], None]
"""Function that is called with the number of lines or pairs that were finished since its last call."""


@dataclass(frozen=True)
class Translation:
    """Translation of a line.

    text: detokenized text, without line end. score: number by which the translations of a line are ranked.
    log_probability: log p(target | source), `</s>` included; for a line translated in parts, the sum over the parts.
    tokens: number of target pieces, plus one `</s>` per part. parts: number of parts in which the line was translated;
    0 for blank lines, which are returned unchanged. words: words of the translation with the model's confidence, if
    requested. faults: names of the translation's faults (see `output_faults.FAULTS`); empty if it was not checked.
    retried: True if the translation comes from a retry. lost_terms: terms of the glossary that the translation lacks,
    if a glossary was given (see `ProtectedTranslator`).
    """

    text: str
    score: float
    log_probability: float
    tokens: int
    parts: int = 1
    words: tuple[Word, ...] = ()
    faults: tuple[str, ...] = ()
    retried: bool = False
    lost_terms: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairScore:
    """log p(target | source) in nats, and the number of target tokens, both with `</s>` included."""

    log_probability: float
    tokens: int


@dataclass(frozen=True, eq=False, repr=False)
class LineTranslator(ABC):
    """Translator of lines of text. Subclasses implement the search (`search_parts`) and the scoring (`score`).

    decoding: default decoding options; a call can override them. max_pieces: maximum number of source pieces of a part;
    a longer line is translated in several parts. device: device of the model. task: task of the model. context: number
    of previous sentences that the model reads with each line (`data.context`).
    """

    tokenizers: Tokenizers
    languages: Languages
    decoding: DecodingSection
    max_pieces: int
    device: torch.device
    task: Task
    context: int

    @property
    @abstractmethod
    def precision(self) -> str:
        """Number format of the computation: "fp32", "bf16", "fp16" or "int8"."""

    @property
    @abstractmethod
    def max_positions(self) -> int:
        """Maximum length of a source or target sentence in tokens, `</s>` included."""

    @abstractmethod
    def search_parts(self, parts: Sequence[Part], setup: SearchSetup,
                     progress: Callable[[np.ndarray], None] = lambda indices: None) -> list[list[PartTranslation]]:
        """Return the best translations of each part, best first, with word confidences if requested.

        progress: function that is called with the indices of newly finished parts.
        Raises:
            RequestError: no hypothesis satisfies the constraints of a line.
            CheckpointError: the model's logits are NaN.
        """

    @abstractmethod
    def score(self, pairs: Sequence[tuple[str, str]], progress: ReportProgress | None = None) -> list[PairScore]:
        """Return log p(target | source) of given translations.

        Raises:
            ValueError: a source or target is too long for the model (see `scorable_pairs`).
            CorpusError: a target of a pointer network contains something other than positions of its source.
        """

    def translate(self, lines: Sequence[str | Request], *, progress: ReportProgress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """Return the best translations of each line, best first, at least one per line.

        A better translation from a retry comes first (see `decoding.safety_net`). Blank lines are returned unchanged.
        White space around a line is kept. A line that is too long for the model is translated in parts, and has only
        one translation. If the model uses context (`data.context`), a blank line ends a document.

        Args:
            lines: texts of any length without line ends, or `Request`s for lines that have their own constraints.
            progress: function that is called from time to time with the number of lines finished since its last call.
            decoding: values that override the recipe's `decoding` section in this call, such as beam_size=1.
        Raises:
            OptionError: an option is unknown, its value is invalid, or a line has a context that the model cannot use.
            UserError: the model is a language model, or the constraints of a line cannot be met.
            CorpusError: a line is too long for a pointer network, whose input cannot be split.
            TypeError: `lines` is a single text.
        """
        setup = self._search_setup(decoding)
        requests = list(number_requests(lines, 0, self.context))
        if not self.context and any(request.context is not None for request in requests):
            raise OptionError("a line has a context, but the model was trained without data.context. Omit the context.")
        split_lines = self._split_lines([request.text for request in requests])
        parts = [part for request, line in zip(requests, split_lines, strict=True)
                 for part in setup.parts(request, line.texts)]
        report = line_progress([len(line.texts) for line in split_lines], progress)
        translations = self.search_parts(parts, setup, report)
        if setup.decoding.safety_net and self.task.target_is_text:
            translations = retry_faulty(parts, translations, setup, self.languages, self.search_parts)
        remaining = iter(translations)
        return [self._join_parts(line, list(islice(remaining, len(line.texts))), setup) for line in split_lines]

    def translate_stream(self, lines: Iterable[str | Request], block_lines: int = 8192, *,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """Yield the result of `translate` for each line of an input of any length, in order.

        Options are checked when this method is called. Each line is checked when it is read.

        block_lines: maximum number of lines that are translated together. The first blocks are smaller, for early
            results.
        """
        self._search_setup(decoding)
        blocks = growing_blocks(number_requests(lines, 0, self.context), block_lines)
        return chain.from_iterable(self.translate(block, progress=progress, **decoding) for block in blocks)

    def scorable_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the pairs that `score` accepts: both sides, `</s>` included, have at most `max_positions` tokens."""
        sides = (self.encode_texts([source for source, _ in pairs]),
                 self.tokenizers.target.encode([target for _, target in pairs], torch.get_num_threads()))
        return [pair for pair, *ids in zip(pairs, *sides, strict=True) if max(map(len, ids)) < self.max_positions]

    def encode_texts(self, sources: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source. If a source with context is too long, its oldest sentences are dropped."""
        encode = partial(self.tokenizers.source.encode, threads=torch.get_num_threads())
        return encode(shortened(sources, encode, self.max_pieces) if self.context else sources)

    def _search_setup(self, decoding: DecodingOptions) -> SearchSetup:
        """Return the search setup of a call.

        Raises:
            OptionError: an option is unknown, or its value is invalid.
            UserError: this is a language model, or the vocabulary cannot spell a required phrase.
        """
        if not self.task.has_source:
            raise UserError("this is a language model, which cannot translate. It can generate text (seq2seq generate) "
                            "and improve the translations of another model (seq2seq translate --fusion, seq2seq "
                            "rescore).")
        return SearchSetup(decoding_with(self.decoding, decoding), self.tokenizers.target, self.languages.target,
                           self.context)

    def _split_lines(self, lines: Sequence[str]) -> list[DividedLine]:
        texts = [line.strip() for line in lines]
        encoded = self.tokenizers.source.encode(texts, torch.get_num_threads())
        short = {text for text, ids in zip(texts, encoded, strict=True) if len(ids) <= self.max_pieces}
        for text, ids in zip(texts, encoded, strict=True):
            if not self.task.target_is_text and len(ids) > self.max_pieces:
                raise CorpusError(f"the line that begins with '{text[:30]}' has {len(ids):,} words, but this model "
                                  f"accepts at most {self.max_pieces:,}. It cannot be translated in parts, because the "
                                  "output consists of positions in the line. Shorten it, or train with a larger "
                                  "model.max_positions.")

        def fits(text: str) -> bool:
            return text in short or len(self.tokenizers.source.encode([text])[0]) <= self.max_pieces

        heads = [self.tokenizers.source.language_prefix(text) for text in texts]
        return [divide("" if head and text == head.strip() else line, fits, head)      # a language token alone is blank
                for line, text, head in zip(lines, texts, heads, strict=True)]

    def _join_parts(self, line: DividedLine, parts: list[list[PartTranslation]], setup: SearchSetup
                    ) -> list[Translation]:
        """Return the translations of a line. A line of one part has all translations of this part. A longer line has
        only one translation, joined from the best translation of each part."""
        n_best = [[translation] for translation in parts[0]] if len(parts) == 1 else [[best for best, *_ in parts]]
        return [self._translation(line, translations, setup) for translations in n_best]

    def _translation(self, line: DividedLine, parts: list[PartTranslation], setup: SearchSetup) -> Translation:
        hypotheses = [part.hypothesis for part in parts]
        return Translation(
            text=line.join([part.text for part in parts], self.languages.target),
            score=setup.score(hypotheses),
            log_probability=sum(hypothesis.log_probability for hypothesis in hypotheses),
            tokens=sum(len(hypothesis.tokens) + 1 for hypothesis in hypotheses),
            parts=len(parts),
            words=tuple(word for part in parts for word in part.words),
            faults=tuple(name for name in FAULTS if any(name in part.faults for part in parts)),
            retried=any(part.retried for part in parts))
