"""Errors that users can correct. The command line prints their message and exits with code 2."""

from __future__ import annotations


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
