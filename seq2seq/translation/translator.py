"""Translation with a trained model: the public interface, which the command line, validation and evaluation also use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Unpack

import numpy as np

from seq2seq.data.alignment_links import AlignmentSettings
from seq2seq.data.glossary import Glossary
from seq2seq.devices import choose_device, configure_process
from seq2seq.errors import OptionError, UserError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.inference.engines import load_engine
from seq2seq.inference.load_model import StoredModel, read_stored_model, require_same_context, require_same_vocabulary
from seq2seq.recipe import DecodingOptions, Languages, Recipe
from seq2seq.recipe.directions import direction_into
from seq2seq.recipe.task import TRANSLATION
from seq2seq.storage.checkpoints import stored_characters, stored_tags
from seq2seq.tokenizers.language_token import Directions
from seq2seq.tokenizers.line_reader import LineReader
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import Vocabulary
from seq2seq.translation.line_search import LineSearch
from seq2seq.translation.protected_translation import ProtectedSearch
from seq2seq.translation.search_setup import distinct
from seq2seq.translation.sources import growing_blocks
from seq2seq.translation.translation import ReportProgress, Translation
from seq2seq.translation.word_attention import unit_weights


@dataclass(frozen=True, eq=False, repr=False)
class Translator(LineSearch):
    """Model with its tokenizers, ready to translate.

        translator = Translator.load("runs/multi30k_de_en")
        translator.translate(["Ein Hund läuft."])[0][0].text

    All translations of the package come from `translate`: those of the command line and of servers, of validation and
    tests, and the text that models generate for a training. So all of them keep tags, placeholders and terms.

    placeholders: those that translations keep; None: the standard ones, but in lines of text none without
    `decoding.safety_net`. glossary: terms that translations keep if possible. terms_inline: True if the model was
    trained with terms in its source text (`data.augmentation.terms`). aligner: how the model aligns words. For the
    other fields, see `LineSearch`.
    """

    placeholders: Placeholders | None = None
    glossary: Glossary | None = None
    terms_inline: bool = False
    aligner: AlignmentSettings = AlignmentSettings()

    def __repr__(self) -> str:
        pair = " to ".join(self.languages.codes) if self.task.has_source else self.languages.target
        other = "".join([f", ensemble of {len(self.other_engines) + 1}" if self.other_engines else "",
                         ", with a language model" if self.language_model else ""])
        return f"<Translator {pair}: {self.description}{other}; {self.precision} on {self.device}>"

    @staticmethod
    def load(path: str | Path, device: str = "auto", precision: str = "auto", threads: int | None = None,
             ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None,
             target_language: str | None = None, source_language: str | None = None) -> Translator:
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
            source_language: source language, if the model has several; None: that of the recipe, or of its first
                direction into `target_language`.
        """
        configure_process(threads)
        stored = read_stored_model(Path(path))
        tokenizers, recipe = stored.tokenizers, stored.recipe.into(target_language, source_language)
        if recipe.languages not in recipe.directions and not tokenizers.source.begins_with_own_language:
            pairs = ", ".join(" to ".join(filter(None, each.codes)) for each in recipe.directions)
            raise UserError(f"{path} does not translate from {recipe.languages.source} to {recipe.languages.target}. "
                            f"Its directions are {pairs}.")
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
                direction_into(translator.languages.target, other.directions.all, model=str(other_path))
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
        tags = tuple(dict.fromkeys((*recipe.tags, *stored_tags(stored.metadata))))
        reader = LineReader(directions_of_model(recipe, tokenizers.source), tags, recipe.data.context)
        aligner = AlignmentSettings.from_metadata(stored.metadata, f"the metadata of {stored.directory}")
        return Translator(tokenizers, reader, recipe.decoding, recipe.max_input_pieces, device, recipe.task,
                          load_engine(stored, precision, device), description=describe_model(stored),
                          terms_inline=recipe.data.augmentation.terms > 0, aligner=aligner)

    def towards(self, languages: Languages) -> Translator:
        """Return a translator for another direction of the same model. It has no glossary, whose terms are words of the
        languages of this translator."""
        directions = replace(self.directions, chosen=languages)
        return replace(self, reader=replace(self.reader, directions=directions),
                       glossary=self.glossary if languages == self.languages else None)

    def into(self, target_language: str, source_language: str = "") -> Translator:
        """Return a translator into a target language of the model; see `towards`. A model with a single target language
        is returned unchanged, unless it reads the language of the source and `source_language` is another one.
        """
        return self.towards(self.directions.into(target_language, source_language).chosen)

    def tagged(self, tag: str | None) -> Translator:
        """Return a translator that gives all lines a tag of the training corpora; None: each line may begin with one.
        """
        return replace(self, reader=self.reader.tagged(tag))

    def protecting(self, placeholders: Placeholders | None = None, glossary: Glossary | None = None) -> Translator:
        """Return a translator that keeps these placeholders and terms; None: those of this translator."""
        return replace(self, placeholders=placeholders or self.placeholders, glossary=glossary or self.glossary)

    def translate(self, lines: Sequence[str | Source], *, tag: str | None = None,
                  progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                  ) -> list[list[Translation]]:
        """Return the `n_best` translations of each line, best first.

        Their texts differ. If the search finds fewer different texts, the list is shorter, but never empty. With
        `sampling` and without `mbr`, it has `n_best` samples, and a text that was drawn twice occurs twice; of a line
        with placeholders, it has only those that keep them, if there is one. A better
        translation from a retry comes first (see `decoding.safety_net`). Tags, placeholders and terms of a
        line are in its translations (see `protected_translation`). Blank lines are returned unchanged. White space
        around a line is kept. A line that is too long for the model is translated in parts, and so are the sentences of
        a line whose translation would be faulty; such a line has only one translation. If the model uses context
        (`data.context`), a blank line ends a document.

        Args:
            lines: texts of any length without line ends, or `Source`s for lines that have their own constraints. A line
                may begin with a language token or with a tag of the training corpora; see `LineReader.source`.
            tag: tag of all lines, one of the training corpora; None: each line may begin with one.
            progress: function that is called from time to time with the number of lines finished since its last call.
            decoding: values that override the recipe's `decoding` section in this call, such as beam_size=1.
        Raises:
            TypeError: `lines` is a single text.
        """
        if tag is not None:
            return self.tagged(tag).translate(lines, progress=progress, **decoding)
        setup = self.search_setup(decoding)
        sources = list(self.reader.number(lines))
        if any(source.language not in ("", self.languages.target) for source in sources):
            return self._translate_languages(sources, progress, decoding)
        if not self.context and any(source.context is not None for source in sources):
            raise OptionError("a line has a context, but the model was trained without data.context. Omit the context.")
        asked = self.placeholders is not None or self.glossary is not None
        if not self.task.target_is_text or not (asked or setup.decoding.safety_net):
            return self.search_lines(sources, setup, progress)
        protected = ProtectedSearch(self._search, self.languages, self.decoding, self.placeholders or Placeholders(),
                                    self.glossary, self.terms_inline, self.align, self.retries)
        found = protected.translate(sources, progress=progress, **decoding)
        # Texts that differed before tags and placeholders were put back can be equal now.
        return found if setup.decoding.sampling else list(map(distinct, found))

    def _search(self, sources: Sequence[Source], *, progress: ReportProgress | None = None,
                **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        return self.search_lines(sources, self.search_setup(decoding), progress)

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

    def align(self, pairs: Sequence[tuple[str, str]]) -> Sequence[np.ndarray | None]:
        """Return the attention between the units of each pair of a sentence and its translation; None for a pair that
        cannot be aligned. See `unit_weights`."""
        return unit_weights(self, pairs, self.aligner)

    def translate_stream(self, lines: Iterable[str | Source], block_lines: int = 8192, *, tag: str | None = None,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """Yield the result of `translate` for each line of an input of any length, in order.

        Options are checked when this method is called. Each line is checked when it is read.

        block_lines: maximum number of lines that are translated together. The first blocks are smaller, for early
            results.
        """
        self.search_setup(decoding)
        reader = self.reader.tagged(tag)
        return translate_blocks(partial(self.translate, progress=progress, **decoding), reader, lines, block_lines)


def describe_model(stored: StoredModel) -> str:
    """Return architecture and number of parameters, such as "transformer, 3 + 3 layers of width 256, 7,577,600
    parameters"."""
    section, parameters = stored.recipe.model, sum(weight.size for weight in stored.weights.values())
    layers = f"{' + '.join(map(str, section.layers))} layers of " if section.layers else ""
    return f"{section.type.replace('_', ' ')}, {layers}width {section.d_model}, {parameters:,} parameters"


def directions_of_model(recipe: Recipe, vocabulary: Vocabulary) -> Directions:
    """Return the directions of a model. vocabulary: its source vocabulary."""
    targets = recipe.target_languages if recipe.task is TRANSLATION else []
    codes = [code for code in targets if vocabulary.language_id(code) is not None]
    return Directions(recipe.languages, recipe.directions, tuple(codes), vocabulary.begins_with_own_language)


def translate_blocks(translate: Callable[[list[Source]], list[list[Translation]]], reader: LineReader,
                     lines: Iterable[str | Source], block_lines: int) -> Iterator[list[Translation]]:
    """Yield the translations of lines, block by block. block_lines: see `Translator.translate_stream`."""
    return chain.from_iterable(map(translate, growing_blocks(reader.number(lines), block_lines)))
