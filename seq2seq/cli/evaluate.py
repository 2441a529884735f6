"""`seq2seq evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import console
from seq2seq.cli.common import load_translator, print_json, print_table, require_code, scores_as_text, with_glossary
from seq2seq.cli.options import (
    FORMAT,
    Device,
    LineTag,
    Metric,
    Precision,
    PrecisionOption,
    TextOrJson,
    Threads,
    examples,
)
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import UserError
from seq2seq.files import STANDARD_INPUT

if TYPE_CHECKING:
    from seq2seq.evaluation.scores import Score
    from seq2seq.recipe import Recipe
    from seq2seq.tokenizers.source import Source
    from seq2seq.translation.translator import Translator


class Paired(StrEnum):
    """Significance tests for the difference between two systems."""

    bootstrap = "bootstrap"
    randomization = "randomization"


EXAMPLES = examples("seq2seq evaluate runs/multi30k_de_en",
                    "seq2seq evaluate model --source test.de --reference test.en",
                    "seq2seq evaluate model --recipe mine/recipe.yaml",
                    "seq2seq translate model test.de | seq2seq evaluate --hypothesis - --reference test.en",
                    "seq2seq evaluate --hypothesis theirs.en --reference test.en --reference other.en",
                    "seq2seq evaluate model --baseline other_model --source test.de --reference test.en",
                    "seq2seq evaluate --hypothesis ours.en --baseline theirs.en --reference test.en",
                    "seq2seq evaluate model --source test.de --reference test.en --glossary terms.tsv",
                    "seq2seq evaluate runs/multi30k_de_en --try decoding.length_penalty=0.6,1.0,1.4",
                    "seq2seq evaluate language_model --text test.en")


def evaluate(
    model: Annotated[Path | None, typer.Argument(
        metavar="MODEL", help="A run (its best model), or a bundle. If no files are given, a run is evaluated on the "
        "test sets of its recipe; a bundle names none.", show_default=False)] = None,
    source: Annotated[Path | None, typer.Option(
        metavar="F", help="Text for the model to translate.", show_default=False)] = None,
    hypothesis: Annotated[Path | None, typer.Option(
        metavar="F", help="Translations of any system, to score without a model; - reads standard input.",
        show_default=False)] = None,
    reference: Annotated[list[Path] | None, typer.Option(
        metavar="F", help="File of reference translations, one per line. Can be repeated.", show_default=False)] = None,
    baseline: Annotated[Path | None, typer.Option(
        metavar="MODEL_OR_F", help="Another model, or translations of another system, to compare with. Reports whether "
        "the difference is statistically significant. The test covers the choice of sentences, not the chance "
        "of training: compare several seeds.", show_default=False)] = None,
    paired: Annotated[Paired | None, typer.Option(
        help="With --baseline or --try: the significance test.", show_default="bootstrap")] = None,
    samples: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="With --baseline or --try: number of bootstrap samples or randomization trials.",
        show_default="1,000 samples or 10,000 trials")] = None,
    trials: Annotated[list[str] | None, typer.Option(
        "--try", metavar="KEY=V,V", help="Values of a key of the recipe's section decoding, to compare on the "
        "validation set, or on --source. Can be repeated; all combinations are compared.", show_default=False)] = None,
    text: Annotated[Path | None, typer.Option(
        metavar="F", help="Text, one sentence per line. The perplexity of a language model is computed on it.",
        show_default=False)] = None,
    glossary: Annotated[Path | None, typer.Option(
        metavar="F", help="Glossary for the translations of MODEL (see seq2seq translate). Adds the percentages "
        "of terms translated exactly, and of terms translated in any inflection.", show_default=False)] = None,
    language: Annotated[str | None, typer.Option(
        metavar="CODE", help="Language of the translations. It selects BLEU's tokeniser, and the output language if "
        "MODEL has several target languages.", show_default="en for --hypothesis, else the recipe's")] = None,
    metric: Annotated[list[Metric] | None, typer.Option(
        metavar="METRIC", help="Metric to compute: bleu, chrf, ter, or exact (percentage of lines that equal "
        "their reference). Can be repeated.",
        show_default="bleu, chrf and ter; on the recipe's test sets, the recipe's metrics")] = None,
    recipe: Annotated[Path | None, typer.Option(
        metavar="RECIPE", help="Recipe with the test sets.", show_default="the recipe of the run")] = None,
    tag: LineTag = None,
    format: Annotated[TextOrJson, typer.Option(help="Format of the scores.", rich_help_panel=FORMAT)] =
        TextOrJson.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.reference,
    threads: Threads = None,
) -> None:
    """Compute BLEU, chrF and TER of translations, or the perplexity of a language model.

    Every score comes with its signature: the settings that two scores must share to be comparable.

    With --try, the values are compared with those of the recipe, which stay unless another value is significantly
    better. Of twenty values, one is expected to differ significantly by chance.

    Perplexity is exp of the mean negative log-probability. A model with perplexity 20 is on average as uncertain as if
    20 continuations were equally probable. Perplexity is computed per piece (subword of the model's vocabulary), per
    word and per character.
    """
    references = reference or []
    hypothesis = STANDARD_INPUT if hypothesis == Path("-") else hypothesis
    _require_consistent_options(model, source, hypothesis, references, text, language, baseline, bool(trials))
    if recipe is not None and (model is None or source is not None or text is not None):
        raise UserError("--recipe names the test sets of a MODEL. Leave out --hypothesis, --source and --text.")
    require_code("--language", language)
    if baseline is None and not trials and (paired or samples):
        raise UserError("--paired and --samples compare two systems. Name the other system with --baseline.")
    if trials and (model is None or baseline or text or glossary or metric and (len(metric) > 1 or
                                                                                 Metric.exact in metric)):
        raise UserError("--try compares translations of a MODEL by one metric: bleu, chrf or ter. Leave out "
                        "--hypothesis, --baseline, --text and --glossary.")
    if glossary is not None and (model is None or baseline is not None or text is not None):
        raise UserError("--glossary is for the translations of a MODEL. Leave out --hypothesis, --baseline and --text.")
    if baseline is not None and (text is not None or metric and Metric.exact in metric):
        raise UserError("--baseline compares translations by bleu, chrf and ter. Leave out --text and --metric exact.")
    if tag is not None and (model is None or text is not None):
        raise UserError("--tag is for the text that a MODEL translates. Leave out --hypothesis and --text.")
    if text is not None and metric:
        raise UserError(f"--metric {metric[0].value} is for translations; --text is evaluated by perplexity. Leave one "
                        "of them out.")
    from seq2seq.data.corpus import read_texts
    from seq2seq.evaluation import scores as scoring
    from seq2seq.recipe import load_recipe

    named = None if recipe is None else load_recipe(recipe)
    chosen_metrics = tuple(dict.fromkeys(one.value for one in metric)) if metric else None
    metrics = chosen_metrics or scoring.METRICS
    test = {"test": (paired or Paired.bootstrap).value, "samples": samples or 0}
    load = partial(load_translator, device=device, precision=precision, threads=threads, tag=tag)
    if trials:
        assert model is not None, "--try was refused without a model"
        _try(model, trials, source, references, language, metric, test, load, format, named)
        return
    if baseline is not None:
        _compare(hypothesis or model, baseline, source, references, language,
                 {"metrics": metrics, "recipe": named, **test}, load, format)
        return
    if hypothesis is not None:
        print_scores(scoring.score_files(hypothesis, references, language or "en", metrics), format)
        return
    assert model is not None, "_require_consistent_options guarantees a model or a hypothesis"
    from seq2seq.documents.adherence import adherence_of, evaluate_tests_with_glossary

    if text is not None:
        lines = read_texts(text)
        translator = load(model)
        if translator.task.has_source:
            raise UserError(f"--text is for a language model; {model} translates. Give --source and --reference.")
        print_scores(scoring.perplexities(translator, [("", line) for line in lines]), format)
        return
    if source is not None:
        texts, *streams = [read_texts(path) for path in (source, *references)]
        require_as_many_lines([str(path) for path in (source, *references)], *map(len, (texts, *streams)))
        for path, lines in zip(references, streams, strict=True):
            scoring.warn_about_lines(str(path), lines, [texts, *streams])
        translator = load(model, target_language=language)
        translator = with_glossary(translator, glossary)
        scoring.announce(translator, len(texts), str(source))
        with console.progress("translating", len(texts)) as advance:
            n_best = translator.translate(texts, progress=advance)
        scoring.warn_about_unseen(str(source), n_best)
        terms = adherence_of(translator, texts, n_best) if glossary else {}
        scores = scoring.corpus_scores([best.text for best, *_ in n_best], streams, translator.languages.target,
                                       metrics, names=[str(source), *map(str, references)],
                                       precision=translator.precision)
        print_scores(scores | terms, format)
        return
    from seq2seq.errors import CheckpointError
    from seq2seq.evaluation.recipe_tests import recipe_with_tests
    from seq2seq.storage.checkpoints import append_scores, resolve_model_path

    bundle = resolve_model_path(model)
    tested = recipe_with_tests(model, named)
    translator = load(bundle)
    by_test = scoring.evaluate_tests(translator, tested, chosen_metrics) if glossary is None else \
        evaluate_tests_with_glossary(with_glossary(translator, glossary), tested, chosen_metrics)
    as_values = {test: scoring.to_dict(scores) for test, scores in by_test.items()}
    if format is TextOrJson.json:
        print_json(as_values)
    else:
        print_table(scores_as_text(by_test))
    if chosen_metrics or glossary or tag:           # scores of other metrics or translations are not checked or stored
        return
    for warning in scoring.check_expected(by_test, tested.expected):
        console.warn(warning)
    if named is None:                                                           # the text of the run
        try:
            append_scores(bundle, "test", as_values)
        except CheckpointError as error:                                        # a read-only run, for instance
            console.warn(f"the scores are not stored with the model: {error}")


def _try(model: Path, settings: Sequence[str], source: Path | None, references: Sequence[Path], language: str | None,
         metric: Sequence[Metric] | None, test: dict[str, Any], load: Callable[..., Translator],
         format: TextOrJson, named: Recipe | None) -> None:
    """Print the scores of values of the section `decoding`. For load, see `_compare`. named: recipe of --recipe."""
    from seq2seq.data.corpus import read_texts
    from seq2seq.evaluation import decoding_trials
    from seq2seq.evaluation.scores import METRICS, announce
    from seq2seq.storage.checkpoints import resolve_model_path, stored_recipe

    bundle = resolve_model_path(model)
    recipe = stored_recipe(bundle)
    trials = decoding_trials.combinations(settings, recipe.decoding)
    if not (recipe.task.has_source and recipe.task.target_is_text):
        raise UserError(f"--try compares translations; {model} does not translate.")
    chosen = metric[0].value if metric else next(
        (name for name in (recipe.training.best_metric, *recipe.measures) if name in METRICS), METRICS[0])
    if source is not None:
        texts, *streams = [read_texts(path) for path in (source, *references)]
        require_as_many_lines([str(path) for path in (source, *references)], *map(len, (texts, *streams)))
        sources: Sequence[str | Source] = texts
        target = recipe.into(language).languages.target
    else:
        sources, reference, target = decoding_trials.validation_set(model, language, named)
        streams = [reference]
    translator = load(model, target_language=language)
    announce(translator, len(sources), str(source or "the validation set"))
    found = decoding_trials.compare_options(translator, sources, streams, target, trials, chosen, **test)
    if format is TextOrJson.json:
        print_json({"metric": chosen, "pairs": len(sources), "precision": translator.precision,
                    "trials": [trial.to_dict() for trial in found],
                    "best": decoding_trials.best_of(found, chosen).options})
        return
    print_table(f"{len(sources):,} pairs of {source or 'the validation set'}, {translator.precision} on "
               f"{translator.device}\n{decoding_trials.format_trials(found, chosen)}")


def _compare(system: Path | None, baseline: Path, source: Path | None, references: Sequence[Path],
             language: str | None, test: dict[str, Any], load: Callable[..., Translator],
             format: TextOrJson) -> None:
    """Print the scores of two systems and the significance of their difference. For the arguments, see
    `compare_systems`. load: `load_translator` with the options of the command line."""
    from seq2seq.evaluation.significance import comparison_to_dict, format_comparison
    from seq2seq.evaluation.two_systems import compare_systems

    assert system is not None, "_require_consistent_options guarantees a model or a hypothesis"
    comparisons = compare_systems(system, baseline, source, references, language,
                                  partial(load, target_language=language), **test)
    if format is TextOrJson.json:
        by_test = {name: comparison_to_dict(comparison) for name, comparison in comparisons.items()}
        print_json(by_test.get("", by_test))
        return
    for name, comparison in comparisons.items():
        print_table((f"{name}\n" if name else "") + format_comparison(comparison, str(system), str(baseline)))


def _require_consistent_options(model: Path | None, source: Path | None, hypothesis: Path | None,
                                references: Sequence[Path], text: Path | None, language: str | None,
                                baseline: Path | None, trials: bool) -> None:
    """Raise UserError if the options name both a model and a file of translations, or neither; if they leave out a file
    that the evaluation needs; or if an option would have no effect."""
    if (model is None) == (hypothesis is None):
        raise UserError("name a MODEL to translate with, or --hypothesis FILE with translations; "
                        f"{'not both' if model else 'neither was given'}.")
    if hypothesis is not None and source is not None and not (baseline and baseline.is_dir()):
        raise UserError("--source is translated by a MODEL; --hypothesis is a translation already. Leave one out.")
    if hypothesis is not None and not references:
        raise UserError("--hypothesis needs --reference FILE, too.")
    if text is not None and (hypothesis is not None or source is not None or references):
        raise UserError("--text needs only a language model; leave the other files out.")
    if model is not None and (source is None) != (not references):
        raise UserError("--source and --reference must be given together; omit both to use the recipe's test sets.")
    if model is not None and source is None and language is not None and not trials:
        raise UserError("--language is for --hypothesis and --source; the recipe has the languages of its test sets.")


def print_scores(scores: dict[str, Score], format: TextOrJson) -> None:
    from seq2seq.evaluation.scores import format_scores, to_dict

    if format is TextOrJson.json:
        print_json(to_dict(scores))
    else:
        print_table(format_scores(scores))
