"""Atomic replacement of files: after a crash or a power cut, a file has either its old contents or the new ones."""

from __future__ import annotations

import os
from pathlib import Path

from seq2seq.storage.open_files import sync


def replace_file(path: Path, contents: bytes) -> None:
    """Replace the contents of a file, or create the file.

    The new contents are written to <name>.writing and synced to disk. Then <name>.writing is renamed to <name>.

    Raises:
        OSError: writing failed. If there was an old file, it is unchanged.
    """
    temporary = path.with_name(f"{path.name}.writing")
    temporary.write_bytes(contents)
    sync(temporary)
    os.replace(temporary, path)
