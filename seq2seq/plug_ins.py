"""Types of models and attention scores of other installed packages, which register them as entry points.

Only the name of an entry point stands in a recipe or a bundle. So nothing is imported from a path that they contain:
the code is that of a package which the user has installed.
"""

from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from seq2seq.errors import UserError

MODELS = "seq2seq.models"
"""Group of the entry points of models: subclasses of `model.interface.Model`."""
ATTENTION_SCORES = "seq2seq.attention_scores"
"""Group of the entry points of attention scores: of type `model.attention_scores.Score`."""


@cache
def _registered(group: str, name: str) -> EntryPoint | None:
    found = list(entry_points(group=group, name=name))
    packages = sorted({package.name for each in found if (package := each.dist)})
    if len(packages) > 1:
        raise UserError(f"{group}: the packages {' and '.join(packages)} both register '{name}'. Uninstall one of "
                        "them.")
    return found[0] if found else None


def is_registered(group: str, name: str) -> bool:
    """Return True if an installed package registers this name. Nothing is imported."""
    return _registered(group, name) is not None


def registered_names(group: str) -> list[str]:
    """Return the names that installed packages register."""
    return sorted({each.name for each in entry_points(group=group)})


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def load_registered(group: str, name: str) -> Any:
    """Import what an installed package registers under this name, and return it. The name must be registered.

    Raises:
        UserError: the package cannot be imported.
    """
    entry = _registered(group, name)
    assert entry is not None, f"nothing is registered as {name}"
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise UserError(f"'{name}' ({group}) of the package {package_of(group, name)[0]} cannot be imported: "
                        f"{type(error).__name__}: {error}") from error


def package_of(group: str, name: str) -> tuple[str, str]:
    """Return name and version of the package that registers this name."""
    entry = _registered(group, name)
    assert entry is not None and entry.dist is not None, f"nothing is registered as {name}"
    return entry.dist.name, entry.dist.version
