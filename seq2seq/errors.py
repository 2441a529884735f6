"""What a user can do wrong. The command line prints the message and exits with code 2."""


class UserError(Exception):
    """Something the user can mend. The message says what happened, where, and what to do."""


class RecipeError(UserError):
    """A recipe, an override or a change to a running recipe that cannot be accepted."""


class CorpusError(UserError):
    """Text that cannot be read, or parallel text that is not parallel."""


class RequestError(UserError):
    """Something that is asked of the translation of a line and cannot be had."""


class TokenizerError(UserError):
    """A tokenizer that cannot be trained, loaded or used with this model."""


class CheckpointError(UserError):
    """A run, checkpoint or model bundle that is missing, damaged, occupied or of another kind."""


class FormatError(UserError):
    """A model in another format that cannot be read, or one that another format cannot hold or does not hold right."""
