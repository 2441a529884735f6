"""`seq2seq evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import (
    load_translator,
    print_json,
    print_table,
    refuse_without_effect,
    require_code,
    require_one_standard_input,
    scores_as_text,
    with_glossary,
)
from seq2seq.errors import UserError
from seq2seq.files import STANDARD_INPUT

if TYPE_CHECKING:
    from seq2seq.evaluation.recipe_tests import TestSet
    from seq2seq.evaluation.scores import Score
    from seq2seq.translation.translator import Translator

EXAMPLES = ("seq2seq evaluate runs/multi30k_de_en",
            "seq2seq evaluate model --source test.de --reference test.en",
            "seq2seq evaluate model --recipe mine/recipe.yaml",
            "seq2seq translate model test.de --precision reference | seq2seq evaluate - --reference test.en",
            "seq2seq evaluate theirs.en --reference test.en --reference other.en",
            "seq2seq evaluate model --source test.de --reference test.en --glossary terms.tsv",
            "seq2seq evaluate model --metric perplexity --source test.de --reference test.en",
            "seq2seq evaluate language_model --reference test.en")


def evaluate(
    system: Annotated[Path, typer.Argument(
        metavar="SYSTEM", help="A run (its best model), a bundle, or a file with translations of any system; - is "
        "standard input. Without --reference, a run is evaluated on the test sets of its recipe.",
        show_default=False)],
    source: options.Source = None,
    reference: options.References = None,
    metric: Annotated[list[options.Metric] | None, typer.Option(
        metavar="METRIC", help="Metric to compute: bleu, chrf, ter, exact (percentage of lines that equal their "
        "reference), tokenized_bleu (Moses' tokeniser, compounds split, as in papers about WMT14), or the perplexity "
        "of a model on the references: perplexity (per piece), word_perplexity, character_perplexity. Can be repeated.",

        show_default="bleu, chrf and ter; of a language model, the perplexities; on test sets of a recipe, its metrics",
    )] = None,
    glossary: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Glossary for the translations of a model (see seq2seq translate). Adds the percentages "
        "of terms translated exactly, and of terms translated in any inflection.", show_default=False)] = None,
    source_language: options.SourceLanguage = None,
    language: options.Language = None,
    recipe: options.TestRecipe = None,
    tag: options.LineTag = None,
    format: options.ReportFormat = options.TextOrJson.text,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.reference,
    threads: options.Threads = None,
) -> None:
    """Score a model or a file of translations: BLEU, chrF, TER, exact matches, or perplexity.

    Every score comes with its signature: the settings that two scores must share to be comparable. To test whether two
    systems differ significantly, use seq2seq compare.

    A language model is scored by its perplexity on the text of --reference. Perplexity is exp of the mean negative
    log-probability. A model with perplexity 20 is on average as uncertain as if 20 continuations were equally probable.
    Perplexity is computed per piece (subword of the model's vocabulary), per word and per character.
    """
    require_code("--source-language", source_language)
    require_code("--target-language", language)
    references = reference or []
    metrics = tuple(dict.fromkeys(one.value for one in metric or ()))
    load = partial(load_translator, device=device, precision=precision, threads=threads, target_language=language,
                   tag=tag, source_language=source_language)
    if not references:
        if str(system) == "-" or system.is_file() and system.suffix not in (".yaml", ".yml"):
            raise UserError(f"{system} has translations; name the file of their references with --reference.")
        refuse_without_effect("the recipe names its test sets. Name the references of other text with --reference.",
                              source=source, source_language=source_language, target_language=language)
        _evaluate_on_recipe(system, recipe, metrics, glossary, load, format, tag)
        return
    refuse_without_effect("--reference names the test set.", recipe=recipe)
    if system.is_dir():
        from seq2seq.evaluation.recipe_tests import read_tests

        test, = read_tests([system], source, references, language, source_language=source_language)
        _evaluate_on_files(system, test, metrics, glossary, load, format)
        return
    refuse_without_effect(f"{system} is a translation already.", source=source, source_language=source_language,
                          glossary=glossary, tag=tag,
                          precision=None if precision is options.Precision.reference else precision,
                          device=None if device == "auto" else device, threads=threads)
    require_one_standard_input([system, *references])
    from seq2seq.evaluation.scores import METRICS, score_files

    file = STANDARD_INPUT if str(system) == "-" else system
    _print_scores(score_files(file, references, language or "en", metrics or METRICS), format)


def _evaluate_on_recipe(model: Path, recipe: Path | None, metrics: Sequence[str], glossary: Path | None,
                        load: Callable[..., Translator], format: options.TextOrJson, tag: str | None) -> None:
    """Print the scores of a model on the test sets of a recipe; None: the recipe of its run. If they are the usual
    scores of a run, compare them with those that the recipe expects, and store them. load: `load_translator` with the
    options of the command line."""
    from seq2seq.documents.adherence import evaluate_tests_with_glossary
    from seq2seq.errors import CheckpointError
    from seq2seq.evaluation.recipe_tests import recipe_with_tests
    from seq2seq.evaluation.scores import check_expected, evaluate_tests, to_dict
    from seq2seq.recipe import load_recipe
    from seq2seq.storage.checkpoints import append_scores, resolve_model_path

    bundle = resolve_model_path(model)
    tested = recipe_with_tests(model, None if recipe is None else load_recipe(recipe))
    translator = load(bundle)
    by_test = evaluate_tests(translator, tested, metrics) if glossary is None else \
        evaluate_tests_with_glossary(with_glossary(translator, glossary), tested, metrics)
    as_values = {test: to_dict(scores) for test, scores in by_test.items()}
    if format is options.TextOrJson.json:
        print_json(as_values)
    else:
        print_table(scores_as_text(by_test))
    if metrics or glossary or tag:                  # scores of other metrics or translations are not checked or stored
        return
    for warning in check_expected(by_test, tested.expected):
        console.warn(warning)
    if recipe is None:                                                          # the text of the run
        try:
            append_scores(bundle, "test", as_values)
        except CheckpointError as error:                                        # a read-only run, for instance
            console.warn(f"the scores are not stored with the model: {error}")


def _evaluate_on_files(model: Path, test: TestSet, metrics: Sequence[str], glossary: Path | None,
                       load: Callable[..., Translator], format: options.TextOrJson) -> None:
    """Print the scores of a model on a test set in files."""
    from seq2seq.documents.adherence import recording_adherence
    from seq2seq.evaluation.scores import METRICS, PERPLEXITY_UNITS, announce, score_pairs

    translator = load(model)
    if not translator.task.has_source and (test.sources or glossary):
        raise UserError(f"{model} is a language model, which reads the text of --reference alone.")
    translator = with_glossary(translator, glossary)
    metrics = metrics or (METRICS if translator.task.has_source else tuple(PERPLEXITY_UNITS))
    sources, name = test.sources or [""] * len(test.references), test.source_name or test.name
    if not PERPLEXITY_UNITS.keys() >= set(metrics):
        announce(translator, len(sources), name)
    translate, adherences = recording_adherence(translator)
    scores = score_pairs(translator, list(zip(sources, test.references, strict=True)), metrics, translate,
                         name=name, further_references=test.further_references)
    for terms in adherences:
        scores |= terms
    _print_scores(scores, format)


def _print_scores(scores: Mapping[str, Score], format: options.TextOrJson) -> None:
    from seq2seq.evaluation.scores import format_scores, to_dict

    if format is options.TextOrJson.json:
        print_json(to_dict(scores))
    else:
        print_table(format_scores(scores))
