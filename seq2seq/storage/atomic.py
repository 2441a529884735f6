"""Files that are replaced as a whole, so that a crash or a power cut leaves the old contents or the new ones."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, contents: bytes) -> None:
    """Write a file anew. Until the contents are on the disk they lie beside it in <name>.writing.

    Raises:
        OSError: it cannot be written; the old file, if there was one, is untouched.
    """
    aside = path.with_name(f"{path.name}.writing")
    aside.write_bytes(contents)
    sync(aside)
    os.replace(aside, path)


def sync(path: Path) -> None:
    """Sync a file's contents, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
