"""Documents of nested values, JSON and YAML: which of their strings are text, and in which language.

A catalogue of messages has text under any key. A document with a schema, such as OpenAPI or a form of GitHub, has much
that is no text: identifiers, names of types, numbers. There, only strings under keys that are known to hold prose are
text, and those under keys that the user names. If a mapping has the codes of several languages as its keys, the entry
of the source language is the source, and what the entry of the target language lacks is added to it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from seq2seq.formats.block import DocumentError
from seq2seq.formats.data_values import is_data, words_of_key
from seq2seq.formats.plurals import CATEGORIES
from seq2seq.formats.spans import Edit, replace_spans
from seq2seq.formats.texts import is_text
from seq2seq.formats.units import Unit, UnitDocument
from seq2seq.languages import LANGUAGES, code_for, is_same_language, main_language, same_code

_PROSE_WORDS = """
about abstract alt answer body caption content description heading headline help hint intro label legend message note
placeholder question subtitle summary text title tooltip translation
"""
_PROSE = [[word] for word in (*_PROSE_WORDS.split(), *CATEGORIES)]
"""Last words of keys that hold prose in most schemas, as in `description` and `shortDescription`."""
_LANGUAGE_KEYS = ("lang", "language", "locale", "@language")
_EXAMPLES = frozenset({"const", "default", "enum", "example", "examples", "required"})
"""Keys of JSON Schema and OpenAPI whose values must agree with the schema."""
_CODE = re.compile(r"[a-z0-9][\w.:/@-]*", re.ASCII)
"""Form of identifiers, and of few labels."""
_SCHEMA_SHARE = 0.25
"""Share of keys of code from which a document has a schema. Of 60 catalogues, all have at most 0.17, but for one in
lower case (0.36); of 209 configurations and descriptions of programs, those with _MIN_CODES have at least 0.3."""
_MIN_CODES = 3
"""Least number of values of code in a document with a schema. Fewer do not tell."""
_Found = tuple[Unit, bool, bool]
"""Text; True if it is a field of an object in an array; True if it is below one of _EXAMPLES."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4}){0,2}")
_MAIN_LANGUAGES = frozenset(map(main_language, LANGUAGES))


_NO_MEMBERS: dict[str, Node] = {}
"""Members of all strings, of which a document may have 400,000."""


@dataclass(slots=True, eq=False)
class Node:
    """Value.

    begin, end: its span in the document. value: a string, number, boolean or None; None for objects and arrays.
    members: values of an object by key, those of an array by number. key_begin, key_end: span of its key; for an
    element of an array, an empty span before it. source: node of the parser of YAML.
    """

    begin: int
    end: int = 0
    value: Any = None
    members: dict[str, Node] = field(default_factory=lambda: _NO_MEMBERS)
    key_begin: int = 0
    key_end: int = 0
    is_array: bool = False
    source: Any = None

    def text(self, *keys: str) -> str | None:
        """Return the string at the end of a path of keys; None if there is none."""
        node = self.find(*keys)
        return node.value if node is not None and isinstance(node.value, str) else None

    def find(self, *keys: str) -> Node | None:
        """Return the value at the end of a path of keys; None if there is none."""
        node: Node | None = self
        for key in keys:
            node = node.members.get(key) if node is not None else None
        return node


@dataclass(frozen=True, slots=True)
class _Copy:
    """Entry whose translation is added to the entries of the target language.

    entry: that of the source language. begin, end: span that the copy replaces. sibling: entry behind which the copy is
    added; None if it replaces an empty one. key: source of its key; None: the code of the target language.
    """

    entry: Node
    begin: int
    end: int
    sibling: Node | None
    key: str | None


class TreeDocument(UnitDocument):
    """Document of nested values. is_catalogue: True if the document says that it is a catalogue of messages."""

    is_catalogue = False

    # Methods of a format, which it defines unless they have a body here

    def roots(self) -> list[Node]:
        """Return the values of the document, which are several in YAML."""
        raise NotImplementedError

    def units_of(self, node: Node, key: str, parent: Node) -> Iterator[Unit]:
        """Yield the unit of a string, or those of an object that is a plural."""
        raise NotImplementedError

    def is_kept(self, parent: Node, key: str) -> bool:
        """Return True if the value of a key of an object is no text."""
        return False

    def written_key(self, key: str, old: str) -> str:
        """Return the source of a key. old: source of another one."""
        raise NotImplementedError

    def added_entry(self, sibling: Node, entry: str) -> str:
        """Return the source of an entry that is added behind another one."""
        raise NotImplementedError

    # Methods of the base class

    def find_units(self) -> Iterator[Unit]:
        roots = self.roots()
        self._copies: list[_Copy] = []
        self._language = _language_key(roots[0]) if len(roots) == 1 else None
        if self._language:
            self.is_catalogue = True
            self.source_languages = {self.text[slice(*self._language)].strip("\"'")}
        found: list[_Found] = []
        others = Counter[str]()                                                 # numbers and booleans, by key
        todo = [(root, "", Node(0), False, False) for root in reversed(roots)]
        while todo:
            node, key, parent, in_record, in_example = todo.pop()
            units = [] if node.is_array else list(self.units_of(node, key, parent))
            if units:
                found += [(unit, in_record, in_example) for unit in units if is_text(unit.blocks[0].text)]
                continue
            if languages := self._languages(node, parent):
                self.is_catalogue = self.is_catalogue or node in roots
                todo += [(entry, key, node, False, False) for entry in reversed(self._untranslated(languages))]
                continue
            if node.value is not None:
                others[key] += 1
            is_record = parent.is_array and not node.is_array
            named = [node.text(name) or "" for name in _LANGUAGE_KEYS] if is_record and self.languages[0] else []
            if any(_is_code(code) and not is_same_language(code, self.languages[0]) for code in named):
                continue
            todo += [(child, key if node.is_array else name, node, is_record, in_example or name in _EXAMPLES)
                     for name, child in reversed(node.members.items())
                     if name not in self.keys.skipped and not self.is_kept(node, name)]
        yield from self._texts(found, others)

    def _texts(self, found: list[_Found], others: Counter[str]) -> Iterator[Unit]:
        """Yield the units that are text, and note the keys of others that may be. others: other values, by key."""
        blocks = [unit.blocks[0] for unit, _, _ in found]
        data = [is_data(block.text, block.key) for block in blocks]
        prose = [words_of_key(block.key)[-1:] in _PROSE for block in blocks]
        codes = [is_one or _CODE.fullmatch(block.text) is not None and [block.text] != words_of_key(block.key)[-1:]
                 for block, is_one in zip(blocks, data, strict=True)]
        unexplained = others.total() + sum(is_code and not is_prose
                                           for is_code, is_prose in zip(codes, prose, strict=True))
        balance = others.copy()                                                 # values of code less texts, by key
        for block, is_code in zip(blocks, codes, strict=True):
            balance[block.key] += 1 if is_code else -1
        keys = [key for key, value in balance.items() if value > 0]
        # A catalogue may be in lower case, but has few numbers and few data of other forms.
        is_certain = others or 10 * sum(data) >= len(found) or any(in_record for _, in_record, _ in found)
        has_schema = bool(self.keys.texts) or not self.is_catalogue and bool(is_certain) and (
            unexplained >= _MIN_CODES and len(keys) >= _SCHEMA_SHARE * len(balance))
        unknown: dict[str, str] = {}                                            # first place of each key
        count = 0
        for (unit, in_record, in_example), block, is_code, is_prose in zip(found, blocks, codes, prose, strict=True):
            is_prose = is_prose and not in_example
            if block.key in self.keys.texts or is_prose or not has_schema and not (in_record and is_code):
                count += 1
                yield unit
            elif not is_code and not in_example and (" " in block.text or not block.text.isascii()):
                unknown.setdefault(block.key, block.place)
        names = ", ".join(filter(None, [*unknown][:10])) or "none"
        if unknown and not count:
            raise DocumentError(f"{[*unknown.values()][0]}: the document has a schema, and none of its keys is known "
                                f"to hold text. Name those that do with --keys; it has {names}.")
        if unknown:
            self.left.append(([*unknown.values()][0], "the document has a schema, and it is not known if these keys "
                              f"hold text: {names}. Name those that do with --keys"))

    def _languages(self, node: Node, parent: Node) -> Mapping[str, Node]:
        """Return the entries of an object by language, if its keys are languages; else no entries."""
        members = node.members
        source, target = self.languages
        if len(members) < 2 or node.is_array or not all(map(_is_code, members)) or _names_languages(members):
            return {}
        if any(is_same_language(key, source) for key in members if source):
            return members
        is_root = parent.end == 0 and all(one.members for one in members.values())
        if source and not is_root:                                              # {"is": "…", "no": "…"}
            return {}
        raise DocumentError(f"line {self.line_at(node.begin)}: the document has texts in several languages "
                            f"({', '.join([*members][:20])}), and it is not known which one is the source"
                            f"{f'; none is {source}' if source else ''}. Name the languages of the translation.")

    def _untranslated(self, languages: Mapping[str, Node]) -> list[Node]:
        """Return the entries of the source language that the target language lacks, and note their copies."""
        source, target = (_entry_of(languages, language) for language in self.languages)
        assert source is not None                                               # see `_languages`
        if target is None:
            self._copies.append(_Copy(source, source.end, source.end, source, None))
            return [source]
        lacking: list[Node] = []
        todo = [(source, target)]
        while todo:
            old, new = todo.pop()
            if not new.value and not new.members:
                self._copies.append(_Copy(old, new.key_begin, new.end, None, self.text[new.key_begin:new.key_end]))
                lacking.append(old)
                continue
            last = [*new.members.values()][-1] if new.members else new
            for name, entry in old.members.items():
                if name in new.members:
                    todo.append((entry, new.members[name]))
                elif new.members:
                    key = self.text[entry.key_begin:entry.key_end]
                    self._copies.append(_Copy(entry, last.end, last.end, last, key))
                    lacking.append(entry)
        return sorted(lacking, key=lambda node: node.begin)

    def finish(self, edits: list[Edit], language: str) -> bytes:
        """Return the document with its edits. Those of the source language are made in copies of its entries."""
        edits = sorted(edits)
        begins = [begin for begin, _, _ in edits]
        written: list[Edit] = []
        moved: set[int] = set()
        for copy in self._copies:
            entry = copy.entry
            numbers = range(bisect_left(begins, entry.key_begin), bisect_left(begins, entry.end + 1))
            inner = [edits[number] for number in numbers if edits[number][1] <= entry.end]
            moved |= {*numbers}
            if not inner:
                continue
            old = self.text[entry.key_begin:entry.key_end]
            key = self.written_key(language, old) if copy.key is None else copy.key
            new = replace_spans(self.text, [(entry.key_begin, entry.key_end, key), *inner], entry.key_begin, entry.end)
            written.append((copy.begin, copy.end, self.added_entry(copy.sibling, new) if copy.sibling else new))
        return super().finish([edit for number, edit in enumerate(edits) if number not in moved] + written, language)

    def other_edits(self, language: str) -> Iterator[Edit]:
        """Replace the key that names the language of all texts."""
        if self._language:
            yield *self._language, self.written_key(language, self.text[slice(*self._language)])


def _is_code(key: str) -> bool:
    return _LANGUAGE.fullmatch(key) is not None and main_language(key) in _MAIN_LANGUAGES


def _names_languages(members: Mapping[str, Node]) -> bool:
    """Return True if the values are names of languages, as in {"de": "German", "fr": "French"}."""
    return all(isinstance(node.value, str) and code_for(node.value) == main_language(key)
               for key, node in members.items())


def _entry_of(languages: Mapping[str, Node], language: str) -> Node | None:
    """Return the entry of a language: that with its region, if there is one."""
    for is_equal in (same_code, is_same_language):
        for key, node in languages.items():
            if language and is_equal(key, language):
                return node
    return None


def _language_key(root: Node) -> tuple[int, int] | None:
    """Return the span of the key of all texts if it is the code of their language; None if there is no such key."""
    if len(root.members) != 1 or root.is_array:
        return None
    (key, node), = root.members.items()
    return (node.key_begin, node.key_end) if node.members and not node.is_array and _is_code(key) else None
