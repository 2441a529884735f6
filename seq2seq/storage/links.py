"""Refusal of links and special files: a run or a bundle that somebody else has made may contain any file.

Nothing outside a run or a bundle is read or written through a link in it. The run or the bundle itself may be reached
through a link, such as `runs -> /big/disk/runs`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from seq2seq.errors import CheckpointError
from seq2seq.files import real_path

RUN_DIRECTORIES = ("checkpoints", "tokenizer", "tensorboard", "prepared", "synthetic")
"""Directories in a run in which all files are those of seq2seq."""
RUN_ENTRIES = (*RUN_DIRECTORIES, "best", "recipe.yaml", "metrics.jsonl", "curves.svg")
"""Names in a run directory that seq2seq uses. Hidden names belong to seq2seq, too."""


class DamagedError(CheckpointError):
    """A file is missing or damaged. If it belongs to a checkpoint, earlier checkpoints may still be intact."""


def path_inside(directory: Path, name: str) -> Path:
    """Return the path of the entry `name` of the directory. There may be no such entry."""
    path = directory / name
    try:
        leads_out = Path(name).name != name or _leads_out(path, real_path(directory))
    except ValueError as error:                                                 # a null character or a lone surrogate
        raise CheckpointError(f"{directory} has no file {name!r}, which is not a valid name: {error}.") from error
    if leads_out:
        raise CheckpointError(f"{path} leads out of {directory}. All files of a model must be in its directory: copy "
                              "the file there.")
    return path


def refuse_links(run: Path, *directories: str) -> None:
    """Check that no file which a training reads or writes in a run directory is a link that leads out of the run.

    directories: further directories of the run in which all files are those of seq2seq.
    """
    inside = real_path(run)
    for path in _own_entries(run, directories):
        if _leads_out(path, inside):
            raise CheckpointError(f"{path} is a link that leads out of the run {run}. Copy what it leads to into the "
                                  "run, or name another directory.")


def _leads_out(path: Path, directory: Path) -> bool:
    """Return True if a path leads out of a directory, whose links are resolved. The path may not exist."""
    try:
        if not real_path(path).is_relative_to(directory):
            return True
        mode = path.stat().st_mode                      # one call: another process may replace the file meanwhile
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise DamagedError(f"{path} is not a regular file.") from None
        return False
    except OSError as error:                                                    # such as a loop of links
        raise DamagedError(f"{path} cannot be read: {error}.") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DamagedError(f"{path} is not a regular file.")
    return False


def _own_entries(run: Path, directories: tuple[str, ...]) -> Iterator[Path]:
    if not run.is_dir():
        return
    for path in run.iterdir():
        if path.name in (*RUN_ENTRIES, *directories) or path.name.startswith("."):
            yield path
        if path.name in (*RUN_DIRECTORIES, *directories) and not path.is_symlink():
            for folder, folders, files in os.walk(path):
                yield from (Path(folder, name) for name in (*folders, *files))
