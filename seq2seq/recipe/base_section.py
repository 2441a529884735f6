"""Base class and shared types of the sections of a recipe."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    recipe in which the first one has its default."""

    other: "CombinationError | None" = None


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


class Section(BaseModel):
    """Base class of the sections. Unknown keys and wrong types are errors, but a float key also accepts an integer."""

    # validate_default=True, so that a rule about two keys is checked even if the recipe sets only one of them.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for key, text in describe_keys(cls).items():
            properties[key]["description"] = text
        return schema


def describe_keys(section: type[Section]) -> dict[str, str]:
    """Return the text about each key of a section, which stands below the key in its class.

    The texts are read when a page or a message needs them. pydantic's `use_attribute_docstrings` would read them at
    every start, which takes a tenth of a second.
    """
    definition, = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    return {key.target.id: inspect.cleandoc(text.value.value) for key, text in pairwise(definition.body)
            if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)}
