"""Translation of the texts of a request: language detection, pivot languages, division into sentences, joining."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from seq2seq.data.glossary import Glossary
from seq2seq.documents.divided_document import DividedDocument
from seq2seq.errors import CorpusError, OptionError, RequestError, UserError
from seq2seq.formats import registry
from seq2seq.formats.block import naming
from seq2seq.formats.registry import FORMATS, OFFICE
from seq2seq.languages import language_name, resolve, suggestion_for
from seq2seq.serve.detection import Detected, Detector
from seq2seq.serve.directions import Directions
from seq2seq.serve.document_workers import DocumentWorkers, Read, RemoteDocument
from seq2seq.serve.errors import ApiError, invalid
from seq2seq.serve.metrics import Metrics
from seq2seq.serve.models import Divided, Group, Models, RequestOptions
from seq2seq.serve.scheduler import Scheduler, require_short
from seq2seq.serve.threads import in_thread
from seq2seq.tokenizers.canonical_text import canonical
from seq2seq.tokenizers.context import in_context
from seq2seq.tokenizers.source import Source, as_source
from seq2seq.translation.placement import Align
from seq2seq.translation.translation import TERM_REPORTS, Translation

AUTO = "auto"
TEXT_FORMATS = tuple(format for format in FORMATS if format not in (*OFFICE, "tmx"))
"""Formats of texts in a request. Uploaded files may also be Office documents and translation memories."""
MAX_ALTERNATIVES = 10
"""Maximum number of alternatives of a translation. A client that asks for more gets this number."""
THREAD_CHARACTERS = 5_000
"""Texts above this length are divided and joined by workers, and other work for them is done in another thread, so that
other requests do not wait. For shorter texts, the switch and back would take longer than the work."""
CHARACTERS_PER_TEXT = 50
"""Number of characters whose division takes as long as what each text of a request costs, even an empty one."""
T = TypeVar("T")
Glossaries = Mapping[tuple[str, str, str], Glossary]
"""Glossaries by name, source and target language."""
Parsed = DividedDocument | RemoteDocument


@dataclass(frozen=True)
class Translated(Generic[T]):
    """Translation of a text or document of a request.

    versions: best translation, then alternatives, all different. path: languages from source to target. words: words of
    the best translation with their confidence, if requested. detected: detected language, if the client named none.
    report: what is wrong with the best translation, see `_report`.
    """

    versions: list[T]
    path: tuple[str, ...]
    words: list[dict[str, Any]]
    detected: Detected | None
    report: dict[str, Any] = field(default_factory=dict)


async def _run(function: Callable[[], T], characters: int, quick: bool = True) -> T:
    """Call a function, in another thread if it may take long. quick: False if even a short text may take long."""
    large = characters > THREAD_CHARACTERS
    return await in_thread(function, large) if large or not quick else function()


class Service:
    """Translation service of a server: models, scheduler, language identification and metrics."""

    def __init__(self, models: Models, batch_tokens: int = 512, max_waiting: int = 10_000,
                 max_seconds: float = math.inf, charge: Callable[[str, float], None] = lambda client, seconds: None,
                 ) -> None:
        """For the arguments, see `Scheduler`."""
        self.models, self.metrics, self.workers = models, Metrics(), DocumentWorkers()
        self.scheduler = Scheduler(models.translate, batch_tokens, max_waiting, max_seconds, self.metrics.count_batch,
                                   charge)
        self._detector: Detector | None = None

    @property
    def directions(self) -> Directions:
        """Directions of the models. They can change when a model is replaced."""
        return self.models.directions

    async def detect(self, text: str) -> list[Detected]:
        """Return the candidates for the language of a text, the most probable first. Raises ApiError: see
        `Detector.decide`."""
        return await in_thread(lambda: self._detect(text), large=False)

    def _detect(self, text: str) -> list[Detected]:
        languages = self.directions.languages
        ordered = sorted(languages, key=lambda code: (code != "en", code not in self.directions.sources))
        if self._detector is None or self._detector.languages != ordered:
            self._detector = Detector(ordered)
        return self._detector.decide(text)

    def _named(self, document: Parsed) -> Detected | None:
        """Return the language that a document names for its texts; None if it names none, several, or one that is not
        served."""
        codes = document.source_languages
        language = resolve(next(iter(codes)), self.directions.languages) if len(codes) == 1 else None
        return Detected(language, 100.0) if language else None

    def language(self, code: str) -> str:
        """Return the served language that matches a client's code (see `languages.resolve`).

        Raises:
            ApiError: no served language matches.
        """
        found = resolve(code, self.directions.languages)
        if found is None:
            raise ApiError(400, f"{code[:30]} is not supported" + (f".{suggestion_for(code).rstrip('.')}"
                                                                   if suggestion_for(code) else ""))
        return found

    def path(self, source: str, target: str) -> tuple[str, ...]:
        """Return the languages from `source` to `target` (see `Directions.path`).

        Raises:
            ApiError: no chain of models connects them, or one of them is not served.
        """
        path = self.directions.path(self.language(source), self.language(target))
        if path is None:
            raise ApiError(400, f"{language_name(self.language(target))} ({target}) is not available as a target "
                                f"language from {language_name(self.language(source))} ({source})")
        return path

    async def translate(self, texts: Sequence[str], source: str, target: str, format: str = "text",
                        alternatives: int = 0, confidence: bool = False, glossary: str = "", client: str = "",
                        glossaries: Glossaries | None = None, read: Read | None = None, name: str = "q", tag: str = "",
                        ) -> list[Translated[str]]:
        """Translate the texts of a request.

        Args:
            source: code as the client sent it, or `auto`. target: code as the client sent it.
            format: one of TEXT_FORMATS.
            alternatives: number of further translations of each text.
            confidence: if True, the confidence of each word is returned, too.
            glossary: name of the glossary to use, or "". client: name of the client, see `Scheduler.submit`.
            glossaries: glossaries to choose from; None: those of the server. read: function that parses a text, if
                `format` is not enough to tell that. name: name of the texts in messages.
            tag: tag of all sentences, one of the training corpora of a model (`data.train[].tag`); "": a line of a text
            may begin with one.
        Raises:
            ApiError: a language, direction, glossary or tag is not served, a text is malformed, the translation takes
                too long, or the queue is full.
        """
        if format not in TEXT_FORMATS:
            raise ApiError(400, f"{format[:30]} format is not supported")
        # The byte order mark says that these bytes are UTF-8, whatever encoding the text itself declares.
        mark = "" if format in ("text", "json") else "\ufeff"
        characters = sum(map(len, texts)) + CHARACTERS_PER_TEXT * len(texts)
        contents = await _run(
            lambda: [(mark + text.removeprefix(mark)).encode("utf-8", "replace") for text in texts], characters)
        options = RequestOptions(1 + (min(max(0, alternatives), MAX_ALTERNATIVES) if format == "text" else 0),
                                 confidence, document=format != "text")
        translated = await self._translate(contents, source, target, format, options, client, glossary, glossaries,
                                           name, read=read, tag=tag, in_lines=format == "text")
        return await _run(lambda: [
            Translated([text.decode().removeprefix(mark) for text in one.versions], one.path, one.words, one.detected,
                       one.report) for one in translated], characters)

    async def translate_document(self, contents: bytes, format: str, name: str, source: str, target: str,
                                 glossary: str, check: Callable[[str], None], client: str = "",
                                 glossaries: Glossaries | None = None, tag: str = "") -> Translated[bytes]:
        """Translate a file.

        Args:
            format: see `registry.parse`. name: name of the file, for messages.
            check: function that gets the text of the document, and raises ApiError if this text is too long.
            client, glossaries, tag: see `translate`.
        Raises:
            ApiError: see `translate`, or the source language of a translation memory is to be detected.
        """
        if format == "tmx" and source.lower() == AUTO:
            raise invalid("the source language of a .tmx file cannot be detected. Name it in the request")
        return (await self._translate([contents], source, target, format, RequestOptions(document=True), client,
                                      glossary, glossaries, name, check, tag=tag))[0]

    async def _translate(self, contents: Sequence[bytes], source: str, target: str, format: str,
                         options: RequestOptions, client: str, glossary: str, glossaries: Glossaries | None, name: str,
                         check: Callable[[str], None] = lambda text: None, read: Read | None = None, tag: str = "",
                         in_lines: bool = False) -> list[Translated[bytes]]:
        arrival = time.monotonic()
        fixed = None if source.lower() == AUTO else self.path(source, target)
        self.language(target)
        size = sum(map(len, contents)) + CHARACTERS_PER_TEXT * len(contents)

        def parse_all() -> tuple[list[Parsed], list[Detected | None]]:
            """Return the documents, and the language that each of them names, if the request does not name one."""
            source_language, target_language = (fixed[0], fixed[-1]) if fixed else ("", self.language(target))
            parser = read or partial(registry.read, format=format, source_language=source_language,
                                     target_language=target_language)
            tags = self._tags(fixed) if in_lines else ()
            with naming(name):
                documents: list[Parsed] = [
                    self.workers.open(one, parser, tags) if format in OFFICE or len(one) > THREAD_CHARACTERS
                    else DividedDocument(parser(one), tags=tags) for one in contents]
            for document in documents:
                check(document.content)
            return documents, [None if fixed else self._named(one) for one in documents]

        try:
            documents, detected = await _run(parse_all, size, quick=format == "text")
        except UserError as error:
            raise invalid(str(error)) from None
        if fixed is None:
            detected = await in_thread(lambda: [one or self._detect(document.content)[0] for one, document in zip(
                detected, documents, strict=True)], large=len(documents) > 10)
        paths = [fixed or self.path(one.language if one else source, target) for one in detected]
        chosen = {path: replace(options, glossary=self._terms(path, glossary, glossaries)) for path in paths}
        tag_of = {path: self._known_tag(path, tag) for path in paths}

        def sentences_by_path() -> tuple[list[list[Source]], dict[tuple[str, ...], list[Source]]]:
            """Return the sentences of each text, with their contexts, and the distinct sentences of each path."""
            sentences = [in_context(_tagged(document, tag_of[path]), self.models.context(path)) if len(path) > 1 else []
                         for document, path in zip(documents, paths, strict=True)]
            by_path: dict[tuple[str, ...], dict[Source, None]] = {}
            for sentences_of_text, path in zip(sentences, paths, strict=True):
                by_path.setdefault(path, {}).update(dict.fromkeys(sentences_of_text))
            return sentences, {path: list(distinct) for path, distinct in by_path.items()}

        try:
            sentences, by_path = await _run(sentences_by_path, size)
        except OptionError as error:
            raise invalid(str(error)) from None
        found = await self._translate_sentences(by_path, chosen, arrival, client, size)
        self.metrics.count_texts(len(contents), sum(len(document.content) for document in documents))

        def finish() -> list[Translated[bytes]]:
            with naming(name):
                return [_translated(document, [found[path][text] for text in texts], path, options, one,
                                    partial(self._align, path, arrival, client))
                        for document, texts, path, one in zip(documents, sentences, paths, detected, strict=True)]

        try:
            results = await _run(finish, size, quick=format == "text")
        except UserError as error:
            raise invalid(str(error)) from None
        self.metrics.count_faults(sum((Counter(one.report.get("faults")) for one in results), Counter()))
        return results

    def _terms(self, path: tuple[str, ...], name: str, glossaries: Glossaries | None) -> Glossary | None:
        """Return the glossary of a request for a language path; None if it names none. Raises ApiError if the glossary
        that it names has no terms for these languages."""
        terms = (self.models.glossaries if glossaries is None else glossaries).get((name, path[0], path[-1]))
        if name and terms is None:
            raise ApiError(400, f"{name[:40]} is not a glossary from {path[0]} to {path[-1]}")
        return terms

    def _tags(self, path: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the tags with which a line may begin: those that the models of a language path know; None: the path is
        not known yet, so that the tags are those that all models know."""
        if path is not None:
            return tuple(dict.fromkeys(tag for pair in pairwise(path) for tag in self.models.tags(*pair)))
        first, *others = [self.models.tags(*pair) for pair in self.directions.direct]
        return tuple(tag for tag in first if all(tag in tags for tags in others))

    def _known_tag(self, path: tuple[str, ...], tag: str) -> str:
        """Return the tag of a request as the models of its language path spell it; "" if it names none. Raises ApiError
        if no model knows it."""
        known = self._tags(path)
        if not tag or len(path) == 1:
            return ""
        for one in known:
            if canonical(one) == canonical(tag):
                return one
        raise invalid(f"the tag {tag[:40]} is not known" + (f", only {', '.join(known)}" if known else ""))

    def _align(self, path: tuple[str, ...], arrival: float, client: str, pairs: Sequence[tuple[str, str]],
               ) -> Sequence[np.ndarray | None]:
        """Wait for the model thread, and return the alignments of pairs (see `DividedDocument.join`). If the path has
        pivot languages, the alignment of each pair is None."""
        if len(path) > 2:
            return [None] * len(pairs)
        group = Group(path[0], path[1], None)
        return self.scheduler.submit(group, pairs, arrival, admitted=True, client=client).result()

    def _divide(self, group: Group, sentences: Sequence[Source], admitted: bool) -> list[Divided]:
        if not admitted:
            require_short(sentences)                                            # before a tokenizer reads them
        return self.models.divide(group, sentences)

    async def _translate_sentences(self, by_path: Mapping[tuple[str, ...], Sequence[Source]],
                                   options: Mapping[tuple[str, ...], RequestOptions], arrival: float, client: str,
                                   size: int) -> dict[tuple[str, ...], dict[Source, list[Translation]]]:
        """Return the translations by language path and sentence. by_path, options: distinct sentences and options of
        each path."""
        tasks = [asyncio.ensure_future(self._follow(path, sentences, options[path], arrival, client, size))
                 for path, sentences in by_path.items()]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()                                                   # no effect on tasks that are done
        return {path: dict(zip(sentences, result, strict=True))
                for (path, sentences), result in zip(by_path.items(), results, strict=True)}

    async def _follow(self, path: tuple[str, ...], sentences: Sequence[str | Source], options: RequestOptions,
                      arrival: float, client: str, size: int) -> list[list[Translation]]:
        """Translate sentences by the models along a path. Only the last model gives n-best lists and confidence."""
        n_best: list[list[Translation]] = []
        lost: list[tuple[str, ...]] = [()] * len(sentences)
        tags = [as_source(sentence).tag or "" for sentence in sentences]
        for hop in range(len(path) - 1):
            # Each model gets the tags that it knows. What the text of a sentence begins with is text.
            known = self.models.tags(path[hop], path[hop + 1])
            sources = [replace(as_source(sentence), tag=tag if tag in known else "")
                       for sentence, tag in zip(sentences, tags, strict=True)]
            last = hop == len(path) - 2
            group = Group(path[hop], path[hop + 1], options if last else RequestOptions())
            divided = await _run(partial(self._divide, group, sources, hop > 0), size)
            future = self.scheduler.submit(group, [item for one in divided for item in one.items], arrival,
                                           admitted=hop > 0, client=client,
                                           tokens=[tokens for one in divided for tokens in one.tokens])
            try:
                results = await asyncio.wrap_future(future)
            except (CorpusError, RequestError):
                raise invalid("the model cannot translate this text") from None
            remaining = iter(results)
            found = [one.join(list(islice(remaining, len(one.items)))) for one in divided]
            # A loss on the way to a pivot language is a fault of the whole translation.
            n_best = [[replace(best, faults=tuple(dict.fromkeys((*faults, *best.faults)))), *others]
                      for faults, (best, *others) in zip(lost, found, strict=True)]
            sentences, lost = [best.text for best, *_ in n_best], [best.faults for best, *_ in n_best]
        return n_best


def _tagged(document: Parsed, tag: str) -> list[Source]:
    """Return the sentences of a document with their tags. tag: that of the request; "": each line may have its own."""
    for own in document.tags if tag else ():
        if own not in ("", tag):
            raise OptionError(f"a line begins with the tag {own}, and the request has the tag {tag}")
    return [Source(text, tag=tag or own) for text, own in zip(document.sentences, document.tags, strict=True)]


def _translated(document: Parsed, n_best: Sequence[list[Translation]], path: tuple[str, ...],
                options: RequestOptions, detected: Detected | None, align: Align) -> Translated[bytes]:
    if len(path) == 1:
        return Translated([document.join(document.sentences, path[-1])], path, [], detected)

    damaged = Counter[str]()

    def joined(rank: int) -> bytes:
        """Join the translations of one rank. A sentence with fewer translations contributes its best one."""
        return document.join([each[rank if rank < len(each) else 0].text for each in n_best], path[-1], align,
                             lambda place, fault: damaged.update([fault.partition(":")[0]] * (rank == 0)))

    ranks = max(map(len, n_best), default=1)
    different = list(dict.fromkeys(joined(rank) for rank in range(min(ranks, options.n_best))))
    words = [{"text": word.text, "confidence": round(word.confidence, 4)}
             for best, *_ in n_best for word in best.words] if options.word_confidence else []
    return Translated(different, path, words, detected, _report([best for best, *_ in n_best], damaged))


def _report(translations: Sequence[Translation], damaged: Counter[str]) -> dict[str, Any]:
    """Return what is wrong with the sentences of a text; an empty dict if nothing is.

    faults: number of sentences with each fault. lost_terms, placed_terms, misplaced_terms: see `Translation`.
    damaged: number of blocks with each fault of `DividedDocument`.
    """
    faults = Counter(fault for one in translations for fault in one.faults) + damaged
    report: dict[str, Any] = {"faults": dict(+faults)}
    for name in TERM_REPORTS:
        report[name] = [term for one in translations for term in getattr(one, name)]
    return {name: value for name, value in report.items() if value}
