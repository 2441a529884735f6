"""YAML 1.2 as plain values, with the line of each value."""

from dataclasses import dataclass, field
from io import StringIO
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import RoundTripRepresenter

Key = tuple[str | int, ...]
"""Path to a value in a recipe: ("data", "train", 0, "source")."""

_TAG = "tag:yaml.org,2002:"
# Protects against hostile bundles: a few lines of nested aliases can expand to billions of values.
_MOST_VALUES = 100_000
# Line ends in YAML 1.1, and the byte order mark.
_UNSAFE_CHARACTERS = frozenset("\x85\u2028\u2029\ufeff")


class Place(NamedTuple):
    """A line of a file, or (line 0) a `--set` option."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Mistake(NamedTuple):
    """Message about a mistake of the user, and its place."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass
class Document:
    """Plain dicts, lists and scalars, the place of each by its key, and the mistakes found so far."""

    value: Any
    places: dict[Key, Place]
    mistakes: list[Mistake] = field(default_factory=list)

    def place(self, key: Key) -> Place:
        """Return the place of the value at `key`, or of the nearest enclosing section that the user wrote."""
        while key not in self.places:
            key = key[:-1]
        return self.places[key]

    def mistake(self, key: Key, text: str) -> Mistake:
        """Return a mistake at `key`; its text begins with the key, unless the place is a `--set` that names it."""
        place, dotted = self.place(key), ".".join(str(step) for step in key)
        named = not dotted or place.source.startswith(f"--set {dotted}=")
        return Mistake(place, text if named else f"{dotted}: {text}")

    def fill_from(self, base: "Document", section: str) -> None:
        """Copy the keys of `section` that this document lacks from `base`."""
        self.value[section] = _filled(self.value.get(section, {}), base.value[section])
        self.places = {key: place for key, place in base.places.items() if key[:1] == (section,)} | self.places

    def set(self, key: Key, new: "Document") -> None:
        """Put the value of `new` at `key`; missing sections are created, items of lists must exist.

        Raises:
            KeyError: a step of the key meets neither a section nor a list, or lies past the end of a list. Its
                argument is a message.
        """
        here = self.value
        for depth, (step, following) in enumerate(zip(key, [*key[1:], None], strict=True)):
            name = ".".join(str(part) for part in key[:depth])
            if isinstance(here, list):
                step = int(step) if isinstance(step, str) and step.isdecimal() else step
                if not isinstance(step, int) or step >= len(here):
                    raise KeyError(f"{name} is a list of {len(here)}, counted from 0; it has no item '{step}'")
            elif not isinstance(here, dict):
                raise KeyError(f"{name} is no section or list here; set it as a whole")
            if following is None:
                here[step] = new.value
            elif isinstance(here, dict):
                if step not in here:
                    self.places[key[: depth + 1]] = new.place(())
                here = here.setdefault(step, {})
            else:
                here = here[step]
        numbered = tuple(int(step) if isinstance(step, str) and step.isdecimal() else step for step in key)
        for start in {key, numbered}:
            self.places |= {start + below: place for below, place in new.places.items()}


def _filled(value: Any, base: Any) -> Any:
    if not (isinstance(value, dict) and isinstance(base, dict)):
        return value
    return base | {key: _filled(inner, base[key]) if key in base else inner for key, inner in value.items()}


def read_yaml(text: str, source: str, line: int | None = None) -> Document:
    """Read one YAML 1.2 document; its errors are in `mistakes`.

    Args:
        text: the document.
        source: its name in messages.
        line: a fixed line number for all places (0: no line), instead of those in the text.
    """
    document = Document(None, {(): Place(source, 1 if line is None else line)})
    try:
        node = YAML(typ="safe", pure=True).compose(StringIO(text))
        if node is not None:
            _Reader(document, source, line).read(node, ())
    except (YAMLError, RecursionError) as error:
        document.value = None
        document.mistakes = [_syntax_mistake(error, source, line)]
    return document


class _Reader:
    """Turns nodes into values. Unlike ruamel's constructors it continues after a mistake and keeps line numbers."""

    def __init__(self, document: Document, source: str, line: int | None) -> None:
        self.document, self.source, self.line = document, source, line
        self.scalars: SafeConstructor = YAML(typ="safe", pure=True).constructor

    def read(self, node: Node, key: Key, place: Place | None = None) -> Any:
        if len(self.document.places) > _MOST_VALUES:
            raise YAMLError(f"more than {_MOST_VALUES:,} values")
        self.document.places[key] = place or self.place(node)
        value: Any
        if isinstance(node, MappingNode):
            value = self.mapping(node, key)
        elif isinstance(node, SequenceNode):
            value = [self.read(item, (*key, index)) for index, item in enumerate(node.value)]
        else:
            value = self.scalar(node)
            if isinstance(value, str) and not _is_utf8(value):
                told = ("a character that UTF-8 does not have (half of a surrogate pair, or a byte of a name that is "
                        "not UTF-8), so that no file could hold this recipe. Correct the text, or rename the file")
                self.document.mistakes.append(self.document.mistake(key, told))
        if key == ():
            self.document.value = value
        return value

    def mapping(self, node: MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            place = self.place(name_node)
            if not isinstance(name_node, ScalarNode):
                self.document.mistakes.append(Mistake(place, "a key must be a word; put {braces} in quotes"))
                continue
            # The text as written, not converted: a test set called 2016 is '2016'.
            name = name_node.value
            inner = (*key, name)
            if name in values:
                first = self.document.places[inner]
                told = f"{'.'.join(str(part) for part in inner)}: given twice, first in line {first.line}"
                self.document.mistakes.append(Mistake(place, told if first.line else told.split(", first")[0]))
                continue
            values[name] = self.read(value_node, inner, place)
        return values

    def scalar(self, node: Node) -> Any:
        """Return a number, bool, None or text. Dates stay text, because they make good names of runs."""
        read = {
            "int": self.scalars.construct_yaml_int,
            "float": self.scalars.construct_yaml_float,
            "bool": self.scalars.construct_yaml_bool,
            "null": self.scalars.construct_yaml_null,
        }.get(str(node.tag).removeprefix(_TAG))
        try:
            return read(node) if read else node.value
        except (
            ValueError,
            LookupError,
        ):  # `-_` has the form of a number, 5,000 digits are too many, `!!bool x` is none
            return node.value

    def place(self, node: Node) -> Place:
        return Place(self.source, node.start_mark.line + 1 if self.line is None else self.line)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _syntax_mistake(error: Exception, source: str, line: int | None) -> Mistake:
    """Describe the YAML parser's error in a sentence, with its line."""
    if isinstance(error, RecursionError):
        return Mistake(Place(source, line or 0), "not a recipe: nested too deeply, or an alias that contains itself")
    if not isinstance(error, MarkedYAMLError):
        # For characters that YAML does not allow, the error has no mark, and its second line is useless.
        return Mistake(Place(source, line or 0), f"not valid YAML: {str(error).strip().splitlines()[0]}")
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context)
    if "'\\t'" in problem:
        problem = "a tab; YAML is indented with spaces"
    elif error.context and error.problem:
        problem = f"{error.context}, {problem}"
    found = mark.line + 1 if mark is not None and line is None else line or 0
    return Mistake(Place(source, found), f"not valid YAML: {problem}")


class _Representer(RoundTripRepresenter):
    """Writes text with non-ASCII line ends in double quotes, which escape them; a plain scalar would lose them."""


def _represent_text(representer: RoundTripRepresenter, text: str) -> Any:
    style = '"' if not _UNSAFE_CHARACTERS.isdisjoint(text) else None
    return representer.represent_scalar(f"{_TAG}str", text, style=style)


_Representer.add_representer(str, _represent_text)


def write_yaml(value: dict[str, Any]) -> str:
    """Return plain values as YAML 1.2; `read_yaml` restores the same values."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1_000_000  # one value, one line: readable differences between recipes
    stream = StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()
