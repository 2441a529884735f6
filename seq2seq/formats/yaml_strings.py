"""YAML of Rails, i18n libraries and others: strings that are text for people are translated. Keys, comments and layout
do not change.

If all texts are under the code of their language, as in Rails, this key becomes the code of the target language, and a
plural gets the categories of the target language: https://guides.rubyonrails.org/i18n.html#pluralization
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from seq2seq.formats.block import IN_STRINGS, MAX_DEPTH, Block, DocumentError, require_count
from seq2seq.formats.plurals import CATEGORIES, Plural
from seq2seq.formats.spans import replace_spans
from seq2seq.formats.texts import decode_text, is_message, trim, with_margins
from seq2seq.languages import LANGUAGES, main_language

MAX_CHARACTERS = 1_000_000
"""Maximum size of a YAML document in characters. The parser reads 60,000 to 300,000 in a second."""
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


class YamlDocument:
    """YAML, with the interfaces `Document` and `NamesLanguages`."""

    def __init__(self, data: bytes) -> None:
        """Raises DocumentError: the document is not YAML, too large, nested too deeply, or has texts in several
        languages."""
        self._text, self._encoding = decode_text(data)
        require_count(len(self._text), MAX_CHARACTERS, "characters")
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        self._begin = int(self._text.startswith("\ufeff"))
        roots = _compose(self._text[self._begin:])
        self._ascii = "\\u" in self._text and self._text[self._begin:].isascii()
        self._language = _language_key(roots[0]) if len(roots) == 1 else None
        self.source_languages = {self._language.value} if self._language else set[str]()
        self.target_languages: set[str] = set()
        self.blocks: list[Block] = []
        self._values: list[ScalarNode] = []                                     # value of each block
        self._plurals: list[Plural[tuple[Node, ScalarNode]]] = []              # key and value of each entry
        self._in_flow: set[int] = set()                                         # nodes in brackets or braces
        seen: set[int] = set()                                                  # an alias is its node once more
        todo: list[tuple[str, Node]] = [("", root) for root in reversed(roots)]
        while todo:
            key, node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, ScalarNode):
                self._add(node, key)
                continue
            inner = [(str(name.value), value) for name, value in node.value] if isinstance(node, MappingNode) else [
                (key, value) for value in node.value]
            if isinstance(node, CollectionNode) and node.flow_style:
                self._in_flow |= {id(value) for _, value in inner}
            if not isinstance(node, MappingNode) or not self._add_plural(node, seen):
                todo += reversed(inner)

    def _add(self, node: ScalarNode, key: str = "") -> bool:
        text = node.value
        if node.tag != _STRING_TAG or not is_message(text, key) or not node.style and _BOOLEAN.fullmatch(text):
            return False
        self.blocks.append(trim(Block(text, place=f"line {node.start_mark.line + 1}", keeps_lines=True,
                                      syntax=("vue", *IN_STRINGS)))[1])
        self._values.append(node)
        return True

    def _add_plural(self, node: MappingNode, seen: set[int]) -> bool:
        """Add the texts of a mapping whose keys are plural categories. Return False if it is another mapping."""
        entries = {key.value: (key, value) for key, value in node.value
                   if isinstance(value, ScalarNode) and id(value) not in seen and key.value in CATEGORIES}
        if len(entries) < len(node.value) or "other" not in entries or (
                len(entries) == 1 and "%{count}" not in entries["other"][1].value):
            return False
        plural = Plural(entries)
        for category, (_, value) in entries.items():
            seen.add(id(value))
            if self._add(value):
                plural.blocks[category] = len(self.blocks) - 1
        if "other" in plural.blocks:
            self._plurals.append(plural)
        return True

    def render(self, translations: Sequence[Block], target_language: str) -> bytes:
        """See `Document.render`. A text in one of YAML's styles stays in it, if the style can have the translation."""
        edits = {index: self._edit(node, new.text) for index, (node, new, block) in enumerate(zip(
            self._values, translations, self.blocks, strict=True)) if new != block}
        others: list[tuple[int, int, str]] = []
        for plural in self._plurals:
            if sources := plural.sources(self.blocks, translations, target_language):
                self._fill(plural, sources, translations, edits, others)
        if edits and self._language is not None:
            begin, end = self._span(self._language)
            quote = '"' if not _PLAIN.fullmatch(target_language) else self._language.style or ""
            others.append((begin, end, f"{quote}{target_language}{quote}"))
        return replace_spans(self._text, [*edits.values(), *others]).encode(self._encoding)

    def _fill(self, plural: Plural[tuple[Node, ScalarNode]], sources: Mapping[str, str], translations: Sequence[Block],
              edits: dict[int, tuple[int, int, str]], others: list[tuple[int, int, str]]) -> None:
        """Add the edits that give a plural the categories of the target language. sources: see `Plural.sources`."""
        for category in [one for one in plural.entries if one not in sources]:
            if span := self._entry(plural, category):
                edits.pop(plural.blocks.get(category, -1), None)
                others.append((*span, ""))
        key, _ = plural.entries["other"]
        place = self._span(key)[0]
        for category, source in sources.items():
            index = plural.blocks[source]
            if category not in plural.entries:
                value = self._flow_scalar(self._values[index], translations[index].text)
                separator = (", " if id(self._values[index]) in self._in_flow else
                             f"{self._line_end}{' ' * key.start_mark.column}")
                others.append((place, place, f"{category}: {value}{separator}"))
            elif source != category and category in plural.blocks:
                edits[plural.blocks[category]] = self._edit(plural.entries[category][1], translations[index].text)

    def _entry(self, plural: Plural[tuple[Node, ScalarNode]], category: str) -> tuple[int, int] | None:
        """Return the span of an entry with the separator after it; None if a comment follows or no entry follows."""
        names = list(plural.entries)
        following = names[names.index(category) + 1:]
        key, value = plural.entries[category]
        begin, end = self._span(key)[0], self._begin + value.end_mark.index
        after = self._span(plural.entries[following[0]][0])[0] if following else -1
        return (begin, after) if following and not self._text[end:after].strip(" ,\r\n") else None

    def _span(self, node: Node) -> tuple[int, int]:
        """Return the span of a scalar without its anchor and tag."""
        begin, end = self._begin + node.start_mark.index, self._begin + node.end_mark.index
        match = _PROPERTIES.match(self._text, begin, end)
        return (match.end() if match else begin), end

    def _edit(self, node: ScalarNode, new: str) -> tuple[int, int, str]:
        """Return the edit that gives a scalar a translation. new: text without white space at its edges."""
        begin, end = self._span(node)
        if node.style in ("|", ">"):
            return self._block_edit(node, begin, end, new)
        return begin, end, self._flow_scalar(node, new)

    def _flow_scalar(self, node: ScalarNode, new: str) -> str:
        """Return the translation of a scalar on one line, in the style of the scalar if the text can have it."""
        text = with_margins(node.value, new)
        is_printable = not _UNPRINTABLE.search(text)
        if not node.style and is_printable and _PLAIN.fullmatch(text) and not (
                id(node) in self._in_flow and _FLOW_MARKS.search(text)):
            return text
        if node.style == "'" and is_printable:
            return "'" + text.replace("'", "''") + "'"
        quoted = _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
        return "".join(one if one < "\x80" or not self._ascii else f"\\u{ord(one):04x}" if one < "\U00010000" else
                       f"\\U{ord(one):08x}" for one in quoted)

    def _block_edit(self, node: ScalarNode, begin: int, end: int, new: str) -> tuple[int, int, str]:
        """Return the edit of a block scalar, whose text stands on the lines after `|` or `>`."""
        raw = self._text[begin:end]
        header, line_end, content = raw.partition("\n")
        first = next(line for line in content.split("\n") if line.strip())
        inner = next(line for line in node.value.split("\n") if line.strip())
        indent = " " * ((len(first) - len(first.lstrip(" "))) - (len(inner) - len(inner.lstrip(" "))))
        lines = new.split("\n")
        if node.style == ">" and any(line[:1].isspace() for line in [*lines, *node.value.split("\n")]):
            header = "|" + header[1:]                                           # does not fold lines
        elif node.style == ">":
            lines = re.sub("\n+", r"\g<0>\n", new).split("\n")                 # one line break is a space there
        place = len(content) - len(content.lstrip())
        written = self._line_end.join(f"{indent}{line}" if line and number else line
                                      for number, line in enumerate(lines))
        return begin, end, header + line_end + content[:place] + written + content[len(content.rstrip()):]


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
