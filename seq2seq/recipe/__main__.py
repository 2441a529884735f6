"""`python -m seq2seq.recipe` writes the JSON Schema and the table of keys into `recipes/`."""

from pathlib import Path

from seq2seq.recipe.reference import write_reference

if __name__ == "__main__":
    write_reference(Path(__file__).parents[2] / "recipes")
