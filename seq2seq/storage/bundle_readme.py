"""README.md of a bundle: the model card that seq2seq writes, or a text of the user, which is never overwritten.

metadata.json contains the checksums of the cards that seq2seq has written. A README.md with another checksum belongs to
the user. README.md is not verified when a model is loaded, so a changed, damaged or missing README.md never makes a
bundle unreadable.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.cards.model_card import Sizes, model_card
from seq2seq.errors import CheckpointError, RecipeError
from seq2seq.recipe import parse_recipe
from seq2seq.storage.directories import CARD_KEY, read_file, read_metadata, read_shapes, replace_in

README = "README.md"
MAX_README_BYTES = 1 << 20
"""A larger README.md is assumed to be the user's, without computing its checksum."""


def with_card(directory: Path, metadata: Mapping[str, Any], recipe: Path, model: Path
              ) -> tuple[dict[str, Any], bytes | None]:
    """Return the metadata with the checksum of the bundle's new card, and the card.

    The card is None if README.md belongs to the user, if the card has not changed, or if it cannot be made. The caller
    must write the metadata before the card. The metadata also contain the old card's checksum. Without it, after a
    crash between the two writes, the old card would be taken for a text of the user.

    Args:
        directory: the bundle. metadata: contents of its metadata.json, reserved keys included.
        recipe, model: paths of the bundle's recipe and weights.
    """
    old = _own_checksum(directory, metadata)
    if old is None and os.path.lexists(directory / README):
        return dict(metadata), None
    try:
        text = model_card(parse_recipe(read_file(recipe).decode(), recipe, alone=True), metadata,
                          Sizes.of_tensors(read_shapes(model)))
    except (CheckpointError, RecipeError, UnicodeDecodeError):          # loading the model will report the error
        return dict(metadata), None
    except Exception as error:                                          # saving goes on without a card
        console.warn(f"the model card (README.md) was not written: {type(error).__name__}: {error}. The model itself "
                     "is complete. This is a bug in seq2seq; please report it.")
        return dict(metadata), None
    card = text.encode()
    checksum = hashlib.sha256(card).hexdigest()
    checksums = list(dict.fromkeys(entry for entry in (checksum, old) if entry))
    return {**metadata, CARD_KEY: checksums}, None if checksum == old else card


def write_card(directory: int | Path, card: bytes | None) -> None:
    """Write the card, unless it is None. directory: descriptor (`open_files.opened_directory`) or path of the bundle.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    if card is not None:
        replace_in(directory, README, card)


def has_own_card(directory: Path) -> bool:
    """Return True if README.md of a bundle is a card that seq2seq wrote and nobody has changed."""
    with suppress(CheckpointError):
        return _own_checksum(directory, read_metadata(directory, "bundle", required=())) is not None
    return False


def _own_checksum(directory: Path, metadata: Mapping[str, Any]) -> str | None:
    """Return the checksum of README.md if README.md is a card that seq2seq wrote and nobody has changed, else None."""
    path, known = directory / README, metadata.get(CARD_KEY)
    if not isinstance(known, list) or path.is_symlink() or not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_README_BYTES:
            return None
        checksum = hashlib.sha256(read_file(path)).hexdigest()
    except (OSError, CheckpointError):
        return None
    return checksum if checksum in known else None
