"""`python -m seq2seq.recipe [DIRECTORY]` writes the JSON Schema and the table of keys, by default to `recipes/`."""

import sys
from pathlib import Path

from seq2seq.recipe.reference_page import write_reference

if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "recipes"
    directory.mkdir(parents=True, exist_ok=True)
    write_reference(directory)
