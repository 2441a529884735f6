"""Reading of YAML 1.2 into plain values and their line numbers, and writing of plain values as YAML 1.2."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import RoundTripRepresenter

from seq2seq.errors import OptionError

Key = tuple[str | int, ...]
"""Key of a value in a recipe, as a tuple of names and list indices: ("data", "train", 0, "source")."""

_TAG = "tag:yaml.org,2002:"
# Maximum number of values in a document. A few lines of nested aliases can expand to billions of values.
_MAX_VALUES = 100_000
# Line ends of YAML 1.1 that are not ASCII, and the byte order mark.
_UNSAFE_CHARACTERS = frozenset("\x85\u2028\u2029\ufeff")
_SURROGATE = re.compile("[\ud800-\udfff]")


class SourceLocation(NamedTuple):
    """Location of a value: a line of a file, a whole file, or a `--set` option.

    source: path of the file, or text of the option. line: number of the line; 0 for a whole file or an option.
    """

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Diagnostic(NamedTuple):
    """Error message about a recipe, and its location."""

    location: SourceLocation
    text: str

    def __str__(self) -> str:
        return f"{self.location}: {self.text}"


@dataclass
class Document:
    """YAML document as plain dicts, lists and scalars.

    locations: location of each value, by key. diagnostics: errors found so far. named_by: key that names the other
    document from which values were filled in, by the source of that document.
    """

    value: Any
    locations: dict[Key, SourceLocation]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    named_by: dict[str, Key] = field(default_factory=dict)

    def location(self, key: Key) -> SourceLocation:
        """Return the location of the value at `key`, or of the nearest enclosing section that the user wrote."""
        while key not in self.locations:
            key = key[:-1]
        return self.locations[key]

    def diagnostic(self, key: Key, text: str, is_conflict: bool = False) -> Diagnostic:
        """Return an error message about `key`. The message begins with the key, unless the location
        is a `--set` option, which contains the key.

        is_conflict: True if other values may be the reason that this value is wrong. If it was filled in from another
            document, the location is then the line of this document that names the other one.
        """
        location, dotted = self.location(key), ".".join(str(step) for step in key)
        if is_conflict and (name := self.named_by.get(location.source)):
            text = (f"{text.rstrip('.')}. It comes from {location}; override it here, or change "
                    f"{'.'.join(map(str, name))}.")
            location = self.location(name)
        named = not dotted or location.source.startswith(f"--set {dotted}=")
        return Diagnostic(location, text if named else f"{dotted}: {text}")

    def fill_from(self, base: "Document", section: str, named_by: Key) -> None:
        """Copy from `base` those keys of `section` that this document does not set. named_by: key that names `base`."""
        self.named_by[base.location(()).source] = named_by
        self.value[section] = _filled(self.value.get(section, {}), base.value[section])
        self.locations = {key: location for key, location in base.locations.items()
                          if key[:1] == (section,)} | self.locations

    def set(self, key: Key, new: "Document") -> None:
        """Set `key` to the value of `new`. Missing sections are created; list items must exist.

        Raises:
            KeyError: a part of the key refers to a scalar, or to a list item that does not exist. The argument of the
                exception is a message.
        """
        here = self.value
        for depth, (step, following) in enumerate(zip(key, [*key[1:], None], strict=True)):
            name = ".".join(str(part) for part in key[:depth])
            if isinstance(here, list):
                step = int(step) if isinstance(step, str) and step.isdecimal() else step
                if not isinstance(step, int) or step >= len(here):
                    raise KeyError(f"{name} has no item '{step}': it is a list of length {len(here)}, and its first "
                                   "item is 0")
            elif not isinstance(here, dict):
                raise KeyError(f"{name} is neither a section nor a list in this recipe; set {name} itself")
            if following is None:
                here[step] = new.value
            elif isinstance(here, dict):
                if step not in here:
                    self.locations[key[: depth + 1]] = new.location(())
                here = here.setdefault(step, {})
            else:
                here = here[step]
        numbered = tuple(int(step) if isinstance(step, str) and step.isdecimal() else step for step in key)
        for start in {key, numbered}:
            self.locations |= {start + below: location for below, location in new.locations.items()}


def _filled(value: Any, base: Any) -> Any:
    """Return a nested dict with the missing keys filled in from `base`; any other value unchanged."""
    if not (isinstance(value, dict) and isinstance(base, dict)):
        return value
    return base | {key: _filled(inner, base[key]) if key in base else inner for key, inner in value.items()}


def read_yaml(text: str, source: str, line: int | None = None) -> Document:
    """Parse a YAML 1.2 document. Errors are stored in the `diagnostics` of the result.

    Args:
        text: text of the document.
        source: name of the document in messages.
        line: line number of all locations; 0 means no line number. None: each value has the number of its own line.
    """
    document = Document(None, {(): SourceLocation(source, 1 if line is None else line)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)                # YAML 1.2 allows it
            node = YAML(typ="safe", pure=True).compose(StringIO(text))
        if node is not None:
            _Reader(document, source, line).read(node, ())
    except (YAMLError, RecursionError) as error:
        document.value = None
        document.diagnostics = [_syntax_diagnostic(error, source, line)]
    return document


class _Reader:
    """Converter of YAML nodes to values. Unlike ruamel's constructors, it continues after errors and keeps line
    numbers."""

    def __init__(self, document: Document, source: str, line: int | None) -> None:
        self.document, self.source, self.line = document, source, line
        self.scalars: SafeConstructor = YAML(typ="safe", pure=True).constructor

    def read(self, node: Node, key: Key, location: SourceLocation | None = None) -> Any:
        """Return the value of a node. The document stores the locations and errors of all values in the node."""
        if len(self.document.locations) > _MAX_VALUES:
            raise YAMLError(f"more than {_MAX_VALUES:,} values")
        self.document.locations[key] = location or self.location(node)
        value: Any
        if isinstance(node, MappingNode):
            value = self.mapping(node, key)
        elif isinstance(node, SequenceNode):
            value = [self.read(item, (*key, index)) for index, item in enumerate(node.value)]
        else:
            value = self.scalar(node)
            if isinstance(value, str) and _SURROGATE.search(value):
                message = ("contains a character that UTF-8 cannot encode (half of a surrogate pair, or a byte of a "
                           "file name that is not UTF-8), so that this recipe cannot be saved. Correct the text, or "
                           "rename the file")
                self.document.diagnostics.append(self.document.diagnostic(key, message))
        if key == ():
            self.document.value = value
        return value

    def mapping(self, node: MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            location = self.location(name_node)
            if not isinstance(name_node, ScalarNode):
                self.document.diagnostics.append(Diagnostic(location, "a key must be a word; put {braces} in quotes"))
                continue
            # Keys are not converted to other types: a test set called 2016 has the name '2016'.
            name = name_node.value
            inner = (*key, name)
            if name in values:
                first = self.document.locations[inner]
                message = f"{'.'.join(str(part) for part in inner)}: given twice"
                message += f", first in line {first.line}" if first.line else ""
                self.document.diagnostics.append(Diagnostic(location, message))
                continue
            values[name] = self.read(value_node, inner, location)
        return values

    def scalar(self, node: Node) -> Any:
        """Return the value of a scalar: a number, bool, None or text. Dates remain text, so that they can name runs."""
        construct = {
            "int": self.scalars.construct_yaml_int,
            "float": self.scalars.construct_yaml_float,
            "bool": self.scalars.construct_yaml_bool,
            "null": self.scalars.construct_yaml_null,
        }.get(str(node.tag).removeprefix(_TAG))
        try:
            return construct(node) if construct else node.value
        except (ValueError, LookupError):  # such as `-_`, a number of 5,000 digits, or `!!bool x`
            return node.value

    def location(self, node: Node) -> SourceLocation:
        return SourceLocation(self.source, node.start_mark.line + 1 if self.line is None else self.line)


def listed_values(settings: Sequence[str], example: str) -> dict[str, list[Any]]:
    """Return the values of each key of options such as beam_size=1,5. Values are in YAML, with commas between them.

    example: such an option, for errors.
    """
    values: dict[str, list[Any]] = {}
    for setting in settings:
        key, _, written = setting.partition("=")
        listed = read_yaml(f"[{written}]", setting)
        if not key or not written.strip() or listed.diagnostics or not isinstance(listed.value, list):
            raise OptionError(f"{setting}: expected a key and its values with commas between them, such as {example}.")
        if key in values:
            raise OptionError(f"{setting}: {key} is given twice. Write all its values in one list.")
        values[key] = listed.value
    return values


def _syntax_diagnostic(error: Exception, source: str, line: int | None) -> Diagnostic:
    """Return the error of the YAML parser as a one-line message with a location."""
    if isinstance(error, RecursionError):
        return Diagnostic(SourceLocation(source, line or 0),
                          "not a recipe: nested too deeply, or an alias that contains itself")
    if not isinstance(error, MarkedYAMLError):
        # For characters that YAML does not allow, the error has no line number, and its second line is not useful.
        return Diagnostic(SourceLocation(source, line or 0), f"not valid YAML: {str(error).strip().splitlines()[0]}")
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context)
    if "'\\t'" in problem:
        problem = "a tab; YAML must be indented with spaces"
    elif error.context and error.problem:
        problem = f"{error.context}, {problem}"
    number = mark.line + 1 if mark is not None and line is None else line or 0
    return Diagnostic(SourceLocation(source, number), f"not valid YAML: {problem}")


class _Representer(RoundTripRepresenter):
    """Representer that puts double quotes around text with non-ASCII line ends, which plain scalars would lose."""


def _represent_text(representer: RoundTripRepresenter, text: str) -> Any:
    style = '"' if not _UNSAFE_CHARACTERS.isdisjoint(text) else None
    return representer.represent_scalar(f"{_TAG}str", text, style=style)


_Representer.add_representer(str, _represent_text)


def write_yaml(value: dict[str, Any]) -> str:
    """Return plain values as YAML 1.2 that `read_yaml` converts back to the same values."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1_000_000  # one line per value, so that diffs of recipes are readable
    stream = StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()
