"""Search of lines with a model: long lines are split, faulty translations are retried, and the parts are joined.

`Translator` is a line search that also keeps what is not text: it is the only caller of `LineSearch.search_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seq2seq.data.batching import EncodedSide
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.devices import num_threads
from seq2seq.errors import CheckpointError, CorpusError, RequestError, UserError
from seq2seq.inference.engines import Engine
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages, Task, decoding_with
from seq2seq.search.beam import NoHypothesis, search
from seq2seq.tokenizers.context import shortened
from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.line_reader import LineReader, split_tag
from seq2seq.tokenizers.line_splitting import DividedLine, divide
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.translation.output_faults import FAULTS
from seq2seq.translation.retry_faulty_lines import retry_faulty, retry_sentences
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup
from seq2seq.translation.sources import line_progress
from seq2seq.translation.translation import ReportProgress, Translation
from seq2seq.translation.word_confidence import Word, log_probabilities, words_of

if TYPE_CHECKING:
    from seq2seq.model import Model


@dataclass(frozen=True, eq=False, repr=False)
class LineSearch:
    """Model with its tokenizers, ready to search.

    reader: turns lines into sources; it has the directions of the model, with the one of lines that name no language.
    decoding: default decoding options; a call can override them. max_pieces: maximum number of source pieces of a part;
    a longer line is translated in several parts. device: device of the model. task: task of the model. engine: model
    that runs the search. other_engines: engines of the other models of an ensemble. language_model: engine of the
    language model for shallow fusion. directory: path from which the model was loaded; None: it was not loaded from a
    file. characters: characters of the training sources; None: not known. retries: False to check translations for
    faults, but not to translate faulty ones again. description: architecture and number of parameters.
    """

    tokenizers: Tokenizers
    reader: LineReader
    decoding: DecodingSection
    max_pieces: int
    device: str
    task: Task
    engine: Engine
    other_engines: tuple[Engine, ...] = ()
    language_model: Engine | None = None
    directory: Path | None = None
    characters: frozenset[str] | None = None
    retries: bool = True
    description: str = ""

    @property
    def directions(self) -> Directions:
        """Directions of the model, with the one of lines that name no language."""
        return self.reader.directions

    @property
    def context(self) -> int:
        """Number of previous sentences that the model reads with each line (`data.context`)."""
        return self.reader.context

    @property
    def languages(self) -> Languages:
        """Direction of lines that name no language."""
        return self.directions.chosen

    @property
    def precision(self) -> str:
        """Number format of the computation: "fp32", "bf16", "fp16" or "int8"."""
        return self.engine.precision

    @property
    def max_positions(self) -> int:
        """Maximum length of a source or target sentence in tokens, `</s>` included."""
        return self.engine.max_positions

    @property
    def model(self) -> Model:
        """Model in PyTorch, which scores all positions of given targets at once."""
        return self.engine.model

    def search_lines(self, sources: Sequence[Source], setup: SearchSetup, progress: ReportProgress | None = None
                     ) -> list[list[Translation]]:
        """Return the best translations of each source as the search finds them, without regard to tags, placeholders
        and terms. All sources have the language of the search."""
        sources = list(map(self.source, sources))
        divided = self.divide(sources)
        parts = [part for source, line in zip(sources, divided, strict=True)
                 for part in setup.parts(source, line.texts)]
        report = line_progress([len(line.texts) for line in divided], progress)
        translations = self.search_parts(parts, setup, report)
        if setup.decoding.safety_net and self.task.target_is_text:
            retried = partial(retry_faulty, setup=setup, languages=self.languages,
                              search=self.search_parts if self.retries else None)
            translations = retried(parts, translations)
            if self.retries and not setup.decoding.sampling and not setup.decoding.mbr:
                divided, translations = retry_sentences(
                    divided, parts, translations, self.languages,
                    lambda sentences: retried(sentences, self.search_parts(sentences, setup)))
        remaining = iter(translations)
        return [self._join_parts(line, list(islice(remaining, len(line.texts))), setup) for line in divided]

    def search_parts(self, parts: Sequence[Part], setup: SearchSetup,
                     progress: Callable[[np.ndarray], None] = lambda indices: None) -> list[list[PartTranslation]]:
        """Return the best translations of each part, best first, with word confidences if requested.

        progress: function that is called with the indices of newly finished parts.
        """
        sources = EncodedSide.from_lists(self.encode([part.source for part in parts]))
        translations: list[list[PartTranslation]] = [[] for _ in parts]
        if not parts:
            return translations
        batch_tokens = self._batch_tokens(parts, setup) * 2 // max(2, setup.beam_size)
        for indices in batches_in_order(sources.lengths, batch_tokens):
            ids, offsets, _ = sources.gather(indices)
            in_batch = self._search_batch([parts[index] for index in indices], ids, offsets, setup)
            for index, n_best in zip(indices, in_batch, strict=True):
                translations[index] = n_best
            progress(indices)
        return translations

    def _batch_tokens(self, parts: Sequence[Part], setup: SearchSetup) -> int:
        """Return the number for `decoding.batch_tokens`. Only for its own search, an engine knows the memory."""
        alone = not self.other_engines and self.language_model is None
        if setup.decoding.batch_tokens == "auto" and alone and not setup.search_options(parts, fusion=False).has_hooks:
            return self.engine.batch_tokens
        return setup.decoding.batch_tokens_or_default

    def _search_batch(self, parts: Sequence[Part], ids: np.ndarray, offsets: np.ndarray, setup: SearchSetup
                      ) -> list[list[PartTranslation]]:
        """Search a batch of parts. ids: source tokens of all parts, concatenated. offsets: (parts + 1,), index in `ids`
        of the first token of each part; the last element is the total number of tokens."""
        model = setup.ensemble((self.engine, *self.other_engines))
        searched = setup.with_fusion_and_coverage(model, self.language_model)
        whole_search = self.engine.whole_search if searched is self.engine else None
        source_offsets = offsets.astype(np.int32)
        max_lengths = setup.max_lengths(parts, np.diff(offsets), searched.max_positions)
        options = setup.search_options(parts, fusion=self.language_model is not None)
        try:
            hypotheses = search(searched, ids, source_offsets, max_lengths, options, whole_search)
        except NoHypothesis as error:
            raise RequestError(f"line {parts[error.lines[0]].line + 1}: the search found no translation that "
                               "satisfies all constraints. Remove one of them: the prefix, a required or forbidden "
                               "phrase, no_repeat_ngram or min_length.") from error
        except FloatingPointError as error:
            raise CheckpointError(f"{error}: its weights are damaged, or the training diverged. Use an earlier "
                                  "checkpoint, or train with a lower learning rate.") from error
        # One call detokenizes all hypotheses, because the overhead of a call exceeds the time for a sentence.
        texts = iter(setup.texts([hypothesis for each in hypotheses for hypothesis in each]))
        n_best = [setup.select([PartTranslation(hypothesis, _without_tag(part, next(texts))) for hypothesis in each])
                  for part, each in zip(parts, hypotheses, strict=True)]
        if setup.decoding.word_confidence:
            targets = [[one.hypothesis.tokens for one in each] for each in n_best]
            scores = log_probabilities(model, ids, source_offsets, targets)
            n_best = [[replace(one, words=self._words(one, of_words))
                       for one, of_words in zip(*each, strict=True)] for each in zip(n_best, scores, strict=True)]
        return n_best

    def _words(self, translation: PartTranslation, scores: list[float]) -> tuple[Word, ...]:
        """Return the words of a translation with their confidences. scores: log-probabilities of its tokens."""
        tokens = translation.hypothesis.tokens
        words = words_of(tokens, scores, self.tokenizers.target, self.languages.target)
        return _words_of_text(words, translation.text) if self.reader.tags else words

    def source(self, line: str | Source) -> Source:
        """Return a line as the model reads it (see `LineReader.source`). One without context gets an empty one."""
        source = self.reader.source(line)
        return replace(source, context=source.context or ()) if self.context else source

    def unseen(self, line: str | Source) -> str:
        """Return the characters of a source that the training text never had; "" if those of the text are not known."""
        return self._unseen(self.source(line).text)

    def _unseen(self, text: str) -> str:
        if self.characters is None:
            return ""
        return "".join(sorted(set(self.tokenizers.source.normalized(text)) - self.characters))

    def encode(self, lines: Sequence[str | Source]) -> list[list[int]]:
        """Return the ids of source lines. If a line with its context is too long, the context loses its oldest
        sentences."""
        encode = partial(self.tokenizers.source.encode, threads=num_threads())
        sources = list(map(self.source, lines))
        return encode(shortened(sources, encode, self.max_pieces) if self.context else sources)

    def encode_pairs(self, pairs: Sequence[tuple[str | Source, str]]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of sources and of their translations."""
        sources, vocabulary = [self.source(source) for source, _ in pairs], self.tokenizers.target
        targets = vocabulary.target_lines([target for _, target in pairs], sources)
        return self.encode(sources), vocabulary.encode(targets, num_threads())

    def search_setup(self, decoding: DecodingOptions) -> SearchSetup:
        """Return the search setup of a call."""
        if not self.task.has_source:
            raise UserError("this is a language model, which cannot translate. It can generate text (seq2seq generate) "
                            "and improve the translations of another model (seq2seq translate --fusion, seq2seq "
                            "rescore).")
        return SearchSetup(decoding_with(self.decoding, decoding), self.tokenizers.target, self.languages.target,
                           self.context)

    def divide(self, sources: Sequence[Source]) -> list[DividedLine]:
        """Split each line into texts that fit the model. The context does not count, because it is shortened."""
        normalized = self.tokenizers.source.normalized
        alone = [replace(source, text=normalized(source.text), context=source.context and ()) for source in sources]
        encoded = self.tokenizers.source.encode(alone, num_threads())
        for source, ids in zip(alone, encoded, strict=True):
            if not self.task.target_is_text and len(ids) > self.max_pieces:
                raise CorpusError(f"the line that begins with '{source.text[:30]}' has {len(ids):,} words, but this "
                                  f"model accepts at most {self.max_pieces:,}. It cannot be translated in parts, "
                                  "because the output consists of positions in the line. Shorten it, or train with a "
                                  "larger model.max_positions.")

        def fits(source: Source, ids: Sequence[int], text: str) -> bool:
            if normalized(text) != source.text:
                ids, = self.tokenizers.source.encode([replace(source, text=text)])
            return len(ids) <= self.max_pieces

        return [divide(source.text, partial(fits, one, ids), normalized)
                for source, one, ids in zip(sources, alone, encoded, strict=True)]

    def _join_parts(self, line: DividedLine, parts: list[list[PartTranslation]], setup: SearchSetup
                    ) -> list[Translation]:
        """Return the translations of a line. A line of one part has all translations of this part. A longer line has
        only one translation, joined from the best translation of each part."""
        n_best = [[translation] for translation in parts[0]] if len(parts) == 1 else [[best for best, *_ in parts]]
        unseen = self._unseen(" ".join(line.texts))
        return [self._translation(line, translations, setup, unseen) for translations in n_best]

    def _translation(self, line: DividedLine, parts: list[PartTranslation], setup: SearchSetup, unseen: str,
                     ) -> Translation:
        hypotheses = [part.hypothesis for part in parts]
        return Translation(
            text=line.join([part.text for part in parts], self.languages.target),
            score=setup.score(hypotheses),
            log_probability=sum(hypothesis.log_probability for hypothesis in hypotheses),
            tokens=sum(len(hypothesis.tokens) + 1 for hypothesis in hypotheses),
            parts=len(parts),
            words=tuple(word for part in parts for word in part.words),
            faults=tuple(name for name in FAULTS if any(name in part.faults for part in parts)),
            retried=any(part.retried for part in parts),
            unseen=unseen)


def _without_tag(part: Part, text: str) -> str:
    """Return the text of a translation without the tag of its source, which a model may copy to the beginning."""
    tag = part.source.tag
    if not tag or split_tag(part.source.text, [tag])[0]:                        # the text itself begins with it
        return text
    while (found := split_tag(text, [tag]))[0]:
        text = found[1]
    return text


def _words_of_text(words: Sequence[Word], text: str) -> tuple[Word, ...]:
    """Return the words without those before the text, which are a tag that `_without_tag` has removed."""
    extra = sum(len(word.text) for word in words) - len("".join(text.split()))
    begin = 0
    while begin < len(words) and len(words[begin].text) <= extra:
        extra -= len(words[begin].text)
        begin += 1
    return tuple(words[begin:])
