"""JSON Schema for editors and a table of all keys, both generated from the fields of the schema."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seq2seq.recipe.recipe_differences import may_change_on_resume
from seq2seq.recipe.schema import Recipe

_INTRODUCTION = """# Keys of a recipe

Made by `python -m seq2seq.recipe` from the fields in `seq2seq/recipe/`; change it there.

A recipe is YAML 1.2: `no` is text, `1e-4` is a number. A path is relative to the recipe file, the files of corpora are
relative to `data.root`, and a path given by `--set` is relative to the working directory. Keys without a default must
be given. Keys marked ↻ may be changed when a run is resumed; they only prolong it or report about it.

Editors that know YAML complete and check a recipe that begins with `# yaml-language-server: $schema=PATH`, the path of
`recipe.schema.json` seen from the recipe.
"""
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_LARGEST = 10**9  # larger bounds are technical limits, of no interest to users


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}


def recipe_reference() -> str:
    """Return all keys with type, default and meaning, as Markdown."""
    schema = recipe_schema()
    text = [_INTRODUCTION, _table(schema, [""], schema["$defs"])]
    for name, keys in _sections(schema).items():
        section = schema["$defs"][name]
        title = ", ".join(f"`{key}`" for key in keys)
        text += [f"\n## {title}\n\n{section['description']}\n", _table(section, keys, schema["$defs"])]
    return "\n".join([*text, ""])


def write_reference(directory: Path) -> None:
    """Write `recipe.schema.json` and `REFERENCE.md`."""
    schema = json.dumps(recipe_schema(), indent=2, ensure_ascii=False)
    (directory / "recipe.schema.json").write_text(f"{schema}\n", encoding="utf-8")
    (directory / "REFERENCE.md").write_text(recipe_reference(), encoding="utf-8")


def _sections(schema: dict[str, Any]) -> dict[str, list[str]]:
    """Map each section of the schema to the keys that have it as their value, in the order of a recipe."""
    sections: dict[str, list[str]] = {}

    def visit(section: dict[str, Any], prefix: str) -> None:
        for key, entry in section["properties"].items():
            for name in _references(entry):
                sections.setdefault(name, []).append(f"{prefix}{key}")
                visit(schema["$defs"][name], f"{prefix}{key}.")

    visit(schema, "")
    return sections


def _references(entry: Any) -> Iterator[str]:
    if isinstance(entry, dict):
        if "$ref" in entry:
            yield entry["$ref"].rpartition("/")[2]
        for inner in entry.values():
            yield from _references(inner)


def _table(section: dict[str, Any], keys: list[str], sections: dict[str, Any]) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, entry in section["properties"].items():
        free = all(may_change_on_resume(f"{key}.{name}".strip(".")) for key in keys)
        default = "" if name in section.get("required", []) else _default(entry)
        # Pydantic omits the description of a key if it equals the description of the key's section.
        meaning = entry.get("description") or sections[next(_references(entry))]["description"]
        cells = [f"`{name}`{' ↻' if free else ''}", _kind(entry), default, " ".join(meaning.split())]
        rows.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    return "\n".join(rows)


def _default(entry: dict[str, Any]) -> str:
    value = entry["default"]
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return "see below" if value else "none"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _kind(entry: dict[str, Any]) -> str:
    """Describe the allowed values of a schema entry in words."""
    if "anyOf" in entry:
        return " or ".join(_kind(choice) for choice in entry["anyOf"] if choice.get("type") != "null")
    if "enum" in entry or "const" in entry:
        return ", ".join(f"`{choice}`" for choice in entry.get("enum", [entry.get("const")]))
    if "$ref" in entry:
        return "section"
    kind = entry["type"]
    if kind == "array":
        if "prefixItems" in entry:
            return f"list of {len(entry['prefixItems'])} numbers"
        if entry["items"].get("type") == "string" and "enum" not in entry["items"]:
            return "list of texts"
        return "list of sections" if "$ref" in entry["items"] else f"list of {_kind(entry['items'])}"
    words = {"object": "sections by name", "string": "text", "boolean": "`true`, `false`", "integer": "whole number"}
    bounds = " and ".join(
        f"{sign} {entry[bound]:,}" for bound, sign in _BOUNDS.items() if abs(entry.get(bound, 2 * _LARGEST)) < _LARGEST
    )
    return f"{words.get(kind, kind)} {bounds}".strip()
