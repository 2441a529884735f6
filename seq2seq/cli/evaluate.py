"""`seq2seq evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import console
from seq2seq.cli.common import load_translator, print_json, require_code, scores_as_text
from seq2seq.cli.options import FORMAT, Device, Metric, Precision, PrecisionOption, TextOrJson, Threads, examples
from seq2seq.errors import CorpusError, UserError
from seq2seq.translation.text_io import not_parallel

if TYPE_CHECKING:
    from seq2seq.evaluation.scores import Score
    from seq2seq.recipe import Recipe

class Paired(StrEnum):
    """Significance tests for the difference of two systems."""

    bootstrap = "bootstrap"
    randomization = "randomization"


EXAMPLES = examples("seq2seq evaluate runs/multi30k_de_en",
                    "seq2seq evaluate model --source test.de --reference test.en",
                    "seq2seq evaluate --hypothesis theirs.en --reference test.en --reference other.en",
                    "seq2seq evaluate model --baseline other_model --source test.de --reference test.en",
                    "seq2seq evaluate --hypothesis ours.en --baseline theirs.en --reference test.en",
                    "seq2seq evaluate language_model --text test.en")


def evaluate(
    model: Annotated[Path | None, typer.Argument(
        metavar="MODEL", help="A bundle, or a run (its best model). Without files its recipe's test sets are used.",
        show_default=False)] = None,
    source: Annotated[Path | None, typer.Option(
        metavar="F", help="Text for the model to translate.", show_default=False)] = None,
    hypothesis: Annotated[Path | None, typer.Option(
        metavar="F", help="Translations of any system; no model is needed.", show_default=False)] = None,
    reference: Annotated[list[Path] | None, typer.Option(
        metavar="F", help="What it is compared with, line by line. May be given again.", show_default=False)] = None,
    baseline: Annotated[Path | None, typer.Option(
        metavar="MODEL_OR_F", help="Another model, or translations of another system: tells whether the difference is "
        "more than luck.", show_default=False)] = None,
    paired: Annotated[Paired | None, typer.Option(
        help="With --baseline: the test of the difference.", show_default="bootstrap")] = None,
    samples: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="With --baseline: test sets drawn, or trials.",
        show_default="1,000; of a randomization 10,000")] = None,
    text: Annotated[Path | None, typer.Option(
        metavar="F", help="Text, one sentence a line, that a language model is to give its perplexity of.",
        show_default=False)] = None,
    language: Annotated[str | None, typer.Option(
        metavar="CODE", help="With --hypothesis: the language of the files, which chooses how BLEU tells words apart.",
        show_default="en")] = None,
    metric: Annotated[list[Metric] | None, typer.Option(
        metavar="METRIC", help="What to measure: bleu, chrf, ter, or exact, the share of lines that equal their "
        "reference. May be given again.",
        show_default="bleu, chrf and ter; for a recipe's test sets its metrics")] = None,
    format: Annotated[TextOrJson, typer.Option(help="How to print the scores.", rich_help_panel=FORMAT)] =
        TextOrJson.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
) -> None:
    """BLEU, chrF and TER of translations, perplexity of a language model, each with the signature that makes it
    comparable.

    Perplexity is exp of the mean negative log-probability: among so many equally probable continuations the model
    would hesitate as much. It is given for each piece (subword of the model's vocabulary), word and character.
    """
    references = reference or []
    _refuse_unless_one_way(model, source, hypothesis, references, text, language, baseline)
    require_code("--language", language)
    if baseline is None and (paired or samples):
        raise UserError("--paired and --samples are for the comparison of two systems. Name the other by --baseline.")
    if baseline is not None and (text is not None or metric and Metric.exact in metric):
        raise UserError("--baseline compares translations by bleu, chrf and ter. Leave out --text and --metric exact.")
    if text is not None and metric:
        raise UserError(f"--metric {metric[0].value} is of translations; --text is measured by its perplexity. Leave "
                        "one of both out.")
    from seq2seq.data.corpus import read_texts
    from seq2seq.evaluation import scores as scoring

    chosen = tuple(dict.fromkeys(each.value for each in metric)) if metric else None
    metrics = chosen or scoring.METRICS
    if baseline is not None:
        test = {"metrics": metrics, "test": (paired or Paired.bootstrap).value, "samples": samples or 0}
        loading = (device, precision, threads)
        _compare(hypothesis or model, baseline, source, references, language, test, loading, format)
        return
    if hypothesis is not None:
        print_scores(scoring.score_files(hypothesis, references, language or "en", metrics), format)
        return
    assert model is not None, "otherwise there is a hypothesis"
    if text is not None:
        lines = read_texts(text)
        translator = load_translator(model, device, precision, threads)
        if translator.task.has_source:
            raise UserError(f"--text is for a language model; {model} translates. Give --source and --reference.")
        print_scores(scoring.perplexities(translator, [("", line) for line in lines]), format)
        return
    if source is not None:
        texts, *streams = [read_texts(path) for path in (source, *references)]
        for path, stream in zip(references, streams, strict=True):              # before the work, not after it
            if len(stream) != len(texts):
                raise not_parallel(str(source), len(texts), str(path), len(stream))
        translator = load_translator(model, device, precision, threads)
        with console.progress("translating", len(texts)) as advance:
            hypotheses = [found[0].text for found in translator.translate(texts, progress=advance)]
        scores = scoring.corpus_scores(hypotheses, streams, translator.languages.target, metrics,
                                          names=[str(source), *map(str, references)],
                                          precision=translator.precision)
        print_scores(scores, format)
        return
    from seq2seq.errors import CheckpointError
    from seq2seq.storage.checkpoints import resolve_model_path, update_bundle_metadata

    bundle = resolve_model_path(model)
    recipe = _recipe_with_tests(bundle)
    by_test = scoring.evaluate_tests(load_translator(model, device, precision, threads), recipe, chosen)
    as_values = {test: scoring.to_dict(scores) for test, scores in by_test.items()}
    if format is TextOrJson.json:
        print_json(as_values)
    else:
        typer.echo(scores_as_text(by_test))
    if chosen:                                                                  # not what the recipe promises
        return
    for warning in scoring.check_expected(by_test, recipe.expected):
        console.warn(warning)
    try:
        update_bundle_metadata(bundle, test=as_values)
    except CheckpointError as error:                                            # a model that is shared, for instance
        console.warn(f"the scores are not kept with the model: {error}")


def _compare(system: Path | None, baseline: Path, source: Path | None, references: Sequence[Path],
             language: str | None, test: dict[str, Any], loading: tuple[str, Precision, int | None],
             format: TextOrJson) -> None:
    """Print the scores of two systems, each a model or a file of translations, on a text or on the test sets of the
    first model's recipe."""
    from seq2seq.data.corpus import read_pairs, read_texts
    from seq2seq.evaluation.significance import compare, comparison_to_dict, format_comparison
    from seq2seq.storage.checkpoints import resolve_model_path

    assert system is not None, "otherwise there is nothing to compare"
    streams = [read_texts(path) for path in references]
    names = [str(system), str(baseline), *map(str, references)]
    tests: dict[str, tuple[list[str], list[list[str]]]] = {"": (read_texts(source) if source else [], streams)}
    if not references:
        recipe = _recipe_with_tests(resolve_model_path(system))
        tests = {}
        for name, spec in recipe.data.test.items():
            pairs = list(read_pairs(recipe, spec))
            tests[name] = ([text for _, text, _ in pairs], [[text for _, _, text in pairs]])
        names.append("the references")
    # What is there already is looked at before the work, not after it.
    files: dict[Path, list[str]] = {}
    for path in (system, baseline):
        if path.is_dir() and source is None and references:
            raise UserError(f"{path} is a model; name the text that it is to translate by --source.")
        if not path.is_dir():
            if not references:
                raise UserError(f"{path} is a file of translations; name what they are compared with by --reference.")
            files[path] = read_texts(path)
    if source is not None:
        for path, stream in [*zip(references, streams, strict=True), *files.items()]:
            if len(stream) != len(tests[""][0]):
                raise not_parallel(str(source), len(tests[""][0]), str(path), len(stream))
    made: list[dict[str, list[str]]] = []
    precisions: list[str | None] = []
    for path in (system, baseline):
        if path.is_dir():
            translator = load_translator(path, *loading)
            language = language or translator.languages.target
            precisions.append(translator.precision)
            made.append({name: [found[0].text for found in translator.translate(texts)]
                         for name, (texts, _) in tests.items()})
        else:
            made.append({"": files[path]})
            precisions.append(None)
    compared = {name: compare(made[0][name], made[1][name], streams, language or "en", names=names,
                              precisions=precisions, **test)
                for name, (_, streams) in tests.items()}
    if format is TextOrJson.json:
        by_test = {name: comparison_to_dict(found) for name, found in compared.items()}
        print_json(by_test.get("", by_test))
        return
    for name, found in compared.items():
        typer.echo((f"{name}\n" if name else "") + format_comparison(found, names[0], names[1]))


def _recipe_with_tests(bundle: Path) -> Recipe:
    """The recipe of a bundle, with test sets that exist here.

    Raises:
        UserError: it has none, or their files are elsewhere.
    """
    from seq2seq.recipe import load_recipe
    from seq2seq.storage.checkpoints import recipe_path

    bundle = bundle.absolute()
    recipe = load_recipe(recipe_path(bundle), check_files=False)
    files = "files by --source and --reference" if recipe.task.has_source else "a file by --text"
    if not recipe.data.test:
        raise UserError(f"the recipe of {bundle} has no test sets. Name {files}.")
    paths = [path for corpus in recipe.resolve().data.test.values() for path in corpus.paths]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise CorpusError(f"the test sets of {bundle} are not where its recipe looks for them: there is no file "
                          f"{', '.join(missing)}. Name {files}.")
    return recipe


def _refuse_unless_one_way(model: Path | None, source: Path | None, hypothesis: Path | None,
                           references: Sequence[Path], text: Path | None, language: str | None,
                           baseline: Path | None) -> None:
    """Either a model, or translations that exist already."""
    if (model is None) == (hypothesis is None):
        raise UserError("name a MODEL to translate with, or --hypothesis FILE with translations; "
                        f"{'not both' if model else 'nothing was named'}.")
    if hypothesis is not None and source is not None and not (baseline and baseline.is_dir()):
        raise UserError("--source is for a MODEL to translate; --hypothesis is translated already. Leave one out.")
    if hypothesis is not None and not references:
        raise UserError("--hypothesis needs --reference FILE to be compared with.")
    if text is not None and (hypothesis is not None or source is not None or references):
        raise UserError("--text is measured by a language model alone; leave the other files out.")
    if model is not None and (source is None) != (not references):
        raise UserError("--source and --reference go together; leave out both for the recipe's test sets.")
    if model is not None and language is not None:
        raise UserError("--language is for --hypothesis; a model knows its own.")


def print_scores(scores: dict[str, Score], format: TextOrJson) -> None:
    from seq2seq.evaluation.scores import format_scores, to_dict

    if format is TextOrJson.json:
        print_json(to_dict(scores))
    else:
        typer.echo(format_scores(scores))
