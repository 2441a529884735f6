"""The command line: one subcommand, one public call.

Exit codes: 0 done; 2 the user can mend it, and the message says how; 1 a defect of ours; 130 and 143 stopped by signal;
141 the reader of our output has gone. Results go to standard output, everything else to standard error.
What takes long to import (torch, sacreBLEU, the recipe's schema) is imported by the command that needs it.
"""

from __future__ import annotations

import errno
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import __version__, console
from seq2seq.errors import CorpusError, UserError
from seq2seq.options import (
    FORMAT,
    SEARCH,
    Device,
    Model,
    Overrides,
    Precision,
    PrecisionOption,
    RecipeFile,
    TextOrJson,
    TextOrLines,
    Threads,
    Workers,
    examples,
)
from seq2seq.textio import (
    Input,
    Line,
    Output,
    OutputClosed,
    blocks_of_pairs,
    not_parallel,
    reading,
    require_as_many_lines,
    through,
    writing,
)

if TYPE_CHECKING:
    from seq2seq.evaluation import Score
    from seq2seq.recipe import Recipe
    from seq2seq.translator import Translation, Translator
    from seq2seq.workers import TranslatorPool

# What no program can help: a full disk, a file or directory that may not be written.
OUTSIDE_OUR_POWER = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
# Pairs scored together: enough to sort them by length, few enough to hold any corpus.
SCORED_TOGETHER = 8192

app = typer.Typer(
    name="seq2seq", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
    help="Train translation models from recipes, translate text, evaluate with BLEU.",
    epilog="A first model: seq2seq check RECIPE, seq2seq train RECIPE, seq2seq translate runs/NAME < TEXT",
)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Options before any command."""
    if version:
        typer.echo(f"seq2seq {__version__}")
        raise typer.Exit


@app.command(epilog=examples("seq2seq check recipe.yaml",
                             "seq2seq check recipe.yaml --set data.cleaning.max_length_ratio=3 --format json"))
def check(
    recipe: RecipeFile,
    settings: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="The run whose tokenizer is used to count, if it has one.",
        show_default="runs/NAME")] = None,
    format: Annotated[TextOrJson, typer.Option(help="How to print the report.", rich_help_panel=FORMAT)] =
        TextOrJson.text,
) -> None:
    """Say what is wrong with a recipe and its data, and what training will cost. Trains nothing."""
    loaded = _load_recipe(recipe, settings)
    from seq2seq.check import inspect, show

    report = inspect(loaded, run_dir or _default_run(loaded))
    if format is TextOrJson.json:
        _print_json(report.to_dict())
    else:
        show(report)
    if report.errors:
        raise UserError("\n".join(report.errors))


@app.command(epilog=examples("seq2seq train recipe.yaml",
                             "seq2seq train recipe.yaml --set training.max_steps=500 --set seed=2 --run-dir runs/short",
                             "Run the same command again to go on with a training that was stopped."))
def train(
    recipe: RecipeFile,
    settings: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Where the run is kept. An existing run goes on.", show_default="runs/NAME")] = None,
    restart: Annotated[bool, typer.Option(
        "--restart", help="Begin anew; an existing run is moved aside, nothing is deleted.")] = False,
) -> None:
    """Train the recipe's model, or go on with its training, and measure it on the recipe's test sets."""
    loaded = _load_recipe(recipe, settings)
    run = run_dir or _default_run(loaded)
    from seq2seq import trainer

    scores = trainer.train(loaded, run, restart)
    typer.echo(_scores_as_text(scores), nl=bool(scores))
    console.say(f"the model is in {run}; translate with: seq2seq translate {shlex.quote(str(run))} FILE")


@app.command(epilog=examples("seq2seq translate runs/multi30k_de_en < test.de > test.en",
                             "seq2seq translate model test.de --output test.en --beam-size 1",
                             "seq2seq translate model test.de --n-best 3 --format jsonl",
                             "seq2seq translate model corpus.de.gz --output corpus.en --workers 8",
                             "seq2seq translate model    (and type)"))
def translate(
    model: Model,
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="A text file, one sentence a line (may end in .gz).",
        show_default="standard input")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", rich_help_panel=FORMAT, show_default="standard output",
        help="Where the translations go. The file gets its name when it is complete, until then it ends in .part.")] =
        None,
    format: Annotated[TextOrLines, typer.Option(
        help="A line of text or a JSON object for each line of input.", rich_help_panel=FORMAT)] = TextOrLines.text,
    n_best: Annotated[int, typer.Option(
        metavar="N", min=1, help="Translations of each line; more than one need --format jsonl.",
        rich_help_panel=FORMAT)] = 1,
    beam_size: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Hypotheses kept for each sentence; 1 is greedy and fastest.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    length_penalty: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="Above the recipe's for longer translations, below for shorter.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
    workers: Workers = 1,
) -> None:
    """Translate text: one line out for each line in, always.

    A line ends at a newline alone. Empty lines come back as they are; a line too long for the model is translated in
    parts, which are joined.
    """
    if n_best > 1 and format is TextOrLines.text:
        raise UserError("--n-best gives several translations of a line, but text has one line for each line of input. "
                        "Add --format jsonl.")
    with (reading(input) as lines, writing(output) as written,
          _translators(model, device, precision, threads, workers) as translator):
        decoding = _decoding(translator, beam_size, length_penalty, n_best)
        if lines.live:
            console.say("Type a line and press Enter; Ctrl-D ends.")
        with _bar("translating", lines, written) as advance:
            def translated(texts: Iterator[str]) -> Iterator[list[Translation]]:
                return translator.translate_stream(texts, 1 if lines.live else 8192, progress=advance, **decoding)

            for line, found in through(lines, translated):
                if format is TextOrLines.text:
                    written.write(found[0].text + line.ending)
                else:
                    written.write(_json_line(_translation_record(line, found, n_best)) + line.ending[-1:])


@app.command(epilog=examples("seq2seq score model test.de test.en > scores",
                             "seq2seq score model test.de test.en --format jsonl"))
def score(
    model: Model,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Text, one sentence a line.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Its translation, line by line.",
                                           show_default=False)],
    format: Annotated[TextOrLines, typer.Option(
        help="A number or a JSON object for each pair.", rich_help_panel=FORMAT)] = TextOrLines.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.fp32,
    threads: Threads = None,
) -> None:
    """Log-probability of each given translation, in nats; the end of the sentence is counted."""
    with reading(source) as sources, reading(target) as targets, writing(None) as written:
        require_as_many_lines(sources, targets)
        from seq2seq.translator import Translator

        translator = Translator.load(model, device, precision.value, threads)
        with _bar("scoring", sources, written) as advance:
            for block in blocks_of_pairs(sources, targets, SCORED_TOGETHER):
                pairs = [(one.text, other.text) for one, other in block]
                try:
                    scores = translator.score(pairs, progress=advance)
                except ValueError as error:
                    raise _too_long(translator, block, sources, targets) from error
                for (one, other), found in zip(block, scores, strict=True):
                    if format is TextOrLines.text:
                        written.write(f"{found.log_probability:.6f}\n")
                    else:
                        written.write(_json_line({
                            "line": one.number, "source": one.text, "target": other.text,
                            "log_probability": found.log_probability, "tokens": found.tokens}) + "\n")


@app.command(epilog=examples("seq2seq evaluate runs/multi30k_de_en",
                             "seq2seq evaluate model --source test.de --reference test.en",
                             "seq2seq evaluate --hypothesis theirs.en --reference test.en --reference other.en"))
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
    language: Annotated[str | None, typer.Option(
        metavar="CODE", help="With --hypothesis: the language of the files, which chooses how BLEU tells words apart.",
        show_default="en")] = None,
    format: Annotated[TextOrJson, typer.Option(help="How to print the scores.", rich_help_panel=FORMAT)] =
        TextOrJson.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
) -> None:
    """BLEU, chrF and TER, each with the signature that makes it comparable."""
    references = reference or []
    _refuse_unless_one_way(model, source, hypothesis, references, language)
    from seq2seq import evaluation

    if hypothesis is not None:
        _print_scores(evaluation.score_files(hypothesis, references, language or "en"), format)
        return
    assert model is not None, "otherwise there is a hypothesis"
    if source is not None:
        texts, *streams = [_read_lines(path) for path in (source, *references)]
        for path, stream in zip(references, streams, strict=True):              # before the work, not after it
            if len(stream) != len(texts):
                raise not_parallel(str(source), len(texts), str(path), len(stream))
        translator = _load_translator(model, device, precision, threads)
        with console.progress("translating", len(texts)) as advance:
            hypotheses = [found[0].text for found in translator.translate(texts, progress=advance)]
        scores = evaluation.corpus_scores(hypotheses, streams, translator.languages.target,
                                          names=[str(source), *map(str, references)])
        _print_scores(scores, format)
        return
    from seq2seq.checkpoint import resolve_model_path, update_bundle_metadata
    from seq2seq.errors import CheckpointError

    bundle = resolve_model_path(model)
    recipe = _recipe_with_tests(bundle)
    by_test = evaluation.evaluate_tests(_load_translator(model, device, precision, threads), recipe)
    as_values = {test: evaluation.to_dict(scores) for test, scores in by_test.items()}
    if format is TextOrJson.json:
        _print_json(as_values)
    else:
        typer.echo(_scores_as_text(by_test))
    for warning in evaluation.check_expected(by_test, recipe.expected):
        console.warn(warning)
    try:
        update_bundle_metadata(bundle, test=as_values)
    except CheckpointError as error:                                            # a model that is shared, for instance
        console.warn(f"the scores are not kept with the model: {error}")


@app.command(epilog=examples("seq2seq average runs/multi30k_de_en --last 5 --output model",
                             "seq2seq average runs/a/checkpoints/step-00002000 runs/a/checkpoints/step-00003000 "
                             "--output model"))
def average(
    models: Annotated[list[Path], typer.Argument(
        metavar="RUN_OR_CHECKPOINTS...", help="A run, or checkpoints of one run.", show_default=False)],
    output: Annotated[Path, typer.Option(
        "--output", "-o", metavar="DIR", help="The bundle that is made.", show_default=False)],
    last: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Of a run, only the newest N checkpoints.", show_default="all that it keeps")] = None,
) -> None:
    """Average the weights of checkpoints into one model."""
    from seq2seq.averaging import average_checkpoints

    steps = average_checkpoints(models, output, last)
    console.say(f"averaged {len(steps)} checkpoints, of the steps {', '.join(f'{step:,}' for step in steps)}; "
                f"translate with: seq2seq translate {shlex.quote(str(output))} FILE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. arguments: those of the process, if not given."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="seq2seq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OutputClosed:
        return 141
    except Exception as error:
        from seq2seq.run import Stopped  # not earlier: it imports the schema

        if isinstance(error, Stopped):
            print(error, file=sys.stderr)
            return error.exit_code
        if isinstance(error, OSError) and error.errno in OUTSIDE_OUR_POWER:
            print(f"{error.filename or 'A file'}: {error.strerror}. Make room or check the permissions, and run the "
                  "same command again.", file=sys.stderr)
            return 2
        traceback.print_exc()
        print("\nThis is a defect of seq2seq. Please report it with the lines above.", file=sys.stderr)
        return 1
    return 0


# Recipes


def _load_recipe(path: Path, settings: Sequence[str] | None) -> Recipe:
    from seq2seq.recipe import load_recipe

    return load_recipe(path, settings or ())


def _default_run(recipe: Recipe) -> Path:
    return Path("runs") / recipe.name


def _recipe_with_tests(bundle: Path) -> Recipe:
    """The recipe of a bundle, with test sets that exist here.

    Raises:
        UserError: it has none, or their files are elsewhere.
    """
    from seq2seq.checkpoint import BEST, RECIPE
    from seq2seq.recipe import load_recipe

    bundle = bundle.absolute()
    # A run keeps the recipe with absolute paths; a bundle's copy has them as they were written.
    of_run = bundle.parent / RECIPE
    recipe = load_recipe(of_run if bundle.name == BEST and of_run.is_file() else bundle / RECIPE, check_files=False)
    remedy = "Name other files by --source and --reference."
    if not recipe.data.test:
        raise UserError(f"the recipe of {bundle} has no test sets. {remedy}")
    files = [path for corpus in recipe.resolve().data.test.values() for path in corpus.paths]
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise CorpusError(f"the test sets of {bundle} are not on this machine: there is no file "
                          f"{', '.join(missing)}. {remedy}")
    return recipe


# Translating and scoring


def _load_translator(model: Path, device: str, precision: Precision, threads: int | None) -> Translator:
    from seq2seq.translator import Translator

    return Translator.load(model, device, precision.value, threads)


@contextmanager
def _translators(model: Path, device: str, precision: Precision, threads: int | None,
                 workers: int) -> Iterator[Translator | TranslatorPool]:
    """One translator, or several as one; says what it computes in."""
    if workers == 1:
        translator = _load_translator(model, device, precision, threads)
        console.say(f"translating in {translator.precision} on {translator.device}")
        yield translator
        return
    from seq2seq.workers import TranslatorPool

    with TranslatorPool(model, workers, device, precision.value, threads or 1) as pool:
        console.say(f"translating in {pool.precision}, {workers} workers")
        yield pool


def _decoding(translator: Translator | TranslatorPool, beam_size: int | None, length_penalty: float | None,
              n_best: int) -> dict[str, Any]:
    """What differs from the recipe's `decoding` section.

    Raises:
        UserError: the beam is too narrow.
    """
    beam = beam_size or translator.decoding.beam_size
    if n_best > beam:
        raise UserError(f"a beam of {beam} cannot give {n_best} translations. Add --beam-size {n_best}.")
    given = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best}
    return {name: value for name, value in given.items() if value is not None}


def _translation_record(line: Line, found: Sequence[Translation], n_best: int) -> dict[str, Any]:
    best = found[0]
    record = {"line": line.number, "source": line.text, "translation": best.text, "score": best.score,
              "log_probability": best.log_probability, "tokens": best.tokens, "parts": best.parts}
    if n_best > 1:
        record["n_best"] = [{"translation": one.text, "score": one.score, "log_probability": one.log_probability,
                             "tokens": one.tokens} for one in found]
    return record


@contextmanager
def _bar(description: str, lines: Input, written: Output) -> Iterator[Callable[[int], None]]:
    """Progress with lines a second, unless it would be drawn between the lines that a person reads or types."""
    if lines.live or written.terminal:
        yield lambda amount: None
        return
    began, done = monotonic(), 0
    with console.progress(description, lines.total) as bar:
        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            bar(amount, f"{done / max(monotonic() - began, 1e-9):,.0f} lines/s")

        yield advance


def _too_long(translator: Translator, block: Sequence[tuple[Line, Line]], sources: Input,
              targets: Input) -> CorpusError:
    """Which pair the model could not take."""
    most = translator.model.max_positions
    sides = ((sources.name, translator.tokenizers.source, 0), (targets.name, translator.tokenizers.target, 1))
    for pair in block:
        for name, tokenizer, side in sides:
            pieces = len(tokenizer.encode([pair[side].text])[0])
            if pieces + 1 > most:
                return CorpusError(f"{name}:{pair[side].number}: {pieces:,} pieces; the model takes {most - 1:,}. "
                                   "Leave this pair out, or cut it into sentences.")
    raise AssertionError("the model refused a pair that it has room for")


# Evaluating


def _refuse_unless_one_way(model: Path | None, source: Path | None, hypothesis: Path | None,
                           references: Sequence[Path], language: str | None) -> None:
    """Either a model, or translations that exist already."""
    if (model is None) == (hypothesis is None):
        raise UserError("name a MODEL to translate with, or --hypothesis FILE with translations; "
                        f"{'not both' if model else 'nothing was named'}.")
    if hypothesis is not None and source is not None:
        raise UserError("--source is for a MODEL to translate; --hypothesis is translated already. Leave one out.")
    if hypothesis is not None and not references:
        raise UserError("--hypothesis needs --reference FILE to be compared with.")
    if model is not None and (source is None) != (not references):
        raise UserError("--source and --reference go together; leave out both for the recipe's test sets.")
    if model is not None and language is not None:
        raise UserError("--language is for --hypothesis; a model knows its own.")


def _read_lines(path: Path) -> list[str]:
    with reading(path) as lines:
        return [line.text for line in lines]


def _print_scores(scores: dict[str, Score], format: TextOrJson) -> None:
    from seq2seq.evaluation import format_scores, to_dict

    if format is TextOrJson.json:
        _print_json(to_dict(scores))
    else:
        typer.echo(format_scores(scores))


def _scores_as_text(by_test: dict[str, dict[str, Score]]) -> str:
    from seq2seq.evaluation import format_scores

    return "\n\n".join(f"{test}\n{format_scores(scores)}" for test, scores in by_test.items())


# JSON


def _json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _print_json(values: Any) -> None:
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
