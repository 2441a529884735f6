"""Reading a recipe: its file, its base and `--set` options; all their mistakes are reported at once."""

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from seq2seq.errors import RecipeError
from seq2seq.recipe.decoding_section import DecodingSection
from seq2seq.recipe.messages import explain, show, similar_key
from seq2seq.recipe.model_sizes import PREFIX, model_sizes
from seq2seq.recipe.schema import Recipe
from seq2seq.recipe.yaml_document import Document, Key, Mistake, Place, read_yaml

BASE_SECTIONS = ("model", "training")
# Keys that hold the path of a directory, relative to the recipe; other paths are of files in data.root.
DIRECTORIES = ("root", "taken_from", "translated_by", "start_from")
MOST_BYTES = 4_000_000
"""Largest recipe file. A recipe may be read from a pipe, and a device such as /dev/zero never ends."""
# Keys of `tokenizer` that decide the shapes of the weights and are therefore taken over with them in fine-tuning.
TAKEN_OVER = ("type", "joint")


def load_recipe(path: str | Path, overrides: Sequence[str] = (), check_files: bool = True) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the recipe's file.
        overrides: `training.max_steps=200`, the value in YAML; later ones win. Items of lists are numbered from 0
            (`data.train.0.limit=100`). Paths in them are relative to the working directory.
        check_files: require that every file named in the recipe exists.
    Raises:
        RecipeError: lists all mistakes, one per line.
    """
    return parse_recipe(_read_text(Path(path)), path, overrides, check_files)


def parse_recipe(text: str, where: str | Path, overrides: Sequence[str] = (), check_files: bool = False,
                 alone: bool = False) -> Recipe:
    """Read a recipe from text, as `load_recipe` does. Its paths are relative to the directory of `where`.

    alone: refuse a recipe with a base, so that no other file is read; for the recipe of a model, which may come from
        an untrusted source.
    """
    directory = Path(where).parent
    document = read_yaml(text, str(where))
    if document.value is None:
        document.mistakes = document.mistakes or [Mistake(Place(str(where)), "the recipe is empty")]
        raise _error(document.mistakes)
    if not isinstance(document.value, dict):
        raise _error([Mistake(document.place(()), "expected a recipe, which begins with `name:`")])

    settings = _read_overrides(overrides, document.mistakes)
    _merge_base(document, settings, directory, alone)
    for key, setting in settings:
        try:
            document.set(key, setting)
        except KeyError as error:
            document.mistakes.append(Mistake(setting.place(()), error.args[0]))
    written = _anchor_paths_of_overrides(document, [key for key, _ in settings])
    if not alone:
        _take_over(document, directory)

    recipe = None
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        document.mistakes += explain(error, document)
    if check_files:
        document.mistakes += _missing_files(document, directory, written)
    if document.mistakes or recipe is None:
        raise _error(document.mistakes, overrides)
    return recipe.located(directory)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            contents = file.read(MOST_BYTES + 1)
        if len(contents) > MOST_BYTES:
            raise RecipeError(f"{path} has more than {MOST_BYTES:,} bytes; a recipe is some lines of YAML. Name the "
                              "recipe.")
        return contents.decode().replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}.{_similar_file(path)}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{path}:{line}: not UTF-8 text (byte {error.object[error.start]:#04x}). Save it as UTF-8."
        ) from None
    except IsADirectoryError:
        inside = path / "recipe.yaml"
        found = f" There is one in it: {inside}" if inside.is_file() else ""
        raise RecipeError(f"{path} is a directory; a recipe is a file.{found}") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None


def _error(mistakes: list[Mistake], overrides: Sequence[str] = ()) -> RecipeError:
    """Return one error with all mistakes: by file and line, then by `--set` option in the order given."""
    options = [f"--set {override}" for override in overrides]
    files = [mistake.place.source for mistake in mistakes if mistake.place.source not in options]
    sources = list(dict.fromkeys([*files, *options]))
    ordered = sorted(mistakes, key=lambda mistake: (sources.index(mistake.place.source), mistake.place.line))
    return RecipeError("\n".join(dict.fromkeys(str(mistake) for mistake in ordered)))


def _read_overrides(overrides: Sequence[str], mistakes: list[Mistake]) -> list[tuple[Key, Document]]:
    settings: list[tuple[Key, Document]] = []
    for override in overrides:
        name, equals, text = override.partition("=")
        key: Key = tuple(name.strip().split("."))
        if not equals or "" in key:
            mistakes.append(Mistake(Place(f"--set {override}"), "expected KEY=VALUE, such as training.max_steps=200"))
            continue
        setting = read_yaml(text, f"--set {override}", line=0)
        mistakes += setting.mistakes
        if key == ("model",) and isinstance(setting.value, dict) and "base" in setting.value:
            mistakes.append(Mistake(setting.place(()), "name the base by --set model.base=SIZE_OR_PATH"))
        elif not setting.mistakes:
            settings.append((key, setting))
    return settings


def read_decoding_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the keys of the `decoding` section that `--set decoding.KEY=VALUE` options set, with their values.

    The values are not checked; `decoding_with` does so.

    Raises:
        RecipeError: lists all mistakes, one per line: other keys, or values that are not YAML.
    """
    mistakes: list[Mistake] = []
    values = {}
    for key, setting in _read_overrides(overrides, mistakes):
        if key[0] != "decoding":
            mistakes.append(Mistake(setting.place(()), "only keys of the decoding section can be set here, such as "
                                    f"decoding.beam_size=1.{similar_key(key) if len(key) == 1 else ''}"))
        elif len(key) != 2:
            mistakes.append(Mistake(setting.place(()), "expected decoding.KEY=VALUE, such as decoding.beam_size=1"))
        elif key[1] not in DecodingSection.model_fields:
            mistakes.append(Mistake(setting.place(()), f"unknown key.{similar_key(key)}"))
        else:
            values[str(key[1])] = setting.value
    if mistakes:
        raise _error(mistakes, overrides)
    return values


def _merge_base(document: Document, settings: list[tuple[Key, Document]], directory: Path, alone: bool) -> None:
    """Fill the sections of the recipe from `model.base`, a size or a file, and remove that key."""
    name: Key = ("model", "base")
    recipe_directory, from_option = directory, False
    model = document.value.get("model")
    base = model.pop("base", None) if isinstance(model, dict) else None
    for setting in [setting for key, setting in settings if key == name]:
        # A path given by --set is relative to the working directory.
        base, directory, document.places[name] = setting.value, Path.cwd(), setting.place(())
        from_option = True
    settings[:] = [(key, setting) for key, setting in settings if key != name]
    if base is None:
        return
    if alone:
        document.mistakes.append(document.mistake(name, "the recipe of a model names no base; write its values here"))
        return
    if not isinstance(base, str):
        document.mistakes.append(document.mistake(name, f"expected a size or a path, found {show(base)}. {_sizes()}"))
        return
    path = model_sizes().get(base.removeprefix(PREFIX)) or Path(os.path.normpath(directory / base))
    if not path.is_file():
        other = Path(os.path.abspath(recipe_directory / base)) if from_option else path
        document.mistakes.append(document.mistake(name, _no_base(base, path, other)))
        return
    sections = read_yaml(_read_text(path), str(path))
    if not sections.mistakes:
        sections.mistakes += _what_is_no_base(sections)
    document.mistakes += sections.mistakes
    for section in BASE_SECTIONS:
        if isinstance(sections.value, dict) and isinstance(sections.value.get(section), dict):
            document.fill_from(sections, section)


def _no_base(base: str, path: Path, other: Path) -> str:
    """Message for a `model.base` that is neither a size nor a file; `other` as in `_where_else`."""
    if "/" in base or Path(base).suffix:
        told = _no_file(path, other, "to the recipe")
        return told if other.is_file() else f"{told} {_sizes()}"
    close = difflib.get_close_matches(base, model_sizes(), n=1)
    meant = f" Did you mean '{close[0]}'?" if close else ""
    return f"unknown size '{base}'.{meant} {_sizes()}"


def _sizes() -> str:
    return f"Sizes are {', '.join(model_sizes())}."


def _what_is_no_base(sections: Document) -> Iterator[Mistake]:
    if not isinstance(sections.value, dict):
        yield sections.mistake((), "expected sections `model:` and `training:`")
        return
    for section, values in sections.value.items():
        if section not in BASE_SECTIONS:
            yield sections.mistake((section,), "a base has the sections `model:` and `training:` only")
        elif not isinstance(values, dict):
            yield sections.mistake((section,), "expected keys with values below it")
        elif section == "model" and values.pop("base", None) is not None:
            yield sections.mistake(("model", "base"), "a base cannot name another one; write its values here")


def _take_over(document: Document, directory: Path) -> None:
    """Fill the `model` section and the keys `TAKEN_OVER` from the recipe of the model that training starts from."""
    training = document.value.get("training")
    start = training.get("start_from") if isinstance(training, dict) else None
    if not isinstance(start, str) or not (path := Path(os.path.normpath(directory / start)) / "recipe.yaml").is_file():
        return                                                                  # `_missing_files` reports it
    other = read_yaml(_read_text(path), str(path))
    if other.mistakes or not isinstance(other.value, dict):
        document.mistakes += other.mistakes
        return
    for section, keys in (("model", None), ("tokenizer", TAKEN_OVER)):
        if isinstance(values := other.value.get(section), dict):
            other.value[section] = {key: value for key, value in values.items() if keys is None or key in keys}
            document.fill_from(other, section)


def _corpora(recipe: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield the corpora of an unvalidated recipe with their keys."""
    data = recipe.get("data")
    if not isinstance(data, dict):
        return
    train, test = data.get("train"), data.get("test")
    listed: list[tuple[Key, Any]] = [(("data", "valid"), data.get("valid"))]
    listed += [
        (("data", "train", index), corpus) for index, corpus in enumerate(train if isinstance(train, list) else [])
    ]
    listed += [(("data", "test", name), corpus) for name, corpus in (test.items() if isinstance(test, dict) else [])]
    yield from ((key, corpus) for key, corpus in listed if isinstance(corpus, dict))


def _paths(recipe: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any], str]]:
    """Yield each path of an unvalidated recipe, except the base, as (key, section, name in the section)."""
    tokenizer = recipe.get("tokenizer")
    if isinstance(tokenizer, dict) and isinstance(tokenizer.get("taken_from"), str):
        yield ("tokenizer", "taken_from"), tokenizer, "taken_from"
    training = recipe.get("training")
    if isinstance(training, dict) and isinstance(training.get("start_from"), str):
        yield ("training", "start_from"), training, "start_from"
    data = recipe.get("data")
    if isinstance(data, dict) and isinstance(data.get("root"), str):
        yield ("data", "root"), data, "root"
    for key, corpus in _corpora(recipe):
        if isinstance(corpus.get("translated_by"), str):
            yield (*key, "translated_by"), corpus, "translated_by"
        names = ["file"] if "file" in corpus else [] if "hub" in corpus else ["source", "target", "text"]
        for name in names:
            if isinstance(corpus.get(name), str):
                yield (*key, name), corpus, name


def _anchor_paths_of_overrides(document: Document, keys: list[Key]) -> dict[Key, str]:
    """Make the paths given by --set absolute: they are relative to the working directory, others to the recipe.

    Returns:
        The paths before that change, by key.
    """
    written: dict[Key, str] = {}
    overridden = {tuple(str(step) for step in key) for key in keys}
    for key, section, name in _paths(document.value):
        steps = tuple(str(step) for step in key)
        if any(steps[: len(prefix)] == prefix for prefix in overridden):
            written[key], section[name] = section[name], os.path.abspath(section[name])
    return written


def _missing_files(document: Document, directory: Path, written: dict[Key, str]) -> Iterator[Mistake]:
    """Yield a mistake for each path that does not exist. written: paths given by --set, by key."""
    root = directory
    for key, section, name in _paths(document.value):
        base, start = (directory, "to the recipe") if name in DIRECTORIES else (root, "to data.root")
        path = Path(os.path.normpath(base / section[name]))
        other = Path(os.path.abspath(base / written[key])) if key in written else path
        if name in DIRECTORIES:
            root = path if name == "root" else root
            if not path.is_dir():
                yield document.mistake(key, _no_directory(path, other, start))
                if name == "root":
                    return  # every file in it would be missing too
        elif not path.is_file():
            yield document.mistake(key, _no_file(path, other, start))


def _no_file(path: Path, other: Path, start: str) -> str:
    """Message for a missing file at `path`; `other` and `start` as in `_where_else`."""
    return f"there is no file {path}.{'' if other.is_file() else _similar_file(path)}" + _where_else(
        path, other, start, other.is_file())


def _no_directory(path: Path, other: Path, start: str) -> str:
    """Message for a missing directory at `path`; `other` and `start` as in `_where_else`."""
    elsewhere = _where_else(path, other, start, other.is_dir())
    return f"there is no directory {path}" + (f".{elsewhere}" if elsewhere else "")


def _where_else(path: Path, other: Path, start: str, exists: bool) -> str:
    """Hint for a missing path given by --set: the place that the recipe itself would mean, and the path to write.

    Args:
        path: the missing path.
        other: the place that the same text would mean if it stood in the recipe.
        start: the directory that paths in the recipe are relative to, in words.
        exists: True if there is something at `other`.
    Returns:
        The hint; "" if `other` is `path`.
    """
    if other == path:
        return ""
    relative = os.path.relpath(other)
    shown = str(other) if relative.startswith(os.pardir) else relative
    found = (f"exists: write {shown} here." if exists else
             "does not exist either. Write it relative to the working directory, or absolute.")
    return f" A path given by --set is relative to the working directory; relative {start} it is {other}, which {found}"


def _similar_file(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f" Did you mean '{path.parent / close[0]}'?" if close else ""
