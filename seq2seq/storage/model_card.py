"""Model card: a description of a model in Markdown, with the YAML front matter that the Hugging Face hub reads.

The card is written only from the recipe, the metadata and the tensor shapes. Information that they do not contain is
left out or called unknown. The card shows only the file names of the user's paths.
Format: https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from seq2seq import __version__
from seq2seq.errors import CheckpointError
from seq2seq.languages import LANGUAGES, language_name, subtags
from seq2seq.recipe import Corpus, Recipe
from seq2seq.recipe.directions import language_token
from seq2seq.recipe.yaml_document import write_yaml
from seq2seq.storage.int8_score import Int8Score

MARK = "---\n# Written by seq2seq and renewed with the model. Remove this line to keep your changes.\n"
"""Beginning of each model card. A README.md without it belongs to the user and is never overwritten."""
HELD_OUT = "held_out"
"""Key in metadata.json: number of pairs of each validation and test corpus, by its key in the recipe's section data."""
NOT_STATED = "not stated"
TITLES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "exact": "Exact match",
          "perplexity": "Perplexity per piece", "word_perplexity": "Perplexity per word",
          "character_perplexity": "Perplexity per character"}
HUB_METRICS = {"bleu": "bleu", "chrf": "chrf", "ter": "ter", "exact": "exact_match", "perplexity": "perplexity"}
"""Name of each metric on the hub. Other metrics are only in the text of the card."""
# Identifiers of licences on the hub (https://huggingface.co/docs/hub/repositories-licenses). With any other licence,
# the front matter has `license: other` and the name.
_LICENSE_LIST = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause
bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0
cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1
lgpl-3.0 isc ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 pddl wtfpl zlib unlicense
"""
HUB_LICENSES = frozenset(_LICENSE_LIST.split())
OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "muon": "Muon for the matrices of the layers and AdamW for the rest"}
BITS = re.compile(r"\d+")
# Words that YAML 1.1 (PyYAML, which the hub's library uses) reads as booleans or null, not as text.
YAML_1_1_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
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


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model. vocabularies: size of the joint vocabulary, or sizes of the source and target vocabularies."""

    parameters: int
    bytes: int
    formats: tuple[str, ...]
    vocabularies: tuple[int, ...] = ()

    @staticmethod
    def of_tensors(shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> Sizes:
        """Return the sizes of a model. shapes: shape and safetensors dtype (F32, BF16, I64, …) of each tensor."""
        counts = {name: math.prod(shape) for name, (shape, _) in shapes.items()}
        bits = {name: int(match[0]) if (match := BITS.search(dtype)) else 8 for name, (_, dtype) in shapes.items()}
        rows = [shapes[name][0][0] for name in ("source_embedding", "target_embedding")
                if name in shapes and shapes[name][0]]
        return Sizes(sum(counts.values()), sum(count * bits[name] // 8 for name, count in counts.items()),
                     tuple(sorted({dtype.lower().replace("f32", "fp32") for _, dtype in shapes.values()})), tuple(rows))


@dataclass(frozen=True)
class Usage:
    """Parts of a model card that differ between a bundle and its exports.

    library: library that runs the model, as `library_name` on the hub. text: Markdown of the section `How to run it`.
    note: sentences about the export, empty for a bundle. lossless: False if the weights were quantised, so that the
    scores of the original are not those of the export.
    """

    library: str
    text: str
    note: str = ""
    lossless: bool = True


def model_card(recipe: Recipe, metadata: Mapping[str, Any], sizes: Sizes, usage: Usage | None = None) -> str:
    """Return the text of a README.md.

    Args:
        recipe: recipe of the model.
        metadata: fields of the model's metadata.json.
        usage: description of an export; None for a bundle.
    """
    try:
        return _model_card(recipe, metadata, sizes, usage)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError("metadata.json has a value that no model card can show "
                              f"({type(error).__name__}: {error}).") from error


def _model_card(recipe: Recipe, metadata: Mapping[str, Any], sizes: Sizes, usage: Usage | None) -> str:
    usage = usage or Usage("seq2seq", _usage(recipe))
    imported = metadata.get("imported_from")
    scores = _scores(metadata)
    sections = [
        f"# {recipe.name}: {_direction(recipe)}",
        _introduction(recipe, imported),
        usage.note,
        f"## How to run it\n\n{usage.text.strip()}",
        f"## Data\n\n{_data(recipe, metadata, imported)}",
        f"## Sizes\n\n{_sizes(recipe, metadata, sizes)}",
        f"## Training\n\n{_training(recipe, metadata, imported)}",
        f"## Scores\n\n{_score_table(scores, exported=bool(usage.note))}",
        "" if usage.note else _int8(metadata),
        f"## Limits\n\n{_limits(recipe, metadata, imported, usage)}",
        f"Written by seq2seq {__version__} from the model's recipe and metadata.",
    ]
    front = _front_matter(recipe, scores if usage.lossless else {}, usage, imported)
    return f"{MARK}{write_yaml(front)}---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def is_own_card(path: Path) -> bool:
    """Return True if a file is a model card that seq2seq may overwrite."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


# Front matter


def _front_matter(recipe: Recipe, scores: Mapping[str, Mapping[str, tuple[float, str, str]]], usage: Usage,
                  imported: Any) -> dict[str, Any]:
    """Return the front matter, without keys whose values are unknown. scores: return value of `_scores`."""
    codes = [code for each in (recipe.languages, *recipe.directions) for code in (each.source, each.target)
             if code is not None]
    known = list(dict.fromkeys(subtags(code)[0] for code in codes
                               if len(subtags(code)) == 1 and subtags(code)[0] in LANGUAGES))
    front: dict[str, Any] = {}
    if known:
        front["language"] = [_scalar(code) for code in known]
    if recipe.license is not None:
        identifier = recipe.license.lower().replace(" ", "-")
        front["license"] = _scalar(identifier if identifier in HUB_LICENSES else "other")
        if identifier not in HUB_LICENSES:
            front["license_name"] = _scalar(_one_line(recipe.license))
    front["library_name"] = usage.library
    task = _hub_task(recipe)
    if task:
        front["pipeline_tag"] = task
    front["tags"] = [*([task] if task else []), "seq2seq", recipe.model.type]
    data_sets = [] if imported else dict.fromkeys(
        name for corpus in recipe.data.train if (name := _hub_name(corpus)) is not None)
    if data_sets:
        front["datasets"] = [_scalar(name) for name in data_sets]
    results = [_result(recipe, task, test, by_metric) for test, by_metric in scores.items()] if task else []
    if results := [result for result in results if result["metrics"]]:
        front["model-index"] = [{"name": _scalar(recipe.name), "results": results}]
    return front


def _result(recipe: Recipe, task: str, test: str, by_metric: Mapping[str, tuple[float, str, str]]) -> dict[str, Any]:
    """Return the entry of a test set in `model-index`."""
    corpus = recipe.data.test.get(test)
    data_set = {"name": _scalar(_one_line(test)), "type": _scalar(_one_line(test))}
    if corpus is not None and (name := _hub_name(corpus)) is not None:
        data_set = {"name": _scalar(_label(corpus)), "type": _scalar(name)} | {
            key: _scalar(_one_line(value)) for key, value in (("config", corpus.config), ("split", corpus.split))
            if value is not None}
    return {"task": {"type": task, "name": task.replace("-", " ").capitalize()}, "dataset": data_set,
            "metrics": [{"type": HUB_METRICS[metric], "name": TITLES[metric], "value": round(value, 2)}
                        for metric, (value, _, _) in by_metric.items() if metric in HUB_METRICS]}


def _hub_task(recipe: Recipe) -> str:
    """Return the hub's name of the model's task; "" for a pointer network, whose task the hub does not have."""
    if not recipe.task.target_is_text:
        return ""
    return "translation" if recipe.task.has_source else "text-generation"


def _hub_name(corpus: Corpus) -> str | None:
    """Return the name of a corpus' data set on the hub; None if `hub` is not set, or is a path such as ./data."""
    name = corpus.hub
    return name if name is not None and re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name) else None


def _scalar(text: str) -> str:
    """Return a scalar that YAML 1.1 and YAML 1.2 read as this text: in double quotes if the plain text is ambiguous."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_/.-]*", text) and text.lower() not in YAML_1_1_WORDS:
        return text
    return DoubleQuotedScalarString(text)


# Sections


def _usage(recipe: Recipe) -> str:
    """Return the instructions to run the model of a bundle, as Markdown."""
    names = {"source": recipe.languages.source, "target": recipe.languages.target, "name": recipe.name}
    if not recipe.task.has_source:
        parts = [GENERATE]
    else:
        parts = [TRANSLATE, SERVE] if recipe.task.target_is_text else [TRANSLATE]
    return "\n\n".join([INSTALL, *(part.format(**names) for part in parts)])


def _introduction(recipe: Recipe, imported: Any) -> str:
    kind = {"transformer": "Transformer (encoder and decoder)", "rnn": "recurrent encoder-decoder with attention",
            "pointer": "pointer network", "language_model": "Transformer language model"}[recipe.model.type]
    if recipe.task.has_source:
        does = f"from {_language(recipe.languages.source)} to {_language(recipe.languages.target)}"
        does = f"that translates {does}" if recipe.task.target_is_text else f"that maps sequences {does}"
    else:
        does = f"of {_language(recipe.languages.target)}"
    origin = (f", converted by seq2seq from the model {_text(_file_name(imported))}."
              if imported else ", trained with seq2seq.")
    licence = (f"Licence of the model: {_text(recipe.license)}." if recipe.license is not None else
               f"Licence of the model: {NOT_STATED}. It does not follow from the licences of the data below.")
    return f"A {kind} {does}{origin}\n\n{licence}"


def _data(recipe: Recipe, metadata: Mapping[str, Any], imported: Any) -> str:
    if imported:
        return "The training data are unknown: the model was trained elsewhere."
    rows = [_row(corpus, "training" + _synthetic(corpus), _pairs(count))
            for corpus, count in zip(recipe.data.train, _counts(recipe, metadata), strict=True)]
    held_out = metadata.get(HELD_OUT, {})
    for key, corpus in recipe.data.held_out().items():
        use, _, name = key.partition(".")
        title = f"test: {_text(name)}" if use == "test" else "validation"
        rows.append(_row(corpus, title, f"{held_out[key]:,}" if key in held_out else "unknown"))
    unit = "pairs" if recipe.task.has_source else "lines"
    return _table(["corpus", "use", unit, "licence", "source"], rows)


def _row(corpus: Corpus, use: str, pairs: str) -> list[str]:
    licence = _text(corpus.license) if corpus.license is not None else NOT_STATED
    return [_text(_label(corpus)), use, pairs, licence, f"<{corpus.url}>" if corpus.url is not None else NOT_STATED]


def _synthetic(corpus: Corpus) -> str:
    if corpus.translated_by is None:
        return ""
    side = "sources (back-translation)" if corpus.source is None else "targets"
    models = " and ".join(_text(_model_name(model)) for model in corpus.translated_by)
    kind = "the model" if len(corpus.translated_by) == 1 else "an ensemble of"
    return f"; the {side} were generated by {kind} {models}"


def _pairs(count: Mapping[str, Any]) -> str:
    """Return "9 of 10" if 9 of 10 pairs were kept, "10" if all were kept, "unknown" if there is no count."""
    if not count:
        return "unknown"
    return f"{count['kept']:,}" if count["kept"] == count["lines"] else f"{count['kept']:,} of {count['lines']:,}"


def _sizes(recipe: Recipe, metadata: Mapping[str, Any], sizes: Sizes) -> str:
    lines = [f"- {metadata.get('parameters', sizes.parameters):,} parameters",
             f"- {sizes.bytes / 1e6:,.1f} MB of weights" + (f" ({', '.join(sizes.formats)})" if sizes.formats else "")]
    unit = "words" if recipe.tokenizer.type == "words" else "pieces"
    if len(sizes.vocabularies) == 2:
        source, target = sizes.vocabularies
        lines.append(f"- vocabularies: {source:,} {unit} of the source, {target:,} of the target")
    elif sizes.vocabularies:
        both = " for both languages" if recipe.tokenizer.joint and recipe.task.has_source else ""
        lines.append(f"- vocabulary: {sizes.vocabularies[0]:,} {unit}{both}")
    return "\n".join(lines)


def _training(recipe: Recipe, metadata: Mapping[str, Any], imported: Any) -> str:
    if imported:
        return "Unknown: the model was trained elsewhere."
    section, averaged = recipe.training, metadata.get("averaged_steps")
    unit = "words" if recipe.tokenizer.type == "words" else "tokens"
    if "adaptation" in metadata:
        share = metadata["adaptation"]["chosen"]["share"]
        steps = f"The average of these old weights ({1 - share:.0%}) and the new weights ({share:.0%})."
    elif averaged:
        steps = f"The mean of {len(averaged)} checkpoints, of steps {averaged[0]:,} to {averaged[-1]:,}."
    elif "step" in metadata:
        steps = (f"The checkpoint after step {metadata['step']:,}, selected by {section.best_metric} on the validation "
                 "set.")
    else:
        steps = "The number of steps is unknown."
    precision = "chosen for the device (`auto`)" if section.precision == "auto" else section.precision
    optimizer = (f"{OPTIMIZERS[section.optimizer]} with a peak learning rate of {section.learning_rate:g} after "
                 f"{section.warmup_steps:,} warm-up steps, then the schedule `{section.schedule}`")
    options = [f"label smoothing {section.label_smoothing:g}", f"dropout {recipe.model.dropout:g}"]
    options += [f"weight decay {section.weight_decay:g}"] if section.weight_decay else []
    options += [f"moving average of the weights with decay {section.ema_decay:g}"] if section.ema_decay else []
    start = (f"Fine-tuned from the model {_text(_model_name(section.start_from))}. " if section.start_from else "")
    return (f"{start}{steps} Each step uses at most {section.batch_tokens:,} target {unit}. Precision: {precision}. "
            f"Optimizer: {optimizer}; {', '.join(options)}. All settings are in the recipe.")


def _score_table(scores: Mapping[str, Mapping[str, tuple[float, str, str]]], exported: bool) -> str:
    if not scores:
        return "No scores on test sets are known. `seq2seq evaluate` adds them."
    rows = [[_text(test), TITLES.get(metric, _text(metric)), f"{value:.2f}", precision or "unknown",
             _text(signature) if signature else "unknown"]
            for test, by_metric in scores.items() for metric, (value, signature, precision) in by_metric.items()]
    table = _table(["test set", "metric", "score", "precision", "signature"], rows)
    return ("Scores of the original model, before the export:\n\n" if exported else "") + table


def _int8(metadata: Mapping[str, Any]) -> str:
    """Return a paragraph about the quality in int8; "" if it was not measured."""
    if (score := Int8Score.from_metadata(metadata, "metadata.json")) is None:
        return ""
    is_default = "is not the default on a CPU, because it loses too much" if score.loses_too_much else \
        "is the default on a CPU"
    return f"int8 {is_default}: {score} ({_text(score.signature)})."


def _limits(recipe: Recipe, metadata: Mapping[str, Any], imported: Any, usage: Usage) -> str:
    source, target = recipe.languages.source, recipe.languages.target
    unit = "words" if recipe.tokenizer.type == "words" else "subword pieces"
    lines = []
    if source is not None:
        directions = [f"{_language(each.source)} to {_language(each.target)}" for each in recipe.directions]
        lines.append(f"{'One direction' if len(directions) == 1 else 'Directions'}: {', '.join(directions)}."
                     + (" A source begins with the token of its target language, such as "
                        f"`{language_token(recipe.languages.target)}`"
                        + (f"; without it, the target is {_language(target)}." if usage.library == "seq2seq" else ".")
                        if len(recipe.target_languages) > 1 else ""))
    lines.append(f"Up to {recipe.data.context} sentences before each sentence of a document are taken into account."
                 if recipe.data.context else "Each line is processed by itself, without the lines around it.")
    too_long = "`seq2seq translate` splits longer lines" if recipe.task.target_is_text else "longer lines are an error"
    lines.append(f"At most {recipe.max_input_pieces:,} {unit} at once" + (f": {too_long}." if source else "."))
    if not imported:
        counts = _counts(recipe, metadata)
        if all(counts):
            pairs = "pairs" if source else "lines"
            lines.append(f"Trained on {sum(count['kept'] for count in counts):,} {pairs}. Text of other domains was "
                         "not tested, unless it is listed under Scores.")
        if any(corpus.translated_by for corpus in recipe.data.train):
            lines.append("A part of the training text was generated by a model (see Data).")
    return "\n".join(f"- {line}" for line in lines)


# Values


def _scores(metadata: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, str, str]]]:
    """Return (value, signature, precision) of each finite test score, by test set and metric."""
    return {test: {metric: (score["value"], _one_line(score.get("signature", "")), _text(score.get("precision", "")))
                   for metric, score in by_metric.items() if math.isfinite(score["value"])}
            for test, by_metric in metadata.get("test", {}).items()}


def _counts(recipe: Recipe, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the counts of each training corpus; {} for all if they are unknown."""
    counts = list(metadata.get("corpora", {}).values())
    return counts if len(counts) == len(recipe.data.train) else [{}] * len(recipe.data.train)


def _label(corpus: Corpus) -> str:
    """Return the name of a corpus without directories: its name, its data set, or its file names."""
    if corpus.name is not None:
        return _file_name(corpus.name)
    if corpus.hub is not None:
        parts = (_hub_name(corpus) or _file_name(corpus.hub), corpus.config, corpus.split)
        return " ".join(_one_line(part) for part in parts if part is not None)
    return ", ".join(_file_name(str(path)) for path in corpus.paths)


def _file_name(path: str) -> str:
    """Return the last part of a path with slashes or backslashes."""
    return _one_line(re.split(r"[/\\]", path.rstrip("/\\"))[-1])


def _model_name(path: str) -> str:
    """Return the name of a run or a bundle from its path: NAME for runs/NAME and runs/NAME/best."""
    return _file_name(re.sub(r"[/\\]best[/\\]*$", "", path))


def _direction(recipe: Recipe) -> str:
    target = _language(recipe.languages.target)
    return f"{_language(recipe.languages.source)} to {target}" if recipe.languages.source else target


def _language(code: str | None) -> str:
    """Return the name and the code of a language, or only the code if the name is unknown."""
    language, *others = subtags(code or "")
    name = language_name("-".join([language, *(part.title() if len(part) == 4 else part.upper() for part in others)]))
    return f"{name} ({code})" if language in LANGUAGES else f"{code}"


def _one_line(text: str) -> str:
    """Return the text with control characters and line ends replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in text).strip()


def _text(text: str) -> str:
    """Return the text as a Markdown paragraph or table cell that shows exactly this text."""
    escaped = re.sub(r"[\\`*\[\]<>|&~$#]", r"\\\g<0>", _one_line(text))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
