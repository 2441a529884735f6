"""Models of a server: loading, choosing the model of a direction, and replacing models whose files changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from seq2seq.data.glossary import Glossary
from seq2seq.errors import OptionError, UserError
from seq2seq.formats.placeholders import Placeholders
from seq2seq.languages import canonical, is_same_language, resolve
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages, decoding_with
from seq2seq.serve.directions import Directions
from seq2seq.serve.errors import SlowdownError
from seq2seq.serve.scheduler import Again, estimate_tokens
from seq2seq.storage.checkpoints import resolve_model_path, weights_checksum
from seq2seq.storage.directories import METADATA
from seq2seq.tokenizers.line_splitting import DividedLine
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.translation.translation import TERM_REPORTS, Translation
from seq2seq.translation.translator import Translator

Fingerprint = tuple[int, int, int]

TEST_LINE = "A test."
"""Line that a model must be able to translate before it is served."""
USUAL_BEAM_SIZE = 5
"""Beam size with which a source token counts as one token of a batch. See `Models.divide`."""
MAX_SHOWN = 20
"""Maximum number of directions of a model that are listed at the start of a server."""
CONFIDENCE_ROWS = 3
"""Number of hypotheses whose search takes as long as the confidence of the words of one translation. Measured: 2.6 with
3 + 3 layers of width 256, and 2.8 with 6 + 6 of 512."""


@dataclass(frozen=True)
class RequestOptions:
    """Options of a request that change the search. Only sentences with equal options can be in one batch.

    n_best: number of translations of each sentence. word_confidence: if True, the confidence of each word is computed.
    glossary: terms that the translations must have. document: if True, variables such as %s are kept even without the
    safety net.
    """

    n_best: int = 1
    word_confidence: bool = False
    glossary: Glossary | None = None
    document: bool = False


@dataclass(frozen=True)
class Group:
    """Direction and options that all items of one batch have in common. options: None if the items are pairs (sentence,
    translation) that are aligned. retries: True if faulty translations are searched again at once."""

    source: str
    target: str
    options: RequestOptions | None = RequestOptions()
    retries: bool = False


@dataclass(frozen=True)
class Divided:
    """Sentence as items of the scheduler: itself, or the parts of one that is too long for the model.

    A translator would search the parts one after the other. As items, they can be in different batches.

    tokens: number of tokens of each item, see `Models.divide`. line: the parts, with what is between them; None: the
    sentence is not divided. target: code of the target language. keeps_placeholders: True if a translation must have
    the placeholders of the sentence.
    """

    sentence: Source
    items: list[Source]
    tokens: list[int]
    line: DividedLine | None = None
    target: str = ""
    keeps_placeholders: bool = False

    def join(self, n_best: Sequence[list[Translation]]) -> list[Translation]:
        """Return the translations of the sentence, best first, given those of each item. A sentence with several parts
        has only one, whose score and number of tokens are those of the first part. If a placeholder was lost because a
        part ends within it, the translation is the sentence itself."""
        if self.line is None:
            return n_best[0]
        best = [one for one, *_ in n_best]
        text = self.line.join([one.text for one in best], self.target)
        counts = Placeholders().counts
        if self.keeps_placeholders and counts(self.sentence.text) - counts(text):
            return [replace(best[0], text=self.sentence.text, words=(), faults=("copied",))]
        joined: dict[str, Any] = {
            name: tuple(value for one in best for value in getattr(one, name))
            for name in ("words", "faults", *TERM_REPORTS)}
        return [replace(best[0], text=text, **joined)]


@dataclass(frozen=True)
class MachineOptions:
    """Options for loading models and for the search, which apply to all models of a server.

    precision: see `Translator.load`. decoding: values that override the `decoding` section of each recipe. name_of:
    function that maps a key of this section to its name in messages. languages: codes of the languages to serve; ():
    all of the models.
    """

    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    name_of: Callable[[str], str] = str
    languages: Sequence[str] = ()

    def serves(self, *codes: str) -> bool:
        """Return True if all these languages are to be served."""
        return not self.languages or all(any(is_same_language(one, code) for one in self.languages) for code in codes)


@dataclass
class _Loaded:
    """Model that is served. fingerprint: result of `_fingerprint` before loading, or at the last failed reload.
    checksum: sha256 of its weights. translators: translator of each direction of the model; all share the weights."""

    path: Path
    fingerprint: Fingerprint | None
    checksum: str
    translators: dict[tuple[str, str], Translator]


@dataclass
class Models:
    """Models of a server. Only one model translates each direction.

    glossary_files: path of each glossary by its name. glossaries: loaded glossaries by (name, source, target).
    """

    machine: MachineOptions
    glossary_files: Mapping[str, Path] = field(default_factory=dict)
    glossaries: dict[tuple[str, str, str], Glossary] = field(default_factory=dict)
    _loaded: list[_Loaded] = field(default_factory=list)
    _by_direction: dict[tuple[str, str], _Loaded] = field(default_factory=dict)
    directions: Directions = field(default=Directions(()))

    @staticmethod
    def load(paths: Sequence[Path], machine: MachineOptions | None = None,
             glossaries: Mapping[str, Path] | None = None) -> Models:
        """Load all models, and load the glossaries for each direction of the models."""
        models = Models(machine or MachineOptions(), glossaries or {})
        models._use([models._load(path) for path in paths])
        for code in models.machine.languages:
            if resolve(code, models.directions.languages) is None:
                raise UserError(f"--languages {code}: no model has this language. The others are "
                                f"{', '.join(models.directions.languages)}.")
        return models

    def describe(self) -> list[str]:
        """Return a line for each direction of each model: the direction, path, precision and device. A model with many
        directions has one line."""
        lines = []
        for one in self._loaded:
            translators = one.translators
            translator = next(iter(translators.values()))
            shown = [f"{source} to {target}" for source, target in translators]
            if len(shown) > MAX_SHOWN:
                shown = [f"{len(shown):,} directions between {len(set(chain(*translators))):,} languages"]
            lines += [f"{each}: {one.path}, {translator.precision} on {translator.device}" for each in shown]
        return lines

    @property
    def checksums(self) -> dict[str, str]:
        """Checksum (sha256) of the weights of each model, by the path of the model."""
        return {str(one.path): one.checksum for one in self._loaded}

    @property
    def precisions(self) -> set[str]:
        return {translator.precision for one in self._loaded for translator in one.translators.values()}

    def translate(self, group: Group, sentences: list[Any]) -> list[Any]:
        """Translate or align the sentences of a batch with the model of the group's direction.

        Return the translations of each sentence, best first, or the attention between the units of each pair (see
        `Translator.align`). With sampling, the translation of a sentence does not depend on the other
        sentences of the batch.

        Translations that would be searched again, because they are faulty or lack terms, become `Again` if the group
        has no retries, so that the other sentences of the batch do not wait for the retry, which takes many times as
        long.

        Raises:
            SlowdownError: the direction is no longer served, because its model was replaced.
        """
        model = self._by_direction.get((group.source, group.target))
        if model is None:
            raise SlowdownError("the models are being replaced. Try again")
        options = group.options
        translator = model.translators[group.source, group.target]
        # Samples and MBR translations have no retries.
        retries = group.retries or options is None or translator.decoding.sampling or translator.decoding.mbr > 0
        translator = replace(translator, retries=retries)
        if options is None:
            return list(translator.align(sentences))
        decoding = _decoding(translator.decoding, options)
        translator = translator.protecting(Placeholders() if options.document else None, options.glossary)
        found = translator.translate(_sources(translator, sentences), **decoding)
        if retries:
            return found
        return [Again(replace(group, retries=True)) if n_best[0].faults or n_best[0].lost_terms else n_best
                for n_best in found]

    def divide(self, group: Group, sentences: Sequence[Source]) -> list[Divided]:
        """Return each sentence as items of the scheduler.

        The tokens of an item are in proportion to the time of its search, which grows with the number of rows of its
        steps: hypotheses times target tokens, of which there are about as many as source tokens. With USUAL_BEAM_SIZE,
        a source token counts as one token. They are counted, because an estimate would be too small for text that is no
        language, in which each character is a token.
        """
        model = self._by_direction.get((group.source, group.target))
        if model is None or group.options is None:
            return [Divided(one, [one], [estimate_tokens(one)]) for one in sentences]
        translator = model.translators[group.source, group.target]
        decoding = _decoding(translator.decoding, group.options)
        # A beam of 1 takes about as long as one of 2, as in `decoding.batch_tokens`.
        rows = max(2, translator.search_setup(decoding).beam_size)
        if group.options.word_confidence:
            rows += CONFIDENCE_ROWS * decoding["n_best"]

        def count(ids: Sequence[int]) -> int:
            return math.ceil(rows / USUAL_BEAM_SIZE * (len(ids) + 1))

        sources, divided = _sources(translator, sentences), []
        for sentence, source, ids in zip(sentences, sources, translator.encode(sources), strict=True):
            if len(ids) <= translator.max_pieces:
                divided.append(Divided(sentence, [sentence], [count(ids)]))
                continue
            line, = translator.divide([source])
            items = [replace(sentence, text=text) for text in line.texts]
            divided.append(Divided(sentence, items, list(map(count, translator.encode(_sources(translator, items)))),
                                   line, group.target, group.options.document or translator.decoding.safety_net))
        return divided

    def tags(self, source: str, target: str) -> tuple[str, ...]:
        """Return the tags that the model of a direction knows (`data.train[].tag`)."""
        model = self._by_direction.get((source, target))
        return () if model is None else model.translators[source, target].reader.tags

    def context(self, path: Sequence[str]) -> int:
        """Return how many previous sentences the first model of a language path uses as context of each sentence."""
        model = self._by_direction.get((path[0], path[1]))
        return 0 if model is None else model.translators[path[0], path[1]].context

    def reload(self, changed_only: bool = True) -> dict[str, bool]:
        """Reload the models whose files have changed. If a model cannot be reloaded, the old one stays in use.

        changed_only: if False, reload all models, and read the glossaries again. Returns messages for the log, each
        with False if something could not be loaded.
        """
        messages, models = dict[str, bool](), list(self._loaded)
        if not changed_only:
            try:
                self.glossaries = self._read_glossaries(models)
            except UserError as error:
                messages[f"the old glossaries stay in use: {error}"] = False
        for index, old in enumerate(models):
            fingerprint = _fingerprint(old.path)
            if changed_only and fingerprint in (old.fingerprint, None):
                continue
            try:
                new = self._load(old.path)
                changed = [*models[:index], new, *models[index + 1:]]
                self._use(changed)
            except Exception as error:
                # With this fingerprint, the next check does not try the same files again.
                old.fingerprint = fingerprint or old.fingerprint
                messages[f"{old.path} cannot be loaded, the old model stays in use: {error}"] = False
                continue
            models = changed
            messages[f"{old.path} was loaded again"] = True
        return messages

    def _load(self, path: Path) -> _Loaded:
        fingerprint, bundle = _fingerprint(path), resolve_model_path(path)
        checksum = weights_checksum(bundle)
        translator = Translator.load(bundle, self.machine.device, self.machine.precision, self.machine.threads)
        if not (translator.task.has_source and translator.task.target_is_text):
            raise UserError(f"{path} is not a translation model, so it cannot be served.")
        try:
            decoding = decoding_with(translator.decoding, self.machine.decoding, self.machine.name_of)
        except OptionError as error:
            raise UserError(f"{path}: {error}") from None
        translator = replace(translator, decoding=decoding)
        try:
            (best, *_), = translator.translate([TEST_LINE], **_decoding(decoding, RequestOptions()))
        except Exception as error:                                              # whatever the model's files have caused
            raise UserError(f"{path} cannot translate the line '{TEST_LINE}': {error}") from error
        if not best.text:
            raise UserError(f"{path} cannot translate the line '{TEST_LINE}': its translation is empty.")
        pairs = translator.directions.pairs
        translators = {
            (canonical(source), canonical(target)): translator if len(pairs) == 1 else translator.towards(
                Languages.model_construct(source=source, target=target))
            for source, target in pairs if self.machine.serves(source, target)}
        if not translators:
            raise UserError(f"--languages {','.join(self.machine.languages)}: {path} has no direction between these "
                            f"languages. Its languages are {', '.join(dict.fromkeys(chain(*pairs)))}.")
        return _Loaded(path, fingerprint, checksum, translators)

    def _read_glossaries(self, models: Sequence[_Loaded]) -> dict[tuple[str, str, str], Glossary]:
        return {(name, *direction): Glossary.read(path, *direction)
                for name, path in self.glossary_files.items() for one in models for direction in one.translators}

    def _use(self, loaded: list[_Loaded]) -> None:
        by_direction: dict[tuple[str, str], _Loaded] = {}
        for direction, one in [(direction, model) for model in loaded for direction in model.translators]:
            if direction in by_direction:
                raise UserError(f"{by_direction[direction].path} and {one.path} both translate from {direction[0]} to "
                                f"{direction[1]}. Serve only one of them.")
            by_direction[direction] = one
        changed = self.directions.direct != tuple(by_direction)
        glossaries = self._read_glossaries(loaded) if changed else self.glossaries
        self._loaded, self._by_direction, self.glossaries = loaded, by_direction, glossaries
        if changed:
            self.directions = Directions(tuple(by_direction))


def _fingerprint(path: Path) -> Fingerprint | None:
    """Return the inode, size and modification time of a model's metadata.json, which has the checksums of the other
    files; None if there is no bundle."""
    try:
        status = (resolve_model_path(path) / METADATA).stat()
    except (OSError, UserError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _decoding(section: DecodingSection, options: RequestOptions) -> DecodingOptions:
    """Return decoding options for a request. They override the `decoding` section of the translator."""
    n_best, beam_size = options.n_best, section.beam_size
    if section.mbr:
        n_best = min(n_best, section.mbr)
    if not section.sampling:
        beam_size = max(beam_size, n_best)
        beam_size = -(-beam_size // section.diverse_groups) * section.diverse_groups
    return {"beam_size": beam_size, "n_best": n_best, "word_confidence": options.word_confidence}


def _sources(translator: Translator, sentences: Sequence[str | Source]) -> list[Source]:
    """Return the sentences of requests for a translator: a language token in their text is text."""
    return [replace(as_source(sentence), number=0, language=translator.languages.target) for sentence in sentences]


def named_files(values: Sequence[str]) -> dict[str, Path]:
    """Parse values of `--glossary`, such as `products=terms.tsv`, and return the paths by name."""
    found = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise UserError(f"--glossary {value}: expected NAME=FILE, such as products=terms.tsv.")
        found[name] = Path(path)
    return found
