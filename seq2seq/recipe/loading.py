"""Loading of a recipe from its file, its base and `--set` options. One message reports all errors."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from seq2seq.errors import RecipeError
from seq2seq.files import real_path
from seq2seq.recipe.base_section import format_value
from seq2seq.recipe.messages import explain
from seq2seq.recipe.model_section import DEFAULT_TYPE, MODEL_SECTIONS, section_of_type
from seq2seq.recipe.model_sizes import PREFIX, model_sizes
from seq2seq.recipe.schema import Recipe
from seq2seq.recipe.yaml_document import Diagnostic, Document, Key, SourceLocation, read_yaml

BASE_SECTIONS = ("model", "training")
# Quoted parts of a message of the YAML parser, but not its words for tokens, such as '<stream end>'.
_QUOTED = re.compile(r"'(?!<[a-z ]+>')[^']{2,}'|\"[^\"]{2,}\"")
# Keys whose values are directories, relative to the recipe. Other keys of `_paths` name files relative to data.root.
DIRECTORIES = ("root", "taken_from", "translated_by", "start_from")
MAX_RECIPE_BYTES = 4_000_000
"""Maximum size of a recipe file in bytes. Reading stops at this size, because a device such as /dev/zero never ends."""
# Keys of `tokenizer` that must match the tokenizer of the `start_from` model. They are copied from that model's recipe.
INHERITED_TOKENIZER_KEYS = ("type", "joint", "normalization")


def load_recipe(path: str | Path, overrides: Sequence[str] = (), check_files: bool = True, alone: bool = False,
                planned: Mapping[Path, Recipe] | None = None) -> Recipe:
    """Load and validate a recipe.

    Args:
        path: path of the recipe file.
        overrides: settings such as `training.max_steps=200`, with values in YAML; later ones override earlier ones.
            List items are numbered from 0 (`data.train.0.limit=100`). Paths are relative to the working directory.
        check_files: require that all files named in the recipe exist.
        alone: see `parse_recipe`.
        planned: directories of runs that will exist before this recipe is trained, with their recipes.
    """
    return parse_recipe(_read_text(Path(path)), path, overrides, check_files, alone, planned)


def parse_recipe(text: str, where: str | Path, overrides: Sequence[str] = (), check_files: bool = False,
                 alone: bool = False, planned: Mapping[Path, Recipe] | None = None) -> Recipe:
    """Parse and validate the text of a recipe, as `load_recipe` does.

    Args:
        where: path of the recipe. Paths in the recipe are relative to its directory.
        alone: True for a recipe that is stored with a model and may come from an untrusted source. No other file is
            then read, a recipe with a base is an error, and its corpora need no text.
    """
    if alone:
        return _parse_alone(text, str(where)).with_directory(Path(where).parent)     # relative to the present directory
    return _parse(text, where, overrides, check_files, planned=planned)


@lru_cache(maxsize=8)
def _parse_alone(text: str, where: str) -> Recipe:
    """Parse a recipe that is stored with a model. Each command that uses a model does so several times, and parsing
    takes a twentieth of a second."""
    return _parse(text, where, (), check_files=False, alone=True)


def _parse(text: str, where: str | Path, overrides: Sequence[str], check_files: bool, alone: bool = False,
           planned: Mapping[Path, Recipe] | None = None) -> Recipe:
    directory = Path(where).parent
    document = read_yaml(text, str(where))
    if document.value is None:
        document.diagnostics = document.diagnostics or [Diagnostic(SourceLocation(str(where)), "the recipe is empty")]
        raise _error(document.diagnostics)
    if not isinstance(document.value, dict):
        raise _error([Diagnostic(document.location(()),
                                 "expected a recipe with keys and values, such as `name: small`")])

    settings = _read_overrides(overrides, document.diagnostics)
    _merge_base(document, settings, directory, alone)
    for key, setting in settings:
        try:
            document.set(key, setting)
        except KeyError as error:
            document.diagnostics.append(Diagnostic(setting.location(()), error.args[0]))
    anchored = _anchor_paths_of_overrides(document, [key for key, _ in settings])
    if not alone:
        _inherit_from_start_model(document, directory, planned or {})

    recipe = None
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        document.diagnostics += explain(error, document)
    if recipe is not None and not alone:
        document.diagnostics += _unnamed_texts(recipe, document)
    if check_files:
        document.diagnostics += _missing_files(document, directory, anchored, planned or {})
    if document.diagnostics or recipe is None:
        raise _error(document.diagnostics, overrides)
    return recipe.with_directory(directory)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            contents = file.read(MAX_RECIPE_BYTES + 1)
        if len(contents) > MAX_RECIPE_BYTES:
            raise RecipeError(f"{path} is not a recipe: it has more than {MAX_RECIPE_BYTES:,} bytes. Give the path of "
                              "a recipe, which is a short YAML file.")
        return contents.decode().replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{path}:{line}: not UTF-8 text (byte {error.object[error.start]:#04x}). Save it as UTF-8."
        ) from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a directory; a recipe is a file.") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None


def _error(diagnostics: list[Diagnostic], overrides: Sequence[str] = ()) -> RecipeError:
    """Return one error that lists all diagnostics: first those of files, in the order of their lines, then those of
    `--set` options, in the order of the options."""
    options = [f"--set {override}" for override in overrides]
    files = [diagnostic.location.source for diagnostic in diagnostics if diagnostic.location.source not in options]
    sources = list(dict.fromkeys([*files, *options]))
    ordered = sorted(diagnostics, key=lambda diagnostic: (sources.index(diagnostic.location.source),
                                                          diagnostic.location.line))
    return RecipeError("\n".join(dict.fromkeys(str(diagnostic) for diagnostic in ordered)))


def _read_overrides(overrides: Sequence[str], diagnostics: list[Diagnostic]) -> list[tuple[Key, Document]]:
    """Parse `--set` options into (key, value) and append their errors to `diagnostics`."""
    settings: list[tuple[Key, Document]] = []
    for override in overrides:
        name, equals, text = override.partition("=")
        key: Key = tuple(name.strip().split("."))
        if not equals or "" in key:
            diagnostics.append(Diagnostic(SourceLocation(f"--set {override}"),
                                          "expected KEY=VALUE, such as training.max_steps=200"))
            continue
        setting = read_yaml(text, f"--set {override}", line=0)
        diagnostics += setting.diagnostics
        if key == ("model",) and isinstance(setting.value, dict) and "base" in setting.value:
            diagnostics.append(Diagnostic(setting.location(()), "set the base with --set model.base=SIZE_OR_PATH"))
        elif not setting.diagnostics:
            settings.append((key, setting))
    return settings


def _merge_base(document: Document, settings: list[tuple[Key, Document]], directory: Path, alone: bool) -> None:
    """Fill in missing keys from the model size or the file that `model.base` names, and remove `model.base`."""
    name: Key = ("model", "base")
    model = document.value.get("model")
    base = model.pop("base", None) if isinstance(model, dict) else None
    for setting in [setting for key, setting in settings if key == name]:
        # Paths given by --set are relative to the working directory.
        base, directory, document.locations[name] = setting.value, Path.cwd(), setting.location(())
    settings[:] = [(key, setting) for key, setting in settings if key != name]
    if base is None:
        return
    if alone:
        document.diagnostics.append(document.diagnostic(name, "the recipe of a model cannot have a base; copy the "
                                                              "values of the base into the recipe"))
        return
    if not isinstance(base, str):
        message = f"expected a size or a path, found {format_value(base)}. {_sizes()}"
        document.diagnostics.append(document.diagnostic(name, message))
        return
    path = model_sizes().get(base.removeprefix(PREFIX)) or Path(os.path.normpath(directory / base))
    if not path.is_file():
        named = f"there is no file {path}" if "/" in base or Path(base).suffix else f"unknown size '{base}'"
        document.diagnostics.append(document.diagnostic(name, f"{named}. {_sizes()}"))
        return
    sections = _read_sections(path)
    if not sections.diagnostics:
        sections.diagnostics += _base_errors(sections)
    document.diagnostics += sections.diagnostics
    if isinstance(sections.value, dict) and isinstance(sections.value.get("model"), dict):
        types = [setting.value for key, setting in settings if key == ("model", "type")]
        type = types[-1] if types else model.get("type") if isinstance(model, dict) else None
        sections.value["model"] = _for_type(sections.value["model"], type)
    for section in BASE_SECTIONS:
        if isinstance(sections.value, dict) and isinstance(sections.value.get(section), dict):
            document.fill_from(sections, section, name)


def _for_type(size: dict[str, Any], type: Any) -> dict[str, Any]:
    """Return the keys of a size without those that another type of model does not have. type: type of the recipe's
    model; None: that of the size."""
    if type in (None, size.get("type", DEFAULT_TYPE)) or (section := section_of_type({"type": type})) is None:
        return size
    of_any_type = set().union(*(each.model_fields for each in MODEL_SECTIONS.values()))     # others are mistakes
    return {key: value for key, value in size.items() if key in section.model_fields or key not in of_any_type}


def _read_sections(path: Path) -> Document:
    """Read a file that a recipe names, for its sections `model` and `training`.

    A recipe may come from somebody else and name any file. So the messages do not quote a file without these sections.
    """
    document = read_yaml(_read_text(path), str(path))
    if not isinstance(document.value, dict) or not any(
            isinstance(document.value.get(section), dict) for section in BASE_SECTIONS):
        line = document.diagnostics[0].location.line if document.diagnostics else 1
        text = document.diagnostics[0].text if document.value is None and document.diagnostics else ""
        found = _QUOTED.sub("…", text) or "expected sections `model:` and `training:`"
        document.diagnostics, document.value = [Diagnostic(SourceLocation(str(path), line), found)], None
    return document


def _sizes() -> str:
    return f"Sizes are {', '.join(model_sizes())}."


def _base_errors(sections: Document) -> Iterator[Diagnostic]:
    """Yield the errors in the file that `model.base` names."""
    for section, values in sections.value.items():
        if section not in BASE_SECTIONS:
            yield sections.diagnostic((section,), "a base can only have the sections `model:` and `training:`")
        elif not isinstance(values, dict):
            yield sections.diagnostic((section,), "expected a section with keys and values")
        elif section == "model" and values.pop("base", None) is not None:
            yield sections.diagnostic(("model", "base"), "a base cannot have a base; copy the values of the other base "
                                                         "into this file")


def _inherit_from_start_model(document: Document, directory: Path, planned: Mapping[Path, Recipe]) -> None:
    """Fill in missing keys from the recipe of the model that `start_from` names: all keys of `model`, and
    INHERITED_TOKENIZER_KEYS of `tokenizer`."""
    training = document.value.get("training")
    start = training.get("start_from") if isinstance(training, dict) else None
    if not isinstance(start, str):
        return
    path = Path(os.path.normpath(directory / start)) / "recipe.yaml"
    if path.is_file():
        if real_path(path).parent != real_path(path.parent):
            document.diagnostics.append(document.diagnostic(("training", "start_from"), f"{path} is a link to another "
                                                            "directory. Copy the file there"))
            return
        other = _read_sections(path)
    elif path.parent in planned:
        other = read_yaml(planned[path.parent].to_yaml(), str(path))
    else:
        return                                                          # `_missing_files` reports a missing model
    if other.diagnostics:
        document.diagnostics += other.diagnostics
        return
    own, old = (each.get("model") for each in (document.value, other.value))
    if isinstance(own, dict) and isinstance(old, dict) and own.get("type") not in (None, old.get("type")):
        document.diagnostics.append(document.diagnostic(
            ("model", "type"), f"the model in training.start_from is of type {old.get('type')}. Leave model.type out"))
        return
    for section, keys in (("model", None), ("tokenizer", INHERITED_TOKENIZER_KEYS)):
        if isinstance(values := other.value.get(section), dict):
            other.value[section] = {key: value for key, value in values.items() if keys is None or key in keys}
            document.fill_from(other, section, ("training", "start_from"))


def _corpora(recipe: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield (key, corpus) for each corpus of an unvalidated recipe."""
    data = recipe.get("data")
    if not isinstance(data, dict):
        return
    test = data.get("test")
    listed: list[tuple[Key, Any]] = [(("data", "valid"), data.get("valid"))]
    lists = {name: data[name] for name in ("train", "valid") if isinstance(data.get(name), list)}
    listed += [(("data", name, index), corpus) for name, corpora in lists.items()
               for index, corpus in enumerate(corpora)]
    listed += [(("data", "test", name), corpus) for name, corpus in (test.items() if isinstance(test, dict) else [])]
    yield from ((key, corpus) for key, corpus in listed if isinstance(corpus, dict))


def _paths(recipe: dict[str, Any]) -> Iterator[tuple[Key, Any, str | int]]:
    """Yield (key, section or list that contains the path, last part of the key) for each path except `model.base`."""
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
        models = corpus.get("translated_by")
        if isinstance(models, str):
            yield (*key, "translated_by"), corpus, "translated_by"
        elif isinstance(models, list):
            yield from ((((*key, "translated_by", index), models, index)) for index, model in enumerate(models)
                        if isinstance(model, str))
        names = ["file"] if "file" in corpus else [] if "hub" in corpus else ["source", "target", "text"]
        for name in names:
            if isinstance(corpus.get(name), str):
                yield (*key, name), corpus, name


def _anchor_paths_of_overrides(document: Document, keys: list[Key]) -> set[Key]:
    """Make paths given by --set absolute, because they are relative to the working directory and not to the recipe.

    Returns the keys of these paths.
    """
    anchored = set()
    overridden = {tuple(str(step) for step in key) for key in keys}
    for key, section, name in _paths(document.value):
        steps = tuple(str(step) for step in key)
        if any(steps[: len(prefix)] == prefix for prefix in overridden):
            section[name] = os.path.abspath(section[name])
            anchored.add(key)
    return anchored


def _unnamed_texts(recipe: Recipe, document: Document) -> Iterator[Diagnostic]:
    """Yield an error for each corpus that has only a name, as in the recipe of a bundle."""
    for key, corpus in recipe.data.corpora_with_keys():
        if corpus.is_only_named:
            yield document.diagnostic(("data", *key), corpus.needed_text)


def _missing_files(document: Document, directory: Path, anchored: set[Key], planned: Mapping[Path, Recipe]
                   ) -> Iterator[Diagnostic]:
    """Yield an error for each path that does not exist, and will not. anchored: keys of the paths that were given by
    --set."""
    root = directory
    for key, section, name in _paths(document.value):
        is_directory = name in DIRECTORIES or isinstance(name, int)             # an item of `translated_by`
        path = Path(os.path.normpath((directory if is_directory else root) / section[name]))
        root = path if name == "root" else root
        kind, exists = ("directory", path.is_dir()) if is_directory else ("file", path.is_file())
        if not exists and path not in planned:
            found = f"{path} is not a {kind}" if path.exists() else f"there is no {kind} {path}"
            hint = ". A path given by --set is relative to the working directory" if key in anchored else ""
            yield document.diagnostic(key, found + hint)
            if name == "root":
                return                                              # otherwise every corpus file would be reported too
