"""`seq2seq tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import seq2seq.cli.options as options
from seq2seq.cli.common import load_translator, print_json, print_table, refuse_without_effect, require_code
from seq2seq.errors import UserError

if TYPE_CHECKING:
    from seq2seq.tokenizers.source import Source

EXAMPLES = ("seq2seq tune runs/multi30k_de_en length_penalty=0.6,1.0,1.4",
            "seq2seq tune runs/multi30k_de_en beam_size=1,5,10 length_penalty=0.8,1.0 --metric chrf",
            "seq2seq tune model patience=1,2 --source valid.de --reference valid.en")


def tune(
    model: options.Model,
    values: Annotated[list[str], typer.Argument(
        metavar="KEY=V,V", help="Values of a key of the recipe's section decoding. Of several keys, all combinations "
        "are compared. recipes/REFERENCE.md lists the keys.", show_default=False)],
    source: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Source text of another validation set, one sentence per line.", show_default=False)] =
        None,
    reference: Annotated[list[Path] | None, typer.Option(
        metavar="FILE", help="References of this validation set, one per line. Can be repeated.",
        show_default=False)] = None,
    metric: Annotated[options.PairedMetric | None, typer.Option(
        help="Metric that is compared.", show_default="the recipe's best_metric, else bleu")] = None,
    paired: options.PairedTest = options.Paired.bootstrap,
    samples: options.Samples = None,
    language: options.Language = None,
    source_language: options.SourceLanguage = None,
    recipe: Annotated[Path | None, typer.Option(
        metavar="RECIPE", help="Recipe with the validation sets.", show_default="the recipe of the run")] = None,
    tag: options.LineTag = None,
    format: options.ReportFormat = options.TextOrJson.text,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.reference,
    threads: options.Threads = None,
) -> None:
    """Compare values of decoding options on the validation set.

    Do not choose values on a test set, whose score would then be too high. The values are compared with those of the
    recipe, which stay unless another value is significantly better. Of twenty values, one is expected to differ
    significantly by chance.
    """
    require_code("--target-language", language)
    require_code("--source-language", source_language)
    from seq2seq.evaluation import decoding_trials
    from seq2seq.evaluation.recipe_tests import read_tests
    from seq2seq.evaluation.scores import METRICS, announce
    from seq2seq.recipe import load_recipe
    from seq2seq.storage.checkpoints import resolve_model_path, stored_recipe

    stored = stored_recipe(resolve_model_path(model))
    trials = decoding_trials.combinations(values, stored.decoding)
    if not (stored.task.has_source and stored.task.target_is_text):
        raise UserError(f"tune compares translations; {model} does not translate.")
    chosen = metric.value if metric else next(
        (name for name in (stored.training.best_metric, *stored.measures) if name in METRICS), METRICS[0])
    named = None if recipe is None else load_recipe(recipe)
    sources: Sequence[str | Source]
    if reference:
        test, = read_tests([model], source, reference, language, named, source_language=source_language)
        sources, streams, target = test.sources or [], test.streams, test.languages[1]
    else:
        refuse_without_effect("the validation set is the recipe's. Name the references of other text with --reference.",
                              source=source)
        sources, streams, target = decoding_trials.validation_set(model, language, named)
    translator = load_translator(model, device, precision, threads, language, tag, source_language)
    name = str(source or "the validation set")
    announce(translator, len(sources), name)
    found = decoding_trials.compare_options(translator, sources, streams, target, trials, chosen, test=paired.value,
                                            samples=samples or 0)
    if format is options.TextOrJson.json:
        print_json({"metric": chosen, "pairs": len(sources), "precision": translator.precision,
                    "trials": [trial.to_dict() for trial in found],
                    "best": decoding_trials.best_of(found, chosen).options})
        return
    print_table(f"{len(sources):,} pairs of {name}, {translator.precision} on {translator.device}\n"
                f"{decoding_trials.format_trials(found, chosen)}")
