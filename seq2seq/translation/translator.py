"""Translation of lines of text: the public interface behind the command line, validation and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar, Unpack

import numpy as np
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, batches_in_order, gather
from seq2seq.data.line_splitting import DividedLine, divide
from seq2seq.devices import choose_device, configure_process
from seq2seq.errors import (
    CheckpointError,
    CorpusError,
    OptionError,
    RequestError,
    UserError,
    require_several,
    require_text,
)
from seq2seq.inference.engines import Engine, load_engine
from seq2seq.model import Model
from seq2seq.model.interface import Seq2Seq
from seq2seq.model.load_model import read_model
from seq2seq.model.loss import negative_log_likelihood
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages, Recipe, decoding_with
from seq2seq.search.beam import NoHypothesis, search
from seq2seq.tokenizers.tokenizer import Tokenizers, Vocabulary
from seq2seq.tokenizers.whole_words import position_fault
from seq2seq.translation.output_faults import FAULTS
from seq2seq.translation.retry_faulty_lines import retry_faulty
from seq2seq.translation.search_setup import Decoding, Found, Part, Request
from seq2seq.translation.word_confidence import Word, log_probabilities, words_of

ReportProgress = Callable[[int], None]
Line = TypeVar("Line")


@dataclass(frozen=True)
class Translation:
    """Translation of a line.

    text: detokenized, without line end. score: for ranking. log_probability: log p(target | source), `</s>` included;
    for a line translated in parts, the sum. tokens: number of pieces, plus one `</s>` per part. parts: number of parts
    the line was translated in; 0 for lines of white space, which are returned unchanged. words: its words with
    confidence, if requested. faults: names of its faults (see faults.py), if they were checked. retried: found by a
    retry, because the first translation had more faults.
    """

    text: str
    score: float
    log_probability: float
    tokens: int
    parts: int = 1
    words: tuple[Word, ...] = ()
    faults: tuple[str, ...] = ()
    retried: bool = False


@dataclass(frozen=True)
class PairScore:
    """log p(target | source) in nats, `</s>` included, and the number of target tokens."""

    log_probability: float
    tokens: int


class Translator:
    """Model with its tokenizers, ready to translate and to score.

    >>> translator = Translator.load("runs/multi30k_de_en")
    >>> translator.translate(["Ein Hund läuft."])[0][0].text

    ensemble: further models of an ensemble with it. language_model: language model for shallow fusion, or None.
    """

    def __init__(self, engine: Engine, tokenizers: Tokenizers, languages: Languages, decoding: DecodingSection,
                 max_pieces: int, device: torch.device, divides: bool = True) -> None:
        """Usually called by `load`.

        max_pieces: longest sentence that the model was trained on. divides: translate a longer line in parts; False for
            a pointer network, because positions in a part are not positions in the line.
        """
        self.precision, self.divides = engine.precision, divides
        self.engine, self.tokenizers, self.languages, self.decoding = engine, tokenizers, languages, decoding
        self.max_pieces, self.device = max_pieces, device
        self.ensemble: tuple[Engine, ...] = ()
        self.language_model: Engine | None = None

    @property
    def max_positions(self) -> int:
        """Longest sentence that the model takes, in tokens, `</s>` included."""
        return self.engine.max_positions

    @property
    def model(self) -> Seq2Seq:
        """Model in PyTorch, which scores all positions of given targets at once."""
        return self.engine.model

    @staticmethod
    def load(path: str | Path, device: str = "auto", precision: str = "auto", threads: int | None = None,
             ensemble: Sequence[str | Path] = (), fusion: str | Path | None = None, compile: bool = False
             ) -> Translator:
        """Read a bundle, or the best bundle of a run.

        Args:
            device: auto, cpu, cuda, cuda:1, …
            precision: fp32, bf16, int8, or auto: bf16 if the hardware has it, else fp32. int8 is the fastest on a CPU:
                it uses kernels for Transformers, which are compiled and checked in some seconds on first use. If they
                are not available, it falls back to auto with a message; `score` always uses auto instead of int8. In
                fp32 and int8 a translation does not depend on the other lines; in bf16, rounding depends on the shape
                of the batch, and rarely a translation does, too.
            threads: number of CPU threads; None: torch decides.
            ensemble: further models of an ensemble (see `decoding.ensemble_mean`).
            fusion: language model for shallow fusion (see `decoding.fusion_weight`).
            compile: no longer accepted; precision int8 has replaced it.
        Raises:
            CheckpointError: a model is missing or damaged, or the vocabularies differ.
            UserError: the device, the precision or the number of threads is not available.
            TypeError: `ensemble` is a single path instead of a sequence.
        """
        require_several(ensemble, "ensemble")
        refuse_compile(compile)
        configure_process(threads)
        model, recipe, tokenizers = read_model(Path(path))
        chosen = choose_device(device)
        loaded = Translator.from_recipe(model, tokenizers, recipe, chosen, precision)
        others = [Translator.load(other, device, precision, threads) for other in ensemble]
        for other, where in zip(others, ensemble, strict=True):
            if other.languages.monolingual:
                raise UserError(f"{where} is a language model and translates nothing. To let it have a say, name it as "
                                "the one of the fusion.")
        speaking = None if fusion is None else Translator.load(fusion, device, precision, threads)
        for other, where in zip(others, ensemble, strict=True):
            _require_one_vocabulary(path, tokenizers.source, where, other.tokenizers.source)
            _require_one_vocabulary(path, tokenizers.target, where, other.tokenizers.target)
        if speaking is not None and fusion is not None:
            if not speaking.languages.monolingual:
                raise UserError(f"{fusion} is no language model. To let models translate together, name it as another "
                                "of the ensemble.")
            _require_one_vocabulary(path, tokenizers.target, fusion, speaking.tokenizers.target)
            loaded.language_model = speaking.engine
        loaded.ensemble = tuple(other.engine for other in others)
        loaded.max_pieces = min(each.max_pieces for each in (loaded, *others))
        return loaded

    @staticmethod
    def from_recipe(model: Model, tokenizers: Tokenizers, recipe: Recipe, device: torch.device,
                    precision: str = "auto") -> Translator:
        """Return a translator with the recipe's decoding options and a copy of `model` in `precision`; see `load`."""
        divides = recipe.model.type != "pointer"
        room = recipe.model.max_positions - 1
        max_pieces = min(recipe.data.cleaning.max_pieces, room) if divides else room
        return Translator(load_engine(model, precision, device), tokenizers, recipe.languages, recipe.decoding,
                          max_pieces, device, divides)

    def translate(self, lines: Sequence[str | Request], *, progress: ReportProgress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """Return the best translations of each line, best first, at least one per line.

        A translation found by a retry comes before those of the first search (see `decoding.safety_net`). Empty lines
        and white space are returned unchanged; white space around a line is kept; a line that is too long for the model
        is translated in parts, and has only one translation.

        Args:
            lines: text without line ends, of any length; or a `Request`, with constraints for this line.
            progress: called from time to time with the number of lines done since the last call.
            decoding: values that override the recipe's `decoding` section in this call, such as beam_size=1.
        Raises:
            OptionError: an option is unknown, or its value is invalid.
            UserError: the constraints of a line cannot be met.
            CorpusError: a line is too long for a pointer network, whose input cannot be split.
            TypeError: a line is neither a str nor a `Request`.
        """
        asked = self._asked(decoding)
        requests = list(numbered(lines))
        divided = self._divide([request.text for request in requests])
        parts = [asked.parts(request, line.texts) for request, line in zip(requests, divided, strict=True)]
        report = _per_line([len(line.texts) for line in divided], progress)
        together = [part for line in parts for part in line]
        ways = self.search_parts(together, asked, report)
        if asked.options.safety_net and self.divides:                                 # positions are no text
            ways = retry_faulty(together, ways, asked, self.languages, self.search_parts)
        found = iter(ways)
        return [self._assemble(line, [next(found) for _ in line.texts], asked) for line in divided]

    def translate_stream(self, lines: Iterable[str | Request], block_lines: int = 8192, *,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[Translation]]:
        """`translate` for input of any length, in order. Blocks grow from 1,024 lines, so that the first results come
        soon."""
        return chain.from_iterable(self.translate_blocks(lines, block_lines, progress=progress, **decoding))

    def translate_blocks(self, lines: Iterable[str | Request], block_lines: int = 8192, *, begin: int = 0,
                         progress: ReportProgress | None = None, **decoding: Unpack[DecodingOptions]
                         ) -> Iterator[list[list[Translation]]]:
        """`translate_stream`, one list of results per block. Options are checked at once, lines when they are read.

        begin: number of lines before `lines` in the whole input; blocks end at the same lines as for the whole input,
            so that the same lines are translated in the same batches.
        """
        self._asked(decoding)
        blocks = growing_blocks(numbered(lines, begin), block_lines, begin)
        return (self.translate(block, progress=progress, **decoding) for block in blocks)

    def _asked(self, decoding: DecodingOptions) -> Decoding:
        """Return the decoding options of a call.

        Raises:
            OptionError: an option is unknown, or its value is invalid.
            UserError: this is a language model, or a required phrase is impossible.
        """
        if self.languages.monolingual:
            raise UserError("this is a language model, which translates nothing. It continues text: seq2seq generate; "
                            "and it helps a model that translates: seq2seq translate --fusion, seq2seq rescore.")
        return Decoding(decoding_with(self.decoding, decoding), self.tokenizers.target, self.languages.target)

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, str]], progress: ReportProgress | None = None) -> list[PairScore]:
        """Return log p(target | source) of given translations, by teacher forcing; of an ensemble, the first model's.

        Raises:
            ValueError: a side has more pieces than the model has positions (see `within_reach`).
            CorpusError: a target of a pointer network contains something other than positions of its source.
            TypeError: one of the pairs is not two texts.
        """
        require_pairs(pairs)
        for source, target in () if self.divides else pairs:
            if fault := position_fault(source, target):
                raise CorpusError(f"the target that begins with '{target[:30]}' cannot be scored: {fault}.")
        corpus = EncodedCorpus(
            EncodedSide.from_lists(self.tokenizers.source.encode([source for source, _ in pairs])),
            EncodedSide.from_lists(self.tokenizers.target.encode([target for _, target in pairs])),
        )
        scores: list[PairScore] = [PairScore(0.0, 0)] * len(pairs)
        longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
        for indices in batches_in_order(longest, self.decoding.batch_tokens):
            batch = gather(corpus, indices).to(self.device)
            losses = negative_log_likelihood(self.model(batch), batch.target_output).cpu()
            sums = [part.sum().item() for part in losses.split(batch.target_offsets.diff().tolist())]
            for index, loss, tokens in zip(indices, sums, corpus.target.lengths_of(indices).tolist(), strict=True):
                scores[index] = PairScore(-loss, tokens)
            if progress:
                progress(len(indices))
        return scores

    def within_reach(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the pairs that `score` accepts: neither side has more pieces than the model has positions."""
        require_pairs(pairs)
        threads = torch.get_num_threads()
        sides = (self.tokenizers.source.encode([source for source, _ in pairs], threads),
                 self.tokenizers.target.encode([target for _, target in pairs], threads))
        return [pair for pair, *ids in zip(pairs, *sides, strict=True) if max(map(len, ids)) < self.max_positions]

    def _divide(self, lines: Sequence[str]) -> list[DividedLine]:
        texts = [line.strip() for line in lines]
        encoded = self.tokenizers.source.encode(texts, torch.get_num_threads())
        short = {text for text, ids in zip(texts, encoded, strict=True) if len(ids) <= self.max_pieces}
        for text, ids in zip(texts, encoded, strict=True):
            if not self.divides and len(ids) > self.max_pieces:
                raise CorpusError(f"the line that begins with '{text[:30]}' has {len(ids):,} words; this model points "
                                  f"at {self.max_pieces:,} at most, and in a part of it words have other positions. "
                                  "Shorten it, or train with a larger model.max_positions.")

        def fits(text: str) -> bool:
            return text in short or len(self.tokenizers.source.encode([text])[0]) <= self.max_pieces

        heads = [self.tokenizers.source.head(text) for text in texts]
        return [divide(line, fits, head) for line, head in zip(lines, heads, strict=True)]

    def search_parts(self, parts: Sequence[Part], asked: Decoding,
                     progress: Callable[[np.ndarray], None] = lambda indices: None) -> list[list[Found]]:
        """Search each part; returns its best hypotheses, with word confidences if requested.

        Raises:
            RequestError: no hypothesis satisfies the constraints of a line.
            CheckpointError: the model's logits are NaN.
        """
        sources = EncodedSide.from_lists(
            self.tokenizers.source.encode([part.text for part in parts], torch.get_num_threads()))
        model = asked.ensemble((self.engine, *self.ensemble))
        searched, hooks = asked.with_fusion_and_coverage(model, self.language_model)
        whole_search = self.engine.whole_search if searched is self.engine else None
        found: list[list[Found]] = [[] for _ in parts]
        batch_tokens = asked.options.batch_tokens * 2 // max(2, asked.beam_size)
        for indices in batches_in_order(sources.lengths, batch_tokens) if parts else ():
            ids, offsets, _ = sources.gather(indices)
            lengths, together = np.diff(offsets), [parts[index] for index in indices]
            source = torch.from_numpy(ids).to(self.device)
            source_offsets = torch.from_numpy(offsets.astype(np.int32)).to(self.device)
            limits = asked.limits(together, lengths, searched.max_positions)
            try:
                candidates = search(searched, source, source_offsets, int(lengths.max()), max_lengths=limits,
                                    topk=self.engine.topk, whole_search=whole_search,
                                    **asked.search_options(together), **hooks)
            except NoHypothesis as error:
                raise RequestError(f"line {together[error.lines[0]].line + 1}: no translation meets all that is asked "
                                   "of it. What it is to begin with or to hold contradicts what is forbidden, or "
                                   "repeats what must not be repeated.") from error
            except FloatingPointError as error:
                raise CheckpointError(f"{error}: its weights are damaged, or the training diverged. Go back to an "
                                      "earlier checkpoint, or train with a lower learning rate.") from error
            chosen = [asked.rerank(each) for each in candidates]
            if asked.options.word_confidence:
                targets = [[hypothesis.tokens for hypothesis in each] for each in chosen]
                scores = log_probabilities(model, source, source_offsets, int(lengths.max()), targets)
                words = [list(map(self._words, *each)) for each in zip(targets, scores, strict=True)]
            else:
                words = [[()] * len(each) for each in chosen]
            # One call for all hypotheses: the overhead of a call exceeds the time to decode a sentence's pieces.
            texts = iter(asked.texts([hypothesis for each in chosen for hypothesis in each]))
            for index, hypotheses, of_words in zip(indices, chosen, words, strict=True):
                found[index] = [Found(*each) for each in zip(hypotheses, islice(texts, len(hypotheses)), of_words,
                                                             strict=True)]
            progress(indices)
        return found

    def _words(self, target: list[int], scores: list[float]) -> tuple[Word, ...]:
        return words_of(target, scores, self.tokenizers.target, self.languages.target)

    def _assemble(self, line: DividedLine, found: list[list[Found]], asked: Decoding) -> list[Translation]:
        """Return the translations of a line: all of its single part, or one made of the best of each part."""
        ways = [[way] for way in found[0]] if len(found) == 1 else [[best for best, *_ in found]]
        return [self._translation(line, way, asked) for way in ways]

    def _translation(self, line: DividedLine, way: list[Found], asked: Decoding) -> Translation:
        hypotheses = [found.hypothesis for found in way]
        log_probability = sum(hypothesis.log_probability for hypothesis in hypotheses)
        tokens = sum(len(hypothesis.tokens) + 1 for hypothesis in hypotheses)
        return Translation(line.join([found.text for found in way], self.languages.target), asked.score(hypotheses),
                           log_probability, tokens, len(way), tuple(word for found in way for word in found.words),
                           tuple(name for name in FAULTS if any(name in found.faults for found in way)),
                           any(found.retried for found in way))


def numbered(lines: Iterable[str | Request], begin: int = 0) -> Iterator[Request]:
    """Yield each line as a numbered request; requests without a number get their index, counted from `begin`.

    Raises:
        TypeError: `lines` is a single line (raised at once), or a line is neither a str nor a `Request` (raised when it
            is read).
    """
    require_several(lines, "lines")

    def request(place: int, line: str | Request) -> Request:
        require_text(line, f"lines[{place}]", Request)
        given = Request(line) if isinstance(line, str) else line
        return replace(given, number=begin + place) if given.number is None else given

    return (request(place, line) for place, line in enumerate(lines))


def require_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise TypeError unless each pair is two texts."""
    require_several(pairs, "pairs")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"pairs[{place}] is {pair!r:.60}; expected two texts, (source, target)")
        for side, text in enumerate(pair):
            require_text(text, f"pairs[{place}][{side}]")


def _require_one_vocabulary(path: str | Path, tokenizer: Vocabulary, other: str | Path, others: Vocabulary) -> None:
    if tokenizer.fingerprint != others.fingerprint:
        raise CheckpointError(f"{path} and {other} have different vocabularies ({tokenizer.vocab_size:,} and "
                              f"{others.vocab_size:,} pieces), so that they cannot translate together. Train both with "
                              "the same tokenizer: tokenizer.taken_from in a recipe names the model to take it from.")


def refuse_compile(compile: bool) -> None:
    """Raise OptionError if the removed option `compile` is used."""
    if compile:
        raise OptionError("compile=True is part of int8 now: use precision='int8' instead")


def growing_blocks(lines: Iterable[Line], largest: int, begin: int = 0) -> Iterator[list[Line]]:
    """Yield lists of lines: the first of 1,024, so that it comes soon, each further one four times as long.

    begin: number of lines before `lines` in the whole input; lists end at the same lines as for the whole input.

    Raises:
        OptionError: `largest` is below 1; raised at once.
    """
    if largest < 1:
        raise OptionError(f"blocks of {largest} lines hold nothing; make it 1 or more")
    return _growing_blocks(lines, largest, begin)


def _growing_blocks(lines: Iterable[Line], largest: int, begin: int) -> Iterator[list[Line]]:
    remaining = iter(lines)
    size = min(1024, largest)
    end = size
    while True:
        if end > begin:
            if not (block := list(islice(remaining, end - begin))):
                return
            yield block
            begin = end
        size = min(4 * size, largest)
        end += size


def _per_line(parts: list[int], progress: ReportProgress | None) -> Callable[[np.ndarray], None]:
    """Return a callback that takes the indices of finished parts and reports the number of finished lines.

    parts: number of parts of each line.
    """
    if progress is None:
        return lambda indices: None
    line_of_part = np.repeat(np.arange(len(parts)), parts)
    left = np.array(parts)
    progress(int((left == 0).sum()))

    def done(indices: np.ndarray) -> None:
        lines = line_of_part[indices]
        np.subtract.at(left, lines, 1)
        progress(int((left[np.unique(lines)] == 0).sum()))

    return done
