"""YAML of Rails, i18n libraries and others: strings that are text for people are translated. Keys, comments and layout
do not change.

If all texts are under the code of their language, as in Rails, this key becomes the code of the target language, and a
plural gets the categories of the target language: https://guides.rubyonrails.org/i18n.html#pluralization
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, ScalarNode
from ruamel.yaml.nodes import Node as YamlNode

from seq2seq.formats.block import IN_STRINGS, MAX_DEPTH, Block, DocumentError, require_count
from seq2seq.formats.data_tree import Node, TreeDocument
from seq2seq.formats.plurals import CATEGORIES
from seq2seq.formats.spans import Edit
from seq2seq.formats.units import Plural, Unit, unit_of

MAX_CHARACTERS = 1_000_000
"""Maximum size of a YAML document in characters. The parser reads 60,000 to 300,000 in a second."""
_SYNTAX = ("vue", *IN_STRINGS)
_STRING_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"
_PROPERTIES = re.compile(r"(?:[&!][^\s]*+\s++)*+")                              # anchor and tag before a scalar
_BOOLEAN = re.compile(r"(?i:y|yes|n|no|on|off)")
"""Plain scalars that are booleans in YAML 1.1, which Ruby reads, but strings in YAML 1.2."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
# Texts that are strings without quotes in every version of YAML. In brackets and braces, they need quotes if they have
# one of _FLOW_MARKS.
_PLAIN = re.compile(r"(?!(?i:y|yes|n|no|on|off|true|false|null)\Z)[^\W\d_](?:[^:#]|:(?=\S)|(?<=\S)#)*+(?<!\s)")
_FLOW_MARKS = re.compile(r"[,\[\]{}]|:(?!\w)")


class YamlDocument(TreeDocument):
    """YAML. A text in one of YAML's styles stays in it, if the style can have the translation."""

    def roots(self) -> list[Node]:
        require_count(len(self.text), MAX_CHARACTERS, "characters")
        self._ascii = "\\u" in self.text and self.text[self.begin:].isascii()
        self._in_flow: set[int] = set()                                         # nodes in brackets or braces
        seen: set[int] = set()                                                  # an alias is its node once more
        return [self._tree(node, seen) for node in _compose(self.text[self.begin:])]

    def _tree(self, node: YamlNode, seen: set[int], key: YamlNode | None = None) -> Node:
        """Return a node of the parser with the nodes in it, as a tree. key: key of the node."""
        seen.add(id(node))
        begin, end = self.begin + node.start_mark.index, self.begin + node.end_mark.index
        tree = Node(begin, end, key_begin=begin, key_end=begin, source=node)
        if key is not None:
            tree.key_begin, tree.key_end = self._span(key)
        if isinstance(node, ScalarNode):
            is_string = node.tag == _STRING_TAG and (node.style or not _BOOLEAN.fullmatch(node.value))
            tree.value = node.value if is_string else None if node.tag == _NULL_TAG else 0
            return tree
        assert isinstance(node, CollectionNode)
        tree.is_array, tree.members = not isinstance(node, MappingNode), {}
        for number, one in enumerate(node.value):
            name, value = (None, one) if tree.is_array else one
            if id(value) not in seen:
                tree.members[str(number if name is None else name.value)] = self._tree(value, seen, name)
            if node.flow_style:
                self._in_flow.add(id(value))
        tree.value = True if node.value and not tree.members else None            # an alias alone: not empty
        if tree.members and not node.flow_style:                                # without the comments that follow
            tree.end = [*tree.members.values()][-1].end
        return tree

    def units_of(self, node: Node, key: str, parent: Node) -> Iterator[Unit]:
        if isinstance(node.value, str):
            yield self._unit(node.source, key)
        elif entries := _plural_entries(node):
            yield from self._plural(entries, key)

    def _unit(self, node: ScalarNode, key: str) -> Unit:
        return unit_of(*self._span(node), Block(node.value, place=f"line {node.start_mark.line + 1}", keeps_lines=True,
                                                syntax=_SYNTAX, key=key), info=(None, node))

    def _plural(self, entries: Mapping[str, tuple[YamlNode, ScalarNode]], key: str) -> Iterator[Unit]:
        """Yield the units of a plural. entries: key and value of each category. key: key of the plural."""
        names = list(entries)
        plural = Plural({name: self._entry(entries[name], entries[following][0] if following else None)
                         for name, following in zip(names, [*names[1:], ""], strict=True)})
        for category, (name, value) in entries.items():
            if value.tag == _STRING_TAG:
                unit = self._unit(value, key)
                unit.plural, unit.category, unit.info = plural, category, (name, value)
                yield unit

    def added(self, other: Unit, category: str, block: Block) -> Edit:
        key, value = other.info
        place = self._span(key)[0]
        separator = ", " if id(value) in self._in_flow else f"{self.line_end}{' ' * key.start_mark.column}"
        text = other.before + block.text + other.after
        return place, place, f"{category}: {self._flow_scalar(value, text)}{separator}"

    def _entry(self, entry: tuple[YamlNode, ScalarNode], following: YamlNode | None) -> tuple[int, int] | None:
        """Return the span of an entry with the separator after it; None if a comment follows or no entry follows.

        following: key of the next entry; None if there is none.
        """
        key, value = entry
        if following is None:
            return None
        begin, end, after = self._span(key)[0], self.begin + value.end_mark.index, self._span(following)[0]
        return None if self.text[end:after].strip(" ,\r\n") else (begin, after)

    def written_key(self, key: str, old: str) -> str:
        quote = old[0] if old[:1] in ("'", '"') else "" if _PLAIN.fullmatch(key) else '"'
        return f"{quote}{key}{quote}"

    def added_entry(self, sibling: Node, entry: str) -> str:
        if id(sibling.source) in self._in_flow:
            return f", {entry}"
        begin = sibling.key_begin
        indent = " " * (begin - max(self.text.rfind(end, 0, begin) for end in "\r\n") - 1)
        line = indent + entry.rstrip("\r\n")
        return line + self.line_end if self.text[sibling.end - 1] in "\r\n" else self.line_end + line

    def _span(self, node: YamlNode) -> tuple[int, int]:
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


def _plural_entries(node: Node) -> dict[str, tuple[YamlNode, ScalarNode]]:
    """Return key and value by category of a mapping whose keys are plural categories; {} for another mapping."""
    if node.is_array or not {"other"} <= node.members.keys() <= {*CATEGORIES}:
        return {}
    entries = {key.value: (key, value) for key, value in node.source.value}
    is_alone = len(entries) == 1 and "%{count}" not in entries["other"][1].value
    are_scalars = all(isinstance(value, ScalarNode) for _, value in entries.values())
    return {} if len(node.members) < len(node.source.value) or is_alone or not are_scalars else entries


def _compose(text: str) -> list[YamlNode]:
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
