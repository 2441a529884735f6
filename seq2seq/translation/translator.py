"""Translation and scoring with a trained model: the public interface, which the command line, validation and evaluation
also use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.data.epoch_plan import batches_in_order
from seq2seq.devices import choose_device, configure_process, copy_to_device
from seq2seq.errors import CheckpointError, CorpusError, RequestError, UserError
from seq2seq.inference.engines import Engine, load_engine
from seq2seq.inference.load_model import read_model, require_same_context, require_same_vocabulary
from seq2seq.model import Model
from seq2seq.model.interface import Seq2Seq
from seq2seq.model.loss import negative_log_likelihood
from seq2seq.recipe import Languages, Recipe
from seq2seq.recipe.directions import language_token
from seq2seq.search.beam import NoHypothesis, search
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.tokenizers.whole_words import position_fault
from seq2seq.translation.line_translator import LineTranslator, PairScore, ReportProgress
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup
from seq2seq.translation.word_confidence import Word, log_probabilities, words_of


@dataclass(frozen=True, eq=False, repr=False)
class Translator(LineTranslator):
    """Model with its tokenizers, ready to translate and to score.

    >>> translator = Translator.load("runs/multi30k_de_en")
    >>> translator.translate(["Ein Hund läuft."])[0][0].text

    other_engines: engines of the other models of an ensemble. language_model: engine of the language model for shallow
    fusion. directory: path from which the model was loaded; None: it was not loaded from a file.
    """

    engine: Engine
    other_engines: tuple[Engine, ...] = ()
    language_model: Engine | None = None
    directory: Path | None = None

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
            precision: fp32, bf16, fp16, int8, or auto (`devices.choose_precision`). int8 is the fastest on a CPU. If
                the package was built without a C++ compiler, a message says so, and auto is used instead. `score`
                always uses auto instead of int8. In fp32 and int8, a translation does not depend on the other lines. In
                bf16, rounding depends on the shape of the batch, which in rare cases changes a translation.
            threads: number of CPU threads; None: torch decides.
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
        model, recipe, tokenizers = read_model(Path(path))
        recipe = recipe.into(target_language)
        translator = Translator.from_recipe(model, tokenizers, recipe, choose_device(device), precision)
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
        if language_model is not None and fusion is not None:
            if language_model.task.has_source:
                raise UserError(f"{fusion} is not a language model, which fusion needs. Use it as a member of an "
                                "ensemble instead.")
            require_same_vocabulary(path, tokenizers.target, fusion, language_model.tokenizers.target)
        return replace(translator, directory=Path(path), other_engines=tuple(other.engine for other in others),
                       language_model=None if language_model is None else language_model.engine,
                       max_pieces=min(each.max_pieces for each in (translator, *others)))

    @staticmethod
    def from_recipe(model: Model, tokenizers: Tokenizers, recipe: Recipe, device: torch.device,
                    precision: str = "auto") -> Translator:
        """Return a translator with the recipe's decoding options and a copy of `model` in `precision`; see `load`."""
        tokenizers = tokenizers.with_context() if recipe.data.context else tokenizers
        translator = Translator(tokenizers, recipe.languages, recipe.decoding, recipe.max_input_pieces, device,
                                recipe.task, recipe.data.context, load_engine(model, precision, device))
        return translator.towards(recipe.languages) if recipe.language_tokens else translator

    def towards(self, languages: Languages) -> Translator:
        """Return a translator for another direction of the same model. If the model has language tokens, the translator
        adds the token of the target language to each source that does not begin with a language token."""
        tokenizers = self.tokenizers.with_language_token(language_token(languages.target))
        return replace(self, languages=languages, tokenizers=tokenizers)

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, str]], progress: ReportProgress | None = None) -> list[PairScore]:
        """Return log p(target | source) of given translations by teacher forcing; see `LineTranslator.score`. In an
        ensemble, only the first model computes the scores."""
        for source, target in () if self.task.target_is_text else pairs:
            if fault := position_fault(source, target):
                raise CorpusError(f"the target that begins with '{target[:30]}' cannot be scored: {fault}.")
        corpus = EncodedCorpus(
            EncodedSide.from_lists(self.encode_texts([source for source, _ in pairs])),
            EncodedSide.from_lists(self.tokenizers.target.encode([target for _, target in pairs])),
        )
        scores: list[PairScore] = [PairScore(0.0, 0)] * len(pairs)
        longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
        for indices in batches_in_order(longest, self.decoding.batch_tokens):
            batch = gather(corpus, indices).to(self.device)
            losses = negative_log_likelihood(self.model(batch), batch.target_output).cpu()
            sums = [loss.sum().item() for loss in losses.split(batch.target_offsets.diff().tolist())]
            for index, loss, tokens in zip(indices, sums, corpus.target.lengths_of(indices).tolist(), strict=True):
                scores[index] = PairScore(-loss, tokens)
            if progress:
                progress(len(indices))
        return scores

    def search_parts(self, parts: Sequence[Part], setup: SearchSetup,
                     progress: Callable[[np.ndarray], None] = lambda indices: None) -> list[list[PartTranslation]]:
        """See `LineTranslator.search_parts`."""
        sources = EncodedSide.from_lists(self.encode_texts([part.context + part.text for part in parts]))
        translations: list[list[PartTranslation]] = [[] for _ in parts]
        batch_tokens = setup.decoding.batch_tokens * 2 // max(2, setup.beam_size)
        for indices in batches_in_order(sources.lengths, batch_tokens) if parts else ():
            ids, offsets, _ = sources.gather(indices)
            in_batch = self._search_batch([parts[index] for index in indices], ids, offsets, setup)
            for index, n_best in zip(indices, in_batch, strict=True):
                translations[index] = n_best
            progress(indices)
        return translations

    def _search_batch(self, parts: Sequence[Part], ids: np.ndarray, offsets: np.ndarray, setup: SearchSetup
                      ) -> list[list[PartTranslation]]:
        """Search a batch of parts. ids: source tokens of all parts, concatenated. offsets: (parts + 1,), index in `ids`
        of the first token of each part; the last element is the total number of tokens."""
        model = setup.ensemble((self.engine, *self.other_engines))
        searched = setup.with_fusion_and_coverage(model, self.language_model)
        whole_search = self.engine.whole_search if searched is self.engine else None
        source, source_offsets = (copy_to_device(torch.from_numpy(array), self.device)
                                  for array in (ids, offsets.astype(np.int32)))
        longest = int((lengths := np.diff(offsets)).max())
        max_lengths = setup.max_lengths(parts, lengths, searched.max_positions)
        options = setup.search_options(parts, fusion=self.language_model is not None)
        try:
            hypotheses = search(searched, source, source_offsets, longest, max_lengths, options, self.engine.topk,
                                whole_search)
        except NoHypothesis as error:
            raise RequestError(f"line {parts[error.lines[0]].line + 1}: the search found no translation that "
                               "satisfies all constraints. Remove one of them: the prefix, a required or forbidden "
                               "phrase, no_repeat_ngram or min_length.") from error
        except FloatingPointError as error:
            raise CheckpointError(f"{error}: its weights are damaged, or the training diverged. Use an earlier "
                                  "checkpoint, or train with a lower learning rate.") from error
        n_best = [setup.select(each) for each in hypotheses]
        if setup.decoding.word_confidence:
            targets = [[hypothesis.tokens for hypothesis in each] for each in n_best]
            scores = log_probabilities(model, source, source_offsets, longest, targets)
            words = [list(map(self._words, *each)) for each in zip(targets, scores, strict=True)]
        else:
            words = [[()] * len(each) for each in n_best]
        # One call detokenizes all hypotheses, because the overhead of a call exceeds the time for a sentence.
        texts = iter(setup.texts([hypothesis for each in n_best for hypothesis in each]))
        return [list(map(PartTranslation, each, islice(texts, len(each)), words_of_each))
                for each, words_of_each in zip(n_best, words, strict=True)]

    def _words(self, target: list[int], scores: list[float]) -> tuple[Word, ...]:
        return words_of(target, scores, self.tokenizers.target, self.languages.target)
