"""Error messages for a recipe, in plain words, made from pydantic's errors."""

import difflib
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from seq2seq.errors import OptionError
from seq2seq.recipe.base_section import MistakeAt, Section
from seq2seq.recipe.decoding_section import SAMPLING_KEYS, DecodingSection
from seq2seq.recipe.language_codes import code_for
from seq2seq.recipe.schema import Recipe
from seq2seq.recipe.yaml_document import Document, Key, Mistake

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a section, keys with values",
    "dict_type": "a section, keys with values",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
}
_LARGEST = 10**9  # larger bounds are technical limits, of no interest to users
# Descriptions of the schema's patterns, by the key that they check.
_PATTERNS = {
    "name": "letters a-z, digits, '_', '.' and '-', with a letter or digit first",
    "source": "a language code, such as de, zh or pt-BR",
    "target": "a language code, such as de, zh or pt-BR",
}


def explain(error: ValidationError, document: Document) -> Iterator[Mistake]:
    """Yield a mistake, with its place in the document, for each error."""
    for detail in error.errors(include_url=False):
        key: Key = detail["loc"]
        if detail["type"] == "too_short" and detail["input"]:
            continue  # its invalid items have mistakes of their own; pydantic counts the valid ones only
        cause = (detail.get("ctx") or {}).get("error")
        if isinstance(cause, MistakeAt):
            key += cause.key
        if key[-1] == "[key]":
            key = key[:-1]
        elif detail["type"] == "missing" and isinstance(key[-1], int):
            key = key[:-1]
            detail["type"] = "too_few"
        yield document.mistake(key, _text(detail, key, document.value))


def decoding_with(decoding: DecodingSection, options: Mapping[str, object],
                  name_of: Callable[[str], str] = str) -> DecodingSection:
    """Return a `decoding` section in which `options` override some keys. Options that turn sampling off leave out what
    the section says of samples.

    name_of: function from a key to the name that the user knows, for messages.
    Raises:
        OptionError: unknown keys or invalid values; lists all mistakes, one per line.
    """
    changed: dict[str, Any] = {**decoding.model_dump(), **options}
    if options.get("sampling") is False:
        changed |= {key: DecodingSection.model_fields[key].default for key in SAMPLING_KEYS if key not in options}
    try:
        return DecodingSection.model_validate(changed)
    except ValidationError as error:
        mistakes = [_option_mistake(detail, changed, name_of) for detail in error.errors(include_url=False)]
    raise OptionError("\n".join(mistakes))


def _option_mistake(detail: ErrorDetails, options: dict[str, Any], name_of: Callable[[str], str]) -> str:
    first, *places = detail["loc"]
    name = str(first)
    if detail["type"] == "extra_forbidden":
        known = list(DecodingSection.model_fields)
        close = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        return f"{name}: there is no such option.{meant} The options are {', '.join(known)}."
    text = _text(detail, ("decoding", *detail["loc"]), {"decoding": options})
    return f"{name_of(name)}{''.join(f'[{place}]' for place in places)}: {text}"


def _text(detail: ErrorDetails, key: Key, recipe: Any) -> str:
    kind, found, context = detail["type"], detail["input"], detail.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"unknown key.{similar_key(key)}"
    if kind == "missing":
        return f"missing. {_documentation(key)}".strip()
    if kind == "value_error":
        return str(context["error"])
    if kind == "too_short":
        return "expected at least one"
    if kind in ("too_few", "too_long"):
        given = _at(recipe, key)
        return f"expected a list of 2 numbers, found {len(given) if isinstance(given, list) else given}"
    if kind == "string_pattern_mismatch":
        expected = _PATTERNS.get(str(key[-1]), "letters a-z, digits, '_' and '-'")
        code = code_for(found) if key[:1] == ("languages",) else None
        return f"expected {expected}; found {show(found)}" + (f". Its code is {code}." if code else "")
    bounds = {name: _bound(value) for name, value in context.items()}
    expected = _EXPECTED[kind].format(**bounds) if kind in _EXPECTED else detail["msg"]
    if kind in ("int_type", "float_type", "finite_number"):
        expected += _bounds(key)
    hint = _hint(kind, found, context)
    return f"expected {expected}; found {show(found)}{'.' if hint else ''}{hint}"


def _bound(value: Any) -> Any:
    """Format a bound for people; other values stay as they are."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


def _bounds(key: Key) -> str:
    """Describe the bounds of the number at this key, such as " above 0"."""
    section = section_at(key[:-1])
    entry = section.model_fields.get(str(key[-1])) if section else None
    if entry is None:
        return ""
    annotations = [entry.metadata, *(get_args(choice)[1:] for choice in get_args(entry.annotation)
                                     if get_origin(choice) is Annotated)]
    # Some constraints are wrapped in a Field(), others are not.
    bounds = [bound for listed in annotations for each in listed for bound in getattr(each, "metadata", [each])]
    words = [f"{word} {_bound(value)}" for word, name in (("above", "gt"), ("of at least", "ge"), ("below", "lt"),
                                                          ("of at most", "le"))
             for bound in bounds if (value := getattr(bound, name, None)) is not None and abs(value) <= _LARGEST]
    return f" {' and '.join(words)}" if words else ""


def show(value: Any) -> str:
    """Format a value as in a recipe, shortened to 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(kind: str, found: Any, context: dict[str, Any]) -> str:
    if kind in ("int_type", "float_type") and isinstance(found, str):
        try:
            finite = math.isfinite(float(found))
        except ValueError:
            return ""
        return " Write it without quotes." if finite else ""
    if kind in ("int_type", "float_type", "bool_type") and type(found).__module__ != "builtins":
        return f" It is of type {type(found).__name__}; convert it by {kind.removesuffix('_type')}()."
    if kind == "int_type" and isinstance(found, float) and found.is_integer():
        return f" Write {int(found)}."
    if kind == "literal_error" and isinstance(found, str):
        close = difflib.get_close_matches(found.lower(), context["expected"].replace("'", " ").split(), n=1)
        return f" Did you mean '{close[0]}'?" if close else ""
    return ""


def similar_key(key: Key) -> str:
    """Suggest the key that was probably meant: a similar one in this section, else the same one in another section."""
    section = section_at(key[:-1])
    name = str(key[-1])
    close = difflib.get_close_matches(name, section.model_fields if section else [], n=1)
    if close:
        return f" Did you mean '{close[0]}'?"
    for other, _ in walk_fields():
        if other.rpartition(".")[2] == name:
            return f" Did you mean '{other}'?"
    return ""


def _documentation(key: Key) -> str:
    section = section_at(key[:-1])
    entry = section.model_fields.get(str(key[-1])) if section else None
    return (entry.description or "").replace("\n", " ") if entry else ""


def _at(value: Any, key: Key) -> Any:
    for step in key:
        value = value[step]
    return value


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section class in a field's type, also inside a list, a dict or an optional; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, dict):
        for argument in get_args(annotation):
            if found := section_of(argument):
                return found
    return None


def section_at(key: Key) -> type[Section] | None:
    """Return the section class at a key of a recipe. List indices and names of test sets are skipped."""
    section: type[Section] | None = Recipe
    for step in key:
        if section is None:
            return None
        entry = section.model_fields.get(str(step))
        if entry is not None:
            section = section_of(entry.annotation)
    return section


def walk_fields(section: type[Section] = Recipe, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all keys of a recipe with their fields, each section before its keys. Keys of the items of `data.train` are
    `data.train.source` and so on."""
    for name, entry in section.model_fields.items():
        yield f"{prefix}{name}", entry
        inner = section_of(entry.annotation)
        if inner is not None:
            yield from walk_fields(inner, f"{prefix}{name}.")
