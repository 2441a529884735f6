"""YAML of Rails, i18n libraries and others: strings that are text for people are translated. Keys, comments and layout
do not change.

If all texts are under the code of their language, as in Rails, this key becomes the code of the target language, and a
plural gets the categories of the target language: https://guides.rubyonrails.org/i18n.html#pluralization
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from seq2seq.formats.block import IN_STRINGS, MAX_DEPTH, Block, DocumentError, require_count
from seq2seq.formats.plurals import CATEGORIES
from seq2seq.formats.spans import Edit
from seq2seq.formats.units import Plural, Unit, UnitDocument, unit_of
from seq2seq.languages import LANGUAGES, main_language

MAX_CHARACTERS = 1_000_000
"""Maximum size of a YAML document in characters. The parser reads 60,000 to 300,000 in a second."""
_SYNTAX = ("vue", *IN_STRINGS)
_STRING_TAG = "tag:yaml.org,2002:str"
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4}){0,2}")
_PROPERTIES = re.compile(r"(?:[&!][^\s]*+\s++)*+")                              # anchor and tag before a scalar
_BOOLEAN = re.compile(r"(?i:y|yes|n|no|on|off)")
"""Plain scalars that are booleans in YAML 1.1, which Ruby reads, but strings in YAML 1.2."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
# Texts that are strings without quotes in every version of YAML. In brackets and braces, they need quotes if they have
# one of _FLOW_MARKS.
_PLAIN = re.compile(r"(?!(?i:y|yes|n|no|on|off|true|false|null)\Z)[^\W\d_](?:[^:#]|:(?=\S)|(?<=\S)#)*+(?<!\s)")
_FLOW_MARKS = re.compile(r"[,\[\]{}]|:(?!\w)")


class YamlDocument(UnitDocument):
    """YAML. A text in one of YAML's styles stays in it, if the style can have the translation."""

    def find_units(self) -> Iterator[Unit]:
        require_count(len(self.text), MAX_CHARACTERS, "characters")
        roots = _compose(self.text[self.begin:])
        self._ascii = "\\u" in self.text and self.text[self.begin:].isascii()
        self._language = _language_key(roots[0]) if len(roots) == 1 else None
        self.source_languages = {self._language.value} if self._language else set()
        self._in_flow: set[int] = set()                                         # nodes in brackets or braces
        seen: set[int] = set()                                                  # an alias is its node once more
        todo: list[tuple[str, Node]] = [("", root) for root in reversed(roots)]
        while todo:
            key, node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, ScalarNode):
                if unit := self._unit(node, key):
                    yield unit
                continue
            inner = [(str(name.value), value) for name, value in node.value] if isinstance(node, MappingNode) else [
                (key, value) for value in node.value]
            if isinstance(node, CollectionNode) and node.flow_style:
                self._in_flow |= {id(value) for _, value in inner}
            if isinstance(node, MappingNode) and (entries := _plural_entries(node, seen)):
                seen |= {id(value) for _, value in entries.values()}
                yield from self._plural(entries)
            else:
                todo += reversed(inner)

    def _unit(self, node: ScalarNode, key: str = "") -> Unit | None:
        text = node.value
        if node.tag != _STRING_TAG or not node.style and _BOOLEAN.fullmatch(text):
            return None
        return unit_of(*self._span(node), Block(text, place=f"line {node.start_mark.line + 1}", keeps_lines=True,
                                                syntax=_SYNTAX, key=key), info=(None, node))

    def _plural(self, entries: Mapping[str, tuple[Node, ScalarNode]]) -> Iterator[Unit]:
        """Yield the units of a plural. entries: key and value of each category."""
        names = list(entries)
        plural = Plural({name: self._entry(entries[name], entries[following][0] if following else None)
                         for name, following in zip(names, [*names[1:], ""], strict=True)})
        for category, (key, value) in entries.items():
            if unit := self._unit(value):
                unit.plural, unit.category, unit.info = plural, category, (key, value)
                yield unit

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        key, value = other.info
        place = self._span(key)[0]
        separator = ", " if id(value) in self._in_flow else f"{self.line_end}{' ' * key.start_mark.column}"
        text = other.before + block.text + other.after
        return place, place, f"{category}: {self._flow_scalar(value, text)}{separator}"

    def _entry(self, entry: tuple[Node, ScalarNode], following: Node | None) -> tuple[int, int] | None:
        """Return the span of an entry with the separator after it; None if a comment follows or no entry follows.

        following: key of the next entry; None if there is none.
        """
        key, value = entry
        if following is None:
            return None
        begin, end, after = self._span(key)[0], self.begin + value.end_mark.index, self._span(following)[0]
        return None if self.text[end:after].strip(" ,\r\n") else (begin, after)

    def other_edits(self, language: str) -> Iterable[Edit]:
        """Replace the key that names the language."""
        if self._language is not None:
            quote = '"' if not _PLAIN.fullmatch(language) else self._language.style or ""
            yield *self._span(self._language), f"{quote}{language}{quote}"

    def _span(self, node: Node) -> tuple[int, int]:
        """Return the span of a scalar without its anchor and tag."""
        begin, end = self.begin + node.start_mark.index, self.begin + node.end_mark.index
        match = _PROPERTIES.match(self.text, begin, end)
        return (match.end() if match else begin), end

    def write(self, unit: Unit, block: Block) -> str:
        _, node = unit.info
        if node.style in ("|", ">"):
            return self._block_scalar(node, self.text[unit.begin:unit.end], block.text)
        return self._flow_scalar(node, unit.before + block.text + unit.after)

    def _flow_scalar(self, node: ScalarNode, text: str) -> str:
        """Return a scalar on one line with a new text, in the style of the old scalar if the text can have it."""
        is_printable = not _UNPRINTABLE.search(text)
        if not node.style and is_printable and _PLAIN.fullmatch(text) and not (
                id(node) in self._in_flow and _FLOW_MARKS.search(text)):
            return text
        if node.style == "'" and is_printable:
            return "'" + text.replace("'", "''") + "'"
        quoted = _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
        return "".join(one if one < "\x80" or not self._ascii else f"\\u{ord(one):04x}" if one < "\U00010000" else
                       f"\\U{ord(one):08x}" for one in quoted)

    def _block_scalar(self, node: ScalarNode, raw: str, new: str) -> str:
        """Return a block scalar, whose text stands on the lines after `|` or `>`. raw: source of the old scalar. new:
        text without white space at its edges."""
        header, line_end, content = re.split(r"(\r\n|\r|\n)", raw, maxsplit=1)
        first = next(line for line in re.split(r"[\r\n]", content) if line.strip())
        inner = next(line for line in node.value.split("\n") if line.strip())
        indent = " " * ((len(first) - len(first.lstrip(" "))) - (len(inner) - len(inner.lstrip(" "))))
        lines = new.split("\n")
        if node.style == ">" and any(line[:1].isspace() for line in [*lines, *node.value.split("\n")]):
            header = "|" + header[1:]                                           # does not fold lines
        elif node.style == ">":
            lines = re.sub("\n+", r"\g<0>\n", new).split("\n")                 # one line break is a space there
        place = len(content) - len(content.lstrip())
        written = self.line_end.join(f"{indent}{line}" if line and number else line
                                      for number, line in enumerate(lines))
        return header + line_end + content[:place] + written + content[len(content.rstrip()):]


def _plural_entries(node: MappingNode, seen: Set[int]) -> dict[str, tuple[Node, ScalarNode]]:
    """Return key and value by category of a mapping whose keys are plural categories; {} for another mapping."""
    entries = {key.value: (key, value) for key, value in node.value
               if isinstance(value, ScalarNode) and id(value) not in seen and key.value in CATEGORIES}
    is_alone = len(entries) == 1 and "other" in entries and "%{count}" not in entries["other"][1].value
    return {} if len(entries) < len(node.value) or "other" not in entries or is_alone else entries


def _compose(text: str) -> list[Node]:
    """Return the root node of each document of a stream."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            return [node for node in YAML(typ="safe", pure=True).compose_all(text) if node is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the document"
        raise DocumentError(f"{place}: {problem}. The document is not YAML.") from error
    except YAMLError as error:
        raise DocumentError(f"the document: {str(error).splitlines()[0]}. It is not YAML.") from error
    except RecursionError:
        raise DocumentError(f"values are nested too deeply, more than {MAX_DEPTH // 10} deep. Simplify the document.") \
            from None


def _language_key(root: Node) -> ScalarNode | None:
    """Return the key of all texts if it is the code of their language; None if there is no such key."""
    if not isinstance(root, MappingNode) or not root.value:
        return None
    keys = [key for key, value in root.value if isinstance(key, ScalarNode) and isinstance(value, MappingNode)
            and _LANGUAGE.fullmatch(key.value) and main_language(key.value) in {*map(main_language, LANGUAGES)}]
    if len(keys) < len(root.value):
        return None
    names = ", ".join(key.value for key in keys[:20])
    if len(keys) > 1:
        raise DocumentError(f"line {keys[1].start_mark.line + 1}: the document has texts in several languages "
                            f"({names}). Give a document with the texts of the source language only.")
    return keys[0]
