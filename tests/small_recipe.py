"""A correct recipe with the data that it names, for tests of recipes."""

from pathlib import Path

RECIPE = """\
name: small
languages: {source: de, target: en}
data:
  root: data
  train:
    - {source: train.de, target: train.en}
  valid: {source: val.de, target: val.en}
  test:
    flickr: {source: flickr.de, target: flickr.en}
"""


def write_small_recipe(folder: Path) -> None:
    """Write recipe.yaml and its data."""
    (folder / "data").mkdir()
    for name in ("train", "val", "flickr"):
        for language in ("de", "en"):
            (folder / "data" / f"{name}.{language}").write_text("x\n")
    (folder / "recipe.yaml").write_text(RECIPE)
