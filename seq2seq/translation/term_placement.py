"""Placement of required phrases: a term's prescribed translation belongs in place of the words that the term is aligned
to.

A search that must use a phrase that the model has never written puts it anywhere, usually after the final stop, and
translates the term as well: "He wears a hat. sombrero." `TermPlacement` finds such phrases, and puts them in place of
the aligned words of the translation without them: "He wears a sombrero."
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from seq2seq.data.glossary import FoundTerm, Term, find_words
from seq2seq.formats.spans import overlapping, replace_spans
from seq2seq.languages import main_language
from seq2seq.tokenizers.line_splitting import SENTENCE_END, SENTENCE_MARKS, Span, alignment_units, ends_in_abbreviation
from seq2seq.translation.word_confidence import Word

MIN_ATTENTION = 0.3
"""Minimum attention of a word of the translation to a term that it translates. Aligned words usually have more than
0.9; words of other terms rarely have more than 0.2."""
_MARKS = frozenset(f"{SENTENCE_MARKS}。！？｡．")
_HYPHENS = frozenset("-\u2010\u2011")
_ARTICLES = {language: frozenset(words.split()) for language, words in {
    "da": "en et den det de", "de": "der die das den dem des ein eine einen einem einer eines",
    "el": "ο η το οι τα ένα",
    "en": "a an the", "es": "el la los las un una unos unas", "fr": "le la les l un une des du",
    "it": "il lo la i gli le l un uno una", "nl": "de het een", "no": "en et ei den det de",
    "pt": "o a os as um uma uns umas", "sv": "en ett den det de"}.items()}
"""Articles by language. They often attend to the noun that follows, but stay in front of another noun."""


def stands_alone(text: str, begin: int, end: int) -> bool:
    """Return True if a span is all that follows the end of a sentence: `sombrero` in "He waits. sombrero."."""
    tail = re.search(r"\W*\Z", text[:begin])
    assert tail is not None
    mark = next((place for place in range(tail.start(), begin) if text[place] in _MARKS), None)
    if mark is None or not tail.start() or any(map(str.isalnum, text[end:])):
        return False
    return not ends_in_abbreviation(text, mark + 1)


def after_end(text: str, phrases: Sequence[Span]) -> list[Span]:
    """Return those of the phrases that stand alone after the end of a sentence, or that stand there together."""
    others = list(text)
    for begin, end in phrases:
        others[begin:end] = " " * (end - begin)
    without = "".join(others)
    return [(begin, end) for begin, end in phrases
            if stands_alone(without[:begin] + text[begin:end] + without[end:], begin, end)]


def sentence_count(text: str) -> int:
    """Return the number of sentences of a text. A sentence can begin with a small letter."""
    return 1 + sum(not ends_in_abbreviation(text, match.start())
                   for match in SENTENCE_END.finditer(text) if any(map(str.isalnum, text[match.end():])))


def attended_word(source: str, translation: str, phrases: Sequence[Span], weights: np.ndarray | None) -> list[Span]:
    """Return the span of the source word that a phrase of a translation attends to; an empty list if its attention is
    spread, or most of it is on punctuation.

    phrases: spans of the phrase in the translation; the first one counts. weights: see `TermPlacement`.
    """
    if weights is None or not weights.size or not phrases:
        return []
    rows = weights[overlapping(alignment_units(translation), *phrases[0])]
    share = rows.sum(0) / max(1, len(rows))
    begin, end = alignment_units(source)[int(share.argmax())]
    return [(begin, end)] if share.max() >= 0.5 and source[begin].isalnum() else []


class TermPlacement:
    """Terms of a sentence, and the words of a translation that they are aligned to."""

    def __init__(self, source: str, found: Sequence[FoundTerm], translation: str, weights: np.ndarray | None,
                 language: str) -> None:
        """found: terms that the translation lacks, with their places in the source. weights: (units of the translation,
        units of the source), see `placement.place_tags`; None: nothing is aligned. language: code of the target
        language."""
        self.source, self.found, self.translation, self.language = source, found, translation, language
        self.edits = {span: one for span, one in zip(self._aligned(weights), found, strict=True)
                      if span and not overlapping(self._phrases(one.term, translation), *span)}
        """Terms by the span of the translation that they replace. A span that has its term already is left out."""

    @cached_property
    def text(self) -> str:
        """Translation with each term's prescribed translation in place of the words that the term is aligned to."""
        return replace_spans(self.translation, [edit for (begin, end), one in self.edits.items()
                                                for edit in self._edits(begin, end, one.term.translations[0])])

    def misplaced(self, text: str, weights: np.ndarray | None = None) -> tuple[Term, ...]:
        """Return the terms whose phrases are in another translation, but out of place: after the end of a sentence, or
        beside the words that they should have replaced.

        weights: attention of this translation; None: it is not known. A phrase is also out of place if it does not
            attend to its term.
        """
        phrases = {one.term: self._phrases(one.term, text) for one in self.found}
        tacked = set(after_end(text, [span for spans in phrases.values() for span in spans]))
        wrong = {term: None for term, spans in phrases.items()
                 if tacked.intersection(spans) and not any(stands_alone(self.source, one.begin, one.end)
                                                           for one in self.found if one.term == term)}
        replaced = [self.translation[begin:end] for begin, end in self.edits]
        for word, one in zip(replaced, self.edits.values(), strict=True):
            left = self._count(word, self.translation) - sum(word.lower() == other.lower() for other in replaced)
            left += sum(self._count(word, text[begin:end]) for spans in phrases.values() for begin, end in spans)
            if self._count(word, text) > left and phrases[one.term]:
                wrong[one.term] = None
        if weights is not None:
            wrong |= {term: None for term, spans in phrases.items()
                      if spans and not any(self._attends(term, span, text, weights) for span in spans)}
        return tuple(wrong)

    def words(self, words: Sequence[Word]) -> tuple[Word, ...]:
        """Return the words of `translation` as words of `text`. A phrase that was put in place has confidence 1."""
        placed, position = [], 0
        for word in words:
            if (begin := self.translation.find(word.text, position)) < 0:
                return ()
            position = begin + len(word.text)
            edit = next((span for span in self.edits if span[0] < position and begin < span[1]), None)
            if edit is None:
                placed.append(word)
            elif begin <= edit[0]:
                phrase = self._edits(*edit, self.edits[edit].term.translations[0])[0][2]
                end = self.translation[edit[1]:position] if edit[1] < position else ""
                placed.append(Word(self.translation[begin:edit[0]] + phrase + end, 1.0))
        return tuple(placed)

    def _phrases(self, term: Term, text: str) -> list[Span]:
        return sorted({span for form in term.translations for span in find_words(form, text, self.language)})

    def _count(self, word: str, text: str) -> int:
        return len(find_words(word, text, self.language, exact=True))

    def _attends(self, term: Term, span: Span, text: str, weights: np.ndarray) -> bool:
        """Return True if a phrase of a translation attends to its term."""
        source_units = alignment_units(self.source)
        columns = [index for one in self.found if one.term == term
                   for index in overlapping(source_units, one.begin, one.end)]
        return any(weights[row, columns].sum() >= MIN_ATTENTION or weights[row].argmax() in columns
                   for row in overlapping(alignment_units(text), *span))

    def _aligned(self, weights: np.ndarray | None) -> list[Span | None]:
        """Return, for each term, the span of the words that are aligned to it; None if there are none."""
        old, new = alignment_units(self.source), alignment_units(self.translation)
        spans: list[Span | None] = [None] * len(self.found)
        if weights is None:
            return spans
        articles = _ARTICLES.get(main_language(self.language), frozenset())
        texts = [self.translation[begin:end].lower() for begin, end in new]
        nouns = ~np.array([text in articles for text in texts], bool)
        free = np.array([any(map(str.isalnum, text)) for text in texts], bool)
        shares = [weights[:, overlapping(old, one.begin, one.end)].sum(1) for one in self.found]
        order = sorted(range(len(shares)), key=lambda index: -float((shares[index] * (nouns & free)).max(initial=0)))
        for index in order:
            share = shares[index] * (nouns & free)
            if share.max(initial=0) < MIN_ATTENTION:
                continue
            best = int(share.argmax())
            aligned = free & (shares[index] >= max(MIN_ATTENTION, share[best] / 2))
            low, high = (self._extended(best, aligned, new, step) for step in (-1, 1))
            phrase = self.found[index].term.translations[0].split()
            if phrase[0].lower() in articles:                                   # it replaces an article, too
                low -= low > 0 and texts[low - 1] in articles
            else:
                while low < best and texts[low] in articles:
                    low += 1
            free[low:high + 1] = False
            spans[index] = new[low][0], new[high][1]
        return spans

    def _extended(self, unit: int, aligned: np.ndarray, units: Sequence[Span], step: int) -> int:
        """Return the last unit in one direction that is aligned, too. Hyphens inside of a word are skipped."""
        for other in range(unit + step, len(units) if step > 0 else -1, step):
            if aligned[other]:
                unit = other
            elif other != unit + step or self.translation[slice(*units[other])] not in _HYPHENS:
                break
        return unit

    def _edits(self, begin: int, end: int, phrase: str) -> list[tuple[int, int, str]]:
        """Return the changes that put a phrase in place of a span: the phrase gets the capital of the beginning of a
        sentence, and an English article in front of it the right form."""
        before = self.translation[:begin]
        starts = not any(map(str.isalnum, before)) or stands_alone(before, begin, begin)
        if starts and self.translation[begin].isupper() and phrase == phrase.lower():
            phrase = phrase[:1].upper() + phrase[1:]
        edits = [(begin, end, phrase)]
        article = re.search(r"(?<!\w)([Aa])(n?)\s\Z", before) if main_language(self.language) == "en" else None
        # The letter tells the sound of most words; not of those that begin with u or h, or of abbreviations.
        if article and phrase[0].lower() not in "uh" and phrase[0].isalpha() and phrase[1:2] == phrase[1:2].lower():
            edits.append((article.end(1), article.end(2), "n" * (phrase[0].lower() in "aeio")))
        return edits
