"""What all sections of a recipe have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, lt=1)]

MOST_POSITIONS = 65_536
"""Pieces of a sentence. A table of so many sinusoids of width 512 takes 134 MB, and 0.8 GB while it is computed."""
MOST_TOKENS = 1_000_000
"""Tokens that are computed together, on any machine."""
Positions = Annotated[int, Field(gt=0, le=MOST_POSITIONS)]
Pieces = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Tokens = Annotated[int, Field(gt=0, le=MOST_TOKENS)]


class MistakeAt(ValueError):
    """A mistake that belongs to a key below the one that found it, so that the message names the right line."""

    def __init__(self, key: str | tuple[str | int, ...], message: str) -> None:
        """key: dotted, or its steps where one of them is the number of an item."""
        super().__init__(message)
        self.key = tuple(key.split(".")) if isinstance(key, str) else key


class Section(BaseModel):
    """Keys of a recipe. Unknown keys and values of another type are errors; nothing is converted but 1 to 1.0."""

    # Defaults are validated too, because rules between two keys must hold where only one of them is written.
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )
