"""Glossaries: terms with their prescribed translations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from seq2seq.data.words import MIN_STEM, lemmas, lower_case, same_word, words
from seq2seq.errors import UserError
from seq2seq.files import regular_bytes
from seq2seq.formats.block import decode, naming
from seq2seq.formats.tables import read_rows
from seq2seq.languages import SPACELESS_CHARACTER
from seq2seq.tokenizers.canonical_text import canonical
from seq2seq.tokenizers.line_splitting import Span

KEEP = frozenset(["do not translate", "dnt", "keep"])
"""Notes in the third column, converted to lower case, of terms that must stay as they are."""


@dataclass(frozen=True)
class Term:
    """Term of a glossary. translations: prescribed translations, the preferred one first."""

    source: str
    translations: tuple[str, ...]


@dataclass(frozen=True)
class FoundTerm:
    """Term in a sentence. begin, end: span in the sentence."""

    begin: int
    end: int
    term: Term


@dataclass(slots=True)
class _Node:
    """Common beginning of terms. term: term that ends here. following: node of each word that continues a term.
    words: these words by their lookup keys."""

    term: Term | None = None
    following: dict[str, _Node] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


class Glossary:
    """Terms of a glossary, and the search for them in text.

    alike: maximum number of words that are compared with a word of a text, because they have a stem in common.
    """

    def __init__(self, terms: Sequence[Term], source_language: str, target_language: str) -> None:
        self.source_language, self.target_language = source_language, target_language
        self._root = _Node()
        self.alike = 0
        for term in terms:
            node = self._root
            for word in _words(term.source):
                if word not in node.following:
                    node.following[word] = _Node()
                    for key in self._keys(word):
                        node.words[key].append(word)
                        self.alike = max(self.alike, len(node.words[key]))
                node = node.following[word]
            node.term = node.term or term

    @staticmethod
    def read(path: Path, source_language: str, target_language: str) -> Glossary:
        """Read a glossary: a table with the columns term, translation and an optional note, separated by tabs, or by
        commas if the name ends in .csv.

        If the note is `do not translate`, or the translation is missing, the term must stay as it is. Several lines
        with the same term are alternative translations. Empty lines and lines that begin with # are skipped.
        """
        try:
            data = regular_bytes(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}. Check its name and permissions.") from error
        with naming(str(path), UserError):
            text = decode(data)[0].removeprefix("\ufeff")
        return Glossary.parse(text, str(path), source_language, target_language)

    @staticmethod
    def parse(text: str, name: str, source_language: str, target_language: str) -> Glossary:
        """Parse the text of a glossary; see `read`. name: name of the glossary for messages, with its ending."""
        comma = name.endswith(".csv")
        translations: dict[str, dict[str, None]] = {}
        separators = {";", "\t", "|"}                              # of terms and translations in files of other formats
        with naming(name, UserError):
            for line, row in read_rows(text, "," if comma else "\t", has_quotes=comma):
                place, cells = f"{name}:{line}", [cell.text.strip() for cell in row]
                if not any(cells) or cells[0].startswith("#"):
                    continue
                if len(cells) > 3:
                    raise UserError(f"{place}: {len(cells)} columns; expected term, translation and an optional note.")
                if not words(cells[0]):
                    raise UserError(f"{place}: the term '{cells[0]}' has no letter or digit.")
                if len(cells) == 1 and not comma and "  " in cells[0]:
                    raise UserError(f"{place}: '{cells[0]}' has spaces but no tab. Separate term and translation by a "
                                    "tab.")
                separators &= set(cells[0]) if len(cells) == 1 else set()
                source, target, note = [*cells, "", ""][:3]
                if target.lower() in KEEP - {"keep"} and not note:
                    raise UserError(f"{place}: '{target}' is in the column of the translation. Write it in the third "
                                    "column, and leave the second one empty.")
                keep = not target or note.lower() in KEEP
                translations.setdefault(source, {})[source if keep else target] = None
        if translations and separators:
            raise UserError(f"{name}: no line has a second column, and each line contains '{min(separators)}'. "
                            f"Separate terms and translations by {'commas' if comma else 'tabs'}.")
        if not translations:
            raise UserError(f"{name} has no terms. Write a term and its translation on each line, separated by a "
                            f"{'comma' if comma else 'tab'}.")
        return Glossary([Term(source, tuple(targets)) for source, targets in translations.items()], source_language,
                        target_language)

    def find(self, text: str) -> list[FoundTerm]:
        """Return the terms in a text, in order, without overlaps. The longest of the terms that begin at a word is
        taken. Other inflections of a term match, too. Capitals in the text match a term in lower case."""
        spans, texts = words(text), _words(text)
        found: list[FoundTerm] = []
        index = 0
        while index < len(spans):
            entry = self._entry_at(texts, index)
            if entry is None:
                index += 1
                continue
            length, term = entry
            found.append(FoundTerm(spans[index][0], spans[index + length - 1][1], term))
            index += length
        return found

    def _keys(self, word: str) -> set[str]:
        """Return lookup keys of a word. Two forms of one word share at least one key (see `words.same_word`)."""
        return {*lemmas(word, self.source_language), lower_case(word, self.source_language)[:MIN_STEM]}

    def _entry_at(self, texts: Sequence[str], index: int) -> tuple[int, Term] | None:
        """Return number of words and term of the entry whose words begin at this index of `texts`; None without one."""
        nodes, longest = [self._root], None
        for end in range(index, len(texts)):
            keys = sorted(self._keys(texts[end]))
            nodes = [node.following[word] for node in nodes
                     for word in dict.fromkeys(word for key in keys for word in node.words.get(key, ()))
                     if _matches(word, texts[end], self.source_language)]
            if not nodes:
                break
            longest = next(((end + 1 - index, node.term) for node in nodes if node.term), longest)
        return longest

    def missing(self, found: Sequence[FoundTerm], translation: str, exact: bool = False) -> list[Term]:
        """Return the terms whose translations occur less often in a translation than the terms in the source.

        exact: True: count only the form in the glossary, ignoring case; False: count every inflection.
        """
        needed: dict[Term, int] = defaultdict(int)
        for one in found:
            needed[one.term] += 1
        return [term for term, count in needed.items()
                if sum(len(find_words(form, translation, self.target_language, exact))
                       for form in term.translations) < count]


def find_words(term: str, text: str, language: str, exact: bool = False) -> list[Span]:
    """Return the spans of a term in a text: its words as whole words, in any inflection unless `exact`."""
    term_words = _words(term)
    if not term_words:
        return [match.span() for match in re.finditer(re.escape(term), text)] if term else []
    texts = _words(text)
    found: list[Span] = []
    index = 0
    while index + len(term_words) <= len(texts):
        same = all(lower_case(one, language) == lower_case(word, language) if exact
                   else same_word(word, one, language) for word, one in zip(term_words, texts[index:], strict=False))
        if same:
            spans = words(text)
            found.append((spans[index][0], spans[index + len(term_words) - 1][1]))
        index += len(term_words) if same else 1
    return found


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    """Return the words of a text in canonical form, because two texts can write a letter, such as Bengali য়, as one
    character and as two, or differ in invisible characters."""
    return tuple(canonical(text[begin:end]) for begin, end in words(text))


def _matches(term_word: str, word: str, language: str) -> bool:
    """Return True if a word of a text matches a word of a term. If the term's word has capitals after the first letter,
    as abbreviations have, both words must be identical. If it begins with a capital, so must the text's word."""
    if term_word == word or SPACELESS_CHARACTER.match(term_word):
        return term_word == word
    if term_word[1:] != lower_case(term_word[1:], language) or term_word[0].isupper() and not word[0].isupper():
        return False
    return same_word(term_word, word, language)
