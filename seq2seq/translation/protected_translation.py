"""Search that keeps inline tags, placeholders and terms.

Pairs of tags are taken out of a sentence and placed in its translation by alignment (`placement`). A sentence is first
translated as it is, with inline terms (`annotate`) if the model was trained with them. If the translation lost or
invented a placeholder, the sentence is translated without placeholders, and they are inserted into the translation by
word alignment. If the translation lacks terms, these become required phrases of another search (`Source.required`). If
this search puts them out of place, they replace the words that they are aligned to (`term_placement`). At the end, each
translation is compared with its source: what is still wrong is reported.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from seq2seq.data.glossary import FoundTerm, Glossary, Term, find_words
from seq2seq.formats.inline_tags import Tag, TagKind, pair_tags, with_tags
from seq2seq.formats.placeholders import Placeholders, paired_tags, tag_kind
from seq2seq.formats.tags_in_text import TaggedText, without_tags
from seq2seq.recipe import DecodingOptions, DecodingSection, Languages
from seq2seq.tokenizers.canonical_text import is_translatable
from seq2seq.tokenizers.line_splitting import Span, split_margins
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.term_markers import TERM_MARKERS, annotate
from seq2seq.translation.output_faults import FAULTS, LOST_PLACEHOLDER, faults
from seq2seq.translation.placement import MAX_TAGS, Align, align_words, place_tags, single_spaced, with_spaces
from seq2seq.translation.retry_faulty_lines import MAX_LOSS, retry
from seq2seq.translation.term_placement import TermPlacement, after_end, attended_word, sentence_count
from seq2seq.translation.translation import ReportProgress, Translation
from seq2seq.translation.word_confidence import Word

Search = Callable[..., list[list[Translation]]]
"""Function with the arguments and results of `ProtectedSearch.translate`."""
_QUOTES = ('""', "''", "``", "`'", "“”", "‘’", "„“", "‚‘", "«»", "»«", "()", "[]", "<>")
_MARKERS = re.compile("|".join(TERM_MARKERS))


@dataclass(frozen=True)
class _Line:
    """Line with its terms and placeholders. forced: placeholders in the text that the translation must contain, such as
    its prefix, beyond those of the line. allowed: all placeholders that the translation may contain: those of the line,
    of `forced`, and of the translations of terms. required: phrases that the user requires. forbidden: phrases that the
    user forbids."""

    request: Source
    terms: list[FoundTerm]
    placeholders: Counter[str]
    forced: Counter[str]
    allowed: Counter[str]
    required: tuple[str, ...]
    forbidden: tuple[str, ...]


@dataclass(frozen=True)
class ProtectedSearch:
    """Search whose translations keep all tags and placeholders of their sources and, if possible, the terms of a
    glossary.

    search: function that returns the best translations of sources, and knows nothing of all this. languages: direction
    of the sources. decoding: default decoding options; a call can override them. terms_inline: True if the model was
    trained with terms in its source text (`data.augmentation.terms`). align: function that aligns sentences with their
    translations; None: placeholders are placed by position, and terms stay where the search put them. retries: True to
    translate again if placeholders or terms are lost; False to only report it.
    """

    search: Search
    languages: Languages
    decoding: DecodingSection
    placeholders: Placeholders = Placeholders()
    glossary: Glossary | None = None
    terms_inline: bool = False
    align: Align | None = None
    retries: bool = True

    def translate(self, sources: Sequence[Source], *, progress: ReportProgress | None = None,
                  **decoding: Unpack[DecodingOptions]) -> list[list[Translation]]:
        """Return the best translations of each source; see `Translator.translate`."""
        marked = []
        forbidden = tuple(decoding.get("forbid", self.decoding.forbid) or ())
        everywhere = decoding.get("require", self.decoding.require)
        tagged: list[TaggedText | None] = []                                    # lines whose tags are taken out
        for request in sources:
            # Tags could divide a required phrase, or stand before a prefix.
            block = None if request.prefix or request.required or everywhere else _without_tags(request.text)
            tagged.append(block)
            request = replace(request, text=single_spaced(block.text, block.tags)) if block else request
            terms = self.glossary.find(request.text) if self.glossary else []
            required = tuple(dict.fromkeys((*request.required, *(everywhere or ()))))
            own = self.placeholders.counts(request.text)
            forced = self.placeholders.counts("\n".join((request.prefix, *required))) - own
            allowed = own + forced
            if terms:
                allowed += self.placeholders.counts("\n".join(form for one in terms for form in one.term.translations))
            marked.append(_Line(request, terms, own, forced, allowed, required, forbidden))
        found = self.search(list(map(self._first_request, marked)), progress=progress, **decoding)
        return self._with_tags(tagged, self._checked(marked, found, decoding))

    def _with_tags(self, blocks: Sequence[TaggedText | None], results: list[list[Translation]]
                   ) -> list[list[Translation]]:
        """Return the translations with the tags of their lines. blocks: lines with tags; None: a line has none."""
        plain = [single_spaced(block.text, block.tags) if block else "" for block in blocks]
        pairs = [(text, one.text) for text, block, n_best in zip(plain, blocks, results, strict=True) if block
                 for one in n_best if one.text != text]
        weights = iter(align_words(self.align, pairs, self.placeholders))

        def tagged(block: TaggedText, plain: str, one: Translation) -> Translation:
            text, tags = block.text, list(block.tags)
            if one.text != plain:
                text, tags = with_spaces(block.text, block.tags, one.text, place_tags(
                    block.text, block.tags, one.text, next(weights)))
            result, found = with_tags(text, tags), one.faults
            # A placeholder that stands directly after a word is none, until a tag separates them: `off<br/>:name`.
            if LOST_PLACEHOLDER not in found and (self.placeholders.counts(with_tags(block.text, block.tags))
                                                  - self.placeholders.counts(result)):
                found = (*found, LOST_PLACEHOLDER)
            return replace(one, text=result, words=_words_with(one.words, text, tags), faults=found)

        return [[tagged(block, text, one) for one in n_best] if block else n_best
                for text, block, n_best in zip(plain, blocks, results, strict=True)]

    def _first_request(self, line: _Line) -> Source:
        if line.placeholders and not is_translatable(self._without_placeholders(line.request.text)[0]):
            return replace(line.request, text="")                               # nothing to translate
        if line.terms and self.terms_inline:
            terms = [(one.begin, one.end, one.term.translations[0]) for one in line.terms]
            return replace(line.request, text=annotate(line.request.text, terms))
        return line.request

    def _checked(self, lines: Sequence[_Line], block: Sequence[list[Translation]], decoding: DecodingOptions,
                 ) -> list[list[Translation]]:
        """Return the translations of a block after the retries, with what is wrong with them."""
        results = [self._kept(line, n_best) for line, n_best in zip(lines, block, strict=True)]
        if self.retries:
            results = self._retried(lines, results, decoding)
        net = decoding.get("safety_net", self.decoding.safety_net)
        return [[self._reported(line, one, all(one is not other for other in first), net) for one in n_best]
                for line, n_best, first in zip(lines, results, block, strict=True)]

    def _retried(self, lines: Sequence[_Line], results: list[list[Translation]], decoding: DecodingOptions,
                 ) -> list[list[Translation]]:
        """Translate lines that lost placeholders or terms again."""

        def faulty(wrong: Callable[[_Line, str], object]) -> list[int]:
            return [index for index, line in enumerate(lines) if wrong(line, results[index][0].text)]

        def again(requests: Sequence[Source]) -> list[list[Translation]]:
            return self.search(requests, **decoding)

        # Without placeholders, a translation would not contain the forced ones either.
        results = retry(lines, results, faulty(lambda line, text: not line.forced and self._differs(line, text)),
                        [self._request_without_placeholders], again, self._with_placeholders)
        without_phrases: DecodingOptions = {**decoding, "require": []}
        results = retry(lines, results, faulty(self._after_end),
                        [lambda line, best: replace(line.request, required=())],
                        lambda requests: self.search(requests, **without_phrases), self._with_required)
        return retry(lines, results, faulty(self._missing), [self._requiring_request], again, self._with_terms)

    def _reported(self, line: _Line, one: Translation, is_new: bool, net: bool | None) -> Translation:
        """Return a translation with what is wrong with its final text. is_new: True if the text may differ from that
        of the first search. net: `decoding.safety_net`."""
        found = one.faults
        if net and is_new and one.parts == 1:
            source, target = self.languages.source or "", self.languages.target
            # A placeholder with words, such as an ICU plural, is no copied text.
            before, after = (self._without_placeholders(text)[0] for text in (line.request.text, one.text))
            again = faults(before, after, source, target)
            found = tuple(name for name in FAULTS if name in found or name in again)
        if self._differs(line, one.text):
            found = (*found, LOST_PLACEHOLDER)
        return replace(one, faults=found, lost_terms=self._lost_terms(line, one.text))

    def _differs(self, line: _Line, translation: str) -> bool:
        return not self._same(line, translation)

    def _same(self, line: _Line, translation: str) -> bool:
        """Return True if a translation has the placeholders of its source, and no others except those it must have, and
        if every pair of tags is still a pair."""
        if not line.placeholders and not self.placeholders.spans(translation):  # true of most lines, and fast
            return True
        return line.placeholders <= self.placeholders.counts(translation) <= line.allowed and (
            paired_tags(line.request.text) <= paired_tags(translation))

    def _kept(self, line: _Line, n_best: list[Translation]) -> list[Translation]:
        """Return the translations that have the placeholders of the source, or if none has, the best translation."""
        if line.placeholders and n_best[0].parts == 0 and line.request.text.strip():
            return [replace(n_best[0], text=line.request.text)]                 # nothing to translate
        if line.terms and self.terms_inline:
            n_best = [replace(one, text=_without_markers(one.text)) for one in n_best]
        return [one for one in n_best if self._same(line, one.text)] or n_best[:1]

    # Placeholders

    def _without_placeholders(self, text: str) -> tuple[str, list[Tag]]:
        """Return a text without its placeholders, and a tag for each. The tag includes quotes or brackets around it."""
        parts: list[str] = []
        tags: list[tuple[int, str, TagKind, str]] = []
        last = length = 0
        for begin, end in _with_quotes(text, self.placeholders.spans(text)):
            between = text[last:begin]
            if length and parts[-1][-1:] == " " and between[:1] == " ":
                between = between[1:]
            elif _separates_words(text, last, tags[-1][1] if tags else ""):
                between = f" {between}"
            parts.append(between)
            length += len(between)
            tags.append((length, text[begin:end], *tag_kind(text[begin:end])))
            last = end
        rest = text[last:]
        if _separates_words(text, last, tags[-1][1] if tags else ""):
            rest = f" {rest}"
        if parts and "".join(parts)[-1:] == " " and rest[:1] in ("", " "):
            rest = rest[1:]
        return "".join([*parts, rest]), [tag if tag.pair is not None else replace(tag, kind="alone")
                                         for tag in pair_tags(tags)]

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
        required = tuple(phrase for phrase in line.request.required if not self.placeholders.spans(phrase))
        return replace(line.request, text=self._without_placeholders(core)[0], required=required)

    def _with_placeholders(self, lines: Sequence[_Line], results: Sequence[list[Translation]],
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
            if after and self._obeys(line, restored, before[0].text):
                words = _words_with(after[0].words, translation, [Tag(0, begin), *placed, Tag(len(translation), end)])
                retried.append([replace(after[0], text=restored, words=words, faults=())])
            elif line.request.prefix or line.required:                          # which the source need not have
                retried.append(before)
            else:                                                               # last resort: the source
                retried.append([replace((after or before)[0], text=line.request.text, words=(), faults=("copied",))])
        return retried

    # Terms

    def _lost_terms(self, line: _Line, translation: str) -> tuple[str, ...]:
        return tuple(term.translations[0] for term in self._missing(line, translation))

    def _requiring_request(self, line: _Line, best: Translation) -> Source:
        """Return a request that requires the lost terms. If the terms were inline, all terms are required, because a
        model that loses an inline term has misunderstood the sentence."""
        terms = dict.fromkeys(found.term.translations[0] for found in line.terms) if self.terms_inline else \
            self._lost_terms(line, best.text)
        return replace(line.request, required=(*line.request.required, *terms))

    def _with_terms(self, lines: Sequence[_Line], results: Sequence[list[Translation]],
                    found: Sequence[list[Translation]]) -> list[list[Translation]]:
        """Return the translations with the most terms in place: those of the new search, or the earlier ones with the
        terms in place of the words that they are aligned to. In case of a tie, the new ones are returned if they are
        not much less probable."""
        required = list(map(self._better, lines, results, found))
        weights, new_weights = self._weights(lines, results), self._weights(lines, required)
        chosen = []
        for line, before, after, one, new in zip(lines, results, required, weights, new_weights, strict=True):
            missing = set(self._missing(line, before[0].text))
            placement = TermPlacement(line.request.text, [each for each in line.terms if each.term in missing],
                                      before[0].text, one, self.languages.target)
            placed = len({edit.term for edit in placement.edits.values()})
            placed *= self._obeys(line, placement.text, before[0].text)
            if after:
                probable = _mean_log_probability(after[0]) >= _mean_log_probability(before[0]) - MAX_LOSS
                misplaced = placement.misplaced(after[0].text, new)
                in_place = len(missing.difference(misplaced, self._missing(line, after[0].text)))
                if not placed or in_place > placed or probable and in_place == placed:
                    phrases = tuple(term.translations[0] for term in misplaced)
                    chosen.append([replace(after[0], misplaced_terms=phrases), *after[1:]])
                    continue
            chosen.append([_placed(before[0], placement), *before[1:]] if placed else before)
        return chosen

    def _better(self, line: _Line, before: list[Translation], after: list[Translation]) -> list[Translation]:
        """Return the new translations if they lack fewer terms, else an empty list."""
        after = after and self._kept(line, after)
        return after if after and self._same(line, after[0].text) and (
            len(self._missing(line, after[0].text)) < len(self._missing(line, before[0].text))) else []

    def _missing(self, line: _Line, translation: str) -> list[Term]:
        return self.glossary.missing(line.terms, translation) if self.glossary else []

    def _obeys(self, line: _Line, text: str, before: str) -> bool:
        """Return True if a translation has the placeholders of its source, and obeys those constraints of the line that
        another translation, `before`, obeys."""
        prefix = line.request.prefix.strip()
        return self._same(line, text) and (text.startswith(prefix) or not before.startswith(prefix)) and not any(
            self._found(phrase, text) for phrase in line.forbidden) and all(
            phrase in text or phrase not in before for phrase in line.required)

    def _weights(self, lines: Sequence[_Line], found: Sequence[list[Translation]]) -> list[np.ndarray | None]:
        """Return the attention of the best translation of each line (see `TermPlacement`); None if there is no
        translation or an empty one, or no function that aligns."""
        weights: list[np.ndarray | None] = [None] * len(lines)
        indices = [index for index, n_best in enumerate(found) if n_best and n_best[0].text]
        pairs = [(lines[index].request.text, found[index][0].text) for index in indices]
        for index, one in zip(indices, align_words(self.align, pairs, self.placeholders), strict=True):
            weights[index] = one
        return weights

    # Phrases that the user requires

    def _after_end(self, line: _Line, translation: str) -> tuple[str, ...]:
        """Return the required phrases that stand after the end of a translation."""
        if not line.required or sentence_count(translation) <= sentence_count(line.request.text):
            return ()
        spans = {phrase: self._found(phrase, translation) for phrase in line.required}
        tacked = set(after_end(translation, [span for found in spans.values() for span in found]))
        return tuple(phrase for phrase, found in spans.items() if tacked.intersection(found))

    def _found(self, phrase: str, translation: str) -> list[Span]:
        return find_words(phrase, translation, self.languages.target, exact=True)

    def _with_required(self, lines: Sequence[_Line], results: Sequence[list[Translation]],
                       found: Sequence[list[Translation]]) -> list[list[Translation]]:
        """Put required phrases that stand after the end of a translation in place of words of the translation without
        them: of those that are aligned to the source word that the phrase attends to, or that equals the phrase.
        Without such a word, the phrase stays where it is, which is reported."""
        weights, other_weights = self._weights(lines, results), self._weights(lines, found)
        languages = self.languages
        chosen = []
        for line, (forced, *rest), free, one, other in zip(lines, results, found, weights, other_weights, strict=True):
            best = replace(forced, misplaced_terms=self._after_end(line, forced.text))
            if free:
                source, terms = line.request.text, []
                for phrase in line.required:
                    places = find_words(phrase, source, languages.source or "", exact=True) or attended_word(
                        source, forced.text, self._found(phrase, forced.text), one)
                    terms += [FoundTerm(*place, Term(source[slice(*place)], (phrase,))) for place in places[:1]
                              if phrase.strip() not in free[0].text]
                placement = TermPlacement(source, terms, free[0].text, other, languages.target)
                if all(phrase.strip() in placement.text for phrase in line.required) and self._obeys(
                        line, placement.text, free[0].text):
                    best = replace(_placed(free[0], placement), retried=forced.retried)
            chosen.append([best, *rest])
        return chosen


def _without_tags(line: str) -> TaggedText | None:
    """Return a line without its tags; None if it has none, or more than `place_tags` places by alignment."""
    if "<" not in line:
        return None
    tagged = without_tags(line)
    return tagged if 0 < len(tagged.tags) <= MAX_TAGS else None


def _placed(best: Translation, placement: TermPlacement) -> Translation:
    """Return a translation with terms in place of the words that they are aligned to."""
    return replace(best, text=placement.text, words=placement.words(best.words),
                   placed_terms=tuple(dict.fromkeys(edit.term.translations[0] for edit in placement.edits.values())))


def _mean_log_probability(translation: Translation) -> float:
    """Return the mean log p per token."""
    return translation.log_probability / max(1, translation.tokens)


def _separates_words(text: str, end: int, raw: str) -> bool:
    """Return True if a placeholder that ends at `end`, and is not a tag, stands between two letters or digits."""
    return bool(raw) and raw[0] != "<" and end < len(text) and text[end].isalnum() and (
        text[:end - len(raw)][-1:].isalnum())


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
        joined = before.isalnum() and after.isalnum() and tag.raw[0] != "<"      # see `_separates_words`
        if joined:
            parts[-1] = parts[-1].rstrip(" ")
        written = next((part[-1] for part in reversed(parts) if part), "")      # its last character
        following = text[tag.position:tag.position + 1]
        left = before == " " and written and not written.isspace() or (
            written.isalnum() and tag.raw[0].isalnum())
        right = following and not following.isspace() and (
            after == " " or before == " " and following.isalnum() and not after.isalnum())
        parts += [" " if left else "", tag.raw, " " if right else ""]
        last = tag.position + (joined and following == " ")
    return "".join([*parts, text[last:]])
