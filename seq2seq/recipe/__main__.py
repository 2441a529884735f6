"""`python -m seq2seq.recipe [DIRECTORY]` writes the JSON Schema, the table of keys and the table of combinations, by
default to `recipes/` and `docs/`."""

import sys
from pathlib import Path

from seq2seq.recipe.reference_page import write_reference

if __name__ == "__main__":
    root = Path(__file__).parents[2]
    recipes, docs = (Path(sys.argv[1]),) * 2 if len(sys.argv) > 1 else (root / "recipes", root / "docs")
    for directory in (recipes, docs):
        directory.mkdir(parents=True, exist_ok=True)
    write_reference(recipes, docs)
