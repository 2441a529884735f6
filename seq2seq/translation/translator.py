"""Translation with a trained model: the public interface, which the command line, validation and evaluation also use.

Long lines are split, and faulty translations are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from seq2seq.console import html_table
from seq2seq.data.batching import EncodedSide
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.data.line_splitting import DividedLine, divide
from seq2seq.devices import choose_device, configure_process, num_threads
from seq2seq.errors import CheckpointError, CorpusError, OptionError, RequestError, UserError
from seq2seq.inference.engines import Engine, load_engine
from seq2seq.inference.load_model import StoredModel, read_stored_model, require_same_context, require_same_vocabulary
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages, Recipe, Task, decoding_with
from seq2seq.recipe.directions import direction_into
from seq2seq.recipe.task import TRANSLATION
from seq2seq.search.beam import NoHypothesis, search
from seq2seq.search.options import Pause
from seq2seq.storage.checkpoints import stored_characters
from seq2seq.tokenizers.context import parse_context, shortened
from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Tokenizers, Vocabulary
from seq2seq.translation.output_faults import FAULTS
from seq2seq.translation.retry_faulty_lines import retry_faulty, retry_sentences
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup
from seq2seq.translation.sources import growing_blocks, line_progress, number_sources
from seq2seq.translation.word_confidence import Word, log_probabilities, words_of

if TYPE_CHECKING:
    from seq2seq.model.interface import Seq2Seq

ReportProgress = Callable[[int], None]
"""Function that is called with the number of lines or pairs that were finished since its last call."""


TERM_REPORTS = ("lost_terms", "placed_terms", "misplaced_terms")
"""Fields of a translation that name terms, which reports show if they are not empty."""


@dataclass(frozen=True)
class Translation:
    """Translation of a line.

    text: detokenized text, without line end. score: number by which the translations of a line are ranked.
    log_probability: log p(target | source), `</s>` included; for a line translated in parts, the sum over the parts.
    tokens: number of target pieces, plus one `</s>` per part. parts: number of parts in which the line was translated;
    0 for blank lines, which are returned unchanged. words: words of the translation with the model's confidence, if
    requested. faults: names of the translation's faults (see `output_faults.FAULTS`); empty if it was not checked.
    retried: True if the translation comes from a retry. Of terms of the glossary and required phrases (see
    `documents.protected_translation`): lost_terms: those that the translation lacks. placed_terms: those that were put
    in place of the words that they are aligned to, because the search did not find a place for them; score,
    log_probability and tokens are those of the translation before. misplaced_terms: those that are in the translation,
    but out of place, because they could not be aligned. unseen: characters of the source that the model's training
    text never had.
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
    placed_terms: tuple[str, ...] = ()
    misplaced_terms: tuple[str, ...] = ()
    unseen: str = ""

    def _repr_html_(self) -> str:
        """Return a table for a notebook: text, score, and what else is known about the translation."""
        notes = {"parts": str(self.parts) if self.parts > 1 else "", "faults": ", ".join(self.faults),
                 "retried": "yes" if self.retried else "", "characters that training never had": self.unseen,
                 **{name.replace("_", " "): ", ".join(getattr(self, name)) for name in TERM_REPORTS},
                 "confidence": "  ".join(f"{word.text} {word.confidence:.2f}" for word in self.words)}
        return html_table([("translation", self.text), ("score", f"{self.score:.3f}"),
                           ("log p", f"{self.log_probability:.3f} ({self.tokens:,} tokens)"),
                           *((name, note) for name, note in notes.items() if note)])


@dataclass(frozen=True, eq=False, repr=False)
class Translator:
    """Model with its tokenizers, ready to translate.

        translator = Translator.load("runs/multi30k_de_en")
        translator.translate(["Ein Hund läuft."])[0][0].text

    directions: directions of the model, with the one of lines that name no language. decoding: default decoding
    options; a call can override them. max_pieces: maximum number of source pieces of a part;
    a longer line is translated in several parts. device: device of the model. task: task of the model. context: number
    of previous sentences that the model reads with each line (`data.context`). engine: model that runs the search.
    other_engines: engines of the other models of an ensemble. language_model: engine of the language model for shallow
    fusion. directory: path from which the model was loaded; None: it was not loaded from a file. characters: characters
    of the training sources; None: not known. pause: see `SearchOptions`; also asked between batches and checks for
    faults. retries: False to check translations for faults, but not to translate faulty ones again. description:
    architecture and number of parameters.
    """

    tokenizers: Tokenizers
    directions: Directions
    decoding: DecodingSection
    max_pieces: int
    device: str
    task: Task
    context: int
    engine: Engine
    other_engines: tuple[Engine, ...] = ()
    language_model: Engine | None = None
    directory: Path | None = None
    characters: frozenset[str] | None = None
    pause: Pause | None = None
    retries: bool = True
    description: str = ""

    def __repr__(self) -> str:
        pair = " to ".join(self.languages.codes) if self.task.has_source else self.languages.target
        other = "".join([f", ensemble of {len(self.other_engines) + 1}" if self.other_engines else "",
                         ", with a language model" if self.language_model else ""])
        return f"<Translator {pair}: {self.description}{other}; {self.precision} on {self.device}>"

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
    def model(self) -> Seq2Seq:
        """Model in PyTorch, which scores all positions of given targets at once."""
        return self.engine.model

    @staticmethod
    def load(path: str | Path, device: str = "auto", precision: str = "auto", threads: int | None = None,
             ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
             target_language: str | None = None) -> Translator:
        """Load a model from a bundle, or from the best bundle of a run directory.

        Args:
            device: auto, cpu, cuda, cuda:1, …
            precision: int8 (only on a CPU), fp32, bf16, fp16 (only on a GPU); reference: fp32 on a CPU, on a GPU the
                first of bf16, fp16 and fp32 that it supports; auto: int8 on a CPU, unless the bundle says that it loses
                too much BLEU (`default_precision`), otherwise reference. If the model has no int8, or the package was
                built without a C++ compiler, a message says so, and fp32 is used instead. Scoring always uses fp32
                instead of int8. In fp32 and int8, a translation does not depend on the other lines. In bf16, rounding
                depends on the shape of the batch, which in rare cases changes a translation.
            threads: number of CPU threads; None: see `configure_process`.
            ensemble: paths of the other models of an ensemble (see `decoding.ensemble_mean`).
            fusion: path of the language model for shallow fusion (see `decoding.fusion_weight`).
            target_language: target language, if the model has several; None: the recipe's target language.
        Raises:
            CheckpointError: a model is missing or damaged, or the vocabularies differ.
            UserError: the device, precision or number of threads is not available, or a model has the wrong task
                for `ensemble` or `fusion`.
            OptionError: the model does not translate into `target_language`.
        """
        configure_process(threads)
        stored = read_stored_model(Path(path))
        tokenizers, recipe = stored.tokenizers, stored.recipe.into(target_language)
        translator = Translator.of_model(replace(stored, recipe=recipe), choose_device(device), precision)
        others = [Translator.load(other, device, precision, threads) for other in ensemble]
        for other, other_path in zip(others, ensemble, strict=True):
            if not other.task.has_source:
                raise UserError(f"{other_path} is a language model, which cannot be a member of an ensemble. Use it "
                                "for fusion instead.")
        language_model = None if fusion is None else Translator.load(fusion, device, precision, threads)
        for other, other_path in zip(others, ensemble, strict=True):
            require_same_vocabulary(path, tokenizers.source, other_path, other.tokenizers.source)
            require_same_vocabulary(path, tokenizers.target, other_path, other.tokenizers.target)
            require_same_context(path, translator.context, other_path, other.context)
            if translator.directions.codes or other.directions.codes:          # both read the same language token
                direction_into(translator.languages.target, other.directions.all, str(other_path))
        if language_model is not None and fusion is not None:
            if language_model.task.has_source:
                raise UserError(f"{fusion} is not a language model, which fusion needs. Use it as a member of an "
                                "ensemble instead.")
            require_same_vocabulary(path, tokenizers.target, fusion, language_model.tokenizers.target)
        known = frozenset(stored_characters(stored.metadata, "source")) or None
        return replace(translator, directory=Path(path), characters=known,
                       other_engines=tuple(other.engine for other in others),
                       language_model=None if language_model is None else language_model.engine,
                       max_pieces=min(each.max_pieces for each in (translator, *others)))

    @staticmethod
    def of_model(stored: StoredModel, device: str, precision: str = "auto") -> Translator:
        """Return a translator with the decoding options of the model's recipe. precision: see `load`.

        On a CPU, the translator may use arrays of `stored.weights` in place, so they must not change meanwhile.
        """
        recipe, tokenizers = stored.recipe, stored.tokenizers
        return Translator(tokenizers, directions_of_model(recipe, tokenizers.source), recipe.decoding,
                          recipe.max_input_pieces, device, recipe.task, recipe.data.context,
                          load_engine(stored, precision, device), description=describe_model(stored))

    def towards(self, languages: Languages) -> Translator:
        """Return a translator for another direction of the same model."""
        return replace(self, directions=replace(self.directions, chosen=languages))

    def into(self, target_language: str) -> Translator:
        """Return a translator into a target language of the model. A model with a single target language is returned
        unchanged.

        Raises:
            OptionError: the model has several target languages, and this language is none of them.
        """
        return replace(self, directions=self.directions.into(target_language))

    def translate(self, lines: Sequence[str | Source], *, progress: ReportProgress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """Return the `n_best` translations of each line, best first.

        Their texts differ. If the search finds fewer different texts, the list is shorter, but never empty. With
        `sampling` and without `mbr`, it has `n_best` samples, and a text that was drawn twice occurs twice. A better
        translation from a retry comes first (see `decoding.safety_net`). Blank lines are returned unchanged. White
        space around a line is kept. A line that is too long for the model is translated in parts, and so are the
        sentences of a line whose translation would be faulty; such a line has only one translation. If the model uses
        context (`data.context`), a blank line ends a document.

        Args:
            lines: texts of any length without line ends, or `Source`s for lines that have their own constraints.
            progress: function that is called from time to time with the number of lines finished since its last call.
            decoding: values that override the recipe's `decoding` section in this call, such as beam_size=1.
        Raises:
            OptionError: an option is unknown, its value is invalid, or a line has a context that the model cannot use.
            UserError: the model is a language model, or the constraints of a line cannot be met.
            CorpusError: a line is too long for a pointer network, whose input cannot be split.
            TypeError: `lines` is a single text.
        """
        setup = self._search_setup(decoding)
        sources = list(map(self.source, number_sources(lines, self.context)))
        if any(source.language not in ("", self.languages.target) for source in sources):
            return self._translate_languages(sources, progress, decoding)
        if not self.context and any(source.context is not None for source in sources):
            raise OptionError("a line has a context, but the model was trained without data.context. Omit the context.")
        divided = self._divide(sources)
        parts = [part for source, line in zip(sources, divided, strict=True)
                 for part in setup.parts(source, line.texts)]
        report = line_progress([len(line.texts) for line in divided], progress)
        translations = self.search_parts(parts, setup, report)
        if setup.decoding.safety_net and self.task.target_is_text:
            retried = partial(retry_faulty, setup=setup, languages=self.languages, give_way=self._give_way,
                              search=self.search_parts if self.retries else None)
            translations = retried(parts, translations)
            if self.retries and not setup.decoding.sampling and not setup.decoding.mbr:
                divided, translations = retry_sentences(
                    divided, parts, translations, self.languages,
                    lambda sentences: retried(sentences, self.search_parts(sentences, setup)))
        remaining = iter(translations)
        return [self._join_parts(line, list(islice(remaining, len(line.texts))), setup) for line in divided]

    def _translate_languages(self, sources: Sequence[Source], progress: ReportProgress | None,
                             decoding: DecodingOptions) -> list[list[Translation]]:
        """Translate sources with several target languages. Splitting, retries and joining depend on the language."""
        found: dict[int, list[Translation]] = {}
        for language in dict.fromkeys(source.language for source in sources):
            indices = [index for index, source in enumerate(sources) if source.language == language]
            translations = self.into(language).translate([sources[index] for index in indices], progress=progress,
                                                         **decoding)
            found.update(zip(indices, translations, strict=True))
        return [found[index] for index in range(len(sources))]

    def translate_stream(self, lines: Iterable[str | Source], block_lines: int = 8192, *,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """Yield the result of `translate` for each line of an input of any length, in order.

        Options are checked when this method is called. Each line is checked when it is read.

        block_lines: maximum number of lines that are translated together. The first blocks are smaller, for early
            results.
        """
        self._search_setup(decoding)
        translate = partial(self.translate, progress=progress, **decoding)
        return translate_blocks(translate, lines, self.context, block_lines)

    def search_parts(self, parts: Sequence[Part], setup: SearchSetup,
                     progress: Callable[[np.ndarray], None] = lambda indices: None) -> list[list[PartTranslation]]:
        """Return the best translations of each part, best first, with word confidences if requested.

        progress: function that is called with the indices of newly finished parts.
        Raises:
            RequestError: no hypothesis satisfies the constraints of a line.
            CheckpointError: the model's logits are NaN.
        """
        sources = EncodedSide.from_lists(self.encode([part.source for part in parts]))
        translations: list[list[PartTranslation]] = [[] for _ in parts]
        if not parts:
            return translations
        batch_tokens = self._batch_tokens(parts, setup) * 2 // max(2, setup.beam_size)
        for indices in batches_in_order(sources.lengths, batch_tokens):
            self._give_way()
            ids, offsets, _ = sources.gather(indices)
            in_batch = self._search_batch([parts[index] for index in indices], ids, offsets, setup)
            for index, n_best in zip(indices, in_batch, strict=True):
                translations[index] = n_best
            progress(indices)
        return translations

    def _give_way(self) -> None:
        if self.pause is not None:
            self.pause.check()

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
        options = replace(setup.search_options(parts, fusion=self.language_model is not None), pause=self.pause)
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
        n_best = [setup.select(list(map(PartTranslation, each, islice(texts, len(each))))) for each in hypotheses]
        if setup.decoding.word_confidence:
            targets = [[one.hypothesis.tokens for one in each] for each in n_best]
            scores = log_probabilities(model, ids, source_offsets, targets)
            n_best = [[replace(one, words=self._words(one.hypothesis.tokens, of_words))
                       for one, of_words in zip(*each, strict=True)] for each in zip(n_best, scores, strict=True)]
        return n_best

    def _words(self, target: list[int], scores: list[float]) -> tuple[Word, ...]:
        return words_of(target, scores, self.tokenizers.target, self.languages.target)

    def source(self, line: str | Source) -> Source:
        """Return a line as the model reads it. A language token or a context at the beginning of the text becomes a
        field of the source. A source without language gets that of the translator, one without context an empty one."""
        source = self.directions.source(line)
        if not self.context:
            return source
        source = parse_context(source)
        return replace(source, context=source.context or ())

    def unseen(self, line: str | Source) -> str:
        """Return the characters of a source that the training text never had; "" if those of the text are not known."""
        if self.characters is None:
            return ""
        return "".join(sorted(set(self.tokenizers.source.normalized(self.source(line).text)) - self.characters))

    def encode(self, lines: Sequence[str | Source]) -> list[list[int]]:
        """Return the ids of source lines. If a line with its context is too long, the context loses its oldest
        sentences."""
        encode = partial(self.tokenizers.source.encode, threads=num_threads())
        sources = list(map(self.source, lines))
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

    def _divide(self, sources: Sequence[Source]) -> list[DividedLine]:
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
        unseen = self.unseen(" ".join(line.texts))
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


def describe_model(stored: StoredModel) -> str:
    """Return architecture and number of parameters, such as "transformer, 3 + 3 layers of width 256, 7,577,600
    parameters"."""
    section, parameters = stored.recipe.model, sum(weight.size for weight in stored.weights.values())
    layers = f"{section.decoder_layers}" if section.type == "language_model" else \
        f"{section.encoder_layers} + {section.decoder_layers}"
    return f"{section.type.replace('_', ' ')}, {layers} layers of width {section.d_model}, {parameters:,} parameters"


def directions_of_model(recipe: Recipe, vocabulary: Vocabulary) -> Directions:
    """Return the directions of a model. vocabulary: its source vocabulary."""
    targets = recipe.target_languages if recipe.task is TRANSLATION else []
    codes = [code for code in targets if vocabulary.language_id(code) is not None]
    return Directions(recipe.languages, recipe.directions, tuple(codes))


def translate_blocks(translate: Callable[[list[Source]], list[list[Translation]]], lines: Iterable[str | Source],
                     context: int, block_lines: int) -> Iterator[list[Translation]]:
    """Yield the translations of lines, block by block. context: see `number_sources`. block_lines: see
    `Translator.translate_stream`."""
    return chain.from_iterable(map(translate, growing_blocks(number_sources(lines, context), block_lines)))
