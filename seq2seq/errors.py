"""Errors that users can correct. The command line prints their message and exits with code 2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Error that the user can correct. The message says what happened, where, and what to do."""


class RecipeError(UserError):
    """Invalid recipe or override, or a recipe that does not match the run to resume or the model to start from."""


class CorpusError(UserError):
    """Text that cannot be read or used: a damaged file, a missing column, parallel files of different length."""


class RequestError(UserError):
    """Constraints of a translation, such as a prefix or required phrases, that the search cannot satisfy."""


class OptionError(UserError, ValueError):
    """Unknown option, or invalid value of an option. It is also a ValueError, as Python callers expect."""


class TokenizerError(UserError):
    """Tokenizer that cannot be trained, loaded or used with this model."""


class CheckpointError(UserError):
    """Run, checkpoint or model bundle that is missing, damaged, in use by another process, or of the wrong kind."""


class FormatError(UserError):
    """Model that cannot be converted from or to another format, or whose exported copy gives other translations."""


def require_texts(texts: Iterable[Any], name: str, *types: type) -> None:
    """Raise TypeError unless all `texts` are of type str, or of one of `types`.

    A wrong type is a mistake in the calling code, so the error is not a UserError.
    name: name of the argument, for the message.
    """
    require_iterable(texts, name)
    for index, text in enumerate(texts):
        require_text(text, f"{name}[{index}]", *types)


def require_text(text: Any, name: str, *types: type) -> None:
    """Raise TypeError unless `text` is of type str, or of one of `types`."""
    if not isinstance(text, (str, *types)):
        expected = " or ".join(kind.__name__ for kind in (str, *types))
        raise TypeError(f"{name} is of type {type(text).__name__}; expected {expected}")


def require_iterable(texts: Any, name: str) -> None:
    """Raise TypeError if `texts` is a single text, or is not iterable."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} is of type {type(texts).__name__}; expected a sequence, such as [text] for one text")
