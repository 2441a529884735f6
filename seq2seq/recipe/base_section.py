"""Base class and shared types of the sections of a recipe."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

Share = Annotated[float, Field(ge=0, lt=1)]

MAX_POSITIONS = 65_536
"""Maximum value of `model.max_positions` and `model.window`, in pieces. With this number of positions and d_model 512,
the table of sinusoidal positions takes 134 MB, and computing it takes 0.7 GB of memory."""
MAX_TOKENS = 1_000_000
"""Maximum value of the keys of `decoding` that count tokens or pieces, such as `decoding.batch_tokens`."""
Positions = Annotated[int, Field(gt=0, le=MAX_POSITIONS)]
Pieces = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Tokens = Annotated[int, Field(gt=0, le=MAX_TOKENS)]


class RecipeValueError(ValueError):
    """Error that a section's validator raises about one key. The message names the line of this key, not the first line
    of the section."""

    def __init__(self, key: str | tuple[str | int, ...], message: str) -> None:
        """key: dotted key relative to the section, or a tuple if the key contains a list index."""
        super().__init__(message)
        self.key = tuple(key.split(".")) if isinstance(key, str) else key


class SectionsError(RecipeValueError):
    """Error about a rule between several sections. Its key begins with the section."""


class CombinationError(SectionsError):
    """Error about two settings that do not work together. other: the same error at the key of the other setting, for a
    recipe in which the first one has its default. reason: see `combinations.Combination`."""

    other: "CombinationError | None" = None
    reason = ""


@contextmanager
def collecting(errors: list[SectionsError]) -> Iterator[None]:
    """Append the RecipeValueError of the block to `errors`, so that rules after it are checked, too."""
    try:
        yield
    except RecipeValueError as error:
        errors.append(SectionsError(error.key, str(error)))


def raise_all(errors: Sequence[SectionsError]) -> None:
    """Raise a ValidationError with all errors, if there are any."""
    if errors:
        raise ValidationError.from_exception_data("recipe", [InitErrorDetails(
            type=PydanticCustomError("value_error", "{error}", {"error": error}), loc=(), input=None)
            for error in errors])


def refuse_if(condition: object, key: str | tuple[str | int, ...], message: str) -> None:
    """Raise RecipeValueError if a condition is true."""
    if condition:
        raise RecipeValueError(key, message)


def one_of(expected: Iterable[str], found: object, hint: str) -> str:
    """Return the message that a value must be one of some names. hint: sentence at its end."""
    expected = list(dict.fromkeys(expected))
    quoted = [f"'{name}'" for name in expected]
    close = difflib.get_close_matches(found.lower(), expected, n=1) if isinstance(found, str) else []
    meant = f"Did you mean '{close[0]}'?" if close else hint
    return f"expected {', '.join(quoted[:-1])} or {quoted[-1]}; found {format_value(found)}. {meant}"


def format_value(value: Any) -> str:
    """Format a value as in a recipe, cut to 60 characters."""
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


class Described(BaseModel):
    """Model whose JSON schema has the text below each key as the key's description."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for key, text in describe_keys(cls).items():
            properties[key]["description"] = text
        return schema


class Section(Described):
    """Base class of the sections. Unknown keys and wrong types are errors, but a float key also accepts an integer."""

    # validate_default=True, so that a rule about two keys is checked even if the recipe sets only one of them.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )


def describe_keys(section: type[Described]) -> dict[str, str]:
    """Return the text about each key of a section, which stands below the key in its class or in a base class.

    The texts are read when a page or a message needs them. pydantic's `use_attribute_docstrings` would read them at
    every start, which takes a tenth of a second.
    """
    texts: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if issubclass(owner, Described):
            texts |= _texts_of(owner)
    return texts


@cache
def _texts_of(section: type[Described]) -> dict[str, str]:
    """Return the text about each key that stands in the class itself."""
    definition, = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    return {key.target.id: inspect.cleandoc(text.value.value) for key, text in pairwise(definition.body)
            if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)}
