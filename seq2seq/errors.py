"""Errors that users can correct. The command line prints their message and exits with code 2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Something the user can mend. The message says what happened, where, and what to do."""


class RecipeError(UserError):
    """A recipe, an override or a change to a running recipe that cannot be accepted."""


class CorpusError(UserError):
    """Text that cannot be read, or parallel text that is not parallel."""


class RequestError(UserError):
    """Something that is asked of the translation of a line and cannot be had."""


class OptionError(UserError, ValueError):
    """An option that does not exist, or a value that it does not allow. Also a ValueError, as Python callers expect."""


class TokenizerError(UserError):
    """A tokenizer that cannot be trained, loaded or used with this model."""


class CheckpointError(UserError):
    """A run, checkpoint or model bundle that is missing, damaged, occupied or of another kind."""


class FormatError(UserError):
    """A model in another format that cannot be read, or one that another format cannot hold or does not hold right."""


def require_texts(texts: Iterable[Any], name: str, *types: type) -> None:
    """Raises TypeError unless all are str, or of one of the other types: of the caller's, not the user's, making.

    name: of the argument.
    """
    require_iterable(texts, name)
    for place, text in enumerate(texts):
        require_text(text, f"{name}[{place}]", *types)


def require_text(text: Any, name: str, *types: type) -> None:
    """Raises TypeError unless a text is a str, or of one of the other types."""
    if not isinstance(text, (str, *types)):
        expected = " or ".join(each.__name__ for each in (str, *types))
        raise TypeError(f"{name} is of type {type(text).__name__}; expected {expected}")


def require_iterable(texts: Any, name: str) -> None:
    """Raises TypeError for one text, or what is no collection, where several are expected."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} is of type {type(texts).__name__}; expected a sequence, such as [text] for one text")
