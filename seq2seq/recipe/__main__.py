"""`python -m seq2seq.recipe [DIRECTORY]` writes the JSON Schema and the table of keys, by default to `recipes/`."""

import sys
from pathlib import Path

from seq2seq.recipe.reference_page import write_reference

if __name__ == "__main__":
    recipes = Path(__file__).parents[2] / "recipes"
    if len(sys.argv) > 2 or len(sys.argv) == 1 and not (recipes / "REFERENCE.md").is_file():
        sys.exit("usage: python -m seq2seq.recipe DIRECTORY    writes REFERENCE.md and recipe.schema.json there")
    directory = Path(sys.argv[1]) if len(sys.argv) == 2 else recipes
    directory.mkdir(parents=True, exist_ok=True)
    write_reference(directory)
