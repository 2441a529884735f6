"""Model card: a description of a model in Markdown, with the YAML header that the Hugging Face hub reads.

The card lists what recipe, metadata and tensor shapes contain. What they do not contain is left out, and of the user's
paths, only file names are shown. Format: https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq import __version__, console
from seq2seq.errors import CheckpointError
from seq2seq.languages import LANGUAGES, canonical, language_name, main_language
from seq2seq.recipe import Corpus, Recipe
from seq2seq.recipe.data_section import HUB_ADDRESS, HUB_NAME, file_name
from seq2seq.recipe.directions import language_token
from seq2seq.storage.checkpoints import (
    HELD_OUT,
    LICENCE_OF_START,
    RECIPE,
    Shapes,
    bundle_recipe,
    load_bundle,
    resolve_model_path,
    save_bundle,
    stored_tags,
)
from seq2seq.storage.int8_score import Int8Score

HUB = "https://huggingface.co/"
TRANSLATE = """\
```bash
seq2seq translate . < text.{source} > text.{target}
```

```python
from seq2seq import Translator

for best, *_ in Translator.load(".").translate(["..."]):
    print(best.text)
```

`seq2seq --help` lists further commands: a server, evaluation, exports to other libraries."""
GENERATE = """\
```bash
seq2seq generate . --samples 5                 # new texts; --prompt TEXT continues a text
seq2seq evaluate . --reference text.{target}   # perplexity
```"""


@dataclass(frozen=True)
class Sizes:
    """Number of parameters, size of the weights in bytes, and their number formats, such as `fp32`."""

    parameters: int
    bytes: int
    formats: str

    @staticmethod
    def of_tensors(shapes: Shapes) -> Sizes:
        """Return the sizes of a model whose tensors have these shapes."""
        parameters, size = 0, 0
        formats: set[str] = set()
        for shape, dtype in shapes.values():
            bits = re.search(r"\d+", dtype)                              # F32, BF16, I64; BOOL has a byte
            parameters += math.prod(shape)
            size += math.prod(shape) * (int(bits[0]) if bits else 8) // 8
            formats.add(dtype.lower().replace("f32", "fp32"))
        return Sizes(parameters, size, ", ".join(sorted(formats)))


@dataclass(frozen=True)
class Usage:
    """Parts of a card that differ between a bundle and its exports.

    library: library that runs the model, as `library_name` on the hub. text: Markdown of the section `How to run it`.
    lossless: False if the weights were quantised, so that the scores of the original are not those of the export.
    """

    library: str
    text: str
    lossless: bool = True


@dataclass(frozen=True)
class CardScore:
    """Score in metadata.json. text: name of a test set, or `validation`. precision, signature: "" if unknown."""

    text: str
    metric: str
    value: float
    precision: str
    signature: str


def publish(path: Path, output: Path) -> None:
    """Write a model, such as the best model of a run, to a new directory, as a bundle with a card."""
    bundle = load_bundle(resolve_model_path(path))
    save_bundle(output, bundle.weights, bundle.recipe_text, bundle.tokenizer_files, bundle.metadata, bundle_card)


def bundle_card(recipe_text: str, metadata: Mapping[str, Any], shapes: Shapes) -> str:
    """Return the card of a bundle. It is the `Card` that commands give to `save_bundle`."""
    return model_card(bundle_recipe(recipe_text, Path(RECIPE), metadata), metadata, Sizes.of_tensors(shapes))


def model_card(recipe: Recipe, metadata: Mapping[str, Any], sizes: Sizes, usage: Usage | None = None) -> str:
    """Return the text of a README.md.

    Args:
        metadata: fields of the model's metadata.json.
        usage: description of an export; None for a bundle.
    """
    try:
        return _filled(recipe, metadata, sizes, usage)
    except (ArithmeticError, AttributeError, CheckpointError, KeyError, TypeError, ValueError) as error:
        console.warn("the model card shows no scores and counts, because the metadata have a value that it cannot "
                     f"show ({type(error).__name__}: {error})")
        return _filled(recipe, {}, sizes, usage)


def _filled(recipe: Recipe, metadata: Mapping[str, Any], sizes: Sizes, usage: Usage | None) -> str:
    scores = _scores(metadata)
    commands = TRANSLATE if recipe.task.has_source else GENERATE
    shown = usage or Usage("seq2seq", commands.format(source=recipe.languages.source, target=recipe.languages.target))
    sections = {
        "Model": "\n".join(f"- {name}: {value}" for name, value in _facts(recipe, metadata, sizes).items() if value),
        "How to run it": shown.text.strip(),
        "Data": _table(["corpus", "use", "pairs" if recipe.task.has_source else "lines", "licence", "source"],
                       _data(recipe, metadata)),
        "Scores before the export" if usage else "Scores": _table(
            ["text", "metric", "score", "precision", "signature"],
            [[_text(score.text), _text(score.metric), f"{score.value:.2f}", _text(score.precision),
              _text(score.signature)] for score in scores])}
    return "\n\n".join([
        f"---\n{_header(recipe, scores if shown.lossless else [], shown.library)}---", f"# {recipe.name}",
        *(f"## {title}\n\n{section}" for title, section in sections.items() if section),
        f"Written by seq2seq {__version__} from the model's recipe and metadata."]) + "\n"


def _header(recipe: Recipe, scores: Sequence[CardScore], library: str) -> str:
    """Return the YAML of the header; "" if the hub's library, which writes it, is not installed."""
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError:
        return ""
    task = "text-generation" if not recipe.task.has_source else "translation" if recipe.task.target_is_text else "other"
    codes = [main_language(canonical(code)) for each in recipe.directions for code in each.codes]
    fields: dict[str, Any] = {
        "language": [code for code in dict.fromkeys(codes) if code in LANGUAGES], "library_name": library,
        "pipeline_tag": task, "tags": ["seq2seq", recipe.model.type],
        "datasets": [name for name in dict.fromkeys(map(_hub_name, recipe.data.train)) if name]}
    if recipe.license is not None:
        licence = _one_line(recipe.license)
        if re.fullmatch(r"[a-z0-9.+-]+", licence):                      # an identifier of the hub, such as cc-by-4.0
            fields["license"] = licence
        else:
            fields |= {"license": "other", "license_name": licence}
    if tests := [score for score in scores if score.text in recipe.data.test]:
        fields["model_name"] = recipe.name
        fields["eval_results"] = [
            EvalResult(task_type=task, dataset_type=score.text, dataset_name=score.text,
                       metric_type="exact_match" if score.metric == "exact" else score.metric,
                       metric_value=round(score.value, 2)) for score in tests]
    return ModelCardData(**{key: value for key, value in fields.items() if value}).to_yaml() + "\n"


def _facts(recipe: Recipe, metadata: Mapping[str, Any], sizes: Sizes) -> dict[str, str]:
    """Return the rows of the section `Model`; unknown values are ""."""
    targets, tags = recipe.target_languages, dict.fromkeys((*recipe.tags, *stored_tags(metadata)))
    step, adaptation = metadata.get("step"), metadata.get("adaptation")
    int8 = Int8Score.from_metadata(metadata, "metadata.json")
    trained_from, imported_from = metadata.get("trained_from"), metadata.get("imported_from")
    licence_of_start = metadata.get(LICENCE_OF_START)
    return {
        "languages": ", ".join(" to ".join(map(_language, filter(None, each.codes))) for each in recipe.directions),
        "token at the beginning of a source, by target language": ", ".join(
            f"`{language_token(target)}`" for target in targets) if len(targets) > 1 else "",
        "tags of sources": ", ".join(map(_text, tags)),
        "licence": _text(recipe.license) if recipe.license else "not stated",
        "type": recipe.model.type,
        "parameters": f"{metadata.get('parameters', sizes.parameters):,}",
        "weights": f"{sizes.bytes / 1e6:,.1f} MB ({sizes.formats})",
        "maximum length": f"{recipe.max_input_pieces:,} {'words' if recipe.tokenizer.type == 'words' else 'pieces'}",
        "preceding sentences that are read": f"{recipe.data.context or ''}",
        "imported from": _origin(imported_from) if imported_from else "",
        "trained from": _text(file_name(trained_from)) if trained_from else "",
        "licence of the model that it was trained from": _text(licence_of_start) if licence_of_start else "",
        "checkpoint": f"step {step:,}" if step is not None else "",
        "averaged checkpoints": ", ".join(f"step {each:,}" for each in metadata.get("averaged_steps", [])),
        "adaptation": f"{adaptation['chosen']['share']:.0%} new weights" if adaptation else "",
        "int8": _text(str(int8)) if int8 else ""}


def _origin(imported_from: str) -> str:
    """Return the name of an imported model; if it is on the hub, with the address of its card."""
    on_hub = "/" in imported_from and HUB_NAME.fullmatch(imported_from)
    return f"<{HUB}{imported_from}>" if on_hub else _text(file_name(imported_from))


def _data(recipe: Recipe, metadata: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the section `Data`. The corpora of an imported model are not known."""
    if "imported_from" in metadata:
        return []
    counts = [f"{count['kept']:,} of {count['lines']:,}" for count in metadata.get("corpora", {}).values()]
    if len(counts) != len(recipe.data.train):
        counts = [""] * len(recipe.data.train)
    used = [(corpus, "train", count) for corpus, count in zip(recipe.data.train, counts, strict=True)]
    held_out = metadata.get(HELD_OUT, {})
    for key, corpus in recipe.data.held_out().items():
        used.append((corpus, key, f"{held_out[key]:,}" if key in held_out else ""))
    named = [(corpus.for_bundle(), use, count) for corpus, use, count in used]
    return [[_text(str(corpus.name)), _text(use), count, _text(corpus.license or ""),
             f"<{corpus.url}>" if corpus.url else ""]
            for corpus, use, count in named]


def _scores(metadata: Mapping[str, Any]) -> list[CardScore]:
    """Return the scores on the validation set, which has its loss, too, and on the test sets."""
    validation = {metric: score for metric, score in metadata.get("validation", {}).items() if metric != "loss"}
    return [CardScore(_one_line(text), _one_line(metric), score["value"], score.get("precision", ""),
                      score.get("signature", ""))
            for text, by_metric in [("validation", validation), *metadata.get("test", {}).items()]
            for metric, score in by_metric.items() if math.isfinite(score["value"])]


# Text


def _hub_name(corpus: Corpus) -> str:
    """Return the name of a corpus' data set on the hub; "" if there is none."""
    address = corpus.for_bundle().url or ""
    return address.removeprefix(HUB_ADDRESS) if address.startswith(HUB_ADDRESS) else ""


def _language(code: str) -> str:
    return f"{language_name(canonical(code))} ({code})"


def _one_line(text: str) -> str:
    """Return the text with control characters and line ends replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in text).strip()


def _text(text: str) -> str:
    """Return the text as a Markdown paragraph or table cell that shows exactly this text."""
    escaped = re.sub(r"[\\`*\[\]<>|&~$#]", r"\\\g<0>", _one_line(text))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; "" if it has no rows."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""
