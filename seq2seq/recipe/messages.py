"""Error messages about recipes in plain words, generated from pydantic's errors."""

import difflib
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from seq2seq.errors import OptionError
from seq2seq.languages import suggestion_for
from seq2seq.recipe.base_section import (
    CombinationError,
    RecipeValueError,
    Section,
    SectionsError,
    describe_keys,
    format_value,
)
from seq2seq.recipe.combinations import SAMPLING_KEYS
from seq2seq.recipe.decoding_section import DecodingSection
from seq2seq.recipe.model_section import DEFAULT_TYPE, MODEL_SECTIONS, ModelSection, section_of_type
from seq2seq.recipe.schema import Recipe
from seq2seq.recipe.yaml_document import Diagnostic, Document, Key

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a section (keys with values)",
    "dict_type": "a section (keys with values)",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
}
_MAX_SHOWN_BOUND = 10**9  # messages omit larger bounds, which are technical limits
# Descriptions of the schema's regular expressions, by the last part of the key.
_PATTERNS = {
    "name": "letters a-z, digits, '_', '.' and '-', with a letter or digit first",
    "source": "a language code, such as de, zh or pt-BR",
    "target": "a language code, such as de, zh or pt-BR",
}


def explain(error: ValidationError, document: Document) -> Iterator[Diagnostic]:
    """Yield a diagnostic, with its location in the document, for each of pydantic's errors."""
    for detail in error.errors(include_url=False):
        key: Key = detail["loc"]
        if detail["type"] == "too_short" and detail["input"]:
            continue  # pydantic counts only valid items of a list; each invalid item has an error of its own
        cause = (detail.get("ctx") or {}).get("error")
        if isinstance(cause, RecipeValueError):
            key = cause.key if isinstance(cause, SectionsError) else key + cause.key
            if isinstance(cause, CombinationError) and cause.other and not _is_written(
                    document.value, key) and _is_written(document.value, cause.other.key):
                yield document.diagnostic(cause.other.key, str(cause.other), True)
                continue
        if key[-1] == "[key]":
            key = key[:-1]
        elif detail["type"] == "missing" and isinstance(key[-1], int):
            key = key[:-1]
            detail["type"] = "too_few"
        if key[:3] == ("data", "valid", 0) and isinstance(_value_at(document.value, ("data", "valid")), dict):
            key = (*key[:2], *key[3:])                                          # one corpus instead of a list
        text, is_conflict = _text(detail, key, document.value), detail["type"] == "value_error"
        if detail["type"] == "extra_forbidden" and (types := _types_with(key)):
            text, is_conflict = (f"a model of type {document.value['model'].get('type', DEFAULT_TYPE)} does not have "
                                 f"this key, but one of type {' or '.join(types)}. Remove the key, or change "
                                 "model.type."), True
        yield document.diagnostic(key, text, is_conflict)


def decoding_with(decoding: DecodingSection, options: Mapping[str, object],
                  name_of: Callable[[str], str] = str) -> DecodingSection:
    """Return a copy of a `decoding` section with some keys overridden.

    If the options turn sampling off, the section's keys for sampling return to their defaults.

    Args:
        options: keys and their new values.
        name_of: function that maps a key to its name in messages, such as a command-line option.
    """
    changed: dict[str, Any] = {**decoding.model_dump(), **options}
    if options.get("sampling") is False:
        changed |= {key: DecodingSection.model_fields[key].default for key in SAMPLING_KEYS if key not in options}
    try:
        return DecodingSection.model_validate(changed)
    except ValidationError as error:
        messages = [_option_message(detail, changed, name_of) for detail in error.errors(include_url=False)]
    raise OptionError("\n".join(messages))


def _option_message(detail: ErrorDetails, options: dict[str, Any], name_of: Callable[[str], str]) -> str:
    """Return the message for one of pydantic's errors about options."""
    cause = (detail.get("ctx") or {}).get("error")
    first, *indices = cause.key[1:] if isinstance(cause, CombinationError) else detail["loc"]
    name = str(first)
    if detail["type"] == "extra_forbidden":
        known = list(DecodingSection.model_fields)
        close = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        return f"{name}: there is no such option.{meant} The options are {', '.join(known)}."
    text = _text(detail, ("decoding", *detail["loc"]), {"decoding": options})
    return f"{name_of(name)}{''.join(f'[{index}]' for index in indices)}: {text}"


def _text(detail: ErrorDetails, key: Key, recipe: Any) -> str:
    """Return the message for one of pydantic's errors, without its location. recipe: the unvalidated values."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"unknown key.{similar_key(key, recipe)}"
    if kind == "missing":
        return f"missing. {_documentation(key, recipe)}".strip()
    if kind == "value_error":
        return str(context["error"])
    if kind == "too_short":
        return "expected at least one item"
    if kind in ("too_few", "too_long"):
        numbers = _value_at(recipe, key)
        found = f"a list of length {len(numbers)}" if isinstance(numbers, list) else numbers
        return f"expected a list of 2 numbers, found {found}"
    if kind == "string_pattern_mismatch":
        expected = _PATTERNS.get(str(key[-1]), "letters a-z, digits, '_' and '-'")
        suggestion = suggestion_for(value) if key[-2:-1] == ("languages",) else ""
        return f"expected {expected}; found {format_value(value)}" + (f".{suggestion}" if suggestion else "")
    bounds = {name: _bound(bound) for name, bound in context.items()}
    expected = _EXPECTED[kind].format(**bounds) if kind in _EXPECTED else detail["msg"]
    if kind in ("int_type", "float_type", "finite_number"):
        expected += _bounds(key, recipe)
    hint = _hint(kind, value, context)
    return f"expected {expected}; found {format_value(value)}{'.' if hint else ''}{hint}"


def _bound(value: Any) -> Any:
    """Format a number with thousands separators or in short form; return other values unchanged."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


def _bounds(key: Key, recipe: Any) -> str:
    """Return the bounds of the number at this key in words, such as " above 0"; "" if there are none."""
    section = section_at(key[:-1], recipe)
    entry = section.model_fields.get(str(key[-1])) if section else None
    if entry is None:
        return ""
    metadata = [entry.metadata, *(get_args(choice)[1:] for choice in get_args(entry.annotation)
                                  if get_origin(choice) is Annotated)]
    # An item is a constraint (in types such as PositiveInt), or a Field(gt=0) with its constraints in `metadata`.
    bounds = [bound for items in metadata for item in items for bound in getattr(item, "metadata", [item])]
    words = [f"{word} {_bound(value)}" for word, name in (("above", "gt"), ("of at least", "ge"), ("below", "lt"),
                                                          ("of at most", "le"))
             for bound in bounds
             if (value := getattr(bound, name, None)) is not None and abs(value) <= _MAX_SHOWN_BOUND]
    return f" {' and '.join(words)}" if words else ""


def _hint(kind: str, value: Any, context: dict[str, Any]) -> str:
    """Return a hint on how to correct a value; "" if there is none. kind: type of pydantic's error."""
    if kind in ("int_type", "float_type") and isinstance(value, str):
        try:
            finite = math.isfinite(float(value))
        except ValueError:
            return ""
        return " Write it without quotes." if finite else ""
    if kind in ("int_type", "float_type", "bool_type") and type(value).__module__ != "builtins":
        return f" It is of type {type(value).__name__}; convert it with {kind.removesuffix('_type')}()."
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f" Write {int(value)}."
    if kind == "literal_error" and isinstance(value, str):
        close = difflib.get_close_matches(value.lower(), context["expected"].replace("'", " ").split(), n=1)
        return f" Did you mean '{close[0]}'?" if close else ""
    return ""


def similar_key(key: Key, recipe: Any = None) -> str:
    """Return a hint that names the key that was probably meant; "" if there is none.

    This key is one with a similar name in the same section, else one with the same name in another section, the least
    nested one: `name` rather than `data.train.name`. recipe: the unvalidated values.
    """
    section = section_at(key[:-1], recipe)
    name = str(key[-1])
    close = difflib.get_close_matches(name, section.model_fields if section else [], n=1)
    if close:
        return f" Did you mean '{close[0]}'?"
    same = [other for other, _ in walk_fields() if other.rpartition(".")[2] == name]
    return f" Did you mean '{min(same, key=lambda other: other.count('.'))}'?" if same else ""


def _types_with(key: Key) -> list[str]:
    """Return the types of model that have a key of the section `model`; [] for keys of other sections."""
    if key[:-1] != ("model",):
        return []
    return [type for type, section in MODEL_SECTIONS.items() if key[-1] in section.model_fields]


def _documentation(key: Key, recipe: Any) -> str:
    section = section_at(key[:-1], recipe)
    return describe_keys(section).get(str(key[-1]), "").replace("\n", " ") if section else ""


def _is_written(value: Any, key: Key) -> bool:
    """Return True if a recipe has a value at this key. value: the unvalidated values."""
    for step in key:
        if not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return True


def _value_at(value: Any, key: Key) -> Any:
    for step in key:
        value = value[step]
    return value


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section class in the type of a field, even inside a list, dict or union; None if there is none. Of
    several classes, return the first."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, dict):
        for argument in get_args(annotation):
            if section := section_of(argument):
                return section
    return None


def section_at(key: Key, recipe: Any = None) -> type[Section] | None:
    """Return the section class at a key of a recipe. List indices and names of test sets in the key are ignored.

    recipe: the unvalidated values, whose `model.type` decides the class of the section `model`.
    """
    section: type[Section] | None = Recipe
    if key == ("model",) and isinstance(recipe, dict) and isinstance(recipe.get("model"), dict):
        return section_of_type(recipe["model"]) or ModelSection
    for step in key:
        if section is None:
            return None
        entry = section.model_fields.get(str(step))
        if entry is not None:
            section = section_of(entry.annotation)
    return section


def walk_fields(section: type[Section] = Recipe, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (dotted key, field) for all keys of a recipe, each section before its keys.

    Keys of list items have no index: `data.train.source`.
    """
    fields = dict(section.model_fields)
    if issubclass(section, ModelSection):
        for each in MODEL_SECTIONS.values():
            fields |= each.model_fields
    for name, entry in fields.items():
        yield f"{prefix}{name}", entry
        inner = section_of(entry.annotation)
        if inner is not None:
            yield from walk_fields(inner, f"{prefix}{name}.")
