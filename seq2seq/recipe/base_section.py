"""Base class and shared types of the sections of a recipe."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, lt=1)]

MOST_POSITIONS = 65_536
"""Upper limit of a sentence's pieces. At width 512 the table of sinusoids then takes 134 MB, and 0.8 GB while it is
computed."""
MOST_TOKENS = 1_000_000
"""Upper limit of the tokens of a batch, on any machine."""
Positions = Annotated[int, Field(gt=0, le=MOST_POSITIONS)]
Pieces = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Tokens = Annotated[int, Field(gt=0, le=MOST_TOKENS)]


class MistakeAt(ValueError):
    """Mistake at a key below the one whose validator found it, so that the message names the right line."""

    def __init__(self, key: str | tuple[str | int, ...], message: str) -> None:
        """key: dotted, or a tuple of steps if one of them is an index into a list."""
        super().__init__(message)
        self.key = tuple(key.split(".")) if isinstance(key, str) else key


class Section(BaseModel):
    """Base class of the sections. Unknown keys and values of a wrong type are errors; only 1 is converted to 1.0."""

    # Defaults are validated too, because a rule between two keys must also hold if only one of them is given.
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )
