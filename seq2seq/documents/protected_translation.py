"""Translation that keeps placeholders and terms.

A sentence is first translated as it is, with inline terms (`annotate`) if the model was trained with them. If the
translation lost or invented a placeholder, the sentence is translated again with a number in place of each placeholder,
because models copy numbers. If the translation lacks terms, these become required phrases of another search
(`Source.required`). If placeholders are still wrong, the sentence is translated without placeholders, and they are
inserted into the translation by word alignment.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from seq2seq.data.line_splitting import Span, split_margins
from seq2seq.documents.block import Tag, is_translatable
from seq2seq.documents.glossary import FoundTerm, Glossary
from seq2seq.documents.placeholders import Placeholders
from seq2seq.documents.placement import Align, place_tags
from seq2seq.recipe import DecodingOptions
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.term_markers import TERM_MARKERS, annotate
from seq2seq.translation.retry_faulty_lines import retry
from seq2seq.translation.sources import number_sources
from seq2seq.translation.translator import ReportProgress, Translation, Translator
from seq2seq.translation.word_confidence import Word
from seq2seq.translation.worker_processes import TranslatorPool

STAND_INS = (37, 43, 58, 64, 73, 89, 92, 46, 57, 68, 79, 83, 94, 39, 52, 61)
"""Numbers that replace placeholders. Numbers that the sentence contains are not used. Models know two-digit numbers
best, and rarely write numbers of this size in words."""
_QUOTES = ('""', "''", "``", "`'", "“”", "‘’", "„“", "‚‘", "«»", "»«", "()", "[]", "<>")
_NUMBER = re.compile(r"\d+")
_MARKERS = re.compile("|".join(TERM_MARKERS))


@dataclass(frozen=True)
class _Line:
    """Line with its terms and placeholders. forced: placeholders in the text that the translation must contain, such as
    its prefix."""

    request: Source
    terms: list[FoundTerm]
    has_placeholders: bool
    forced: Counter[str]


@dataclass(frozen=True)
class ProtectedTranslator:
    """Translator whose translations keep all placeholders of their sources and, if possible, the terms of a glossary.

    terms_inline: True if the model was trained with terms in its source text (`data.augmentation.terms`). align:
    function that aligns sentences with their translations; None: placeholders are placed by position. retries: True to
    translate again if terms are lost; False to only report it.
    """

    translator: Translator | TranslatorPool
    placeholders: Placeholders = Placeholders()
    glossary: Glossary | None = None
    terms_inline: bool = False
    align: Align | None = None
    retries: bool = True

    def translate(self, lines: Sequence[str | Source], *, progress: ReportProgress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """Return the best translations of each line; see `Translator.translate`."""
        marked = []
        for request in map(self.translator.directions.source, number_sources(lines, self.translator.context)):
            forced = "\n".join((request.prefix, *request.required, *decoding.get("require", ())))
            marked.append(_Line(request, self.glossary.find(request.text) if self.glossary else [],
                                bool(self.placeholders.spans(request.text)), self.placeholders.counts(forced)))
        found = self.translator.translate([self._first_request(line) for line in marked], progress=progress, **decoding)
        return self._checked(marked, found, decoding)

    def _first_request(self, line: _Line) -> Source:
        if line.has_placeholders and not is_translatable(self._without_placeholders(line.request.text)[0]):
            return replace(line.request, text="")                               # nothing to translate
        if line.terms and self.terms_inline:
            terms = [(one.begin, one.end, one.term.translations[0]) for one in line.terms]
            return replace(line.request, text=annotate(line.request.text, terms))
        return line.request

    def _checked(self, lines: Sequence[_Line], block: Sequence[list[Translation]], decoding: DecodingOptions,
                 ) -> list[list[Translation]]:
        """Return the translations of a block after the retries."""
        results = [self._kept(line, n_best) for line, n_best in zip(lines, block, strict=True)]

        def faulty(wrong: Callable[[_Line, str], bool]) -> list[int]:
            return [index for index, line in enumerate(lines) if wrong(line, results[index][0].text)]

        def search(requests: Sequence[Source]) -> list[list[Translation]]:
            return self.translator.translate(requests, **decoding)

        # The safety net is off, because it would force a lost number into the translation, at any position.
        without_net: DecodingOptions = {**decoding, "safety_net": False}

        def search_numbers(requests: Sequence[Source]) -> list[list[Translation]]:
            return self.translator.translate(requests, **without_net)

        results = retry(lines, results, faulty(self._differs), [self._numbered_request], search_numbers,
                        self._with_numbers)
        if self.retries:
            results = retry(lines, results, faulty(lambda line, text: bool(self._lost_terms(line, text))),
                            [self._requiring_request], search, self._with_terms)
        # Without placeholders, a translation would not contain the forced ones either.
        results = retry(lines, results, faulty(lambda line, text: not line.forced and self._differs(line, text)),
                        [self._request_without_placeholders], search, self._with_tags)
        return [[replace(one, lost_terms=self._lost_terms(line, one.text)) for one in n_best]
                for line, n_best in zip(lines, results, strict=True)]

    def _differs(self, line: _Line, translation: str) -> bool:
        return not self._same(line, translation)

    def _same(self, line: _Line, translation: str) -> bool:
        """Return True if a translation has the placeholders of its source, and no others except those it must have."""
        expected, found = self.placeholders.counts(line.request.text), self.placeholders.counts(translation)
        return expected <= found <= expected + line.forced

    def _kept(self, line: _Line, n_best: list[Translation]) -> list[Translation]:
        """Return the translations that have the placeholders of the source, or if none has, the best translation."""
        if line.has_placeholders and n_best[0].parts == 0 and line.request.text.strip():
            return [replace(n_best[0], text=line.request.text)]                 # nothing to translate
        if line.terms and self.terms_inline:
            n_best = [replace(one, text=_without_markers(one.text)) for one in n_best]
        return [one for one in n_best if self._same(line, one.text)] or n_best[:1]

    # Placeholders

    def _numbered_request(self, line: _Line, best: Translation) -> Source:
        text, numbers = self._numbered(line.request.text)
        return replace(line.request, text=text if numbers else "")

    def _with_numbers(self, lines: Sequence[_Line], results: Sequence[list[Translation]],
                      found: Sequence[list[Translation]]) -> list[list[Translation]]:
        """Put the placeholders back in place of their numbers. If numbers are lost, keep the earlier result."""
        retried = []
        for line, before, after in zip(lines, results, found, strict=True):
            _, numbers = self._numbered(line.request.text)
            restored = _restored(after[0].text, numbers) if numbers and after else None
            retried.append(before if restored is None or self._differs(line, restored) else
                           [replace(after[0], text=restored, words=_restored_words(after[0].words, numbers))])
        return retried

    def _numbered(self, text: str) -> tuple[str, dict[str, str]]:
        """Return a text with numbers in place of its placeholders, and the placeholder of each number. If there are too
        few numbers, the text is returned unchanged, with an empty dictionary."""
        spans = self.placeholders.spans(text)
        present = set(_NUMBER.findall(text))
        free = [str(number) for number in STAND_INS if str(number) not in present][:len(spans)]
        if not spans or len(free) < len(spans):
            return text, {}
        parts, last = [], 0
        for (begin, end), number in zip(spans, free, strict=True):
            # A number beside a digit would be read as another number.
            before = " " if text[begin - 1:begin].isdigit() else ""
            after = " " if text[end:end + 1].isdigit() else ""
            parts += [text[last:begin], before, number, after]
            last = end
        return "".join([*parts, text[last:]]), {
            number: text[begin:end] for number, (begin, end) in zip(free, spans, strict=True)}

    def _without_placeholders(self, text: str) -> tuple[str, list[Tag]]:
        """Return a text without its placeholders, and a tag for each. The tag includes quotes or brackets around it."""
        parts: list[str] = []
        tags, last, length = [], 0, 0
        for begin, end in _with_quotes(text, self.placeholders.spans(text)):
            between = text[last:begin]
            if length and parts[-1][-1:] == " " and between[:1] == " ":
                between = between[1:]
            parts.append(between)
            length += len(between)
            tags.append(Tag(length, text[begin:end]))
            last = end
        rest = text[last:]
        if parts and "".join(parts)[-1:] == " " and rest[:1] in ("", " "):
            rest = rest[1:]
        return "".join([*parts, rest]), tags

    def _margins(self, text: str) -> tuple[str, str, str]:
        """Return the left margin of a text, the part to translate, and the right margin. Margins are white space, and
        placeholders at the edges that a colon separates, such as `%s: ` and `: {error}`."""
        before, core, after = split_margins(text)
        spans = _with_quotes(core, self.placeholders.spans(core))
        if spans and spans[0][0] == 0 and core[spans[0][1]:spans[0][1] + 2] == ": ":
            cut = spans[0][1] + 2
            before, core, spans = before + core[:cut], core[cut:], [(low - cut, high - cut) for low, high in spans[1:]]
        if spans and spans[-1][1] == len(core) and core[:spans[-1][0]].endswith(": "):
            cut = spans[-1][0] - 2
            core, after = core[:cut], core[cut:] + after
        return before, core, after

    def _request_without_placeholders(self, line: _Line, best: Translation) -> Source:
        _, core, _ = self._margins(line.request.text)
        return replace(line.request, text=self._without_placeholders(core)[0])

    def _with_tags(self, lines: Sequence[_Line], results: Sequence[list[Translation]],
                   found: Sequence[list[Translation]]) -> list[list[Translation]]:
        """Insert the placeholders into the translations without placeholders, by word alignment."""
        margins = [self._margins(line.request.text) for line in lines]
        stripped = [self._without_placeholders(core) for _, core, _ in margins]
        texts = [self._without_placeholders(after[0].text)[0].strip() if after else "" for after in found]
        pairs = [(text, translation) for (text, _), translation in zip(stripped, texts, strict=True)]
        weights = self.align(pairs) if self.align and pairs else [None] * len(pairs)
        retried = []
        for line, (begin, core, end), (text, tags), translation, before, after, one in zip(
                lines, margins, stripped, texts, results, found, weights, strict=True):
            placed = place_tags(text, tags, translation, one)
            restored = begin + _inserted(translation, placed, core, [tag.raw for tag in tags]) + end
            if after and self._same(line, restored):
                words = _words_with(after[0].words, translation, [Tag(0, begin), *placed, Tag(len(translation), end)])
                retried.append([replace(after[0], text=restored, words=words)])
            else:                                                               # last resort: the source
                retried.append([replace((after or before)[0], text=line.request.text, words=())])
        return retried

    # Terms

    def _lost_terms(self, line: _Line, translation: str) -> tuple[str, ...]:
        missing = self.glossary.missing(line.terms, translation) if self.glossary else []
        return tuple(term.translations[0] for term in missing)

    def _requiring_request(self, line: _Line, best: Translation) -> Source:
        """Return a request that requires the lost terms. If the terms were inline, all terms are required, because a
        model that loses an inline term has misunderstood the sentence."""
        terms = dict.fromkeys(found.term.translations[0] for found in line.terms) if self.terms_inline else \
            self._lost_terms(line, best.text)
        return replace(line.request, required=(*line.request.required, *terms))

    def _with_terms(self, lines: Sequence[_Line], results: Sequence[list[Translation]],
                    found: Sequence[list[Translation]]) -> list[list[Translation]]:
        """Return the new translations that lack fewer terms, and else the earlier ones."""
        return [after if n_best and (after := self._kept(line, n_best)) and self._same(line, after[0].text)
                and len(self._lost_terms(line, after[0].text)) < len(self._lost_terms(line, before[0].text))
                else before for line, before, n_best in zip(lines, results, found, strict=True)]


def _with_quotes(text: str, spans: Sequence[Span]) -> list[Span]:
    """Return the spans, each extended by the quotes or brackets directly around it."""
    wider: list[Span] = []
    for begin, end in spans:
        free = begin > (wider[-1][1] if wider else 0)
        quoted = free and text[begin - 1] + text[end:end + 1] in _QUOTES
        wider.append((begin - 1, end + 1) if quoted else (begin, end))
    return wider


def _without_markers(text: str) -> str:
    """Return a translation without markers of terms, which a model may copy by mistake."""
    return " ".join(_MARKERS.sub(" ", text).split()) if _MARKERS.search(text) else text


def _restored(text: str, numbers: dict[str, str]) -> str | None:
    """Return a translation with placeholders in place of their numbers; None unless each number occurs exactly once."""
    spans = [match.span() for match in _NUMBER.finditer(text)]
    places = {number: [span for span in spans if text[slice(*span)] == number] for number in numbers}
    if any(len(found) != 1 for found in places.values()):
        return None
    parts, last = [], 0
    for (begin, end), number in sorted((found[0], number) for number, found in places.items()):
        parts += [text[last:begin], numbers[number]]
        last = end
    return "".join([*parts, text[last:]])


def _restored_words(words: Sequence[Word], numbers: dict[str, str]) -> tuple[Word, ...]:
    return tuple(replace(word, text=_NUMBER.sub(lambda match: numbers.get(match[0], match[0]), word.text))
                 for word in words)


def _words_with(words: Sequence[Word], text: str, tags: Sequence[Tag]) -> tuple[Word, ...]:
    """Return the words of a text and a word of confidence 1 for each tag that is not blank, in the order of the text.
    If there are no words, return no words."""
    placed, position = [], 0
    for word in words:
        if (begin := text.find(word.text, position)) >= 0:                      # else a placeholder that was removed
            placed.append((begin, word))
            position = begin + len(word.text)
    inserted = [(tag.position, Word(tag.raw.strip(), 1.0)) for tag in tags if tag.raw.strip()]
    return tuple(word for _, word in sorted(inserted + placed, key=lambda one: one[0])) if words else ()


def _inserted(text: str, tags: Sequence[Tag], source: str, placeholders: Sequence[str]) -> str:
    """Return the text with the placeholders inserted, and with spaces around a placeholder if the source has them.

    tags: placeholders as tags with positions in `text`. placeholders: the same placeholders in the order of `source`.
    """
    margins: dict[str, deque[tuple[str, str]]] = defaultdict(deque)             # characters around it in the source
    position = 0
    for raw in placeholders:
        begin = source.index(raw, position)
        position = begin + len(raw)
        margins[raw].append((source[max(begin - 1, 0):begin], source[position:position + 1]))
    parts: list[str] = []
    last = 0
    for tag in tags:
        before, after = margins[tag.raw].popleft()
        parts.append(text[last:tag.position])
        written = "".join(parts)
        following = text[tag.position:tag.position + 1]
        left = before == " " and written and not written[-1].isspace() or (
            written[-1:].isalnum() and tag.raw[0].isalnum())
        right = following and not following.isspace() and (
            after == " " or before == " " and following.isalnum() and not after.isalnum())
        parts += [" " if left else "", tag.raw, " " if right else ""]
        last = tag.position
    return "".join([*parts, text[last:]])
