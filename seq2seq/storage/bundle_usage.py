"""The section of a model card that says how to run the model of a bundle."""

from __future__ import annotations

from seq2seq.recipe import Recipe

INSTALL = "The commands below need seq2seq. Run them in this directory."
TRANSLATE = """\
On the command line:

```bash
seq2seq translate . < text.{source} > text.{target}
```

In Python:

```python
from seq2seq import Translator

translator = Translator.load(".")
for best, *_ in translator.translate(["..."]):
    print(best.text)
```"""
SERVE = """\
As a server with LibreTranslate's interface, and a page for browsers:

```bash
seq2seq serve . &
curl -d q='...' -d source={source} -d target={target} http://127.0.0.1:5000/translate
```

In CTranslate2, Hugging Face's `transformers` or Argos Translate. Each command compares its export with this model
on the lines of `--source`. If the other library does not support this model, the command fails and gives the reason:

```bash
seq2seq export . --to ctranslate2 --source text.{source} --output ../{name}-ctranslate2
seq2seq export . --to huggingface --source text.{source} --output ../{name}-huggingface
seq2seq export . --to argos --source text.{source} --output ../{name}.argosmodel
```"""
GENERATE = """\
```bash
seq2seq generate . --samples 5                 # new texts; --prompt TEXT continues a text
seq2seq evaluate . --text text.{target}        # perplexity
```"""


def bundle_usage(recipe: Recipe) -> str:
    """Return the instructions for the type of the model, as Markdown."""
    names = {"source": recipe.languages.source, "target": recipe.languages.target, "name": recipe.name}
    if not recipe.task.has_source:
        parts = [GENERATE]
    else:
        parts = [TRANSLATE, SERVE] if recipe.task.target_is_text else [TRANSLATE]
    return "\n\n".join([INSTALL, *(part.format(**names) for part in parts)])
