"""Other metadata in a bundle, as another training or a stranger would have written them."""

from pathlib import Path
from typing import Any

from seq2seq.storage.directories import METADATA, as_json, parse_json


def change_metadata(bundle: Path, **fields: Any) -> None:
    """Add or replace fields of metadata.json."""
    path = bundle / METADATA
    path.write_bytes(as_json(parse_json(path.read_bytes()) | fields))
